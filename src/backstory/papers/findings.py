"""Test a paper's findings on the runs of a suite: published value, ours with its interval, verdict.

The effect sizes that findings are tested on are computed from the losses that a run's examinations saved.
"""

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from backstory.config import UserError
from backstory.context.bootstrap import (
    RESAMPLES,
    Interval,
    means_in_clusters,
    over_seeds,
    paired_intervals,
    resampled_means,
)
from backstory.context.bootstrap import effective_context as effective_context_of
from backstory.context.effects import THRESHOLD
from backstory.context.examination import SPLITS
from backstory.context.experiments import EXPERIMENTS
from backstory.context.losses import LOSSES, Losses
from backstory.papers.claims import MISSING, ONE_SEED, UNDECIDED, YES
from backstory.papers.paper import EFFECTIVE_CONTEXT, Cost, Finding, Measure, paper
from backstory.papers.plan import SuiteRun
from backstory.papers.suite import FindingCheck, PlannedExamination, Suite
from backstory.papers.suite_folder import SuiteFolder
from backstory.results.examination_record import SMALL
from backstory.results.reproduction_record import FindingRecord, MeasureRecord
from backstory.results.suite_run_record import MeasuredRecord, RunRecord

# --- verdicts ---

NO = "no"
NOT_RUN = "not run"
NOT_MEASURED = "not measured"
"""The runs are examined, but lack something that the finding is tested on: a condition, or targets of a group."""
FACTOR = 2
"""An effective context is about another one if it is between this part and this multiple of it."""

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
    """Return True if a run makes all the examinations that a finding needs, on the same targets."""
    planned = {e.experiment: e for e in run.examinations if _is_published(e)}
    costs = [cost for measure in finding.measures for cost in measure.costs]
    needed = {cost.experiment for cost in costs} | ({TRUNCATE} if finding.on_context else set())
    if not needed <= planned.keys():
        return False
    targets = {_targets_key(planned[experiment]) for experiment in needed}
    tagged = {_targets_key(e) for e in planned.values() if EXPERIMENTS[e.experiment].tagged or _by_tag(e.by)}
    by_tag = _by_tag(cost.by for cost in costs if cost.by)
    return len(targets) == 1 and (not by_tag or targets <= tagged)


def _is_published(examination: PlannedExamination) -> bool:
    """Return True if an examination is of the published split and reader."""
    return examination.split == SPLIT and (not examination.reader or examination.experiment == CACHE)


def _by_tag(splits: Iterable[str]) -> bool:
    return any(SPLITS[split].needs == "tags" for split in splits)


def _targets_key(examination: PlannedExamination) -> tuple[int, int, int, bool]:
    """Return the key that fixes which targets are scored."""
    return examination.targets, examination.maximum_context, examination.seed, examination.within_documents


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
    needed = [*finding.measures, *([CONTEXT, *limits] if finding.on_context else [])]
    measured = [measure for measure in needed if effects and all(measure.key in sizes for sizes in effects)]
    measures = tuple(_over_seeds(measure, [sizes[measure.key] for sizes in effects]) for measure in measured)
    # Numbers that are shown and decide nothing may be missing.
    complete = bool(effects) and all(measure in measured for measure in needed if measure.decides)
    complete = complete and bool(limits) == finding.on_context
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
    )


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
    """Return the measures that half of an effective context is too little and twice as much enough; none if either was not
    tried.
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


# --- effect sizes ---

SPLIT = "valid"
"""The split that the published examinations are of."""
TRUNCATE = "truncate"
CACHE = "cache"
"""The experiment whose reader is not the static one."""
CONTEXT = Measure("", (Cost(TRUNCATE, EFFECTIVE_CONTEXT),))
FEWEST_TARGETS = 100
"""Targets of a group without which nothing is measured, and no verdict given."""

Vector = np.ndarray


def context_cost(context: int) -> Measure:
    """Return the cost of a context of only so many tokens."""
    return Measure(f"with {context:,} tokens", (Cost(TRUNCATE, f"truncate-{context}"),))


def effect_sizes(suite: Suite, folder: SuiteFolder, run: SuiteRun) -> dict[str, MeasuredRecord]:
    """Return the effects in a run that the suite's findings are tested on, by the keys of their measures."""
    checks = [check for check in suite.findings if run.system in check.systems]
    findings = [finding for check in checks for finding in check.findings().values()]
    return measure_effects(saved_losses(folder, run), findings) if findings else {}


def saved_losses(folder: SuiteFolder, run: SuiteRun) -> dict[str, Losses]:
    """Return the losses of a run's finished examinations, by experiment, without files that are lost or damaged."""
    losses = {}
    for command, _ in folder.finished_commands(run):
        examination = command.examination
        if examination is None or not _is_published(examination):
            continue
        try:
            losses[examination.experiment] = Losses.load(command.out / LOSSES)
        except UserError:
            continue
    return losses


def measure_effects(losses: Mapping[str, Losses], findings: Iterable[Finding]) -> dict[str, MeasuredRecord]:
    """Return the measures of findings by key, each with its 95% interval, a bootstrap over the targets.

    A measure whose experiment, condition, split or targets are missing is left out.
    """
    measures = {measure.key: measure for finding in findings for measure in _measures(finding, losses)}
    effects: dict[str, MeasuredRecord] = {}
    batches: dict[tuple[bytes, bytes], list[tuple[str, _Part]]] = {}
    for key, measure in measures.items():
        if measure.unit == "nats":
            parts = _parts(losses, measure)
            if len(parts) == 1:
                batches.setdefault(parts[0].sample, []).append((key, parts[0]))
            elif parts:
                effects[key] = _record(_sum_over_groups(parts))
        else:
            of_unit = _effective_context if measure.unit == "tokens" else _share
            if effect := of_unit(losses, measure.plus[0]):
                effects[key] = effect
    # Each call draws its own resamples, which takes the time: one call for all measures of the same targets.
    for batch in batches.values():
        values, clusters = np.stack([part.chosen for _, part in batch], axis=1), batch[0][1].chosen_clusters
        intervals = paired_intervals(values, clusters=clusters)
        effects |= {key: _record(interval) for (key, _), interval in zip(batch, intervals, strict=True)}
    return {key: effects[key] for key in measures if key in effects}


def _record(interval: Interval) -> MeasuredRecord:
    return MeasuredRecord(value=interval.value, low=interval.low, high=interval.high)


def _measures(finding: Finding, losses: Mapping[str, Losses]) -> list[Measure]:
    """Return a finding's measures; for one on the effective context also the cost of each context that was tried."""
    if not finding.on_context:
        return [*finding.measures]
    tried = losses[TRUNCATE].conditions if TRUNCATE in losses else []
    return [*finding.measures, CONTEXT, *(context_cost(c["context"]) for c in tried)]


@dataclass(frozen=True, eq=False)
class _Part:
    """Summed costs of some of the targets."""

    mask: np.ndarray
    """(N,) bool."""
    values: Vector
    """(N,)"""
    clusters: np.ndarray | None
    """(N,) clusters that are resampled as a whole; None to resample targets."""

    @property
    def chosen(self) -> Vector:
        return self.values[self.mask]

    @property
    def chosen_clusters(self) -> np.ndarray | None:
        return None if self.clusters is None else self.clusters[self.mask]

    @property
    def sample(self) -> tuple[bytes, bytes]:
        """Return a key that is the same for parts that are resampled alike."""
        return self.mask.tobytes(), b"" if self.clusters is None else self.clusters.tobytes()


def _parts(losses: Mapping[str, Losses], measure: Measure) -> list[_Part]:
    """Return the measure as a sum of means, one over each group of targets; empty if something of it is missing."""
    parts: dict[bytes, _Part] = {}
    signed = [*((1.0, cost) for cost in measure.plus), *((-1.0, cost) for cost in measure.minus)]
    first = losses.get(measure.plus[0].experiment)
    for sign, cost in signed:
        examined = losses.get(cost.experiment)
        # Experiments are compared target by target.
        if examined is None or first is None or not np.array_equal(examined.positions, first.positions):
            return []
        values, mask = _costs(examined, cost), _mask(losses, examined, cost)
        if values is None or mask is None:
            return []
        earlier = parts.get(mask.tobytes())
        clusters = examined.clusters if earlier is None or earlier.clusters is None else earlier.clusters
        parts[mask.tobytes()] = _Part(mask, sign * values + (0.0 if earlier is None else earlier.values), clusters)
    return [*parts.values()]


def _costs(examined: Losses, cost: Cost) -> Vector | None:
    """Return (N,) the loss of each target under the condition, less that without it."""
    names = [condition["name"] for condition in examined.conditions]
    return examined.nats[names.index(cost.condition)] - examined.baseline if cost.condition in names else None


def _mask(losses: Mapping[str, Losses], examined: Losses, cost: Cost) -> np.ndarray | None:
    """Return (N,) bool, the targets of a cost's groups; None if they are unknown or too few."""
    if not cost.by:
        return np.ones(len(examined.positions), bool)
    # Experiments that need tags have them; they hold for the others on the same targets, too.
    same_targets = [other for other in losses.values() if np.array_equal(other.positions, examined.positions)]
    groups = next((other.splits[cost.by] for other in (examined, *same_targets) if cost.by in other.splits), None)
    if groups is None:
        return None
    mask = np.isin(groups.codes, [code for code, name in enumerate(groups.names) if name in cost.groups])
    return mask if mask.sum() >= FEWEST_TARGETS else None


def _sum_over_groups(parts: Sequence[_Part]) -> Interval:
    """Return the sum of means over groups of different targets, each resampled by itself.

    Clusters hold targets of several groups: the same ones are drawn for all groups.
    """
    means = np.zeros(RESAMPLES)
    for seed, part in enumerate(parts):
        if part.clusters is None:
            means += resampled_means(part.chosen[:, None], seed)[:, 0]
        else:
            means += means_in_clusters(part.values, part.mask, part.clusters)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(sum(part.chosen.mean() for part in parts)), float(low), float(high))


def _share(losses: Mapping[str, Losses], cost: Cost) -> MeasuredRecord | None:
    """Return a share of the text's tokens. All of them are counted, so its interval is the share itself."""
    examined = losses.get(cost.experiment)
    share = examined.conditions[0].get("outside_window") if examined is not None else None
    return None if share is None else MeasuredRecord(value=share, low=share, high=share)


def _effective_context(losses: Mapping[str, Losses], cost: Cost) -> MeasuredRecord | None:
    """Return tokens; None as value if more are used than were tried, and if there is none as more context hurts."""
    examined = losses.get(cost.experiment)
    mask = None if examined is None else _mask(losses, examined, cost)
    if examined is None or mask is None:
        return None
    contexts = [condition["context"] for condition in examined.conditions]
    clusters = None if examined.clusters is None else examined.clusters[mask]
    baseline, nats = examined.baseline[mask], examined.nats[:, mask].T
    used = effective_context_of(contexts, baseline, nats, THRESHOLD, clusters=clusters)
    best = None if used.best is None else used.best.length
    return MeasuredRecord(value=used.context, low=used.low, high=used.high, best_length=best)
