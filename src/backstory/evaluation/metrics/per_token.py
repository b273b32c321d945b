"""Per-token figures of a reading as a file: a line for every token, JSON or separated by tabs, optionally compressed."""

import gzip
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from backstory.config.options import EvalOptions
from backstory.data import Split, Vocabulary, word_numbers
from backstory.evaluation.metrics.metric import Metric
from backstory.evaluation.opening import EvalSetup
from backstory.evaluation.reading_loop import ScoredBlock
from backstory.evaluation.token_scores import token_scores
from backstory.models import Precision
from backstory.storage.atomic import atomic_file, check_new, sweep_abandoned
from backstory.storage.csv_rows import row_writer
from backstory.storage.run_files import check_outside_runs
from backstory.utils.errors import UserError

COLUMNS = ("index", "document", "title", "word", "token", "log_prob", "rank", "entropy")
"""The fields of a line (docs/results.md)."""
ENDINGS = (".jsonl", ".tsv", ".jsonl.gz", ".tsv.gz")

Line = tuple[int | float | str | None, ...]


def check_per_token(path: Path, batch_size: int = 1, overwrite: bool = False) -> None:
    """Raise UserError unless per-token figures can be written to the path; called before the reading."""
    if batch_size > 1:
        raise UserError(
            "--per-token writes the tokens in the order of the text, so it needs one row; use --batch-size 1"
        )
    check_table(path, overwrite, ENDINGS)


def check_table(path: Path, overwrite: bool, endings: tuple[str, ...]) -> None:
    """Raise UserError unless a table can be written to the path, which ends in one of these."""
    if not path.name.endswith(endings):
        raise UserError(f"{path} must end in one of {', '.join(endings)}, which name its format")
    check_outside_runs(path)
    check_new(path, "another file", overwrite)
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {path}: {path.parent} is not a folder to write to; choose another place")


@contextmanager
def text_file(path: Path) -> Iterator[io.TextIOWrapper]:
    """Open a text file, compressed if it ends in .gz, that is put in place when the block ends without error."""
    sweep_abandoned(path)
    with ExitStack() as stack:
        binary: Any = stack.enter_context(atomic_file(path))
        if path.suffix == ".gz":
            # no name or time in the header, so that equal figures give equal bytes
            binary = stack.enter_context(gzip.GzipFile("", "wb", fileobj=binary, mtime=0))
        text = io.TextIOWrapper(binary, "utf-8", newline="")
        stack.callback(text.detach)  # writes what is buffered
        yield text


class PerToken(Metric):
    """Write the figures of every token to a file, put in place when the reading ends without error. Needs one row."""

    name = "per_token"
    takes_lines = True

    def __init__(self, path: Path, vocabulary: Vocabulary, split: Split, precision: Precision) -> None:
        self.path, self.vocabulary, self.split, self.precision = path, vocabulary, split, precision
        self._words, self._tokens, self._exit = word_numbers(vocabulary, split), 0, ExitStack()
        self._write: Callable[[Line], object]

    @classmethod
    def for_evaluation(cls, setup: EvalSetup, options: EvalOptions) -> Self | None:
        if options.per_token is None:
            return None
        return cls(options.per_token, setup.dataset.vocabulary, setup.split, setup.reader.precision)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            text = stack.enter_context(text_file(self.path))
            if self.path.name.removesuffix(".gz").endswith(".jsonl"):
                self._write = lambda line: text.write(
                    json.dumps(dict(zip(COLUMNS, line, strict=True)), ensure_ascii=False) + "\n"
                )
            else:
                self._write = row_writer(text, "excel-tab")
                self._write(COLUMNS)
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._exit.__exit__(*error)

    def update(self, scored: ScoredBlock) -> None:
        block, prediction, log_prob = scored
        with self.precision.context(log_prob.device):
            scores = token_scores(prediction, block.targets, block.scored)
        columns = (t[block.scored].tolist() for t in (block.targets, log_prob, scores.rank, scores.entropy))
        for index, (token, nats, rank, entropy) in enumerate(zip(*columns, strict=True), self._tokens):
            document = int(np.searchsorted(self.split.documents, index, "right")) - 1
            position = (index, document, self.split.titles[document], next(self._words))
            self._write((*position, self.vocabulary.words[token], rounded(nats), rank, rounded(entropy)))
            self._tokens = index + 1

    def result(self) -> None:
        return None


def rounded(value: float) -> float:
    """Return the shortest decimal that distinguishes a float32 from the next."""
    return float(f"{value:.9g}")
