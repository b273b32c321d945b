"""A run folder as data: its settings, its training log and its result files, checked as they are read."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml

from backstory.config import UserError
from backstory.config.arguments import checked
from backstory.config.renamed import current_log_record
from backstory.config.small_file import read_lines
from backstory.config.strict import plain_yaml
from backstory.config.terminal import one_line
from backstory.results.common import Figures
from backstory.results.evaluation_record import EpochRecord, StepsRecord, TrainingFigures
from backstory.results.result_file import KINDS, Result, check_writable, read_text, result_in
from backstory.results.staleness import marked
from backstory.results.validation import Record, WrongValue, convert
from backstory.storage.documents import parse
from backstory.storage.provenance import RESULT

T = TypeVar("T")
F = TypeVar("F", bound=Figures)
R = TypeVar("R", bound=Record)
CONFIG, LOG = "config.yaml", "metrics.jsonl"


@dataclass(frozen=True)
class RunResults:
    """Everything that a report shows of one run."""

    name: str
    """Name of the run, as its results give it."""
    config: str
    """The resolved settings as YAML; empty where none are recorded."""
    steps: tuple[StepsRecord, ...]
    """The training log between validations."""
    epochs: tuple[EpochRecord, ...]
    """One record per epoch."""
    results: tuple[Result[Any], ...]
    """The result files: training first, then evaluations, then examinations, then the rest; by path within each."""
    unread: tuple[str, ...] = ()
    """Files of the folder that cannot be read, a line each that names the file and the reason."""

    def of(self, kind: type[F]) -> "tuple[Result[F], ...]":
        """Return the results whose figures are of one kind, in order."""
        return tuple(result for result in self.results if isinstance(result.figures, kind))

    @property
    def training(self) -> Result[TrainingFigures] | None:
        """The result of training, if the run has one."""
        return next(iter(self.of(TrainingFigures)), None)

    def current(self) -> "RunResults":
        """Return the run without its stale results."""
        return replace(self, results=tuple(r for r in self.results if not r.stale))


@checked()
def read(folder: Path) -> RunResults:
    """Read a run folder: `config.yaml`, `metrics.jsonl` and every `result.json` in it or one level down.

    A file that is damaged, lacks a figure, has an unknown schema number or is a link out of the folder is `unread`. Raises
    UserError for a folder that is absent, holds no results, or none that can be read.
    """
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {problem}; name the folder of a run")
    paths = [p for p in (folder / RESULT, *sorted(folder.glob(f"*/{RESULT}"))) if os.path.lexists(p)]
    if not paths:
        raise UserError(f"{folder} has no results; run `backstory train` or `backstory evaluate` first")
    unread: list[str] = []

    def attempt(read_file: Callable[[], T], default: T) -> T:
        try:
            return read_file()
        except UserError as error:
            unread.append(one_line(str(error)))
            return default

    readable = [r for path in paths if (r := attempt(partial(result_in, folder, path), None))]
    if not readable:
        raise UserError(unread[0])
    results = marked(folder, sorted(readable, key=_order))
    log = attempt(lambda: read_log(folder / LOG, folder), [])
    steps, epochs = _events(log, "steps", StepsRecord), _events(log, "epoch", EpochRecord)
    training = next((r.figures for r in results if isinstance(r.figures, TrainingFigures)), None)
    if training and not epochs:
        epochs = training.curve
    config = attempt(lambda: _config(folder), None)
    config = _recorded(results) if config is None else config
    return RunResults(results[0].name, config, steps, epochs, tuple(results), tuple(unread))


def _order(result: Result) -> tuple[int, tuple[str, ...]]:
    kinds = list(KINDS)
    return (kinds.index(result.kind) if result.kind in kinds else len(kinds), Path(result.source).parts)


def _events(log: Sequence[Mapping[str, Any]], event: str, kind: type[R]) -> tuple[R, ...]:
    """Return the lines of a log that are of this event, as far as they can be shown."""
    records = []
    for line in log:
        if line.get("event") == event:
            try:
                records.append(convert(kind, line, ""))
            except WrongValue:
                continue
    return tuple(records)


def read_log(path: Path, inside: Path | None = None) -> list[Mapping[str, Any]]:
    """Return the lines of a training log; none where there is no file. Raises UserError for a line that is damaged.

    With `inside`, no link may lead out of that folder.
    """
    records: list[Mapping[str, Any]] = []
    try:
        for number, line in enumerate(read_lines(path, inside) if os.path.lexists(path) else (), start=1):
            # A run that was killed, or is running now, may leave its last line unfinished: that is no damage.
            record = _object(line) if line.endswith(b"\n") else {}
            if record is None:
                raise UserError(f"{path} is damaged at line {number} (not a JSON object); remove that line")
            records += [current_log_record(record)] if record else []
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; restore it or remove it") from None
    return records


def read_epochs(folder: Path) -> tuple[EpochRecord, ...] | None:
    """Return the epochs that the training of a run has logged so far; None if the log is damaged, which it reports itself."""
    try:
        return _events(read_log(folder / LOG), "epoch", EpochRecord)
    except UserError:
        return None


def _object(line: bytes) -> Mapping[str, Any] | None:
    try:
        record = parse(line)
        check_writable(record)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _config(folder: Path) -> str | None:
    """Return the settings file; None where there is none.

    Raises UserError also for a file that holds no settings: nobody knows whose text it is.
    """
    path = folder / CONFIG
    if not os.path.lexists(path):
        return None
    text = read_text(path, folder)
    if not isinstance(plain_yaml(text, str(path)), dict):
        raise UserError(f"{path} holds no settings; restore it or remove it")
    return text


def _recorded(results: Sequence[Result]) -> str:
    """Return the settings that the first result recorded."""
    recorded = next((r.provenance.config for r in results if r.provenance.config), None)
    return yaml.safe_dump(recorded, sort_keys=False) if recorded else ""
