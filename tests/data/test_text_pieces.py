"""Hugging Face tokenizers: the same ids as the library gives, blocks, losslessness, and the package's absence."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from subwords import byte_level, metaspace

from backstory.config.schema import TextConfig
from backstory.data import Vocabulary, build, prepare, tokenizer
from backstory.data.tokenizers import pieces
from backstory.utils.errors import UserError

hf = pytest.importorskip("tokenizers", reason="needs the extra hf")

TEXT = "The cat sat.\nThe dögs — two of them — sat too.\n\nNobody  else did 😀.\n" * 20


def train(kind: str, folder: Path) -> Path:
    """A tiny tokenizer of the kind, trained on TEXT and saved."""
    special, text = ["<unk>", "<s>"], TEXT.replace("Nobody", "No")
    if kind == "byte-level":
        model = byte_level(text)
    elif kind == "unigram":
        model = metaspace(text, special)
    else:
        model = hf.Tokenizer(hf.models.WordLevel(unk_token="<unk>"))
        model.normalizer = hf.normalizers.Lowercase()
        model.pre_tokenizer = hf.pre_tokenizers.Whitespace()
        trainer = hf.trainers.WordLevelTrainer(special_tokens=special, show_progress=False)
        model.train_from_iterator([text], trainer)
    path = folder / f"{kind}.json"
    model.save(str(path))
    return path


@pytest.mark.parametrize(("kind", "lossless"), [("byte-level", True), ("unigram", False), ("word-level", False)])
def test_ids_are_the_librarys_own(kind: str, lossless: bool, tmp_path: Path) -> None:
    path = train(kind, tmp_path)
    chosen = tokenizer(str(path))
    vocabulary = build({}, chosen)
    expected = hf.Tokenizer.from_file(str(path))
    text = TEXT + "Zebra ψ\n"
    assert vocabulary.encode(text).tolist() == expected.encode(text, add_special_tokens=False).ids
    assert len(vocabulary) == expected.get_vocab_size()
    assert (chosen.unit, chosen.lossless, vocabulary.lossless) == ("piece", lossless, lossless)
    assert vocabulary.words[vocabulary.start] == ("<|endoftext|>" if kind == "byte-level" else "<s>")
    assert (vocabulary.unknown is None) == (kind == "byte-level")
    if lossless:
        assert vocabulary.decode(vocabulary.encode(text)) == text
    again = Vocabulary.from_json(vocabulary.to_json())
    path.unlink()
    assert np.array_equal(again.encode(text), vocabulary.encode(text))


@pytest.mark.parametrize(
    ("parts", "lossless"),
    [
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]}}, True),
        ({"pre_tokenizer": {"type": "ByteLevel"}, "normalizer": {"type": "NFC"}}, True),
        ({"pre_tokenizer": {"type": "ByteLevel"}, "normalizer": {"type": "NFKC"}}, False),
        (
            {
                "model": {"byte_fallback": True},
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "content": "▁"}],
                },
            },
            True,
        ),
        ({"model": {"byte_fallback": True}, "normalizer": {"type": "Replace", "content": ""}}, False),
        ({"pre_tokenizer": {"type": "Metaspace"}, "normalizer": None}, False),
    ],
)
def test_what_counts_as_lossless(parts: dict[str, Any], lossless: bool) -> None:
    assert pieces.Pieces("a", json.dumps({"model": {}} | parts)).lossless is lossless


def test_a_long_text_is_cut_at_line_ends_wherever_its_blocks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tokenizer(str(train("byte-level", tmp_path)))
    monkeypatch.setattr(pieces, "_LONGEST", 100)
    whole = chosen.split(TEXT)
    blocks = [TEXT[i : i + 7] for i in range(0, len(TEXT), 7)]
    assert [p for ps in chosen.stream(blocks) for p in ps] == whole
    assert chosen.join(whole) == TEXT
    assert max(len(part) for part in pieces.parts([TEXT])) <= 100
    assert all(part.endswith("\n") for part in pieces.parts([TEXT]))


def test_a_corpus_is_prepared_with_its_pieces(tmp_path: Path) -> None:
    path = train("byte-level", tmp_path)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text(TEXT, encoding="utf-8")
    data = prepare(TextConfig(corpus=str(tmp_path / "text" / "a.txt"), tokenizer=str(path)))
    text = "".join(data.vocabulary.decode(data.splits[s].ids) for s in ("train", "valid", "test"))
    assert text == TEXT
    assert data.lossless("train")
    assert data.vocabulary.counts.sum() == len(data.splits["train"].ids)


def test_a_vocabulary_of_one_type_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    hf.Tokenizer(hf.models.WordLevel({"<unk>": 0}, unk_token="<unk>")).save(str(path))
    with pytest.raises(UserError, match=r"a vocabulary of one type, so that there is nothing to predict; give one"):
        build({}, tokenizer(str(path)))


def test_its_vocabulary_cannot_be_cut(tmp_path: Path) -> None:
    pieces = tokenizer(path := str(train("byte-level", tmp_path)))
    with pytest.raises(UserError, match=r"set text\.maximum_size to null"):
        build({}, pieces, maximum_size=9)
    assert build({}, pieces, minimum_count=2).words == build({}, pieces).words
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    counted, whole = (prepare(TextConfig(str(tmp_path / "a.txt"), path, minimum_count=least)) for least in (2, 1))
    assert counted.fingerprint == whole.fingerprint


def test_without_the_package_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = train("byte-level", tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"; run `pip install -e '\.\[hf\]'` in the clone of backstory$"):
        tokenizer(str(path))


def without_unknown(kind: str) -> pieces.Pieces:
    """A tokenizer that has no unknown token, but a piece `None`."""
    letters = ["N", "o", "n", "e", "No", "ne", "None"]
    if kind == "BPE":
        model = hf.models.BPE({c: i for i, c in enumerate(letters)}, [("N", "o"), ("n", "e"), ("No", "ne")])
    else:
        model = hf.models.Unigram([(c, -float(i + 1)) for i, c in enumerate(letters)])
    made = hf.Tokenizer(model)
    made.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pieces.Pieces("tokenizer.json", made.to_str())


@pytest.mark.parametrize("kind", ["BPE", "Unigram"])
def test_a_piece_called_none_is_no_unknown_token(kind: str) -> None:
    vocabulary = build({}, without_unknown(kind))
    assert vocabulary.words[6] == "None"
    assert vocabulary.unknown is None and vocabulary.lossless


def test_a_vocabulary_that_was_stored_with_none_as_unknown_is_read_without() -> None:
    vocabulary = build({"None": 3}, without_unknown("BPE"))
    older = {**vocabulary.to_json(), "unknown": 6}
    again = Vocabulary.from_json(older)
    assert again.unknown is None and again.counts.tolist() == [0, 0, 0, 0, 0, 0, 3]
    with pytest.raises(UserError, match="damaged"):
        Vocabulary.from_json({**older, "unknown": 1})
