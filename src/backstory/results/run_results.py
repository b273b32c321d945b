"""Read a run folder: settings, training log and result files, all checked. Stale results are marked.

A result is stale if the run has other weights now than those whose hashes it records.
"""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml

from backstory.config.examination_options import CONTEXT, ExaminationSettings
from backstory.config.recipes import CONFIG, holds_model_elsewhere
from backstory.config.renamed import current_log_record
from backstory.config.schema import TrainingConfig
from backstory.config.strict import plain_yaml
from backstory.results.common import OWN_TEXT, Figures, ProvenanceRecord
from backstory.results.evaluation_record import EvaluationFigures, SampleFigures
from backstory.results.examination_record import ExaminationFigures
from backstory.results.explanation_record import ComparisonFigures, ExplanationFigures
from backstory.results.result_file import KINDS, Result, check_writable, read_text, result_in
from backstory.results.training_record import EpochRecord, StepsRecord, TrainingFigures
from backstory.results.validation import Record, WrongValue, convert
from backstory.storage.documents import parse
from backstory.storage.manifest import best_file
from backstory.storage.run_files import LOG, RESULT, check_results_exist
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError, as_argument
from backstory.utils.small_file import read_lines
from backstory.utils.terminal import one_line

T = TypeVar("T")
F = TypeVar("F", bound=Figures)
R = TypeVar("R", bound=Record)


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
    """Files of the folder that cannot be read: one line each with the file and the reason."""

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
    check_results_exist(folder)
    paths = [p for p in (folder / RESULT, *sorted(folder.glob(f"*/{RESULT}"))) if os.path.lexists(p)]
    if not paths and holds_model_elsewhere(folder):
        raise UserError(f"{folder} is a model of Hugging Face; name the folder of its results, which --out kept")
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
    """Return the log's records of this event; invalid lines are skipped."""
    records = []
    for line in log:
        if line.get("event") == event:
            try:
                records.append(convert(kind, {key: value for key, value in line.items() if key != "event"}, ""))
            except WrongValue:
                continue
    return tuple(records)


def read_log(path: Path, inside: Path | None = None) -> list[Mapping[str, Any]]:
    """Return the lines of a training log; empty without a file. Raises UserError for a damaged line.

    With `inside`, no link may lead out of that folder.
    """
    records: list[Mapping[str, Any]] = []
    try:
        for number, line in enumerate(read_lines(path, inside) if os.path.lexists(path) else (), start=1):
            # A run that was killed or is still running may leave an incomplete last line, which is not damage.
            record = _object(line) if line.endswith(b"\n") else {}
            if record is None:
                raise UserError(f"{path} is damaged at line {number} (not a JSON object); remove that line")
            records += [current_log_record(record)] if record else []
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; restore it or remove it") from None
    return records


def read_epochs(folder: Path) -> tuple[EpochRecord, ...] | None:
    """Return the epochs that a training has logged so far; None if its log is damaged, which it reports itself."""
    try:
        return _events(read_log(folder / LOG), "epoch", EpochRecord)
    except UserError:
        return None


def epoch_of_weights(epochs: Sequence[EpochRecord], keep: str | None) -> EpochRecord | None:
    """Return the epoch whose weights a training keeps so far, by its `training.keep`; None before the first has ended."""
    if keep == "last":
        return epochs[-1] if epochs else None
    return min(epochs, key=lambda epoch: epoch.valid_nats, default=None)


@dataclass(frozen=True)
class TrainingPace:
    """Progress of a training, as its log has it."""

    epochs: int
    """Epochs done."""
    minutes: float
    """Time that they took."""
    share: float
    """Share of the training that is done, from 0 to 1; relative to its maximum epochs, before which it may end."""
    valid_perplexity: float | None
    """Validation perplexity of the weights that it keeps; None before the first epoch has ended."""


def read_pace(folder: Path, training: TrainingConfig) -> TrainingPace | None:
    """Return the progress of a training with these settings; None if its log is damaged, which it reports itself."""
    records = read_epochs(folder)
    if records is None:
        return None
    epochs = [record for record in records if record.seconds is not None]
    validated = epoch_of_weights(epochs, training.keep)
    if validated is None:
        return TrainingPace(0, 0.0, 0.0, None)
    minutes, most = (epochs[-1].seconds or 0.0) / 60, training.most_epochs
    if training.minutes is not None:
        share = minutes / training.minutes
    elif most is not None:
        share = len(epochs) / most
    else:
        share = max((r.step for r in records if r.step is not None), default=0) / (training.steps or 1)
    return TrainingPace(len(epochs), minutes, min(1.0, share), validated.valid_perplexity)


def _object(line: bytes) -> Mapping[str, Any] | None:
    try:
        record = parse(line)
        check_writable(record)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _config(folder: Path) -> str | None:
    """Return the settings file; None if there is none.

    Raises UserError also for a file without settings, which may be anything.
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


# --- results of weights that the run no longer has ---

EARLIER = "of earlier weights"
BEFORE = "from before the run was trained on"
"""Label of a result that records no hash, and is older than the end of the run's training."""
_VERBS = {
    "evaluation": "evaluate",
    "examination": "examine",
    "explanation": "explain",
    "comparison": "explain",
    "sample": "generate",
}
"""Verbs by the kind of result that they make of one run's weights. Other kinds cover several runs."""
_EXAMINED = ("experiment", "split", "targets", "maximum_context", "reader")
"""Options of an examination that its renewal command always names."""
_CHANGED = ("context", "within_documents", "start_token", "seed", "near", "batch_size", "word_score")
"""Options that it names if they are not the default."""


@dataclass(frozen=True)
class Present:
    """The present weights of a run, as far as its folder tells."""

    weights: str | None
    weights_file: str | None
    ended: str | None
    """Time at which its training ended; None if it is not recorded."""

    def staleness(self, result: Result) -> str:
        """Return why a result is not of these weights; empty if it is, or if that is unknown."""
        for name in ("weights", "weights_file"):
            recorded, here = getattr(result.provenance, name), getattr(self, name)
            if isinstance(recorded, list):  # of a set of models
                return ""
            if isinstance(recorded, str) and here is not None:
                return "" if recorded == here else EARLIER
        started = result.provenance.started
        older = started is not None and self.ended is not None and started < self.ended
        return BEFORE if older and result.kind != "training" else ""


def marked(folder: Path, results: Sequence[Result]) -> list[Result]:
    """Return the results of a run folder, with `stale` and `renew` set on those of other weights."""
    training = next((r for r in results if r.kind == "training" and Path(r.source).parent == Path()), None)
    now = present(folder, training, results)
    return [
        replace(r, stale=why, renew=renewal(r, folder))
        if (r is training or r.kind in _VERBS) and (why := now.staleness(r))
        else r
        for r in results
    ]


def is_stale(result: Result, run: Path) -> bool:
    """Return True if a run's checkpoint holds other weights than a result records, judged by files alone."""
    here, recorded = best_file(run), result.provenance.weights_file
    return here is not None and isinstance(recorded, str) and recorded != here


def present(folder: Path, training: Result | None, results: Sequence[Result]) -> Present:
    """Return the weights of a run's best checkpoint; without any, those that its training recorded."""
    recorded = training.provenance if training else ProvenanceRecord()
    ended, file = _text(recorded.ended), best_file(folder)
    if file is None:
        return Present(_text(recorded.weights), _text(recorded.weights_file), ended)
    alike = (r.provenance.weights for r in results if r.provenance.weights_file == file)
    return Present(next((w for w in alike if isinstance(w, str)), None), file, ended)


def renewal(result: Result, folder: Path) -> str:
    """Return the command that renews a result: the recorded one, or one built from its figures."""
    if result.kind == "training":
        return shlex.join(["backstory", "train", as_argument(folder), "--resume"])
    verb, recorded = _VERBS[result.kind], result.provenance.command
    if recorded is not None and f" {verb} " in recorded:
        return recorded
    subfolder = Path(result.source).parent
    out = (
        [] if subfolder.name.startswith(verb) or result.kind == "sample" else ["--out", as_argument(folder / subfolder)]
    )
    return shlex.join(["backstory", verb, *_arguments(result, as_argument(folder)), *out])


def _arguments(result: Result, run: str) -> list[str]:
    f, text = result.figures, []
    values: dict[str, Any] = {}
    usual: dict[str, Any] = {"reader": "static"}
    if isinstance(f, SampleFigures):
        return [run, "--save"]
    if isinstance(f, ComparisonFigures):
        return [f.comparison, run]
    if isinstance(f, ExplanationFigures):
        return [f.explanation, run]
    if isinstance(f, ExaminationFigures):
        values = {name: getattr(f, name) for name in (*_EXAMINED, *_CHANGED)}
        values["seed"] = int(f.seed or 0)
        usual |= {field.name: field.default for field in fields(ExaminationSettings) if field.name in _CHANGED}
        usual["context"] = CONTEXT
    elif isinstance(f, EvaluationFigures):
        values = {
            name: getattr(f, name) for name in ("split", "reader", "after", "batch_size", "lengths", "addressing")
        }
        values |= {"precision": result.provenance.precision, "each_line": f.lines is not None, **(f.options or {})}
        usual |= {"split": OWN_TEXT, "batch_size": 1, "precision": "float32"}
        text = [result.corpus.title("TEXT")] if f.split == OWN_TEXT else []
    return [run, *text, *_flags({name: value for name, value in values.items() if value != usual.get(name)})]


def _flags(options: dict[str, Any]) -> list[str]:
    """Return options as flags, with lists after their flag, and without options that are None."""
    flags = []
    for name, value in options.items():
        if value:
            values = () if value is True else value if isinstance(value, tuple | list) else (value,)
            flags += [f"--{name.replace('_', '-')}", *map(str, values)]
    return flags


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
