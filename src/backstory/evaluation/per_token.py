"""Per-token figures of a reading as a file: a line for every token, JSON or separated by tabs, optionally compressed."""

import csv
import gzip
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy as np
from torch import Tensor

from backstory.config import UserError
from backstory.data import Split, Vocabulary, word_numbers
from backstory.evaluation.token_scores import token_scores
from backstory.models import Precision, Prediction
from backstory.readers.blocks import Block
from backstory.storage.atomic import atomic_file, sweep_abandoned

COLUMNS = ("index", "document", "title", "word", "token", "log_prob", "rank", "entropy")
"""What a line says (docs/results.md)."""
ENDINGS = (".jsonl", ".tsv", ".jsonl.gz", ".tsv.gz")

Record = tuple[int | float | str | None, ...]
Each = Callable[[Block, Prediction, Tensor], None]
"""What `read` tells of every block."""


def check_per_token(path: Path, batch_size: int = 1, overwrite: bool = False) -> None:
    """Raise UserError unless per-token figures can be written to the path: better before the reading than after it."""
    if batch_size > 1:
        raise UserError(
            "the figures of every token are written in the order of the text, which is one row; use --batch-size 1"
        )
    if not path.name.endswith(ENDINGS):
        raise UserError(f"{path} must end in one of {', '.join(ENDINGS)}, which say how it is written")
    if path.exists() and not (overwrite and path.is_file()):
        raise UserError(f"{path} exists; choose another file" + (" or --overwrite" if path.is_file() else ""))
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {path}: {path.parent} is no folder to write to; choose another place")


@contextmanager
def per_token_file(path: Path, vocabulary: Vocabulary, split: Split, precision: Precision) -> Iterator[Each]:
    """Write the figures of every token to `path`; give what this yields to the reading of the split, in one row.

    The file is there when the block has ended well, and not before. The log-probabilities are those that were scored.
    """
    sweep_abandoned(path)
    words, done = word_numbers(vocabulary, split), 0
    with atomic_file(path) as file, _text(file, path.suffix == ".gz") as text:
        write = _json_lines(text) if path.name.removesuffix(".gz").endswith(".jsonl") else _tab_separated(text)

        def each(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
            nonlocal done
            with precision.context(log_prob.device):
                scores = token_scores(prediction, block.targets, block.scored)
            columns = (t[block.scored].tolist() for t in (block.targets, log_prob, scores.rank, scores.entropy))
            for index, (token, nats, rank, entropy) in enumerate(zip(*columns, strict=True), done):
                document = int(np.searchsorted(split.documents, index, "right")) - 1
                where = (index, document, split.titles[document], next(words))
                write((*where, vocabulary.words[token], _rounded(nats), rank, _rounded(entropy)))
            done = index + 1

        yield each


@contextmanager
def _text(file: BinaryIO, compressed: bool) -> Iterator[TextIO]:
    """Text to write into a binary file, which stays open."""
    # No name and no time in the header: the same figures, the same bytes.
    with gzip.GzipFile("", "wb", fileobj=file, mtime=0) if compressed else nullcontext(file) as binary:
        text = io.TextIOWrapper(binary, "utf-8", newline="")  # type: ignore[arg-type]
        yield text
        text.detach()


def _json_lines(file: TextIO) -> Callable[[Record], object]:
    return lambda record: file.write(json.dumps(dict(zip(COLUMNS, record, strict=True)), ensure_ascii=False) + "\n")


def _tab_separated(file: TextIO) -> Callable[[Record], object]:
    writer = csv.writer(file, "excel-tab", lineterminator="\n")
    writer.writerow(COLUMNS)
    return writer.writerow


def _rounded(value: float) -> float:
    """The shortest decimal that still tells one float32 from the next."""
    return float(f"{value:.9g}")
