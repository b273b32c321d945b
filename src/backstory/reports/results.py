"""A run folder as data: its settings, its training log and its result files, checked as they are read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from backstory.config import UserError
from backstory.reports.passage import AGAIN
from backstory.reports.shapes import SCHEMA, check
from backstory.storage.documents import parse

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
            return f"reproduce {f['grid']} ({f['scale']})"
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

    def of_kind(self, kind: str) -> tuple[Result, ...]:
        """The results of one kind, in order."""
        return tuple(result for result in self.results if result.kind == kind)

    @property
    def training(self) -> Result | None:
        """The result of training, if the run has one."""
        return next(iter(self.of_kind("training")), None)


def read(folder: Path) -> RunResults:
    """Read a run folder: `config.yaml`, `metrics.jsonl` and every `result.json` in it or one level down.

    Raises UserError for a folder that is absent or holds no results, and for a file that is damaged, lacks a figure
    or has an unknown schema number.
    """
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {problem}; name the folder of a run")
    paths = [p for p in (folder / "result.json", *sorted(folder.glob("*/result.json"))) if p.is_file()]
    if not paths:
        raise UserError(f"{folder} has no results; run `backstory train` or `backstory evaluate` first")
    results = sorted((_read_result(path, folder) for path in paths), key=_order)
    log = read_log(folder / "metrics.jsonl")
    steps = tuple(r for r in log if r.get("event") == "steps" and _numbers(r, "step", "epoch", "nats"))
    epochs = tuple(r for r in log if r.get("event") == "epoch" and _numbers(r, *_EPOCH))
    training = next((r for r in results if r.kind == "training"), None)
    if training and not epochs:
        epochs = tuple(training.figures["curve"])
    return RunResults(results[0].name, _config(folder, results), steps, epochs, tuple(results))


def result_from(text: str, source: str) -> Result:
    """One result from the text of its file; `source` names the file in messages. Raises UserError as `read` does."""
    try:
        data = parse(text.encode())
        json.dumps(data, ensure_ascii=False).encode()  # half a character, which JSON can escape, can be written nowhere
    except ValueError:
        raise UserError(f"{source} is damaged (not valid JSON), or no result file: give another, or {AGAIN}") from None
    if not isinstance(data, dict):
        raise UserError(f"{source} is not a result file (it holds no JSON object): give another, or {AGAIN}")
    if data.get("schema") != SCHEMA:
        raise UserError(
            f"{source} has schema {data.get('schema')!r} and this version reads schema {SCHEMA}; "
            "use the version of backstory that wrote it, or run its command again"
        )
    check(data, source)
    return Result(data["kind"], data["name"], data["figures"], data["provenance"], source)


def result_at(path: Path) -> Result:
    """The result in a file that a person named. Raises UserError as `read` does."""
    return result_from(_text(path, "give the path of a result.json"), str(path))


def result_or_none(path: Path) -> Result | None:
    """The result in a file; None where that is missing or `result_from` does not take it."""
    try:
        return result_from(path.read_text(encoding="utf-8"), str(path))
    except (OSError, ValueError, UserError):
        return None


_EPOCH = ("epoch", "train_nats", "valid_nats", "valid_perplexity")
_KINDS = ("training", "evaluation", "examination", "reproduction", "search", "sample", "explanation", "comparison")


def _order(result: Result) -> tuple[int, tuple[str, ...]]:
    return (_KINDS.index(result.kind) if result.kind in _KINDS else len(_KINDS), Path(result.source).parts)


def _numbers(record: Record, *keys: str) -> bool:
    return all(isinstance(record.get(key), int | float) for key in keys)


def _text(path: Path, remedy: str = "restore it or remove it") -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"cannot read {path}: {reason}; {remedy}") from None


def _read_result(path: Path, folder: Path) -> Result:
    result = result_from(_text(path), str(path))
    source = path.relative_to(folder).as_posix()
    return Result(result.kind, result.name, result.figures, result.provenance, source)


def read_log(path: Path) -> list[Record]:
    """The lines of a training log; none where there is no file. Raises UserError for a line that is damaged."""
    if not path.exists():
        return []
    lines = _text(path).splitlines(keepends=True)
    # A run that was killed, or is running now, may leave its last line unfinished: that is no damage.
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = parse(line.encode())
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise UserError(f"{path} is damaged at line {number} (not a JSON object); remove that line")
        records.append(record)
    return records


def _config(folder: Path, results: list[Result]) -> str:
    """The settings file, or what the first result that recorded settings says they were."""
    path = folder / "config.yaml"
    if path.exists():
        return _text(path)
    recorded = next((r.provenance["config"] for r in results if r.provenance.get("config")), None)
    return yaml.safe_dump(recorded, sort_keys=False) if recorded else ""
