"""Finished runs in other results of the same suite: which are taken over, and why the others are not."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from backstory.config import UserError
from backstory.papers.plan import SuiteRun, fingerprints
from backstory.papers.suite import Scale, Suite
from backstory.papers.suite_folder import SuiteFolder
from backstory.papers.suite_jobs import DONE, KnownRun
from backstory.results import ReproductionFigures, Result, result_at
from backstory.results.common import ProvenanceRecord
from backstory.results.reproduction_record import ReusableRun, RunRecord

UNPLANNED = "outside the suite"
FINISHED = "finished here, too"
TWICE = "in a file before it"
OLDER = "made by an older version, which recorded no settings"
OTHER = "with other settings"
LACKING = "without a reading or an examination that the suite asks for"
WEIGHTS = "to be run here, since others begin with their weights"


def take_over(
    paths: Sequence[Path],
    suite: Suite,
    name: str,
    scale: Scale,
    runs: Sequence[SuiteRun],
    todo: Iterable[SuiteRun],
    folder: SuiteFolder,
) -> tuple[dict[str, KnownRun], list[str]]:
    """Return the finished runs in result files that need not be run here, by name, and a line on each file.

    If several files have a run, the first counts. Raises UserError for a file that cannot be read or is no result of this
    suite at this scale.
    """
    files = [(path, _open(path, suite, name, scale)) for path in paths]
    settings, planned = fingerprints(runs), {run.name: run for run in runs}
    known: dict[str, KnownRun] = {}
    rejected: dict[tuple[int, str], str] = {}
    for index, (path, result) in enumerate(files):
        for record in _finished(result):
            run = planned.get(record.run)
            if reason := _reason_against(record, run, settings, folder, known):
                rejected[index, record.run] = reason
            else:
                known[record.run] = KnownRun(replace(record, known=path.name), _origin(record, result))
    needed = _needed_weights(todo, planned, folder, known)
    lines = []
    for index, (path, result) in enumerate(files):
        names = [record.run for record in _finished(result)]
        reasons = Counter(rejected.get((index, name), WEIGHTS if name in needed else "") for name in names)
        taken = reasons.pop("", 0)
        why = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        lines.append(f"{path}: {taken} of {len(names)} finished runs taken over{why and f'; not {why}'}")
    return {name: run for name, run in known.items() if name not in needed}, lines


def _open(path: Path, suite: Suite, name: str, scale: Scale) -> Result[ReproductionFigures]:
    result = result_at(path)
    figures = result.figures
    if not isinstance(figures, ReproductionFigures):
        raise UserError(f"{path} is of kind {result.kind}; --known takes the result.json of a reproduction")
    compared = {
        "suite": (figures.suite, name),
        "scale": (figures.scale, scale),
        "metric": (figures.metric, suite.metric),
    }
    for what, (theirs, ours) in compared.items():
        if theirs != ours:
            raise UserError(f"{path} is of {what} {theirs}, and this is {what} {ours}; leave it out of --known")
    return result


def _finished(result: Result[ReproductionFigures]) -> list[RunRecord]:
    return [record for record in result.figures.runs if record.state == DONE]


def _reason_against(
    record: RunRecord, run: SuiteRun | None, settings: Mapping[str, str], folder: SuiteFolder, known: Collection[str]
) -> str | None:
    """Return why a finished run of a result is not taken over; None if it is."""
    if run is None:
        return UNPLANNED
    if folder.finished(run):
        return FINISHED
    if run.name in known:
        return TWICE
    if not isinstance(record, ReusableRun):
        return OLDER
    if record.settings != settings[run.name]:
        return OTHER
    readings = [reading.place for reading in record.readings]
    examined = [(e.experiment, e.split, e.targets, e.maximum_context) for e in record.examinations]
    complete = all(reading.reading() in readings for reading in run.readings) and all(
        (e.experiment, e.split, e.targets, e.maximum_context) in examined for e in run.examinations
    )
    return None if complete else LACKING


def _origin(record: RunRecord, result: Result[ReproductionFigures]) -> ProvenanceRecord:
    """Return the provenance of a known run's training, as far as the result has it."""
    return ProvenanceRecord(
        device=record.device,
        precision=record.precision,
        precision_reason=result.provenance.precision_reason,
        corpus=result.corpus,
    )


def _needed_weights(
    todo: Iterable[SuiteRun], planned: Mapping[str, SuiteRun], folder: SuiteFolder, known: Collection[str]
) -> set[str]:
    """Return the runs that those to be run start from, and so on: a result has their figures but not their weights."""
    waiting = [run for run in todo if run.name not in known and not folder.finished(run)]
    needed: set[str] = set()
    while waiting:
        first = planned.get(waiting.pop().init_from or "")
        if first and first.name not in needed and not folder.finished(first):
            needed.add(first.name)
            waiting.append(first)
    return needed
