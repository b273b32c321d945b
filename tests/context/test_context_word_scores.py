"""Scores of words made of pieces, by enumeration: corrected, the words after a context have one in all."""

from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from backstory.config import EmbeddingConfig, LSTMConfig, ModelConfig
from backstory.context import Folded, WordScorer, fold
from backstory.context.examined_text import WholeReading
from backstory.context.scorer import Prefixes, ReaderScorer
from backstory.data import Boundaries, Vocabulary, build, encode_split, word_nats
from backstory.data.tokenizers.built_in import tokenizer
from backstory.data.tokenizers.pieces import Pieces
from backstory.models import build_model
from backstory.readers import StaticReader
from backstory.readers.neural_cache import CacheSettings, NeuralCache
from backstory.utils.errors import UserError

hf = pytest.importorskip("tokenizers", reason="needs the extra hf")


def pieces(kind: str) -> Vocabulary:
    """A vocabulary of seven or eight pieces that marks words in this way."""
    pre, decoders = hf.pre_tokenizers, hf.decoders
    if kind == "blank first, bytes":
        words, parts = ["a", "b", "Ġ", "Ċ", "Ġa", "Ġb"], (pre.ByteLevel(add_prefix_space=False), decoders.ByteLevel())
    elif kind == "blank first":
        words, parts = ["a", "b", "▁", "▁a", "▁b"], (pre.Metaspace(), decoders.Metaspace())
    elif kind == "blank last":
        words, parts = ["a", "b", "a</w>", "b</w>"], (pre.WhitespaceSplit(), decoders.BPEDecoder(suffix="</w>"))
    else:
        words, parts = ["a", "b", "##a", "##b"], (pre.WhitespaceSplit(), decoders.WordPiece(cleanup=False))
    model = hf.Tokenizer(hf.models.BPE({word: i for i, word in enumerate(words)}, []))
    model.pre_tokenizer, model.decoder = parts
    model.add_special_tokens(["<eos>"])
    return build({}, Pieces("tokenizer.json", model.to_str()))


KINDS = {
    "blank first, bytes": (["Ġ", "Ċ", "Ġa", "Ġb", "<eos>"], ["Ġ", "Ċ", "<eos>"]),
    "blank first": (["▁", "▁a", "▁b", "<eos>"], ["▁", "<eos>"]),
    "blank last": (["<eos>"], ["a</w>", "b</w>", "<eos>"]),
    "marked inside": (["a", "b", "<eos>"], ["<eos>"]),
}
"""The pieces that begin words, and those that every piece begins a word after."""


def boundaries_of(vocabulary: Vocabulary) -> Boundaries:
    found = vocabulary.boundaries
    assert found is not None
    return found


@pytest.fixture(params=KINDS)
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return pieces(request.param)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_seen_from_a_tokenizer_how_it_marks_words(kind: str) -> None:
    vocabulary = pieces(kind)
    found = boundaries_of(vocabulary)
    assert (vocabulary.tokens(np.flatnonzero(found.begins)), vocabulary.tokens(np.flatnonzero(found.closed))) == KINDS[
        kind
    ]


def test_characters_and_bytes_mark_words_by_white_space() -> None:
    for name in ("characters", "bytes"):
        vocabulary = build(dict.fromkeys("ab \n\té", 1), tokenizer(name))
        found = boundaries_of(vocabulary)
        blank = [word for word in vocabulary.words if word.isascii() and word.isspace()]
        assert vocabulary.tokens(np.flatnonzero(found.begins)) == blank
        assert vocabulary.tokens(np.flatnonzero(found.closed)) == blank
    assert build({"a": 1}, tokenizer("words")).boundaries is None


def reader(types: int) -> StaticReader:
    torch.manual_seed(0)
    model = build_model(ModelConfig(EmbeddingConfig(7), LSTMConfig(hidden=9)), types).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    return StaticReader(model)


def log_probs(model: Any, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        prediction, _ = model(torch.tensor([ids]), model.start(1))
        return prediction.log_probs()[0].numpy()


def words_after(begins: np.ndarray, closed: np.ndarray, last: int, most: int) -> Iterator[tuple[int, ...]]:
    """Every word of at most so many pieces that may come after a piece, and every beginning of one that is longer."""
    firsts = range(len(begins)) if closed[last] else np.flatnonzero(begins).tolist()
    for count in range(1, most + 1):
        for word in product(firsts, *[range(len(begins))] * (count - 1)):
            if all(not begins[piece] and not closed[before] for before, piece in pairwise(word)):
                yield word


@pytest.mark.parametrize("last", [0, 3])
def test_the_words_after_a_context_have_one_in_all(vocabulary: Vocabulary, last: int) -> None:
    found, types, most = boundaries_of(vocabulary), len(vocabulary), 4
    source = reader(types)
    context = np.array([1, 2, last])
    words = list(words_after(found.begins, found.closed, last, most))
    if not words:
        pytest.skip("no word ends with this piece")
    known = [context, *map(np.array, words)]
    targets = np.arange(1, len(known))
    contexts = [np.array([0])] * len(words)
    corrected = WordScorer(ReaderScorer(source), known, boundaries=found).score(contexts, targets)
    # What is left is the mass of words that go on beyond so many pieces.
    begin = log_probs(source.model, context.tolist())[-1]
    whole = 1.0 if found.closed[last] else np.exp(begin[found.begins]).sum()
    rest = 0.0
    for word in (word for word in words if len(word) == most and not found.closed[word[-1]]):
        table = log_probs(source.model, [*context.tolist(), *word])
        start = sum(table[len(context) - 1 + i, piece] for i, piece in enumerate(word))
        rest += np.exp(start + np.log(np.exp(table[-1][~found.begins]).sum())) / whole
    assert np.exp(corrected).sum() + rest == pytest.approx(1.0, abs=1e-9)
    # Each by its formula, too.
    for word, score in zip(words[:40], corrected, strict=False):
        table = log_probs(source.model, [*context.tolist(), *word])
        plain = sum(table[len(context) - 1 + i, piece] for i, piece in enumerate(word))
        after = 0.0 if found.closed[word[-1]] else np.log(np.exp(table[-1][found.begins]).sum())
        assert score == pytest.approx(plain + after - np.log(whole), abs=1e-9)


class Markov:
    """Inside a word the next begins almost for sure; after the first piece of a word it goes on more often than not."""

    def __init__(self, found: Boundaries) -> None:
        begins = found.begins
        row = lambda mass: np.where(begins, mass / begins.sum(), (1 - mass) / (~begins).sum())  # noqa: E731
        self.table = np.log(np.stack([row(0.4 if first else 0.95) for first in begins]))

    def score(self, contexts: Any, targets: np.ndarray, progress: object = None) -> np.ndarray:
        return np.array([self.table[c[-1], t] for c, t in zip(contexts, targets, strict=True)])

    def score_prefixes(self, prefixes: Prefixes, progress: object = None) -> tuple[np.ndarray, np.ndarray]:
        last = np.array([prefixes.texts[t][n - 1] for t, n in zip(prefixes.of, prefixes.lengths, strict=True)])
        scores = np.where(prefixes.targets >= 0, self.table[last, prefixes.targets], 0.0)
        masses = np.logaddexp.reduce(self.table[last][:, prefixes.members], 1) if len(prefixes.members) else scores
        return scores, np.where(prefixes.with_mass, masses, 0.0)


@pytest.mark.parametrize("kind", ["blank first, bytes", "blank first", "marked inside"])
def test_plain_sums_come_to_more_than_one(kind: str) -> None:
    found = boundaries_of(pieces(kind))
    inside = int(np.flatnonzero(~found.begins)[0])
    words = list(words_after(found.begins, found.closed, inside, 5))
    known, targets = [np.array([inside]), *map(np.array, words)], np.arange(1, len(words) + 1)
    contexts = [np.array([0])] * len(words)
    plain = WordScorer(Markov(found), known).score(contexts, targets)
    corrected = WordScorer(Markov(found), known, boundaries=found).score(contexts, targets)
    assert np.exp(plain).sum() > 1.1
    # What is missing are longer words: of five pieces that are not the first, all but one in 20^4 end.
    assert np.exp(corrected).sum() == pytest.approx(1.0, abs=1e-4)


def test_where_the_blank_comes_last_the_plain_sum_is_right() -> None:
    vocabulary = pieces("blank last")
    found, source = boundaries_of(vocabulary), reader(len(vocabulary))
    known = [np.array(word) for word in ([2], [0, 3], [1, 0, 2])]
    contexts, targets = [np.array([0]), np.array([2, 1])], np.array([1, 2])
    scorer = ReaderScorer(source)
    assert_allclose(
        WordScorer(scorer, known, boundaries=found).score(contexts, targets),
        WordScorer(scorer, known).score(contexts, targets),
        atol=1e-12,
    )


# --- over a text ---

TEXT = "a bb  ab b\nba a aab\n\nb abba a b"


def folded(word_score: Any = "corrected", text: str = TEXT) -> tuple[Vocabulary, Folded, np.ndarray]:
    vocabulary = pieces("blank first, bytes")
    split = encode_split(vocabulary, text)
    found = fold(vocabulary, split, word_score=word_score)
    assert found is not None and found.word_score == word_score
    return vocabulary, found, split.ids


@pytest.mark.parametrize("make", [lambda r: r, lambda r: NeuralCache(r, CacheSettings(window=9, weight=0.3))])
@pytest.mark.parametrize("text", [TEXT, TEXT + "\n"])
def test_over_a_text_only_the_ends_differ(make: Callable[[Any], Any], text: str) -> None:
    vocabulary, words, ids = folded(text=text)
    source = make(reader(len(vocabulary)))
    both = source.inner is not None
    corrected = WholeReading(source, ids, vocabulary.start, None, words, with_inner=both)(lambda tokens: None)
    _, plain_words, _ = folded("sum", text)
    plain = WholeReading(source, ids, vocabulary.start, None, plain_words, with_inner=both)(lambda tokens: None)
    assert corrected.shape == plain.shape == (2 if both else 1, len(words.ids))
    difference = (corrected - plain).sum(1)
    if text.endswith("\n"):  # both ends are certain
        assert_allclose(difference, 0, atol=1e-9)
    else:
        assert (difference > 0.01).all()
    if not both and not text.endswith("\n"):
        found = boundaries_of(vocabulary)
        table = log_probs(source.model, [vocabulary.start, *ids.tolist()])
        assert_allclose(difference, -np.log(np.exp(table[-1][found.begins]).sum()), atol=1e-9)
    assert np.abs(corrected - plain).max() > 0.01


def test_a_text_read_whole_scores_as_its_words_do_after_all_before_them() -> None:
    vocabulary, words, ids = folded()
    source = reader(len(vocabulary))
    whole = WholeReading(source, ids, vocabulary.start, None, words)(lambda tokens: None)[0]
    scorer = WordScorer(ReaderScorer(source), words.pieces, boundaries=words.boundaries)
    contexts = [np.concatenate([[words.start], words.ids[:i]]) for i in range(len(words.ids))]
    assert_allclose(-scorer.score(contexts[1:], words.ids[1:]), whole[1:], atol=1e-9)


@pytest.mark.parametrize("documents", [None, np.array([0, 4, 9])])
def test_rows_and_documents_have_boundaries_of_their_own(documents: np.ndarray | None) -> None:
    vocabulary, words, ids = folded()
    source = reader(len(vocabulary))
    nats = WholeReading(source, ids, vocabulary.start, documents, words)(lambda tokens: None)[0]
    ends = [0, len(words.ids)] if documents is None else [*documents.tolist(), len(words.ids)]
    for first, last in pairwise(ends):
        stop = words.starts[last] if last < len(words.starts) else len(ids)
        part, begin = ids[words.starts[first] : stop], words.starts[first]
        found = boundaries_of(vocabulary)
        table = log_probs(source.model, [vocabulary.start, *part.tolist()])
        mass = np.log(np.exp(table[:, found.begins]).sum(1))
        starts = words.starts[first:last] - begin
        mass[~found.uncertain(part, starts)] = 0
        expected = word_nats(-table[np.arange(len(part)), part], mass, starts)
        assert_allclose(nats[first:last], expected, atol=1e-9)
    if documents is None:
        rows = WholeReading(source, ids, vocabulary.start, None, words, batch_size=2, before=len(words.ids) - 4)
        found = rows(lambda tokens: None)[0]
        assert found.shape == nats.shape
        assert_allclose(found[: len(words.ids) - 2], nats[: len(words.ids) - 2], atol=1e-9)


def test_a_word_that_is_impossible_stays_so() -> None:
    nats = np.array([np.inf, 1.0, 2.0])
    assert word_nats(nats, np.array([-np.inf, 0.0, -0.5, 0.0]), np.array([0, 2])).tolist() == [np.inf, 1.5]


def test_a_scorer_that_tells_no_mass_takes_the_plain_sum() -> None:
    class Uniform:
        def score(self, contexts: Any, targets: np.ndarray, progress: object = None) -> np.ndarray:
            return np.full(len(targets), -1.0)

    with pytest.raises(UserError, match="take the word score sum"):
        WordScorer(Uniform(), [np.array([0])], boundaries=boundaries_of(pieces("blank first")))
    assert WordScorer(Uniform(), [np.array([0, 1])]).score([np.array([0])], np.array([0])).tolist() == [-2.0]


def test_a_word_that_a_window_cuts_is_scored_with_what_fits() -> None:
    vocabulary = pieces("blank first, bytes")
    found, source = boundaries_of(vocabulary), reader(len(vocabulary))
    known = [np.array([4, 0]), np.array([5, 1, 1])]
    scorer = WordScorer(ReaderScorer(source), known, 3, found)
    (score,) = scorer.score([np.array([0, 0])], np.array([1]))
    read = [4, 0, 4, 0, 5, 1, 1]
    tables = [log_probs(source.model, read[end - 3 : end])[-1] for end in range(4, 8)]
    expected = sum(table[piece] for table, piece in zip(tables, read[4:], strict=False))
    mass = [np.log(np.exp(table[found.begins]).sum()) for table in (tables[0], tables[-1])]
    assert score == pytest.approx(expected + mass[1] - mass[0], abs=1e-9)
