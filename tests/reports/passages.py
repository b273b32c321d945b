"""Made-up passages with every kind of layer."""

from backstory.results import Candidates, Numbers, Passage, Weights, Word

WORDS = ("Kim", "said", "<b>", "¶", "Kim", "left")


def passage() -> Passage:
    words = tuple(Word(text, "\n\n" if i == 4 else " ") for i, text in enumerate(WORDS))
    surprisal = Numbers("sequential", "surprisal", (9.0, 2.5, 8.0, 0.1, None, 4.0), "nats", 0.0, 8.0, note="Of <all>.")
    gain = Numbers("diverging", "gain over b", (-1.0, 0.5, 0.0, 2.0, -0.02, None), "nats", -1.0, 1.0)
    rank = Numbers("plain", "rank", (1.0, 2.0, 1234.0, 4.0, 5.0, 6.0), digits=0)
    back = Weights("attention", ((), ((0, 1.0),), ((0, 0.25), (1, 0.75)), (), ((0, 0.9), (2, 0.05)), ((4, 0.5),)), 1.0)
    lists = tuple({"model": (("the", 0.5), (word, 0.0004)), "buffer": (("Kim", 0.9),)} for word in WORDS)
    return Passage(words, (surprisal, gain, rank, back, Candidates("expected", lists)), "A <passage>", "A <note>.")


def led() -> Passage:
    """Two words that lead up to three others, the second of which is chosen."""
    words = tuple(Word(text, "\n" if text == "b" else " ") for text in "abcde")
    gate = Numbers("sequential", "gate", (None, None, 10.0, 50.0, 0.0), "%", 0.0, 100.0, 1)
    back = Weights("attention", ((), (), (), ((0, 0.25), (1, 0.25), (2, 0.75)), ((1, 0.5), (2, 0.5))), 1.0)
    lists = ({}, {}, {}, {"buffer": (("d", 0.5),), "model": (("e", 0.25), ("d", 0.1))}, {})
    return Passage(words, (back, gate, Candidates("expected", lists)), "Led", chosen=3)
