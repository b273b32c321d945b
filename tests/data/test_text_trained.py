"""Tokenizers that are trained on a corpus: lossless, the same each time, of the training split alone, kept with the run."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import fast_then_full

from backstory.config.errors import UserError
from backstory.config.schema import TextConfig
from backstory.data import Vocabulary, prepare
from backstory.data.corpora.catalogue import SPLITS
from backstory.data.tokenizers.pieces import Pieces
from backstory.data.tokenizers.trained import Kind, train_tokenizer, trained_kind

pytest.importorskip("tokenizers", reason="needs the extra hf")
KINDS: list[Kind] = ["bpe", "unigram"]
TEXT = "".join(f"the cat {i} sat on the mat, and the dog saw {i % 7} other cats\n" for i in range(400))
STRANGE = "The ▁ café 漢字 😀\n\n  x<|endoftext|>\0\t\u2028y \r\n"
TRAIN = """
import hashlib, sys
from backstory.data.tokenizers.trained import train_tokenizer
print(hashlib.sha256(train_tokenizer(sys.argv[1], 400, [sys.stdin.read()]).json.encode()).hexdigest())
"""


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_comes_back(kind: Kind) -> None:
    pieces = train_tokenizer(kind, 400, [TEXT])
    words, unknown, start = pieces.vocabulary()
    assert 257 <= len(words) <= 400 and unknown is None and words[start] == "<|endoftext|>"
    assert pieces.lossless and pieces.join(pieces.split(TEXT + STRANGE)) == TEXT + STRANGE
    assert "Ġcat" in words and len(pieces.split(TEXT)) < len(TEXT)


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


@pytest.mark.parametrize(
    ("name", "message"), [("bpe:10", "257 to 2,000,000"), ("unigram:x", "written KIND:SIZE"), ("bpe", "KIND")]
)
def test_names_that_are_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        trained_kind(name)
    assert trained_kind("bpe:8000") == ("bpe", 8000) and trained_kind("words") is None
