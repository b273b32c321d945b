"""A result file: its kind, figures and provenance, checked when read and when written."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from backstory.config.recipes import CONFIG
from backstory.config.renamed import current_result
from backstory.results.common import CorpusRecord, Figures, ProvenanceRecord
from backstory.results.display import Displayable, escaped
from backstory.results.evaluation_record import EvaluationFigures, SampleFigures
from backstory.results.examination_record import EXPERIMENTS, EffectRecord, ExaminationFigures, PicturedFigures
from backstory.results.explanation_record import ComparisonFigures, ExplanationFigures
from backstory.results.referee_record import RefereeFigures
from backstory.results.reproduction_record import ReproductionFigures
from backstory.results.search_record import SearchFigures
from backstory.results.training_record import TrainingFigures
from backstory.results.validation import AGAIN, Json, JsonObject, Name, Record, WrongValue, convert
from backstory.storage.atomic import sweep_abandoned, write_atomically
from backstory.storage.documents import parse
from backstory.storage.provenance import SCHEMA
from backstory.storage.run_files import RESULT
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError, shown
from backstory.utils.small_file import read_small_text

F = TypeVar("F", bound=Figures, covariant=True)
W = TypeVar("W", bound=Figures)
DEEPEST = 50
"""Levels of lists and objects in a result."""
_HALF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class OtherFigures(Figures):
    """Figures of a kind, or an experiment, that this version does not know."""

    kind: str  # type: ignore[misc]
    values: Json

    def to_dict(self) -> JsonObject:
        return dict(self.values)

    @property
    def label(self) -> str:
        experiment = self.values.get("experiment")
        return (
            self.kind if experiment is None else f"examine {experiment} on {self.values.get('split', 'unknown text')}"
        )


KINDS: dict[str, type[Figures] | None] = {
    "training": TrainingFigures,
    "evaluation": EvaluationFigures,
    "examination": None,  # by experiment
    "reproduction": ReproductionFigures,
    "search": SearchFigures,
    "sample": SampleFigures,
    "explanation": ExplanationFigures,
    "comparison": ComparisonFigures,
    "referee": RefereeFigures,
}
"""The kinds that this version knows, in display order."""


@dataclass(frozen=True, kw_only=True)
class ResultRecord(Record):
    """The parts of a result file."""

    kind: Name
    """`training`, `evaluation`, `examination`, `explanation`, `sample`, `comparison`, `reproduction`, `search` or
    `referee`. Later versions may add kinds."""
    name: str
    """The run or model that was measured."""
    figures: Json
    """Measured figures; their fields depend on the kind."""
    provenance: ProvenanceRecord
    """Everything needed to measure it again."""


@dataclass(frozen=True, repr=False)
class Result(Displayable, Generic[F]):
    """One result file."""

    kind: str
    """training, evaluation, examination, reproduction, search, sample, explanation, comparison, or one of a later version."""
    name: str
    """Name of the run or model that was measured."""
    figures: F
    """Measured figures."""
    provenance: ProvenanceRecord
    """Everything needed to measure it again."""
    source: str
    """The file, relative to the run folder."""
    stale: str = ""
    """Why it is stale (`of earlier weights`); empty if it is current, or if that is unknown."""
    renew: str = ""
    """The command that renews a stale result."""
    path: Path | None = field(default=None, compare=False)
    """The file, if there is one."""

    def to_json(self) -> str:
        """Return the text of the file."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    @property
    def label(self) -> str:
        """The command that measured it, in a few words: `evaluate test (static)`."""
        return self.figures.label

    @property
    def run(self) -> Path | None:
        """The run folder that holds the file; None for a result elsewhere."""
        folders = [] if self.path is None else self.path.parents
        return next((folder for folder in folders if (folder / CONFIG).is_file()), None)

    @property
    def corpus(self) -> CorpusRecord:
        """The text that was read; empty if none is recorded."""
        return self.provenance.corpus or CorpusRecord()

    @property
    def folder(self) -> str:
        """The folder of the result inside its run; `result.json` for one directly in the run."""
        return self.source.removesuffix("/result.json")

    def to_dict(self) -> JsonObject:
        """Return the result as JSON values, as result.json holds them."""
        figures, provenance = self.figures.to_dict(), self.provenance.to_dict()
        return {"schema": SCHEMA, "kind": self.kind, "name": self.name, "figures": figures, "provenance": provenance}

    def frame_rows(self) -> list[JsonObject]:
        """Return the rows of the figures, each with the name of the run or model as `model`, and its `seed` if it has one."""
        seed = self.provenance.seed
        first = {"model": self.name} | ({"seed": seed} if isinstance(seed, int) else {})
        return [{**first, **row} for row in self.figures.frame_rows()]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name}: {self.label}{'' if self.path is None else f', {self.path}'}>"

    def _repr_html_(self) -> str:
        return f"<p><b>{escaped(self.name)}</b></p>{self.figures._repr_html_()}"


def figures_from(kind: str, data: Mapping[str, Any]) -> Figures:
    """Return figures as the record of their kind. Raises WrongValue."""
    known, path = KINDS.get(kind), "figures"
    if kind == "examination":
        known = EXPERIMENTS.get(convert(Name, data.get("experiment"), f"{path}.experiment"))
        known = PicturedFigures if known is None and data.get("picture") is not None else known
    return OtherFigures(kind=kind, values=data) if known is None else convert(known, data, path)


def as_examination(result: Result[Any]) -> Result[ExaminationFigures[Any]]:
    """Return an examination with figures of its kind, also one of an experiment from outside without a picture.

    Raises UserError.
    """
    if not isinstance(result.figures, OtherFigures):
        return result
    try:
        figures = convert(ExaminationFigures[EffectRecord], result.figures.values, "figures")
    except WrongValue as wrong:
        raise UserError(f"{result.source} is damaged: {wrong}; {AGAIN}") from None
    return replace(result, figures=figures)


@checked()
def result_from(text: str, source: str) -> Result[Any]:
    """Return the result in the text of a file; `source` names the file in messages.

    Raises UserError if it is not a result or is damaged, naming the first field that is absent or wrong. Unknown
    figures and kinds are accepted.
    """
    try:
        data = parse(text.encode())
        check_writable(data)
    except ValueError:
        raise UserError(
            f"{source} is damaged (not valid JSON), or not a result file: give another, or {AGAIN}"
        ) from None
    if not isinstance(data, dict):
        raise UserError(f"{source} is not a result file (it holds no JSON object): give another, or {AGAIN}")
    if data.get("schema") != SCHEMA:
        raise UserError(
            f"{source} has schema {shown(data.get('schema'))} and this version reads schema {SCHEMA}; "
            "use the version of backstory that wrote it, or run its command again"
        )
    try:
        record = convert(ResultRecord, current_result(data), "")
        figures = figures_from(record.kind, record.figures)
    except WrongValue as wrong:
        raise UserError(f"{source} is damaged: {wrong}; {AGAIN}") from None
    return Result(record.kind, record.name, figures, record.provenance, source)


@checked()
def result_at(path: Path) -> Result[Any]:
    """Return the result in a file that a person named. Raises UserError as `result_from` does."""
    return replace(result_from(read_text(path, remedy="give the path of a result.json"), str(path)), path=path)


@checked()
def result_or_none(path: Path) -> Result[Any] | None:
    """Return the result in a file; None if the file is missing or `result_from` refuses it."""
    try:
        return replace(result_from(read_text(path, path.parent), str(path)), path=path)
    except UserError:
        return None


def result_in(folder: Path, path: Path) -> Result[Any]:
    """Return a result of a run folder, named by its relative path. Raises UserError as `result_from` does."""
    source = path.relative_to(folder).as_posix()
    return replace(result_from(read_text(path, folder), str(path)), source=source, path=path)


def write_result(folder: Path | None, name: str, figures: W, provenance: ProvenanceRecord) -> Result[W]:
    """Write the figures of a named run or model as `result.json`, creating the folder if needed. Return the result.

    Without a folder nothing is written. Raises WrongValue for a provenance that could not be read back.
    """
    origin = convert(ProvenanceRecord, provenance.to_dict(), "provenance")
    result = Result(figures.kind, name, figures, origin, RESULT, path=None if folder is None else folder / RESULT)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        sweep_abandoned(folder / RESULT)
        write_atomically(folder / RESULT, f"{result.to_json()}\n")
    return result


def check_writable(data: object) -> None:
    """Raise ValueError if JSON is too deep, or contains half of a surrogate pair, which cannot be written."""
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


def read_text(path: Path, inside: Path | None = None, remedy: str = "restore it or remove it") -> str:
    """Return the text of a small file. Raises UserError."""
    try:
        return read_small_text(path, inside=inside)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; {remedy}") from None
