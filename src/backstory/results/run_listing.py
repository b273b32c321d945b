"""List the runs in a folder with their progress and scores, from their small files. Needs no torch."""

import datetime
import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from backstory.config.recipes import CONFIG
from backstory.config.renamed import current_provenance
from backstory.results.evaluation_record import EvaluationFigures
from backstory.results.result_file import Result, result_in
from backstory.results.run_results import epoch_of_weights, marked, read_epochs
from backstory.results.training_record import TrainingFigures
from backstory.results.validation import LARGEST_COUNT, Count, Record, Weight, WrongValue, convert
from backstory.storage.documents import parse
from backstory.storage.lock import held
from backstory.storage.manifest import LARGEST_HEADER
from backstory.storage.run_files import LOG, PROVENANCE, RESULT
from backstory.utils.errors import UserError
from backstory.utils.small_file import open_regular, read_small_text, resolved
from backstory.utils.terminal import one_line

State = Literal["finished", "stopped", "running", "damaged"]
DEEPEST = 3
"""Levels of folders that are searched; suites and sweeps keep their runs in folders of their own."""
UNITS = {
    "words": "word",
    "regex": "word",
    "characters": "character",
    "marked-characters": "character",
    "bytes": "byte",
}
"""Unit of each named tokenizer. The tokens of others are pieces."""
LARGEST_VOCABULARY = 1 << 28
"""Maximum size of a vocabulary that is read to list a run, in bytes."""
MOST_DIMENSIONS = 64
"""Most dimensions of a tensor whose size is counted."""
TEST = "evaluate-test"
"""Folder in a run with the static reader's result on the test split."""


@dataclass(frozen=True)
class RunSummary:
    """A run at a glance. Unknown values are None."""

    name: str
    """The run's folder, relative to the listed one."""
    state: State
    corpus: str | None = None
    parameters: int | None = None
    epoch: int | None = None
    """Epochs that were trained."""
    epochs: int | None = None
    """Epochs that are planned, fine-tuning included; None where minutes or steps are planned."""
    unit: str | None = None
    """The scored token: word, character, ...; None before the first validation."""
    valid_nats: float | None = None
    """Best validation so far, per token."""
    test_nats: float | None = None
    """The test split by the static reader, per token."""
    changed: str | None = None
    """Time at which its log was last changed, in UTC (ISO 8601)."""
    problem: str | None = None
    """Description of the damage."""


def list_runs(folder: Path) -> list[RunSummary]:
    """Return the runs in a folder and up to three levels below it, by name. Raises UserError for no folder."""
    runs = run_folders(folder)
    return [summary(path, str(path if path == folder else path.relative_to(folder))) for path in runs]


def run_folders(folder: Path) -> list[Path]:
    """Return the folders of runs in a folder, or the folder itself if it is a run; once, where links lead to the same run.

    Raises UserError for no folder.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} {'is not a folder' if folder.exists() else 'does not exist'}; name a folder of runs")
    top, runs = resolved(folder), {}
    for path in sorted(_walk(folder, DEEPEST), key=_by_name):
        target = resolved(path)
        if target not in runs or target == top / path.relative_to(folder):  # its own name before that of a link
            runs[target] = path
    return sorted(runs.values(), key=_by_name)


def runs_in(folder: Path) -> list[Path]:
    """Return the runs in a folder of runs; for any other path, that path."""
    return [folder] if is_run(folder) or not folder.is_dir() else run_folders(folder) or [folder]


def reported_runs(folders: Iterable[Path]) -> list[Path]:
    """Return the runs in folders of runs; a suite or a sweep has a result of its own, which is of its runs."""
    return [run for folder in folders for run in ([folder] if (folder / RESULT).exists() else runs_in(folder))]


def is_run(folder: Path) -> bool:
    """Return True if a folder holds the settings of a run; False also for one that may not be entered."""
    return os.path.isfile(folder / CONFIG)


def summary(folder: Path, name: str) -> RunSummary:
    """Return a run at a glance; `damaged` says why one cannot be read."""
    try:
        return _summary(folder, name)
    except UserError as error:
        return RunSummary(name, "damaged", problem=one_line(str(error)))


def _summary(folder: Path, name: str) -> RunSummary:
    made = _origin(folder)
    text, training, corpus = made.config.text, made.config.training, made.corpus
    epochs = read_epochs(folder)
    if epochs is None:
        raise UserError(f"{folder / 'metrics.jsonl'} is damaged; restore it, or train the run again with --overwrite")
    trained = _result(folder, RESULT, TrainingFigures)
    test = _result(folder, f"{TEST}/{RESULT}", EvaluationFigures)
    figures = None if trained is None else trained.figures
    last = max((record.epoch for record in epochs), default=figures.epochs if figures else 0)
    finished = figures is not None and last <= figures.epochs
    validated = epoch_of_weights(epochs, training and training.keep) or figures
    return RunSummary(
        name,
        "running" if held(folder) else "finished" if finished else "stopped",
        corpus=(corpus and corpus.name) or (text and text.corpus),
        parameters=figures.parameters if figures else _parameters(folder),
        epoch=last,
        epochs=training and training.planned,
        unit=figures.unit if figures else _unit(folder, bool(training and training.answer_loss_only)),
        valid_nats=validated.valid_nats if validated else None,
        test_nats=test.figures.nats_per_token if test else None,
        changed=_time(folder),
    )


def _result(folder: Path, path: str, kind: type) -> Result[Any] | None:
    """Return a result of a run; None if it is missing, of another kind, or of other weights."""
    if not os.path.lexists(folder / path):
        return None
    (result,) = marked(folder, [result_in(folder, folder / path)])
    return result if isinstance(result.figures, kind) and not result.stale else None


@dataclass(frozen=True, kw_only=True)
class _TextSettings(Record):
    """The settings of a run's text that a listing shows."""

    corpus: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Training(Record):
    """The settings of a training that a listing shows or depends on."""

    epochs: Count | None = None
    finetune_epochs: Count | None = None
    minutes: Weight | None = None
    steps: Count | None = None
    answer_loss_only: bool | None = None
    keep: str | None = None

    @property
    def planned(self) -> int | None:
        """Epochs that are planned; None where minutes or steps are."""
        if self.epochs is None or self.minutes is not None or self.steps is not None:
            return None
        return self.epochs + (self.finetune_epochs or 0)


@dataclass(frozen=True, kw_only=True)
class _Settings(Record):
    """The settings of a run, of any version, that a listing reads."""

    text: _TextSettings | None = None
    training: _Training | None = None


@dataclass(frozen=True, kw_only=True)
class _Corpus(Record):
    """The corpus that a run was trained on."""

    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Origin(Record):
    """The part of a run's `run.json` that a listing reads."""

    config: _Settings
    corpus: _Corpus | None = None


def _origin(folder: Path) -> _Origin:
    """Return how a run was made. Raises UserError if the record of it is missing or damaged."""
    path = folder / PROVENANCE
    if not os.path.lexists(path):
        raise UserError(f"{path} is missing; the training was stopped before it began")
    try:
        made = parse(read_small_text(path, inside=folder).encode())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not valid JSON"
        raise UserError(f"{path} is damaged ({reason}); train the run again with --overwrite") from None
    if not isinstance(made, dict) or not isinstance(made.get("config"), dict):
        raise UserError(f"{path} is damaged (no settings); train the run again with --overwrite")
    try:
        return convert(_Origin, current_provenance(made), "")
    except WrongValue as wrong:
        raise UserError(f"{path} is damaged ({wrong}); train the run again with --overwrite") from None


def _parameters(folder: Path) -> int | None:
    """Return the number of weights in the newest checkpoint, from its file header; None without a checkpoint."""
    files = sorted(folder.glob("checkpoints/last-*/weights.safetensors"), key=lambda file: _natural(file.parent.name))
    try:
        with open_regular(files[-1], folder) as file:
            header = parse(file.read(min(int.from_bytes(file.read(8), "little"), LARGEST_HEADER)))
        return _total([entry["shape"] for name, entry in header.items() if name != "__metadata__"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _total(shapes: list[Any]) -> int:
    """Return the number of elements of tensors. Raises ValueError for shapes that no tensors have, TypeError for no list."""
    if any(
        len(shape) > MOST_DIMENSIONS or any(type(size) is not int or size < 0 for size in shape) for shape in shapes
    ):
        raise ValueError("no shape of a tensor")
    if (total := sum(map(math.prod, shapes))) > LARGEST_COUNT:
        raise ValueError("more elements than a file holds")
    return total


def _unit(folder: Path, answers: bool) -> str | None:
    """Return the unit of an unfinished run's scores, from the vocabulary of its best weights; None without one."""
    files = sorted(folder.glob("checkpoints/best-*/vocabulary.json"), key=lambda file: _natural(file.parent.name))
    try:
        with open_regular(files[-1], folder) as file:
            name = parse(file.read(LARGEST_VOCABULARY))["tokenizer"]["name"]
        unit = UNITS.get(name, "piece")
        return f"answer {unit}" if answers else unit
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _time(folder: Path) -> str | None:
    try:
        changed = (folder / LOG).stat().st_mtime
        return datetime.datetime.fromtimestamp(changed, datetime.UTC).isoformat(timespec="seconds")
    except (OSError, ValueError, OverflowError):  # no file; a year that no calendar has
        return None


def _walk(folder: Path, levels: int) -> Iterator[Path]:
    if is_run(folder):
        yield folder
    elif levels:
        try:
            below = [Path(e.path) for e in os.scandir(folder) if os.path.isdir(e.path) and e.name[0] != "."]
        except OSError:
            return
        for path in below:
            yield from _walk(path, levels - 1)


def _by_name(path: Path) -> list[tuple[int, int, str]]:
    return _natural(str(path))


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts `seed10` after `seed9`."""
    parts = re.split(r"(\d+)", name)
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part.lower()) for part in parts]
