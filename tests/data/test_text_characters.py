"""The characters of Penn Treebank: counted on the real files, cut as published, and the tokenizer that marks lines."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstory.config import recipes
from backstory.config.schema import TextConfig
from backstory.data import Dataset, encode_split, fetch, prepare
from backstory.data.corpora.catalogue import CORPORA, sentences
from backstory.data.decoding import decode_stream
from backstory.data.tokenizers.built_in import tokenizer
from backstory.data.tokenizers.vocabulary import build
from backstory.utils.errors import UserError

LINES = {"train": 42_068, "valid": 3_370, "test": 3_761}
UNKNOWN = {"train": 45_020, "valid": 3_485, "test": 4_794}
PIECES = st.lists(
    st.sampled_from(["a", " ", "\n", "<", "<u", "unk>", "<unk>", "<bos>", "<eos>", "N", "é"]), max_size=15
)


def sentences_of(folder: Path, split: str) -> Iterator[str]:
    """The lines of a file of words, with one space between two of them."""
    for line in (folder / "ptb" / f"ptb.{split}.txt").read_text().splitlines():
        yield " ".join(line.split())


@pytest.fixture(scope="module")
def characters(data_dir: Path) -> Dataset:
    return prepare(TextConfig("ptb-char"), data_dir)


@pytest.fixture(scope="module")
def symbols(data_dir: Path) -> Dataset:
    return prepare(TextConfig("ptb-char-50"), data_dir)


@pytest.mark.full
def test_the_standard_counts(characters: Dataset) -> None:
    counted = {name: len(split.ids) for name, split in characters.splits.items()}
    assert counted == {"train": 5_017_482, "valid": 393_042, "test": 442_423}
    assert len(characters.vocabulary) == 50 and characters.vocabulary.unknown is None
    assert {"\n", " ", "<", "N"} < set(characters.vocabulary.words) and "<unk>" not in characters.vocabulary.words
    # The words are those of ptb, and so is a perplexity per word.
    assert [split.words for split in characters.splits.values()] == [929_589, 73_760, 82_430]


@pytest.mark.full
def test_the_text_is_that_of_the_words(characters: Dataset, data_dir: Path) -> None:
    for name, split in characters.splits.items():
        expected = "".join(f"{line}\n" for line in sentences_of(data_dir, name))
        assert characters.vocabulary.decode(split.ids) == expected
        assert (split.characters, split.documents.tolist()) == (len(expected), [0])
        assert characters.lossless(name)


@pytest.mark.full
def test_fifty_symbols(symbols: Dataset, data_dir: Path) -> None:
    words = symbols.vocabulary
    assert len(words) == 50 and words.unknown is None and words.words[words.start] == "<eos>"
    singles = {w for w in words.words if len(w) == 1}
    assert len(singles - {" "}) == 46 and set(words.words) - singles == {"<unk>", "<bos>", "<eos>"}
    for name, split in symbols.splits.items():
        lines = [*sentences_of(data_dir, name)]
        counts = Counter(words.tokens(split.ids))
        assert counts["<bos>"] == counts["<eos>"] == LINES[name] and counts["<unk>"] == UNKNOWN[name]
        assert len(split.ids) == sum(len(line) + 2 for line in lines) - 4 * UNKNOWN[name]
        assert words.decode(split.ids) == "".join(f"{line}\n" for line in lines)
    assert [len(split.ids) for split in symbols.splits.values()] == [4_879_470, 382_472, 427_008]


def test_they_are_made_of_the_files_of_ptb(data_dir: Path, tmp_path: Path) -> None:
    for name in ("ptb-char", "ptb-char-50"):
        assert CORPORA[name].files == "ptb"
        with pytest.raises(UserError, match=r"lacks ptb/ptb.train.txt.*run `backstory data prepare ptb --data-dir"):
            prepare(TextConfig(name), tmp_path)
    assert fetch("ptb", data_dir, lambda done, total: None) is None


@pytest.mark.full
def test_a_cut_vocabulary_has_a_place_for_the_rest(data_dir: Path) -> None:
    cut = prepare(TextConfig("ptb-char", maximum_size=20), data_dir).vocabulary
    assert len(cut) == 20 and cut.unknown is not None


@pytest.mark.full
def test_a_recipe_that_cuts_rare_words_does_not_open_a_closed_alphabet(data_dir: Path) -> None:
    demo = recipes.load("demo").text
    for corpus in ("ptb-char", "ptb-char-50"):
        with pytest.raises(UserError, match=r"alphabet of this corpus is closed.*; set text\.minimum_count to 1"):
            prepare(dataclasses.replace(demo, corpus=corpus), data_dir)
        closed = prepare(dataclasses.replace(demo, corpus=corpus, minimum_count=1), data_dir).vocabulary
        assert len(closed) == 50 and closed.unknown is None
    words = dataclasses.replace(demo, corpus="ptb-char", tokenizer="words", minimum_count=3)  # no alphabet
    assert prepare(words, data_dir).vocabulary.unknown is not None


def test_an_alphabet_that_is_closed_names_what_is_not_in_it(characters: Dataset) -> None:
    with pytest.raises(UserError, match="'é' is not in the vocabulary"):
        encode_split(characters.vocabulary, "café")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("ab\nc\n", ["<bos>", "a", "b", "<eos>", "<bos>", "c", "<eos>"]),
        ("a <unk>b", ["<bos>", "a", " ", "<unk>", "b"]),
        ("<un>\n\n", ["<bos>", "<", "u", "n", ">", "<eos>", "<bos>", "<eos>"]),
        ("<eos>", ["<bos>", "<", "e", "o", "s", ">"]),
        ("<<unk>", ["<bos>", "<", "<unk>"]),
        ("", []),
    ],
)
def test_marked_characters(text: str, tokens: list[str]) -> None:
    assert tokenizer("marked-characters").split(text) == tokens


@given(PIECES)
def test_marked_characters_in_blocks_and_back(pieces: list[str]) -> None:
    chosen, text = tokenizer("marked-characters"), "".join(pieces)
    tokens = [token for part in chosen.stream(pieces) for token in part]
    assert tokens == chosen.split(text) and chosen.join(tokens) == text
    known = build(Counter(tokens), chosen)
    assert "".join(decode_stream(known, known.encode(text).tolist())) == text


@given(PIECES)
def test_sentences_lose_only_the_space_around_lines(pieces: list[str]) -> None:
    ((title, blocks),) = sentences("a", pieces)
    text = "".join(pieces)
    assert title == "a"
    assert "".join(blocks) == "".join(line.strip() + "\n" for line in text.removesuffix("\n").split("\n") if text)


def test_a_closed_alphabet_holds_unk_as_a_type_like_others() -> None:
    counts = Counter({"a": 3, "<unk>": 2, "<eos>": 1})
    assert build(counts, tokenizer("marked-characters"), closed=True).unknown is None
    for closed, maximum in ((False, None), (True, 3)):
        words = build(counts, tokenizer("marked-characters"), maximum_size=maximum, closed=closed)
        assert words.unknown == words.index["<unk>"]
