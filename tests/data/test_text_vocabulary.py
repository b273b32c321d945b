"""The vocabulary: order, cuts, unknown words, start token, JSON and back."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstory.data import Vocabulary, build, tokenizer
from backstory.data.tokenizers import vocabulary
from backstory.data.tokenizers.built_in import BUILT_IN
from backstory.utils.errors import UserError

WORDS = tokenizer("words")


def of(text: str, name: str = "words", **options: Any) -> Vocabulary:
    chosen = tokenizer(name)
    return build(Counter(chosen.split(text)), chosen, **options)


def test_most_frequent_first_and_ties_by_first_appearance() -> None:
    made = of("b a b c\nd c b\n")
    assert made.words == ["b", "c", "<eos>", "a", "d", "<unk>"]
    assert made.counts.tolist() == [3, 2, 2, 1, 1, 0]
    assert made.counts.dtype == np.int64
    assert (made.unknown, made.start) == (5, 2)


def test_the_texts_own_unk_is_the_same_entry() -> None:
    made = of("a a <unk>\nb c\n", minimum_count=2)
    assert made.words == ["<unk>", "a", "<eos>"]
    assert made.counts.tolist() == [3, 2, 2]


def test_maximum_size_counts_the_special_ones() -> None:
    made = of("a a a b b c\nd\n", maximum_size=4)
    assert made.words == ["a", "b", "<unk>", "<eos>"]
    assert made.counts.sum() == 9
    assert made.decode(made.encode("a d\n")) == "a <unk>\n"
    assert of("a b\n", maximum_size=2).words == ["<unk>", "<eos>"]


def test_unseen_words_are_unk() -> None:
    made = of("a b\n")
    ids = made.encode("a zebra b\n")
    assert ids.dtype == np.int32
    assert made.tokens(ids) == ["a", "<unk>", "b", "<eos>"]


def test_an_unknown_word_without_unk_is_named() -> None:
    made = Vocabulary(["a", "<eos>"], np.array([1, 1]), WORDS, False, None, 1)
    with pytest.raises(UserError, match="'zebra' is not in the vocabulary"):
        made.encode("a zebra\n")


@pytest.mark.parametrize(
    ("name", "text", "start"),
    [("words", "a\n", "<eos>"), ("characters", "ab\nc", "\n"), ("characters", "abb", "b"), ("bytes", "abb", "\n")],
)
def test_start(name: str, text: str, start: str) -> None:
    made = of(text, name)
    assert made.words[made.start] == start


def test_bytes_are_all_there_by_their_number() -> None:
    made = of("ab\n", "bytes")
    assert made.words == [chr(i) for i in range(256)]
    assert made.unknown is None
    assert made.encode("é").tolist() == [0xC3, 0xA9]
    assert made.counts[ord("a")] == 1
    with pytest.raises(UserError, match=r"set text\.maximum_size to null"):
        of("ab", "bytes", maximum_size=100)


def test_lowercase() -> None:
    made = build(Counter(["the", "<eos>"]), WORDS, lowercase=True)
    assert made.tokens(made.encode("The THE\n")) == ["the", "the", "<eos>"]
    assert not of("a", "characters", lowercase=True).lossless


@settings(deadline=None)
@given(st.lists(st.text(st.sampled_from("ΑΣσς Aİ"), max_size=6), max_size=5))
def test_lowercase_does_not_depend_on_where_blocks_are_cut(blocks: list[str]) -> None:
    for t in BUILT_IN.values():
        cut = [x for xs in vocabulary.tokenize(blocks, t, True) for x in xs]
        assert cut == [x for xs in vocabulary.tokenize(["".join(blocks)], t, True) for x in xs]


@settings(deadline=None)
@given(st.text(min_size=1, max_size=80))
def test_encode_and_decode_are_a_round_trip_of_what_is_lossless(text: str) -> None:
    for name in ("characters", "bytes"):
        made = of(text, name)
        assert made.decode(made.encode(text)) == text
        assert made.counts.sum() == len(made.encode(text))


@settings(deadline=None)
@given(st.text(max_size=60), st.integers(1, 3), st.none() | st.integers(2, 8))
def test_counts_are_those_of_the_encoded_training_text(text: str, minimum: int, maximum: int | None) -> None:
    for name in ("words", "regex", "characters"):
        made = of(text, name, minimum_count=minimum, maximum_size=maximum)
        assert np.array_equal(np.bincount(made.encode(text), minlength=len(made)), made.counts)
        assert maximum is None or len(made) <= maximum
        assert all(a >= b for a, b in zip(made.counts, made.counts[1:], strict=False))


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_json_and_back(name: str) -> None:
    made = of("the cat\né 😀\n", name, lowercase=True)
    again = Vocabulary.from_json(json.loads(json.dumps(made.to_json())))
    assert again.words == made.words
    assert np.array_equal(again.counts, made.counts)
    assert (again.tokenizer, again.lowercase) == (made.tokenizer, made.lowercase)
    assert (again.unknown, again.start) == (made.unknown, made.start)


@pytest.mark.parametrize(
    "change",
    [
        {"words": ["a"]},
        {"words": ["a", "a", "b"]},
        {"counts": "no"},
        {"counts": [1, 2]},
        {"start": 3},
        {"start": None},
        {"unknown": -1},
        {"tokenizer": {"name": "nobody's"}},
        {"tokenizer": 1},
        {"words": None},
    ],
)
def test_damaged_json_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="damaged"):
        Vocabulary.from_json(of("a\n").to_json() | change)


def test_an_enormous_vocabulary_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "LARGEST", 5)
    assert len(of("a b c\n")) == 5
    with pytest.raises(UserError, match=r"6 types, more than 5; set text\.maximum_size"):
        of("a b c d\n")
    assert len(of("a b c d\n", maximum_size=5)) == 5
