"""A run folder as data: its settings, its training log and its result files, checked as they are read."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml

from backstory.config import UserError
from backstory.config.arguments import checked
from backstory.config.errors import shown
from backstory.config.renamed import current_log_record, current_result
from backstory.config.small_file import read_lines, read_small_text
from backstory.config.strict import plain_yaml
from backstory.config.terminal import one_line
from backstory.reports.checks import check
from backstory.reports.kinds import EPOCH, SCHEMA, STEPS
from backstory.reports.older import by_present_definitions
from backstory.reports.passage import AGAIN
from backstory.reports.shapes import wrong
from backstory.reports.staleness import marked
from backstory.storage.documents import parse
from backstory.storage.provenance import RESULT

T = TypeVar("T")
CONFIG, LOG = "config.yaml", "metrics.jsonl"
DEEPEST = 50
"""Levels of lists and objects in a result."""
_HALF = re.compile("[\ud800-\udfff]")

Record = Mapping[str, Any]
"""An object of a result file, as it is read."""
MutableRecord = dict[str, Any]
"""One that is made, to be written."""


@dataclass(frozen=True)
class Result:
    """One result file (docs/results.md describes every field)."""

    kind: str
    """training, evaluation, examination, reproduction, search, sample, explanation, comparison, or one of a later version."""
    name: str
    """Name of the run or model that was measured."""
    figures: Record
    """What was measured."""
    provenance: Record
    """What is needed to measure it again."""
    source: str
    """The file, relative to the run folder."""
    stale: str = ""
    """Why it is no result of the run as it is now (`of earlier weights`); empty where it is one, and where nothing tells."""
    renew: str = ""
    """The command that makes a stale result anew."""

    @property
    def label(self) -> str:
        """What was done, in a few words: `evaluate test (static)`."""
        f = self.figures
        if self.kind == "evaluation":
            return f"evaluate {f['split']} ({f['reader']})"
        if self.kind == "examination":
            reader = "" if self.reader == "static" else f" ({self.reader})"
            return f"examine {f['experiment']} on {f.get('split', 'unknown text')}{reader}"
        if self.kind == "reproduction":
            return f"reproduce {f['suite']} ({f['scale']})"
        if self.kind == "search":
            return f"sweep {f['recipe']} over {f['space']}"
        if self.kind == "explanation":
            return f"explain {f['explanation']} of {f.get('text', 'unknown text')}"
        if self.kind == "comparison":
            return f"explain {f['comparison']} of {f['text']}"
        return "train" if self.kind == "training" else self.kind

    @property
    def reader(self) -> str:
        """How the text was read, `static` where nothing is said of it."""
        reader = self.figures.get("reader")
        return reader if isinstance(reader, str) else "static"

    @property
    def corpus(self) -> Record:
        """Name, fingerprint, types and provenance of the text that was read; empty where none is recorded."""
        corpus = self.provenance.get("corpus")
        return corpus if isinstance(corpus, dict) else {}


@dataclass(frozen=True)
class RunResults:
    """Everything a report says about one run."""

    name: str
    """Name of the run, as its results give it."""
    config: str
    """The resolved settings as YAML; empty where none are recorded."""
    steps: tuple[Record, ...]
    """The training log between validations: `step`, `epoch`, `nats` (mean per token), `tokens_per_second`."""
    epochs: tuple[Record, ...]
    """One record per epoch: `epoch`, `step`, `train_nats`, `valid_nats`, `valid_perplexity`, ..."""
    results: tuple[Result, ...]
    """The result files: training first, then evaluations, then examinations, then the rest; by path within each."""
    unread: tuple[str, ...] = ()
    """Files of the folder that cannot be read, a line each that names the file and says why."""

    def of_kind(self, kind: str) -> tuple[Result, ...]:
        """The results of one kind, in order."""
        return tuple(result for result in self.results if result.kind == kind)

    @property
    def training(self) -> Result | None:
        """The result of training, if the run has one."""
        return next(iter(self.of_kind("training")), None)


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

    def tried(opened: Callable[[], T], instead: T) -> T:
        try:
            return opened()
        except UserError as error:
            unread.append(one_line(str(error)))
            return instead

    there = [r for path in paths if (r := tried(partial(_read_result, path, folder), None))]
    if not there:
        raise UserError(unread[0])
    results = marked(folder, sorted(there, key=_order))
    log = tried(lambda: read_log(folder / LOG, folder), [])
    steps = tuple(r for r in log if r.get("event") == "steps" and not any(wrong(STEPS, r, "")))
    epochs = tuple(r for r in log if r.get("event") == "epoch" and not any(wrong(EPOCH, r, "")))
    training = next((r for r in results if r.kind == "training"), None)
    if training and not epochs:
        epochs = tuple(training.figures["curve"])
    config = tried(lambda: _config(folder), None)
    config = _recorded(results) if config is None else config
    return RunResults(results[0].name, config, steps, epochs, tuple(results), tuple(unread))


def apart(runs: Sequence[RunResults]) -> list[RunResults]:
    """The runs without their stale results, each followed by these under a name that says why they are stale."""
    found = []
    for run in runs:
        found.append(current(run))
        for why in dict.fromkeys(r.stale for r in run.results if r.stale):
            results = tuple(r for r in run.results if r.stale == why)
            found.append(RunResults(f"{run.name}, {why}", "", (), (), results))
    return found


def current(run: RunResults) -> RunResults:
    """The run without its stale results."""
    return replace(run, results=tuple(r for r in run.results if not r.stale))


@checked()
def result_from(text: str, source: str) -> Result:
    """One result from the text of its file; `source` names the file in messages. Raises UserError as `read` does."""
    try:
        data = parse(text.encode())
        _check_writable(data)
    except ValueError:
        raise UserError(f"{source} is damaged (not valid JSON), or no result file: give another, or {AGAIN}") from None
    if not isinstance(data, dict):
        raise UserError(f"{source} is not a result file (it holds no JSON object): give another, or {AGAIN}")
    if data.get("schema") != SCHEMA:
        raise UserError(
            f"{source} has schema {shown(data.get('schema'))} and this version reads schema {SCHEMA}; "
            "use the version of backstory that wrote it, or run its command again"
        )
    data = current_result(data)
    check(data, source)
    return Result(
        data["kind"], data["name"], by_present_definitions(data["kind"], data["figures"]), data["provenance"], source
    )


@checked()
def result_at(path: Path) -> Result:
    """The result in a file that a person named. Raises UserError as `read` does."""
    return result_from(_text(path, remedy="give the path of a result.json"), str(path))


@checked()
def result_or_none(path: Path) -> Result | None:
    """The result in a file; None where that is missing or `result_from` does not take it."""
    try:
        return result_from(_text(path, path.parent), str(path))
    except UserError:
        return None


_KINDS = ("training", "evaluation", "examination", "reproduction", "search", "sample", "explanation", "comparison")


def _order(result: Result) -> tuple[int, tuple[str, ...]]:
    return (_KINDS.index(result.kind) if result.kind in _KINDS else len(_KINDS), Path(result.source).parts)


def _check_writable(data: object) -> None:
    """Raise ValueError where JSON is too deep to be walked, or holds half a character, which can be written nowhere."""
    level, depth = [data], 0
    while level:
        if depth > DEEPEST:
            raise ValueError("its lists are too deep")
        texts = [v for v in level if isinstance(v, str)]
        texts += [key for v in level if isinstance(v, dict) for key in v]
        if any(not text.isascii() and _HALF.search(text) for text in texts):
            raise ValueError("half a character")
        inside = (v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list))
        level, depth = [inner for values in inside for inner in values], depth + 1


def _text(path: Path, inside: Path | None = None, remedy: str = "restore it or remove it") -> str:
    try:
        return read_small_text(path, inside=inside)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; {remedy}") from None


def _read_result(path: Path, folder: Path) -> Result:
    return replace(result_from(_text(path, folder), str(path)), source=path.relative_to(folder).as_posix())


def read_log(path: Path, inside: Path | None = None) -> list[Record]:
    """The lines of a training log; none where there is no file. Raises UserError for a line that is damaged.

    With `inside`, no link may lead out of that folder.
    """
    records: list[Record] = []
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


def _object(line: bytes) -> Record | None:
    try:
        record = parse(line)
        _check_writable(record)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _config(folder: Path) -> str | None:
    """The settings file; None where there is none.

    Raises UserError also for a file that holds no settings: nobody knows whose text it is.
    """
    path = folder / CONFIG
    if not os.path.lexists(path):
        return None
    text = _text(path, folder)
    if not isinstance(plain_yaml(text, str(path)), dict):
        raise UserError(f"{path} holds no settings; restore it or remove it")
    return text


def _recorded(results: Sequence[Result]) -> str:
    """What the first result that recorded settings says they were."""
    recorded = next((r.provenance["config"] for r in results if r.provenance.get("config")), None)
    return yaml.safe_dump(recorded, sort_keys=False) if recorded else ""
