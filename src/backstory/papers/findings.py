"""Whether what a paper found holds of the runs of a suite that were examined: published, ours, and a verdict."""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from backstory.context.bootstrap import Interval, over_seeds
from backstory.context.experiments import EXPERIMENTS
from backstory.context.splits import SPLITS
from backstory.papers.claims import MISSING, UNDECIDED, YES
from backstory.papers.effect_sizes import CONTEXT, SPLIT, TRUNCATE, kept, losses_of, measured
from backstory.papers.paper import Finding, Measure, Paper, paper
from backstory.papers.plan import Run
from backstory.papers.suite import FindingCheck, PlannedExamination, Suite
from backstory.papers.suite_folder import SuiteFolder
from backstory.reports.examined import SMALL
from backstory.reports.results import MutableRecord, Record

NO = "no"
NOT_RUN = "not run"
NOT_MEASURED = "not measured"
"""The runs are examined, but without something that the finding is judged by: a condition, or targets of a group."""
FACTOR = 2
"""An effective context is about another where it is between this part and this multiple of it."""


def measures_of(suite: Suite, folder: SuiteFolder, run: Run) -> dict[str, MutableRecord]:
    """What of a run the findings of the suite are judged by; empty for one that none is about."""
    asked = [a for a in suite.findings if run.system in (a.system, a.baseline)]
    found = [finding for a in asked for finding in paper(a.paper).findings.values() if _about(finding, a)]
    return measured(losses_of(folder, run), found) if found else {}


def judged(suite: Suite, runs: Sequence[Run], records: Mapping[str, Record]) -> list[MutableRecord]:
    """The findings that the suite asks for, of the systems that it examines for them; records of the runs by name."""
    found = []
    for asked in suite.findings:
        about = paper(asked.paper)
        for name, finding in about.findings.items():
            sides = [
                [run for run in runs if run.system == system and examines(run, finding)] for system in _systems(asked)
            ]
            if _about(finding, asked) and all(sides):
                head = _head(asked, about, name, finding)
                found.append(head | _judged(finding, *([records[run.name] for run in side] for side in sides)))
    return found


def examines(run: Run, finding: Finding) -> bool:
    """Whether a run is examined for a finding: by all its experiments, on the same targets."""
    planned = {e.experiment: e for e in run.examinations if e.split == SPLIT}
    needed = {cost.experiment for measure in finding.measures for cost in (*measure.plus, *measure.minus)}
    needed |= {TRUNCATE} if _of_context(finding) else set()
    if not needed <= planned.keys():
        return False
    alike = {_targets(planned[experiment]) for experiment in needed}
    tagged = {_targets(e) for e in planned.values() if EXPERIMENTS[e.experiment].tagged}
    return len(alike) == 1 and (not _by_tag(finding) or alike <= tagged)


def _targets(examination: PlannedExamination) -> tuple[int, int]:
    """What decides which targets are scored."""
    return examination.targets, examination.maximum_context


def _by_tag(finding: Finding) -> bool:
    costs = [cost for measure in finding.measures for cost in (*measure.plus, *measure.minus)]
    return any(cost.by and SPLITS[cost.by].tagged for cost in costs)


def _of_context(finding: Finding) -> bool:
    """Whether it says how long an effective context is."""
    return finding.paired or finding.about is not None


def _systems(asked: FindingCheck) -> list[str]:
    return [asked.system] if asked.baseline is None else [asked.system, asked.baseline]


def _about(finding: Finding, asked: FindingCheck) -> bool:
    """Whether a finding speaks of one system, or of two, as is asked."""
    return finding.paired == (asked.baseline is not None)


def _head(asked: FindingCheck, about: Paper, name: str, finding: Finding) -> MutableRecord:
    return {
        "paper": asked.paper,
        "finding": name,
        "sentence": finding.sentence,
        "published": finding.published,
        "source": f"{about.cited}, {finding.where}",
        "figures": {key: about.values[key].value for key in finding.values},
        "system": asked.system,
        "baseline": asked.baseline,
    }


def _judged(finding: Finding, runs: Sequence[Record], others: Sequence[Record] = ()) -> MutableRecord:
    """Seeds, measures and verdict, of the runs that are examined, and of those of the other system."""
    there = [run for run in runs if run.get("effect_sizes")]
    found = [_measured(run) for run in there]
    about = _context([_measured(other) for other in others if other.get("effect_sizes")]) or finding.about
    limits = [] if about is None else _limits(about, found)
    wanted = [*finding.measures, *([CONTEXT, *limits] if _of_context(finding) else [])]
    made = [measure for measure in wanted if found and all(measure.key in one for one in found)]
    told = [_over(measure, [one[measure.key] for one in found]) for measure in made]
    # Numbers that are shown and decide nothing may be missing.
    whole = bool(found) and all(measure in made for measure in wanted if _decides(measure))
    whole = whole and bool(limits) == _of_context(finding)
    return {
        "seeds": [run["seed"] for run in there],
        "planned_seeds": [run["seed"] for run in runs],
        "about": about,
        "measures": told,
        "verdict": _verdict(told, whole, runs, others),
    }


def _verdict(told: Sequence[Record], whole: bool, runs: Sequence[Record], others: Sequence[Record]) -> str:
    """Yes where every measure's interval is where it should be, no where one is not, undecided where one is in between."""
    for side in (runs, others):
        finished = [run["state"] == "done" for run in side]
        if not all(finished):
            return MISSING if any(run.get("effect_sizes") for run in side) else NOT_RUN
    if not whole:
        return NOT_MEASURED
    sides = [_side(measure) for measure in told if measure["above"] is not None or measure["below"] is not None]
    return NO if NO in sides else UNDECIDED if UNDECIDED in sides else YES


def _decides(measure: Measure) -> bool:
    return measure.above is not None or measure.below is not None


def _side(measure: Record) -> str:
    """Whether the interval of one measure lies above and below what it should."""
    above = -math.inf if measure["above"] is None else measure["above"]
    below = math.inf if measure["below"] is None else measure["below"]
    if measure["low"] > above and measure["high"] < below:
        return YES
    return NO if measure["high"] <= above or measure["low"] >= below else UNDECIDED


def _measured(run: Record) -> dict[str, Record]:
    """What a run's findings are judged by; an older run's effective context by its present definition (`reports.older`)."""
    measured, key = dict(run["effect_sizes"]), CONTEXT.key
    examined = [e for e in run.get("examinations", []) if e.get("experiment") == TRUNCATE and e.get("split") == SPLIT]
    if key not in measured and examined and "effective_context" in examined[0]:
        used = examined[0]["effective_context"]
        ends = {end: used.get(end, used["context"]) for end in ("low", "high")}
        measured[key] = {"value": used["context"], **ends}
    return measured


def _context(found: Sequence[Mapping[str, Record]]) -> float | None:
    """The effective context of some runs: the median, a context that was tried; None where it was not reached."""
    values = [one[CONTEXT.key]["value"] for one in found if CONTEXT.key in one]
    middle = statistics.median_high(math.inf if v is None else v for v in values) if values else math.inf
    return middle if math.isfinite(middle) else None


def _limits(about: float, found: Sequence[Mapping[str, Record]]) -> list[Measure]:
    """That half of what an effective context should be is too little, and twice as much enough; none if not both were tried."""
    keys = [key for key in (found[0] if found else ()) if re.fullmatch(r"truncate-\d+", key)]
    tried = [int(key.removeprefix("truncate-")) for key in keys]
    few, many = [n for n in tried if n <= about / FACTOR], [n for n in tried if n >= about * FACTOR]
    if not few or not many:
        return []
    return [replace(kept(max(few)), above=SMALL), replace(kept(min(many)), above=-SMALL, below=SMALL)]


def _over(measure: Measure, found: Sequence[Record]) -> MutableRecord:
    """A measure over the seeds: the mean with its 95% interval over seeds and targets (of tokens the median, the least and the
    most). Of one seed its own interval, over the targets.
    """
    head: MutableRecord = {"measure": measure.key, "label": measure.name, "unit": measure.unit}
    values = [one["value"] for one in found]
    if hurt := [one["best_length"] for one in found if "best_length" in one]:
        head["best_lengths"] = hurt
    if len(found) == 1:
        value, low, high = (found[0][limit] for limit in ("value", "low", "high"))
    elif measure.unit == "tokens":
        ordered = sorted(math.inf if v is None else v for v in values)
        low, value, high = (v if math.isfinite(v) else None
                            for v in (ordered[0], statistics.median_high(ordered), ordered[-1]))  # fmt: skip
    else:
        whole = over_seeds(values, [Interval(one["value"], one["low"], one["high"]) for one in found])
        value, low, high = whole.value, whole.low, whole.high
    scale = (lambda bound: bound / 100) if measure.unit == "share" else (lambda bound: math.log1p(bound / 100))
    bounds = {side: None if (bound := getattr(measure, side)) is None else scale(bound) for side in ("above", "below")}
    return {**head, "value": value, "low": low, "high": high, **bounds}
