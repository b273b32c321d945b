"""Tokens become words without a gap, whatever the tokenizer, and together they are the text."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from backstory.data import Vocabulary, build, encode_split, tokenizer, word_numbers
from backstory.data.tokenizers.built_in import BUILT_IN, END
from backstory.explanations.explained_text import BLANK, LONGEST, MARK, shown, words_of

TEXT = "Ann saw (two) jars,  and\nBob — naïve as ever — took 3.5 more.\n\nThe end of it\n"


def test_a_token_of_white_space_is_a_sign_that_can_be_seen() -> None:
    characters, words = vocabulary("characters", " \t\na"), vocabulary("words", "ann saw\n")
    assert [shown(characters, characters.index[token]) for token in " \t\na"] == [BLANK, BLANK, MARK, "a"]
    assert [shown(words, words.index[token]) for token in ("ann", END)] == ["ann", MARK]


def test_a_piece_is_shown_as_its_text(pieces: str) -> None:
    of_bytes = vocabulary(pieces, TEXT)
    ids = of_bytes.encode("Ann saw (two) jars,  and\nBob took 3.5 more.\n")
    signs = [shown(of_bytes, int(i)) for i in ids]
    assert "".join(signs) == "Ann␣saw␣(two)␣jars,␣␣and¶Bob␣took␣3.5␣more.¶" and not any("Ġ" in sign for sign in signs)
    assert shown(of_bytes, of_bytes.index["Ã"]) == r"\xc3"  # half a character has no text


def vocabulary(name: str, text: str) -> Vocabulary:
    chosen = tokenizer(name)
    counts = {token: 1 for token in chosen.split(text)}
    return build(counts, chosen)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A byte-level BPE of a few hundred pieces."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    path: Path = tmp_path_factory.mktemp("pieces") / "tokenizer.json"
    made.save(str(path))
    return str(path)


def together(found: list) -> str:
    return "".join(span.word.before + span.word.text for span in found)


def test_a_word_is_a_token_where_tokens_are_words() -> None:
    words = vocabulary("regex", TEXT)
    found = words_of(words, words.encode(TEXT), 100)
    assert [(s.start, s.end) for s in found] == [(i, i + 1) for i in range(len(found))]
    assert [s.word.text for s in found[:9]] == ["Ann", "saw", "(", "two", ")", "jars", ",", "and", "Bob"]
    assert [s.word.before for s in found[1:7]] == [" ", " ", "", "", " ", ""]
    marks = [i for i, s in enumerate(found) if s.word.text == MARK]
    assert len(marks) == 2 and found[marks[0] + 1].word.before == "\n\n"


def test_lines_of_the_words_tokenizer() -> None:
    words = vocabulary("words", "a b\nc <unk>\n")
    found = words_of(words, words.encode("a b\nc <unk>\n"), 100)
    assert [(s.word.before, s.word.text) for s in found[1:]] == [
        (" ", "b"),
        (" ", MARK),
        ("\n", "c"),
        (" ", "<unk>"),
        (" ", MARK),
    ]


@pytest.mark.parametrize("name", ["characters", "bytes", "pieces"])
def test_smaller_tokens_fold_into_words(name: str, pieces: str) -> None:
    words = vocabulary(pieces if name == "pieces" else name, TEXT)
    ids = words.encode(TEXT)
    found = words_of(words, ids, 1000)
    assert [s.word.text for s in found if s.word.text != "␣"] == TEXT.split()
    assert together(found).rstrip("␣").rstrip() == TEXT.rstrip()
    assert found[0].start == 0 and found[-1].end == len(ids)
    assert all(a.end == b.start for a, b in pairwise(found))


@given(
    text=st.text(st.sampled_from("ab é\n€　,😀"), min_size=1, max_size=60),
    name=st.sampled_from(["characters", "bytes"]),
)
def test_no_token_is_lost(text: str, name: str) -> None:
    words = vocabulary(name, text)
    found = words_of(words, words.encode(text), 1000)
    assert [i for s in found for i in range(s.start, s.end)] == list(range(len(words.encode(text))))
    assert "".join(together(found).replace("␣", "").split()) == "".join(text.split())


@given(most=st.integers(1, 20))
def test_the_first_words_only(most: int) -> None:
    words = vocabulary("characters", TEXT)
    ids = words.encode(TEXT)
    assert words_of(words, ids, most) == words_of(words, ids, 1000)[:most]


def test_a_script_without_spaces_is_cut() -> None:
    text = "語" * 100
    words = vocabulary("characters", text)
    assert [len(s.word.text) for s in words_of(words, words.encode(text), 1000)] == [LONGEST, LONGEST, LONGEST, 4]


def test_white_space_does_not_cut_the_word_after_it() -> None:
    words = vocabulary("characters", "ab ")
    assert [s.word.text for s in words_of(words, words.encode("a" + " " * 2 * LONGEST + "ab"), 1000)] == ["a", "ab"]


def test_bytes_that_are_no_text_are_kept() -> None:
    words = build({}, BUILT_IN["bytes"])
    found = words_of(words, np.array([0xFF, 0x61, 0x20, 0xC3, 0xA9, 0xC3]), 10)
    assert [(s.start, s.end) for s in found] == [(0, 2), (2, 6)]
    assert [s.word.text for s in found] == ["\ufffda", "é\ufffd"]


@pytest.mark.parametrize("name", ["characters", "bytes", "pieces"])
@given(text=st.text(st.sampled_from("ab é\n€,s "), min_size=1, max_size=60))
def test_words_are_those_that_figures_of_tokens_are_summed_by(name: str, pieces: str, text: str) -> None:
    """But that here a line end is the white space before the next word."""
    words = vocabulary(pieces if name == "pieces" else name, "ab é\n€,s ")
    split = encode_split(words, text)
    numbers, spelled = list(word_numbers(words, split)), BUILT_IN["words"].split(text)
    of_token = [j for j, span in enumerate(words_of(words, split.ids, 1000)) for _ in range(span.start, span.end)]
    spans_of = {n: {j for j, m in zip(of_token, numbers, strict=True) if m == n} for n in set(numbers)}
    if max(map(len, spelled)) < LONGEST:
        assert all(len(found) == 1 for found in spans_of.values())
    line_ends = {n for n, word in enumerate(spelled) if word == END}
    of_words = [j for n, found in spans_of.items() if n not in line_ends for j in found]
    assert len(of_words) == len(set(of_words))


def test_each_token_is_decoded_once() -> None:
    words, decoded = vocabulary("bytes", ""), []

    class Counted(list):
        def __getitem__(self, i):
            decoded.append(i)
            return super().__getitem__(i)

    words = replace(words, words=Counted(words.words))
    ids = words.encode(TEXT)
    decoded.clear()
    words_of(words, ids, 1000)
    assert decoded == ids.tolist()
