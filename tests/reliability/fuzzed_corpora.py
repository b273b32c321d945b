"""Fuzzed corpora give a dataset whose invariants hold, or one line and nothing left in the cache."""

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
from calling import Hung, within

from backstory.config import TextConfig
from backstory.config.schema import SPLITS
from backstory.data import Dataset, Split, prepare
from backstory.data.corpora import text_files
from backstory.data.corpora.catalogue import find
from backstory.data.corpora.text_files import text_blocks
from backstory.data.corpora.unpacking import TextReader
from backstory.data.tokenizers import vocabulary
from backstory.utils.errors import UserError

WORDS = ["ann", "bob", "saw", "the", "jam", "and", "<unk>", "<eos>", "1,000", "it's", "é", "漢字", "😀", "ﬁ", "İ"]
WORDS += ["ΑΣ", "ß", "word-with-dash", "=", "Title", "\u202e", "\u00ad"]
ENDS = ["\n", "\r\n", "\r", "\n\n", "\u2028", "\u2029", "\x85", "\v", "\f", "\n \n", " "]
SPACES = [" ", " ", "  ", "\t", "\u00a0", "\u3000", "\u200b"]


def run(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """Each trial makes a file or a folder of files and prepares it, and again from the cache."""
    cache, there = folder / "cache", folder / "corpus"
    with patch.dict(os.environ, {"BACKSTORY_CACHE": str(cache)}):
        for number in trials:
            chosen = random.Random(f"corpora {number}")
            _remove(there)
            shutil.rmtree(cache, ignore_errors=True)
            path = _write(chosen, there)
            with patch.object(text_files, "BLOCK", chosen.choice([1 << 20, 64, 7, 1])):
                problem = _trial(_settings(chosen, path), cache, 30 if chosen.random() < 0.1 else vocabulary.LARGEST)
            if problem:
                yield f"corpora {number}: {problem}"


def _trial(config: TextConfig, cache: Path, largest: int) -> str:
    """Return faults in the preparation of the corpus, with a limit on the number of types."""
    largest = max(largest, 256 if config.tokenizer == "bytes" else 0)  # the bytes are never too many
    try:
        with within(30), patch.object(vocabulary, "LARGEST", largest):
            dataset = prepare(config)
    except UserError as error:
        if "\n" in str(error) or not str(error):
            return f"not one line: {error}"
        # A file that could be unpacked stays so, whole: another setting may take its text.
        whole = {entry for entry in cache.glob("unpacked-*") if (entry / "index.json").is_file()}
        left = [p for p in cache.rglob("*") if p.is_file() and p.parent not in whole] if cache.exists() else []
        return f"left {left}" if left or any(cache.glob("text-*")) else ""
    except (Hung, Exception) as error:
        return f"{type(error).__name__}: {str(error)[:200]}, {config}"
    again = prepare(config)
    if dataset.fingerprint != again.fingerprint or any(
        not np.array_equal(dataset.splits[s].ids, again.splits[s].ids) for s in SPLITS
    ):
        return f"not the same from the cache: {config}"
    return next((f"{problem}: {config}" for problem in _problems(dataset, config)), "")


def _problems(dataset: Dataset, config: TextConfig) -> Iterator[str]:
    """Invariants of a dataset that do not hold."""
    words = dataset.vocabulary
    corpus = find(config.corpus, None, TextReader(config.field, as_is=words.tokenizer.unit == "byte"))
    if len(set(words.words)) != len(words) or len(words.counts) != len(words) or (words.counts < 0).any():
        yield "the vocabulary is not one"
    if not 0 <= words.start < len(words) or not (words.unknown is None or 0 <= words.unknown < len(words)):
        yield "an id of the vocabulary is not in it"
    if not np.array_equal(words.counts, np.bincount(dataset.splits["train"].ids, minlength=len(words))):
        yield "the counts are not those of the training text"
    if config.maximum_size and len(words) > max(config.maximum_size, 2):
        yield f"{len(words)} types"
    for name, split in dataset.splits.items():
        as_is = words.tokenizer.unit == "byte"
        text = "".join(block for s in corpus.sources[name] for block in text_blocks(s, as_is))
        yield from (f"{name}: {problem}" for problem in _split_problems(dataset, name, split, text))


def _split_problems(dataset: Dataset, name: str, split: Split, text: str) -> Iterator[str]:
    words, ids, begins = dataset.vocabulary, split.ids, split.documents
    if not len(ids) or not 0 <= int(ids.min()) <= int(ids.max()) < len(words):
        yield "ids out of range"
    if begins[0] != 0 or (np.diff(begins) <= 0).any() or begins[-1] >= len(ids) or len(split.titles) != len(begins):
        yield f"documents {begins}"
    raw = text.encode("utf-8", "surrogateescape")
    if (split.characters, split.bytes) != (len(text), len(raw)):
        yield f"{split.characters} characters and {split.bytes} bytes of {len(text)} and {len(raw)}"
    if dataset.lossless(name):
        back = "".join(words.tokens(ids))
        same = back.encode("latin-1") == raw if words.tokenizer.unit == "byte" else words.decode(ids) == text == back
        if not same:
            yield f"{back[:50]!r} of {text[:50]!r}"
    if (name != "test" or len(text)) and not np.array_equal(ids, _naive(dataset, name, text)):
        yield "other ids than those of the whole text"


def _naive(dataset: Dataset, name: str, text: str) -> np.ndarray:
    """The ids of a split read whole, where it is one document; else those that were stored."""
    split = dataset.splits[name]
    return dataset.vocabulary.encode(text) if len(split.documents) == 1 == len(set(split.titles)) else split.ids


# --- texts ---


def _settings(chosen: random.Random, path: Path) -> TextConfig:
    cut = chosen.random() < 0.3
    return TextConfig(
        corpus=str(path),
        tokenizer=chosen.choice(["auto", "words", "regex", "characters", "bytes"]),
        lowercase=chosen.random() < 0.2,
        minimum_count=chosen.choice([1, 2, 100]) if cut else 1,
        maximum_size=chosen.choice([None, 2, 3, 20]) if cut else None,
    )


def _write(chosen: random.Random, path: Path) -> Path:
    """A file, a folder with splits, or a folder of documents; now and then in a state that nothing can be read from."""
    kind = chosen.choice(["file", "file", "splits", "splits", "folder"])
    if kind == "file":
        path.write_bytes(_content(chosen))
        return path
    path.mkdir()
    if kind == "splits":
        names = chosen.choice([("train.txt", "valid.txt", "test.txt"), ("x.train.txt", "x.val.txt", "x.test.txt")])
    else:
        names = [
            chosen.choice(["a", "b/c", "é", ".hidden", "d.txt", "z\udcff"]) + str(i) for i in range(chosen.randrange(5))
        ]
    for name in names:
        if chosen.random() < 0.03:
            continue
        file = path / name
        file.parent.mkdir(exist_ok=True)
        match chosen.randrange(60):
            case 0:
                os.mkfifo(file)
            case 1:
                file.symlink_to(path / "nowhere")
            case 2:
                file.mkdir()
            case _:
                file.write_bytes(_content(chosen))
    return path


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _content(chosen: random.Random) -> bytes:
    return chosen.choices(list(CONTENTS), list(CONTENTS.values()))[0](chosen)


def _text(chosen: random.Random) -> str:
    """Words of a few kinds between spaces and line ends of many."""
    words, ends = chosen.sample(WORDS, chosen.randrange(1, len(WORDS))), chosen.sample(ENDS, chosen.randrange(1, 4))
    pieces = []
    for _ in range(chosen.choice([1, 5, 60, 300])):
        pieces += [chosen.choice(words), chosen.choice(ends) if chosen.random() < 0.2 else chosen.choice(SPACES)]
    return "".join(pieces)


def _planted(chosen: random.Random) -> bytes:
    """A text with something in it that is none, anywhere."""
    raw = _text(chosen).encode()
    where = chosen.choice([0, len(raw), chosen.randrange(len(raw) + 1)])
    wrong = [b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", b"\xff\xfe", b"\xe2\x80"]
    return raw[:where] + chosen.choice(wrong) + raw[where:]


def _many_types(chosen: random.Random) -> bytes:
    return " ".join(f"w{chosen.randrange(10**9)}" for _ in range(chosen.choice([50, 3000]))).encode()


CONTENTS: dict[Callable[[random.Random], bytes], int] = {
    lambda chosen: _text(chosen).encode(): 8,
    _planted: 4,
    lambda chosen: chosen.randbytes(chosen.choice([0, 1, 2, 3, 20, 2000])): 2,
    lambda chosen: "".join(chr(chosen.randrange(0xD800)) for _ in range(200)).encode(): 1,
    lambda chosen: _text(chosen).encode(chosen.choice(["utf-16", "utf-32-le", "utf-8-sig"])): 1,
    lambda chosen: chosen.choice(
        [b"", b" ", b"\n", b"\r", b"\n" * 500, b" \n\t\r\n" * 50, b"a", b"a b", b"\xef\xbb\xbf"]
    ): 2,
    lambda chosen: (chosen.choice("ab é") * chosen.choice([100, 20_000])).encode(): 1,
    _many_types: 1,
}
"""Kinds of content, and how often each is taken."""
