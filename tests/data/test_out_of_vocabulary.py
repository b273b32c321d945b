"""Tokens outside a vocabulary: counted apart from an `<unk>` that the text writes, classified, and judged by their share."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import subwords

from backstory.config import TextConfig
from backstory.data import Vocabulary, build, encode_split, prepare, tokenizer, unknown_share
from backstory.data.tokenizers.pieces import Pieces
from backstory.data.tokenizers.vocabulary import OutOfVocabulary, classify, scripts_of
from backstory.results import UnknownTokens
from backstory.utils.scores import INCOMPARABLE, MEANINGLESS, UnknownShare, advice

ENGLISH = "the cat saw the dog and the dog saw a cat by the old house\n" * 20


def of(text: str, name: str = "words", **options: Any) -> Vocabulary:
    chosen = tokenizer(name)
    return build(Counter(chosen.split(text)), chosen, **options)


def share_of(vocabulary: Vocabulary, text: str) -> UnknownShare:
    return unknown_share(vocabulary, encode_split(vocabulary, text))


@pytest.mark.parametrize("name", ["words", "regex"])
def test_an_unk_of_the_text_is_not_outside_the_vocabulary(name: str) -> None:
    """`<unk>` of Penn Treebank is scored by everybody alike; `zebra` is lost to this vocabulary alone."""
    share = share_of(of(ENGLISH, name), "the <unk> saw the zebra and the <unk>\n")
    assert (share.tokens, share.unknown, share.lost) == (9, 3, 1)
    assert share.phrase() == "22.2% of them written as <unk>, 11.1% of them outside the vocabulary"
    assert share.incomparable and not share.meaningless


@pytest.mark.parametrize(
    ("text", "cause", "name"),
    [
        ("我们 今天 去 北京 看 老 朋友 the\n", "script", "words"),
        ("我们今天去北京看老朋友", "script", "characters"),
        ("мы идём домой\n", "script", "words"),
        ("THE CAT SAW THE DOG\n", "case", "words"),
        ("parliament passed another budget\n", "words", "words"),
        ("1789 1848 1917\n", "words", "words"),
        ("\uff37\uff45 \uff47\uff4f\n", "words", "words"),  # full-width Latin letters are Latin
    ],
)
def test_the_cause(text: str, cause: str, name: str) -> None:
    share = share_of(of(ENGLISH, name), text)
    assert share.cause == cause
    assert share.meaningless


def test_a_few_quoted_words_make_no_script_of_the_vocabulary() -> None:
    vocabulary = of(ENGLISH * 5 + "ψυχή and 北京\n")
    assert scripts_of(vocabulary) == {"LATIN"}
    assert scripts_of(of("кот saw the кот и the dog\n")) == {"LATIN", "CYRILLIC"}
    assert classify({"λόγος": 3, "Cat": 2, "zebra": 1}, vocabulary) == OutOfVocabulary(3, 2, 1)
    assert classify({}, vocabulary) == OutOfVocabulary() and OutOfVocabulary().cause is None


def test_pieces_tell_written_from_lost(tmp_path: Path) -> None:
    model = subwords.metaspace(ENGLISH)
    model.save(str(tmp_path / "tokenizer.json"))
    vocabulary = of_pieces(tmp_path / "tokenizer.json")
    assert vocabulary.unknown is not None
    written, lost = share_of(vocabulary, "the cat <unk> the dog"), share_of(vocabulary, "the cat 北京 the dog")
    assert written.unknown == 1 and written.lost == 0
    assert lost.unknown and lost.lost == lost.unknown and lost.cause == "script"


def test_word_pieces_have_a_name_for_what_they_lack(tmp_path: Path) -> None:
    hf = pytest.importorskip("tokenizers", reason="needs the extra hf")
    words = {"[UNK]": 0, "the": 1, "cat": 2}
    model = hf.Tokenizer(hf.models.WordPiece(words, unk_token="[UNK]"))
    model.add_special_tokens(["[UNK]"])
    model.pre_tokenizer = hf.pre_tokenizers.Whitespace()
    model.save(str(tmp_path / "tokenizer.json"))
    share = share_of(of_pieces(tmp_path / "tokenizer.json"), "the cat [UNK] the 北京")
    assert (share.unknown, share.lost, share.cause) == (2, 1, "script")


def test_an_unknown_token_that_also_begins_texts_ends_no_line(tmp_path: Path) -> None:
    """A tokenizer without a start token begins with its first piece, which is often `[UNK]`."""
    model = {"type": "WordLevel", "vocab": {"[UNK]": 0, "ann": 1, "tea": 2}, "unk_token": "[UNK]"}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0", "model": model, "pre_tokenizer": {"type": "WhitespaceSplit"}}))
    share = share_of(of_pieces(path), "zebra zebra zebra")
    assert (share.tokens, share.lost, share.ends) == (3, 3, 0) and share.meaningless
    assert (share.warning("the pieces", "help") or "").startswith("100.0% of the pieces")


def of_pieces(path: Path) -> Vocabulary:
    return build({}, Pieces(str(path), path.read_text()))


def test_a_prepared_corpus_counts_every_split(tmp_path: Path) -> None:
    """Once more from the cache, with the same counts."""
    texts = {"train": "a a a b b c <unk>\n", "valid": "a b c d <unk>\n", "test": "A B e\n"}
    for split, text in texts.items():
        (tmp_path / f"{split}.txt").write_text(text)
    for _ in range(2):
        dataset = prepare(TextConfig(corpus=str(tmp_path), minimum_count=2))
        shares = {name: unknown_share(dataset.vocabulary, split) for name, split in dataset.splits.items()}
        assert {name: (s.unknown, s.lost) for name, s in shares.items()} == {
            "train": (2, 1),
            "valid": (3, 2),
            "test": (3, 3),
        }
        assert shares["test"].cause == "case"


def test_a_part_of_a_split() -> None:
    vocabulary = of(ENGLISH)
    lost, mixed = encode_split(vocabulary, "the zebra saw\n"), encode_split(vocabulary, "the <unk> zebra\n")
    assert unknown_share(vocabulary, lost, slice(1, 3)) == UnknownShare(2, 1, 1, "words")
    assert unknown_share(vocabulary, lost, np.array([0, 2])) == UnknownShare(2, 0, 0, "words")
    assert unknown_share(vocabulary, mixed, slice(0, 2)) == UnknownShare(2, 1)  # which of them is not known
    assert unknown_share(of("ab", "bytes"), encode_split(of("ab", "bytes"), "é"), slice(0, 1)) == UnknownShare(1, None)


def test_what_is_said_follows_what_the_vocabulary_lost() -> None:
    assert (INCOMPARABLE, MEANINGLESS) == (0.05, 0.5)
    ptb = UnknownShare(82430, 4794, 0)
    assert (ptb.phrase(), ptb.cell()) == ("5.8% of them written as <unk>", "5.8% written")
    assert ptb.warning("the words", "") is None
    older = UnknownTokens(unknown_tokens=40).unknown_among(100)  # which of them are lost is not known: no guess
    assert (older.phrase(), older.cell(), older.warning("the words", "")) == ("40.0% of them <unk>", "40.0%", None)
    none = UnknownShare(100, 0, 0)
    assert (none.phrase(), none.cell(), none.share) == ("", "0.0%", 0.0)
    assert (UnknownShare(100, None).cell(), UnknownShare(100, None).share) == ("", None)
    some = UnknownShare(10_000, 3, 3, "words")
    assert some.phrase() == "less than 0.1% of them outside the vocabulary"
    fifth = UnknownShare(100, 6, 6, "words").warning("the words", "do this")
    assert fifth == (
        "6.0% of the words are outside the vocabulary (read as <unk>), so the perplexity does not compare with models of "
        "another vocabulary; do this"
    )
    with_line_ends = UnknownShare(100, 30, 30, "words", ends=20)
    assert str(with_line_ends.warning("the words", "do this")).startswith(with_line_ends.phrase("the words").split()[0])
    most = UnknownShare(100, 51, 51, "words").warning("the words", "do this")
    assert most is not None and "so the perplexity says nothing about the text; do this" in most
    assert UnknownShare(100, 5, 5).warning("the words", "") is None
    assert not UnknownShare(100, 50, 50).meaningless


@pytest.mark.parametrize(
    ("lost", "says"),
    [
        (0, "60.0% of the words are <unk>, most of them written so in the text, so the perplexity says nothing about the text; "
            "take the text as it was before its words were replaced"),
        (None, "60.0% of the words are <unk>, so the perplexity says nothing about the text; take the text as it was before "
               "its words were replaced"),
        (40, "40.0% of the words are outside the vocabulary (read as <unk>) and 20.0% are written as <unk>, so the perplexity "
             "says nothing about the text; do this"),
    ],
)  # fmt: skip
def test_a_text_that_is_mostly_unk_says_nothing_whoever_made_it_so(lost: int | None, says: str) -> None:
    share = UnknownShare(100, 60, lost, "words")
    assert share.meaningless and share.warning("the words", "do this") == says


def test_advice_fits_the_cause() -> None:
    assert "--text.tokenizer characters or a tokenizer.json" in advice("script")
    assert "--text.tokenizer bytes or a tokenizer.json" in advice("script", "character")
    assert "--text.lowercase" in advice("case")
    new = " for rare words of the training text; new words need more text, or another tokenizer"
    assert advice("words", minimum_count=3) == f"lower text.minimum_count (3){new}"
    assert (
        advice("words", minimum_count=3, maximum_size=9)
        == f"lower text.minimum_count (3), or raise text.maximum_size (9){new}"
    )
    assert advice("words").startswith("the training text does not have them")
    assert advice("words", "piece", minimum_count=3) == (
        "the tokenizer has no pieces for them; choose another --text.tokenizer"
    )


@pytest.mark.usefixtures("shared_cache")
def test_the_corpora_write_their_own(data_dir: Path) -> None:
    """Penn Treebank and WikiText-2 write every <unk> themselves; their vocabularies lose nothing."""
    dataset = prepare(TextConfig(corpus="ptb"), data_dir)
    share = unknown_share(dataset.vocabulary, dataset.splits["test"])
    assert (share.unknown, share.lost) == (4794, 0)
