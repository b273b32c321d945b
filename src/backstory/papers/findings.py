"""Test a paper's findings on the runs of a suite: published value, ours with its interval, verdict.

Findings are tested on effect sizes (`effect_sizes`).
"""

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from backstory.context.bootstrap import Interval, over_seeds
from backstory.context.examination import SPLITS
from backstory.context.experiments import EXPERIMENTS
from backstory.papers.claims import MISSING, ONE_SEED, UNDECIDED, YES
from backstory.papers.effect_sizes import CONTEXT, SPLIT, context_cost, is_published
from backstory.papers.paper import Finding, Measure, paper
from backstory.papers.plan import SuiteRun
from backstory.papers.suite import FindingCheck, PlannedExamination, Suite
from backstory.results.examination_record import SMALL, TRUNCATE
from backstory.results.reproduction_record import FindingRecord, MeasureRecord
from backstory.results.suite_run_record import MeasuredRecord, RunRecord

NO = "no"
NOT_RUN = "not run"
NOT_MEASURED = "not measured"
"""The runs are examined, but lack something that the finding is tested on: a condition, or targets of a group."""
FACTOR = 2
"""Two effective contexts agree if the larger is at most this multiple of the smaller."""

EffectSizes = Mapping[str, MeasuredRecord]
"""Effect sizes of one run, by the keys of measures."""


def check_findings(
    suite: Suite, runs: Sequence[SuiteRun], records: Mapping[str, RunRecord]
) -> tuple[FindingRecord, ...]:
    """Return the outcome of the suite's finding checks on the systems that it examines for them; records by run name."""
    outcomes = []
    for check in suite.findings:
        for name, finding in check.findings().items():
            sides = [
                [records[run.name] for run in runs if run.system == system and examines(run, finding)]
                for system in check.systems
            ]
            if all(sides):
                outcomes.append(check_finding(check, name, finding, *sides))
    return tuple(outcomes)


def examines(run: SuiteRun, finding: Finding) -> bool:
    """Return True if a run makes all the examinations that a finding or its fallback needs, on the same targets."""
    return any(_examines(run, finding, of) for of in (finding.measures, finding.fallback) if of or finding.on_context)


def _examines(run: SuiteRun, finding: Finding, measures: Sequence[Measure]) -> bool:
    planned = {e.experiment: e for e in run.examinations if is_published(e)}
    costs = [cost for measure in measures for cost in measure.costs]
    needed = {cost.experiment for cost in costs} | ({TRUNCATE} if finding.on_context else set())
    if not needed <= planned.keys():
        return False
    targets = {_targets_key(planned[experiment]) for experiment in needed}
    tagged = {_targets_key(e) for e in planned.values() if EXPERIMENTS[e.experiment].tagged or _by_tag(e.by)}
    by_tag = _by_tag(cost.by for cost in costs if cost.by)
    return len(targets) == 1 and (not by_tag or targets <= tagged)


def _by_tag(splits: Iterable[str]) -> bool:
    return any(SPLITS[split].needs == "tags" for split in splits)


def _targets_key(examination: PlannedExamination) -> tuple[int, int, int, bool]:
    """Return the key that fixes which targets are scored."""
    return examination.targets, examination.longest_context, examination.seed, examination.within_documents


def check_finding(
    check: FindingCheck,
    name: str,
    finding: Finding,
    runs: Sequence[RunRecord],
    baseline_runs: Sequence[RunRecord] = (),
) -> FindingRecord:
    """Test a finding on the runs of a system, and those of its baseline."""
    examined = [run for run in runs if run.effect_sizes]
    effects = [_effect_sizes(run) for run in examined]
    about = _median_context([_effect_sizes(run) for run in baseline_runs if run.effect_sizes]) or finding.about
    limits = [] if about is None else _context_limits(about, effects)
    falls_back = not _decides(finding.measures, effects) and _decides(finding.fallback, effects)
    tested = finding.fallback if falls_back else finding.measures
    needed = [*tested, *([CONTEXT, *limits] if finding.on_context else [])]
    measured = [measure for measure in needed if effects and all(measure.key in sizes for sizes in effects)]
    measures = tuple(_over_seeds(measure, [sizes[measure.key] for sizes in effects]) for measure in measured)
    # Numbers that are shown and decide nothing may be missing.
    complete = _decides(needed, effects) and bool(limits) == finding.on_context
    source = paper(check.paper)
    return FindingRecord(
        paper=check.paper,
        finding=name,
        sentence=finding.sentence,
        published=finding.published,
        source=f"{source.cited}, {finding.where}",
        figures={key: source.values[key].value for key in finding.values},
        system=check.system,
        baseline=check.baseline,
        seeds=tuple(run.seed for run in examined),
        planned_seeds=tuple(run.seed for run in runs),
        about=about,
        measures=measures,
        verdict=_verdict(measures, complete, runs, baseline_runs),
        protocol=finding.fallback_protocol if falls_back else None,
    )


def _decides(measures: Sequence[Measure], effects: Sequence[EffectSizes]) -> bool:
    """Return True if all runs have the measures that decide."""
    deciding = [measure.key for measure in measures if measure.decides]
    return bool(effects and deciding) and all(key in sizes for sizes in effects for key in deciding)


def _verdict(
    measures: Sequence[MeasureRecord], complete: bool, runs: Sequence[RunRecord], baseline_runs: Sequence[RunRecord]
) -> str:
    """Return `yes` if every interval is within its bounds, `no` if one is outside, `not decided` if one crosses a bound.

    Systems that are trained apart differ by chance: beside a baseline, one seed decides nothing.
    """
    for side in (runs, baseline_runs):
        if not all(run.state == "done" for run in side):
            return MISSING if any(run.effect_sizes for run in side) else NOT_RUN
    if not complete:
        return NOT_MEASURED
    if baseline_runs and min(len(runs), len(baseline_runs)) == 1:
        return ONE_SEED
    verdicts = [_side(measure) for measure in measures if measure.above is not None or measure.below is not None]
    return NO if NO in verdicts else UNDECIDED if UNDECIDED in verdicts else YES


def _side(measure: MeasureRecord) -> str:
    """Compare the interval of a measure with its bounds."""
    assert measure.low is not None and measure.high is not None
    above = -math.inf if measure.above is None else measure.above
    below = math.inf if measure.below is None else measure.below
    if measure.low > above and measure.high < below:
        return YES
    return NO if measure.high <= above or measure.low >= below else UNDECIDED


def _effect_sizes(run: RunRecord) -> dict[str, MeasuredRecord]:
    """Return a run's effect sizes; those of older results lack the effective context, which their examination has."""
    effects = dict(run.effect_sizes or {})
    examined = [e for e in run.examinations if e.experiment == TRUNCATE and e.split == SPLIT]
    if CONTEXT.key not in effects and examined and (used := examined[0].effective_context) is not None:
        low, high = used.interval or (used.context, used.context)
        effects[CONTEXT.key] = MeasuredRecord(value=used.context, low=low, high=high)
    return effects


def _median_context(effects: Sequence[EffectSizes]) -> float | None:
    """Return the median effective context of runs, one that was tried; None if it is beyond those."""
    values = [sizes[CONTEXT.key].value for sizes in effects if CONTEXT.key in sizes]
    median = statistics.median_high(math.inf if v is None else v for v in values) if values else math.inf
    return median if math.isfinite(median) else None


def _context_limits(about: float, effects: Sequence[EffectSizes]) -> list[Measure]:
    """Return measures that test an effective context: half of it is too little, and twice as much is enough.

    Empty if either length was not tried.
    """
    tried = [
        int(match[1]) for key in (effects[0] if effects else ()) if (match := re.fullmatch(r"truncate-(\d+)", key))
    ]
    short, long = [n for n in tried if n <= about / FACTOR], [n for n in tried if n >= about * FACTOR]
    if not short or not long:
        return []
    return [replace(context_cost(max(short)), above=SMALL), replace(context_cost(min(long)), above=-SMALL, below=SMALL)]


def _over_seeds(measure: Measure, effects: Sequence[MeasuredRecord]) -> MeasureRecord:
    """Return a measure over the seeds: the mean with its 95% interval over seeds and targets; for tokens the median, the
    least and the most. With one seed it is that seed's own interval, over the targets.
    """
    values = [effect.value for effect in effects]
    value: float | None
    low: float | None
    high: float | None
    if len(effects) == 1:
        value, low, high = effects[0].value, effects[0].low, effects[0].high
    elif measure.unit == "tokens":
        ordered = sorted(math.inf if v is None else v for v in values)
        range_and_median = ordered[0], statistics.median_high(ordered), ordered[-1]
        low, value, high = (v if math.isfinite(v) else None for v in range_and_median)
    else:
        intervals = [Interval(*map(_number, (effect.value, effect.low, effect.high))) for effect in effects]
        mean = over_seeds([interval.value for interval in intervals], intervals)
        value, low, high = mean.value, mean.low, mean.high
    hurt = tuple(effect.best_length for effect in effects if effect.best_length is not None)
    return MeasureRecord(
        measure=measure.key,
        label=measure.name,
        unit=measure.unit,
        best_lengths=hurt or None,
        value=value,
        low=low,
        high=high,
        above=_bound(measure.above, measure),
        below=_bound(measure.below, measure),
    )


def _bound(percent: float | None, measure: Measure) -> float | None:
    """Return a bound in the unit of the measure."""
    if percent is None:
        return None
    return percent / 100 if measure.unit == "share" else math.log1p(percent / 100)


def _number(value: float | None) -> float:
    assert value is not None
    return value
