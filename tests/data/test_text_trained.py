"""Tokenizers that are trained on a corpus: lossless, the same each time, of the training split alone, kept with the run."""

import hashlib
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiers import fast_then_full

from backstory.cli.main import main
from backstory.config import RunConfig
from backstory.config.schema import SPLITS, TextConfig
from backstory.data import Vocabulary, encoding, prepare
from backstory.data.tokenizers.pieces import Kind, Pieces, train_tokenizer, trained_kind
from backstory.training import train
from backstory.utils.errors import UserError

pytest.importorskip("tokenizers", reason="needs the extra hf")
KINDS: list[Kind] = ["bpe", "unigram"]
TEXT = "".join(f"the cat {i} sat on the mat, and the dog saw {i % 7} other cats\n" for i in range(400))
STRANGE = "The ▁ café 漢字 😀\n\n  x<|endoftext|>\0\t\u2028y \r\n"
TRAIN = """
import hashlib, sys
from backstory.data.tokenizers.pieces import train_tokenizer
print(hashlib.sha256(train_tokenizer(sys.argv[1], 400, [sys.stdin.read()]).json.encode()).hexdigest())
"""


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_comes_back(kind: Kind) -> None:
    pieces = train_tokenizer(kind, 400, [TEXT])
    words, unknown, start = pieces.vocabulary()
    assert 257 <= len(words) <= 400 and unknown is None and words[start] == "<|endoftext|>"
    assert pieces.lossless and pieces.join(pieces.split(TEXT + STRANGE)) == TEXT + STRANGE
    assert "Ġcat" in words and len(pieces.split(TEXT)) < len(TEXT)


@pytest.mark.full
def test_every_process_learns_the_same_pairs() -> None:
    def digest() -> str:
        command = [sys.executable, "-c", TRAIN, "bpe"]
        return subprocess.run(command, input=TEXT, capture_output=True, text=True, check=True).stdout.strip()

    assert digest() == digest() == hashlib.sha256(train_tokenizer("bpe", 400, [TEXT]).json.encode()).hexdigest()


@pytest.mark.parametrize("kind", fast_then_full(KINDS, ["bpe"]))
def test_a_corpus_in_its_own_pieces(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(TEXT + "zyzzyva " * 100)
    data = prepare(TextConfig(corpus=str(path), tokenizer=f"{kind}:300"))
    assert "".join(data.vocabulary.decode(data.splits[split].ids) for split in SPLITS) == path.read_text()
    train = data.vocabulary.decode(data.splits["train"].ids)
    own = train_tokenizer(kind, 300, [train])
    assert isinstance(data.vocabulary.tokenizer, Pieces)
    assert kind == "unigram" or data.vocabulary.tokenizer.json == own.json
    again = Vocabulary.from_json(data.vocabulary.to_json())
    assert (again.encode(STRANGE) == data.vocabulary.encode(STRANGE)).all()
    same = prepare(TextConfig(corpus=str(path), tokenizer=f"{kind}:300"), tokenizer=again.tokenizer)
    assert same.fingerprint == data.fingerprint
    low = prepare(TextConfig(corpus=str(path), tokenizer=f"{kind}:300", lowercase=True))
    assert low.fingerprint != data.fingerprint


@pytest.mark.full
def test_a_long_word_is_learned_as_fast_as_short_ones() -> None:
    """As a word that is learned whole, it takes 20 times as long."""
    generator, seconds = np.random.default_rng(0), []
    letters = "".join(generator.choice(list("abcdefghijklmnopqrstuvwxyz"), 200_000))
    for length in (100, len(letters)):
        begun = time.process_time()
        words = (letters[i : i + length] for i in range(0, len(letters), length))
        train_tokenizer("bpe", 1000, ["\n".join(words)])
        seconds.append(time.process_time() - begun)
    assert seconds[1] < 5 * seconds[0]


@pytest.mark.parametrize(
    ("name", "message"), [("bpe:10", "257 to 2,000,000"), ("unigram:x", "written KIND:SIZE"), ("bpe", "KIND")]
)
def test_names_that_are_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        trained_kind(name)
    assert trained_kind("bpe:8000") == ("bpe", 8000) and trained_kind("words") is None


def test_a_tokenizer_is_written_for_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(TEXT)
    command = ["data", "tokenizer", "a.txt", "--size", "300", "--out", "tok.json"]
    assert main(command) == 0
    assert "train with --text.tokenizer tok.json" in capsys.readouterr().out
    in_one_step = prepare(TextConfig(corpus="a.txt", tokenizer="bpe:300"))
    from_file = prepare(TextConfig(corpus="a.txt", tokenizer="tok.json"))
    assert (in_one_step.splits["test"].ids == from_file.splits["test"].ids).all()
    before = Path("tok.json").read_bytes()
    for wrong, message in (
        (command, "tok.json exists; choose another file with --out"),
        ([*command[:-1], "no/tok.json"], "there is no folder no"),
        (["data", "tokenizer", "a.txt", "--size", "9", "--out", "b.json"], "at least 257"),
        (["data", "tokenizer", "missing.txt", "--out", "b.json"], "missing.txt"),
    ):
        assert main(wrong) == 2
        error = capsys.readouterr().err.strip().splitlines()
        assert message in error[-1] and len(error) <= 2
    assert Path("tok.json").read_bytes() == before and not Path("b.json").exists()


@pytest.mark.full
def test_a_run_resumes_in_its_own_pieces_without_the_cache(
    tmp_path: Path, tiny_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of kind unigram may differ when they are trained again."""
    (tmp_path / "a.txt").write_text(TEXT * 3)
    text = TextConfig(corpus=str(tmp_path / "a.txt"), tokenizer="unigram:300")
    config = replace(tiny_config, text=text, training=replace(tiny_config.training, epochs=1))
    train(config, tmp_path / "run")
    other = train_tokenizer("unigram", 300, [TEXT * 3, "quite another text " * 300])
    monkeypatch.setenv("BACKSTORY_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(encoding, "train_tokenizer", lambda *arguments: other)
    longer = replace(config, training=replace(config.training, epochs=2))
    result = train(longer, tmp_path / "run", mode="resume", accept=frozenset({"config"}))
    assert result is not None and result.figures.epochs == 2
