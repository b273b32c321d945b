"""External tokenizers are tried in another process before they are loaded here; any misbehaviour is one line."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from subwords import byte_level

from backstory.config.schema import TextConfig
from backstory.data import prepare, tokenizer
from backstory.data.tokenizers import pieces
from backstory.data.tokenizers.pieces import Pieces
from backstory.utils.errors import UserError

hf = pytest.importorskip("tokenizers", reason="needs the extra hf")


def saved(**parts: Any) -> str:
    made = json.loads(hf.Tokenizer(hf.models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>")).to_str())
    return json.dumps(made | parts)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}, "is not a tokenizer.json"),
        (
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAgGFiY2RhYmNk"}},
            "breaks down: loading it, probably for lack of memory",
        ),
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "breaks down: reading with it"),
        ({"decoder": {"type": "Strip", "content": "a", "start": 10**9, "stop": 10**9}}, "breaks down: writing with it"),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 10**8}, "unk_token": "a"}}, "has the id 100,000,000"),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 0}, "unk_token": "a"}}, "several pieces of one id"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.5}}, "has a dropout"),
    ],
)
def test_what_is_not_to_be_read_with_is_refused_in_one_line(
    parts: dict[str, Any], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=told) as refused:
        _ = Pieces("there/tokenizer.json", saved(**parts)).model
    assert str(refused.value).startswith("there/tokenizer.json ") and "\n" not in str(refused.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.full
def test_one_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "SECONDS", 1)
    twice = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    grows = saved(normalizer={"type": "Sequence", "normalizers": [twice] * 60})
    with pytest.raises(UserError, match=r"takes too long|lack of memory"):
        pieces.check("tokenizer.json", grows)


def test_one_is_tried_once_with_a_sample_of_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    child = pieces._child
    monkeypatch.setattr(pieces, "_child", lambda data, seconds: asked.append(json.loads(data)) or child(data, seconds))
    (tmp_path / "a.txt").write_text("ann saw the jam\n" * 100)
    (tmp_path / "tokenizer.json").write_text(byte_level("ann saw " + str(time.time_ns())).to_str())
    config = TextConfig(corpus=str(tmp_path / "a.txt"), tokenizer=str(tmp_path / "tokenizer.json"))
    assert prepare(config).fingerprint == prepare(config).fingerprint
    assert [a["sample"][:15] for a in asked] == ["ann saw the jam"]


def test_a_text_that_has_no_pieces_is_told_in_one_line() -> None:
    model = {"type": "WordLevel", "vocab": {"ann": 0}, "unk_token": "<unk>"}
    pieces = Pieces("tokenizer.json", saved(model=model))
    assert pieces.split("ann") == ["ann"]
    with pytest.raises(UserError, match=r"cannot read this text \(WordLevel error: Missing \[UNK\]"):
        pieces.split("bob")


def test_a_panic_in_the_middle_of_a_corpus_is_told_in_one_line() -> None:
    # It needs a letter that nothing tells the trial of.
    pattern = {
        "type": "Split",
        "pattern": {"Regex": "([\\x{3c8}-\\x{3c9}]+)+$"},
        "behavior": "Isolated",
        "invert": False,
    }
    with pytest.raises(UserError, match=r"cannot read this text \(Onig: Regex search error"):
        Pieces("tokenizer.json", saved(pre_tokenizer=pattern)).split("ω" * 60 + "!")


def test_a_file_that_is_no_regular_one_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "big.json").touch()
    with open(tmp_path / "big.json", "r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="larger than"):
        tokenizer(str(tmp_path / "big.json"))
