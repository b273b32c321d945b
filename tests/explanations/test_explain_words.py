"""Tokens become words without a gap, whatever the tokenizer, and together they are the text."""

from itertools import pairwise
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from backstory.explanations.words import LONGEST, MARK, spans
from backstory.text import Vocabulary, build, tokenizer
from backstory.text.tokenizers import BUILT_IN

TEXT = "Ann saw (two) jars,  and\nBob — naïve as ever — took 3.5 more.\n\nThe end of it\n"


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
    found = spans(words, words.encode(TEXT), 100)
    assert [(s.start, s.end) for s in found] == [(i, i + 1) for i in range(len(found))]
    assert [s.word.text for s in found[:9]] == ["Ann", "saw", "(", "two", ")", "jars", ",", "and", "Bob"]
    assert [s.word.before for s in found[1:7]] == [" ", " ", "", "", " ", ""]
    marks = [i for i, s in enumerate(found) if s.word.text == MARK]
    assert len(marks) == 2 and found[marks[0] + 1].word.before == "\n\n"


def test_lines_of_the_words_tokenizer() -> None:
    words = vocabulary("words", "a b\nc <unk>\n")
    found = spans(words, words.encode("a b\nc <unk>\n"), 100)
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
    found = spans(words, ids, 1000)
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
    found = spans(words, words.encode(text), 1000)
    assert [i for s in found for i in range(s.start, s.end)] == list(range(len(words.encode(text))))
    assert "".join(together(found).replace("␣", "").split()) == "".join(text.split())


@given(most=st.integers(1, 20))
def test_the_first_words_only(most: int) -> None:
    words = vocabulary("characters", TEXT)
    ids = words.encode(TEXT)
    assert spans(words, ids, most) == spans(words, ids, 1000)[:most]


def test_a_script_without_spaces_is_cut() -> None:
    text = "語" * 100
    words = vocabulary("characters", text)
    assert [len(s.word.text) for s in spans(words, words.encode(text), 1000)] == [LONGEST, LONGEST, LONGEST, 4]


def test_bytes_that_are_no_text_are_kept() -> None:
    words = build({}, BUILT_IN["bytes"])
    found = spans(words, np.array([0xFF, 0x61, 0x20, 0xC3, 0xA9, 0xC3]), 10)
    assert [(s.start, s.end) for s in found] == [(0, 2), (2, 6)]
    assert found[1].word.text == "é"
