"""Arbitrary bytes are restored, with vocabularies of every kind and with Hugging Face models."""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from coded_runs import TEXT, run_of, vocabulary_of
from foreign import causal, saved
from subwords import byte_level
from tiers import fast_then_full, marked_full

import backstory as bs
from backstory.codec import compress, decompress
from backstory.config import LSTMConfig
from backstory.runs.run import Run

Random = np.random.Generator

KINDS: dict[str, Callable[[Random, int], bytes]] = {
    "empty": lambda random, size: b"",
    "one byte": lambda random, size: random.bytes(1),
    "random": lambda random, size: random.bytes(size),
    "UTF-16": lambda random, size: words(random, size).encode("utf-16"),
    "UTF-16, cut": lambda random, size: words(random, size).encode("utf-16-be")[1:],
    "zeros": lambda random, size: bytes(size),
    "one line": lambda random, size: words(random, size).replace("\n", " ").encode(),
    "line ends": lambda random, size: random.choice(list(b"\r\n\v\f\x1c\x85 a"), size).astype(np.uint8).tobytes(),
    "not UTF-8": lambda random, size: damaged(words(random, size).encode(), random),
    "controls": lambda random, size: random.integers(0, 33, size).astype(np.uint8).tobytes(),
    "characters": lambda random, size: "".join(map(chr, random.integers(1, 0xD800, size))).encode(),
    "words": lambda random, size: words(random, size).encode(),
}
WORDS = (
    *TEXT.split(),
    "Zürich",
    "THE",
    "<unk>",
    "<eos>",
    "<|endoftext|>",
    "▁",
    "\u2028",
    "\u0130",
    "\x1c",
    "🙂",
    "e\u0301",
)
VOCABULARIES = ("words", "characters", "bytes", "regex")


def words(random: Random, size: int) -> str:
    """Known, unknown and odd words, with odd white space between them."""
    chosen = random.choice(WORDS, size // 4 + 1)
    gaps = random.choice([" ", "\n", "  ", "\t", ""], len(chosen))
    return "".join(word + gap for word, gap in zip(chosen, gaps, strict=True))


def damaged(data: bytes, random: Random) -> bytes:
    """The same with bytes changed at random."""
    array = np.frombuffer(data, np.uint8).copy()
    array[random.random(len(array)) < 0.1] ^= 0x80
    return array.tobytes()


@functools.cache
def run_with(vocabulary: str) -> Run:
    return run_of(vocabulary_of(vocabulary, closed=vocabulary == "regex"))


@pytest.mark.parametrize("seed", fast_then_full(range(200), range(len(KINDS))))
def test_any_bytes_come_back(seed: int) -> None:
    random = np.random.default_rng(seed)
    data = list(KINDS.values())[seed % len(KINDS)](random, int(random.integers(2, 80)))
    run = run_with("words" if seed < len(KINDS) else str(random.choice(VOCABULARIES)))
    batch_size = int(random.choice([1, 1, 5]))
    assert decompress(compress(data, run, batch_size=batch_size).data, run) == data


@pytest.mark.full
@pytest.mark.parametrize(("vocabulary", "size"), [("bytes", 100_000), ("words", 20_000)])
def test_many_random_bytes_come_back(vocabulary: str, size: int) -> None:
    run = run_of(vocabulary_of(vocabulary), LSTMConfig(layers=1, hidden=4))
    data = np.random.default_rng(0).bytes(size)
    assert decompress(compress(data, run, batch_size=250).data, run) == data


def gpt2(folder: Path) -> None:
    saved(folder, "GPT2", TEXT * 5, n_positions=32)


def llama(folder: Path) -> None:
    saved(folder, "Llama", TEXT * 5)


def no_bos(folder: Path) -> None:
    """A model whose tokenizer of bytes names no token that begins or ends a text, and neither do its settings."""
    hf = pytest.importorskip("transformers", reason="needs the extra hf")
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=byte_level(TEXT * 5, 320))
    tokenizer.save_pretrained(folder)
    causal("Llama", len(tokenizer), bos_token_id=None, eos_token_id=None).save_pretrained(folder)


ODD = f"{TEXT} and an ünknown <|endoftext|> \x00 end\r\n\r".encode() + b"\xff\xfe" + TEXT.encode("utf-16")


@pytest.mark.full
@pytest.mark.parametrize("save", [gpt2, marked_full(llama), no_bos])
def test_models_of_transformers(save: Callable[[Path], None], tmp_path: Path) -> None:
    save(tmp_path / "model")
    model = f"hf:{tmp_path / 'model'}"
    for data, loading in (
        (ODD, {"batch_size": 4}),
        (b"", {}),
        (b"\n", {}),
        (ODD, {"window": 16}),
        (ODD, {"dtype": "float16"}),
    ):
        assert decompress(compress(data, model, **loading).data, model) == data


@pytest.mark.full
def test_the_proof_of_a_model_of_transformers_names_its_folder(tmp_path: Path) -> None:
    gpt2(tmp_path / "model")
    bs.evaluate(f"hf:{tmp_path / 'model'}", TEXT, proof=tmp_path / "proof.bks")
    assert bs.verify(tmp_path / "proof.bks").holds
