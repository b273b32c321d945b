"""Prepared corpora: the published counts, bad files, documents, fingerprints, free text."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstory.config.schema import TextConfig
from backstory.data import Dataset, dataset, encode_split, prepare, tokenizer
from backstory.data.corpora import text_files
from backstory.data.tokenizers import vocabulary
from backstory.utils.errors import UserError

Make = Callable[..., Dataset]
TEXT = b"the cat saw the dog\nthe dog saw the cat\n"


@pytest.mark.full
@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize(
    ("name", "types", "tokens", "documents"),
    [
        ("ptb", 10_000, [929_589, 73_760, 82_430], [1, 1, 1]),
        ("wikitext-2", 33_278, [2_088_628, 217_646, 245_569], [600, 60, 60]),
    ],
)
def test_published_counts(name: str, types: int, tokens: list[int], documents: list[int], data_folder: Path) -> None:
    data = prepare(TextConfig(corpus=name), data_folder)
    splits = [data.splits[s] for s in ("train", "valid", "test")]
    assert len(data.vocabulary) == types
    assert [len(s.ids) for s in splits] == [s.words for s in splits] == tokens
    assert [len(s.documents) for s in splits] == [len(s.titles) for s in splits] == documents
    assert np.array_equal(np.bincount(splits[0].ids, minlength=types), data.vocabulary.counts)
    assert splits[0].ids.dtype == np.uint16
    path = next((data_folder / name).glob("*valid*"))
    assert splits[1].bytes == path.stat().st_size
    assert not data.lossless("valid")


@pytest.mark.usefixtures("shared_cache")
def test_lines_of_penn_treebank_are_as_long_as_published(data_folder: Path) -> None:
    """20.9 words in both texts, the end of a line not counted (Khandelwal et al. 2018, table 1)."""
    data = prepare(TextConfig(corpus="ptb"), data_folder)
    end = data.vocabulary.index["<eos>"]
    for ids in (data.splits[split].ids for split in ("valid", "test")):
        assert len(ids) / np.count_nonzero(ids == end) - 1 == pytest.approx(20.9, abs=0.05)


@pytest.mark.full
@pytest.mark.usefixtures("shared_cache")
def test_wikitext_articles_begin_with_their_titles(data_folder: Path) -> None:
    data = prepare(TextConfig(corpus="wikitext-2"), data_folder)
    split, words = data.splits["train"], data.vocabulary
    assert split.titles[0] == "Valkyria Chronicles III"
    assert split.documents[0] == 0  # with the blank line before the first title
    for start, title in zip(split.documents[1:], split.titles[1:], strict=True):
        assert words.decode(split.ids[start : start + len(title.split()) + 3]) == f"= {title} =\n"


def test_small_corpus(corpus: Make) -> None:
    data = corpus(TEXT)
    assert data.vocabulary.words == ["the", "cat", "saw", "dog", "<eos>", "<unk>"]
    train = data.splits["train"]
    assert data.vocabulary.decode(train.ids) == TEXT.decode()
    assert (train.characters, train.bytes, train.documents.tolist()) == (40, 40, [0])
    assert len(data.fingerprint) == 64


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        (b"\xef\xbb\xbf" + TEXT, True),
        (TEXT.replace(b"\n", b"\r\n"), True),
        (TEXT.replace(b"\n", b"\r"), True),
        (TEXT.removesuffix(b"\n"), True),
        (TEXT.replace(b"the cat", "the\u2028cat".encode()), True),
        (TEXT.replace(b"\n", b" "), False),
    ],
    ids=["byte-order mark", "CRLF", "lone CR", "no last line end", "U+2028", "one line"],
)
def test_unusual_texts_are_accepted(changed: bytes, same: bool, corpus: Make) -> None:
    expected = corpus(TEXT)
    data = corpus(changed)
    text = data.vocabulary.decode(data.splits["train"].ids)
    assert text == (TEXT.decode() if same else "the cat saw the dog the dog saw the cat\n")
    assert data.fingerprint != expected.fingerprint


def test_words_unseen_in_training_are_unk(corpus: Make) -> None:
    data = corpus(TEXT, valid=b"the zebra\n", tokenizer="words")
    assert data.vocabulary.tokens(data.splits["valid"].ids) == ["the", "<unk>", "<eos>"]
    data = corpus(b"abcab\n", valid=b"az\n", test=b"a\n", tokenizer="characters")
    assert not data.lossless("valid")
    assert data.lossless("test")


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (b"", "the train text of .* is empty"),
        (b"\n \n\n", "the train text of .* is empty"),
        (b"\xef\xbb\xbf", "the train text of .* is empty"),
        (b"the\x00cat\n", r"train\.txt is binary \(a NUL at byte 3\)"),
        (b"\xef\xbb\xbfa\r\n\x00", r"a NUL at byte 6"),
        (b"the c\xe4t\n", r"train\.txt is not UTF-8 text \(byte 5\)"),
        (b"the cat\xe2\x82", r"not UTF-8 text \(byte 7\)"),
        ("the cat".encode("utf-16")[:-1], r"not UTF-16 text \(byte 14\)"),
    ],
)
def test_bad_texts_are_refused(train: bytes, message: str, corpus: Make) -> None:
    with pytest.raises(UserError, match=message) as caught:
        corpus(train)
    assert "\n" not in str(caught.value)


def test_offsets_are_those_of_the_file_in_later_blocks_too(corpus: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "BLOCK", 4)
    for data, where in (("ééééé\n".encode() + b"\xff", 11), ("aééééé\n".encode() + b"\xc3\n", 12)):
        with pytest.raises(UserError, match=rf"not UTF-8 text \(byte {where}\)"):
            corpus(data)
    with pytest.raises(UserError, match=r"a NUL at byte 12"):
        corpus("aééééé\n".encode() + b"\x00\n")


def test_too_short_texts_are_refused(corpus: Make) -> None:
    with pytest.raises(UserError, match=r"train text of .* has 1 tokens, fewer than 2"):
        corpus(b"a", tokenizer="characters")
    with pytest.raises(UserError, match=r"valid text of .* has 0 tokens, fewer than 1"):
        corpus(TEXT, valid=b"")


def test_an_unreadable_file_is_refused(corpus: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = os.open

    def deny(path: Path, *how: int) -> int:
        if str(path).endswith("a.txt"):
            raise PermissionError(13, "Permission denied")
        return usual(path, *how)

    (tmp_path / "a.txt").write_bytes(TEXT * 9)
    monkeypatch.setattr(os, "open", deny)
    with pytest.raises(UserError, match=r"cannot read .*a\.txt: Permission denied"):
        prepare(TextConfig(corpus=str(tmp_path / "a.txt")))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="not a regular file"):
        prepare(TextConfig(corpus=str(tmp_path / "pipe")))


def test_short_and_empty_files_are_refused(tmp_path: Path) -> None:
    for data, message in ((b"", "is empty"), (b"ab", "too short")):
        (tmp_path / "a.txt").write_bytes(data)
        with pytest.raises(UserError, match=message):
            prepare(TextConfig(corpus=str(tmp_path / "a.txt")))


def test_an_enormous_vocabulary_is_refused(corpus: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "LARGEST", 100)
    text = " ".join(f"word{i}" for i in range(200)).encode()
    with pytest.raises(UserError, match=r"text\.maximum_size"):
        corpus(text)
    assert len(corpus(text, maximum_size=50).vocabulary) == 50


@settings(deadline=None)
@given(st.binary(min_size=40, max_size=200))
def test_bytes_read_any_file_as_it_is(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "anything.bin")
        path.write_bytes(data)
        made = prepare(TextConfig(corpus=str(path), tokenizer="bytes"))
        ids = np.concatenate([made.splits[s].ids for s in ("train", "valid", "test")])
    assert ids.astype(np.uint8).tobytes() == data
    assert sum(s.bytes for s in made.splits.values()) == len(data)
    assert made.lossless("train")


@settings(deadline=None)
@given(st.text(st.sampled_from("abé😀 \r\n\ufeff\u2028"), min_size=2, max_size=120), st.integers(1, 5))
def test_blocks_of_any_size_give_the_same_text(text: str, block: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder, "a.txt")
        path.write_bytes(text.encode())
        whole = "".join(text_files.text_blocks(text_files.Source(path)))
        patch.setattr(text_files, "BLOCK", block)
        assert "".join(text_files.text_blocks(text_files.Source(path))) == whole
    assert whole == text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


@pytest.mark.full
def test_large_vocabularies_are_stored_as_int32(corpus: Make) -> None:
    for types, kind in ((65_535, np.uint16), (65_536, np.int32)):
        text = " ".join(map(str, range(types - 2))).encode()  # <eos> and <unk> make the rest
        data = corpus(text)
        assert (len(data.vocabulary), data.splits["train"].ids.dtype) == (types, kind)
        assert data.vocabulary.words[data.splits["train"].ids[-2]] == str(types - 3)


def test_options_and_content_are_in_the_fingerprint(corpus: Make) -> None:
    made = [
        corpus(TEXT),
        corpus(TEXT, lowercase=True),
        corpus(TEXT, minimum_count=2),
        corpus(TEXT, maximum_size=4),
        corpus(TEXT, tokenizer="characters"),
        corpus(TEXT + b"the\n"),
        corpus(TEXT, valid=b"the dog\n"),
    ]
    assert len({d.fingerprint for d in made}) == len(made)
    assert corpus(TEXT, tokenizer="words").fingerprint == made[0].fingerprint


def test_a_renamed_file_is_the_same_text(tmp_path: Path) -> None:
    made = []
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(TEXT * 9)
        made.append(prepare(TextConfig(corpus=str(tmp_path / name))))
    assert made[0].fingerprint == made[1].fingerprint
    assert [d.splits["train"].titles for d in made] == [["a"], ["b"]]


def test_a_file_that_changes_while_it_is_read_is_refused(corpus: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = iter(range(100))
    monkeypatch.setattr(text_files, "digest", lambda source: str(next(digests)))
    with pytest.raises(UserError, match="changed while they were read"):
        corpus(TEXT)


def test_free_text(corpus: Make) -> None:
    words = corpus(TEXT).vocabulary
    split = encode_split(words, "\ufeffthe cat\r\nsaw é\r", "passage")
    assert words.tokens(split.ids) == ["the", "cat", "<eos>", "saw", "<unk>", "<eos>"]
    assert (split.name, split.characters, split.bytes) == ("passage", 14, 15)
    for text, message in (("", "the passage is empty"), ("a\x00", "the passage holds a NUL")):
        with pytest.raises(UserError, match=message):
            encode_split(words, text, "passage")
    raw = vocabulary.build({}, tokenizer("bytes"))
    assert bytes(encode_split(raw, "a\r\n\x00").ids.astype(np.uint8)) == b"a\r\n\x00"


def test_the_room_needs_no_torch() -> None:
    code = "import sys, backstory.data; sys.exit('torch' in sys.modules or 'tokenizers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert dataset.__doc__
