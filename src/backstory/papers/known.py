"""Runs that results of the same suite hold already: which are taken over, and why the others are not."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from backstory.config import UserError
from backstory.papers.plan import Run, fingerprints, place_of
from backstory.papers.suite import Scale, Suite
from backstory.papers.suite_folder import SuiteFolder
from backstory.papers.suite_jobs import DONE, KnownRun
from backstory.reports import Result, result_at
from backstory.reports.reproductions import place_in
from backstory.reports.results import MutableRecord

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
    runs: Sequence[Run],
    todo: Iterable[Run],
    folder: SuiteFolder,
) -> tuple[dict[str, KnownRun], list[str]]:
    """The finished runs of result files that need not be run, by name, and a line on each file; of two, the first counts.

    Raises UserError for a file that cannot be read or is no result of this suite at this scale.
    """
    files = [(path, _opened(path, suite, name, scale)) for path in paths]
    settings, planned = fingerprints(runs), {run.name: run for run in runs}
    found: dict[str, KnownRun] = {}
    left: dict[tuple[int, str], str] = {}
    for place, (path, result) in enumerate(files):
        for record in _done(result):
            run = planned.get(record["run"])
            if reason := _unfit(record, run, settings, folder, found):
                left[place, record["run"]] = reason
            else:
                found[record["run"]] = KnownRun({**record, "known": path.name}, _origin(record, result))
    needed = _init_from(todo, planned, folder, found)
    lines = []
    for place, (path, result) in enumerate(files):
        names = [record["run"] for record in _done(result)]
        reasons = Counter(left.get((place, n), WEIGHTS if n in needed else "") for n in names)
        taken = reasons.pop("", 0)
        why = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        lines.append(f"{path}: {taken} of {len(names)} finished runs taken over{why and f'; not {why}'}")
    return {n: known for n, known in found.items() if n not in needed}, lines


def _opened(path: Path, suite: Suite, name: str, scale: Scale) -> Result:
    result = result_at(path)
    if result.kind != "reproduction":
        raise UserError(f"{path} is of kind {result.kind}; --known takes the result.json of a reproduction")
    f = result.figures
    for what, theirs, ours in (
        ("suite", f["suite"], name),
        ("scale", f["scale"], scale),
        ("metric", f["metric"], suite.metric),
    ):
        if theirs != ours:
            raise UserError(f"{path} is of {what} {theirs}, and this is {what} {ours}; leave it out of --known")
    return result


def _done(result: Result) -> list[MutableRecord]:
    return [record for record in result.figures["runs"] if record["state"] == DONE]


def _unfit(
    record: MutableRecord, run: Run | None, settings: Mapping[str, str], folder: SuiteFolder, found: Collection[str]
) -> str | None:
    """Why a finished run of a result is not taken over; None if it is."""
    if run is None:
        return UNPLANNED
    if folder.finished(run):
        return FINISHED
    if run.name in found:
        return TWICE
    if "settings" not in record:
        return OLDER
    if record["settings"] != settings[run.name]:
        return OTHER
    readings = [place_in(r) for r in record["readings"]]
    keys = ("experiment", "split", "targets", "maximum_context")
    examined = [tuple(e.get(key) for key in keys) for e in record["examinations"]]
    whole = all(place_of(r) in readings for r in run.readings) and all(
        tuple(getattr(e, key) for key in keys) in examined for e in run.examinations
    )
    return None if whole else LACKING


def _origin(record: MutableRecord, result: Result) -> MutableRecord:
    reason = result.provenance.get("precision_reason")
    return {
        "device": record["device"],
        "precision": record["precision"],
        "precision_reason": reason,
        "corpus": result.corpus,
    }


def _init_from(
    todo: Iterable[Run], planned: Mapping[str, Run], folder: SuiteFolder, found: Collection[str]
) -> set[str]:
    """Names of the runs that those to be run begin with, and of what these would: their figures alone are not enough."""
    waiting = [run for run in todo if run.name not in found and not folder.finished(run)]
    needed: set[str] = set()
    while waiting:
        first = planned.get(waiting.pop().init_from or "")
        if first and first.name not in needed and not folder.finished(first):
            needed.add(first.name)
            waiting.append(first)
    return needed
