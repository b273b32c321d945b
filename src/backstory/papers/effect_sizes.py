"""Effect sizes that findings are tested on, from the losses that a run's examinations saved."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from backstory.context.bootstrap import RESAMPLES, Interval, means_in_clusters, paired_intervals, resampled_means
from backstory.context.bootstrap import effective_context as effective_context_of
from backstory.context.effects import THRESHOLD
from backstory.context.losses import LOSSES, Losses
from backstory.papers.paper import EFFECTIVE_CONTEXT, Cost, Finding, Measure
from backstory.papers.plan import SuiteRun
from backstory.papers.suite import PlannedExamination, Suite
from backstory.papers.suite_folder import SuiteFolder
from backstory.results.examination_record import CACHE, TRUNCATE
from backstory.results.suite_run_record import MeasuredRecord
from backstory.utils.errors import UserError

SPLIT = "valid"
"""The split of the published examinations."""
CONTEXT = Measure("", (Cost(TRUNCATE, EFFECTIVE_CONTEXT),))
FEWEST_TARGETS = 100
"""Minimum number of targets in a group; with fewer, nothing is measured and there is no verdict."""


def context_cost(context: int) -> Measure:
    """Return the cost of a context of only this many tokens."""
    return Measure(f"with {context:,} tokens", (Cost(TRUNCATE, f"truncate-{context}"),))


def is_published(examination: PlannedExamination) -> bool:
    """Return True if an examination is of the published split and reader, which is not the static one for the cache."""
    return examination.split == SPLIT and (not examination.reader or examination.experiment == CACHE)


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
        if examination is None or not is_published(examination):
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
    # Drawing resamples takes the time, so all measures of the same targets share a call.
    for batch in batches.values():
        values, clusters = np.stack([part.chosen for _, part in batch], axis=1), batch[0][1].chosen_clusters
        intervals = paired_intervals(values, clusters=clusters)
        effects |= {key: _record(interval) for (key, _), interval in zip(batch, intervals, strict=True)}
    return {key: effects[key] for key in measures if key in effects}


def _record(interval: Interval) -> MeasuredRecord:
    return MeasuredRecord(value=interval.value, low=interval.low, high=interval.high)


def _measures(finding: Finding, losses: Mapping[str, Losses]) -> list[Measure]:
    """Return a finding's measures and its fallback; for one on the effective context also the cost of each context tried."""
    measures = [*finding.measures, *finding.fallback]
    if not finding.on_context:
        return measures
    tried = losses[TRUNCATE].conditions if TRUNCATE in losses else []
    return [*measures, CONTEXT, *(context_cost(c["context"]) for c in tried)]


@dataclass(frozen=True, eq=False)
class _Part:
    """Summed costs of some of the targets."""

    mask: np.ndarray
    """(N,) bool."""
    values: np.ndarray
    """(N,)"""
    clusters: np.ndarray | None
    """(N,) clusters that are resampled as a whole; None to resample targets."""

    @property
    def chosen(self) -> np.ndarray:
        return self.values[self.mask]

    @property
    def chosen_clusters(self) -> np.ndarray | None:
        return None if self.clusters is None else self.clusters[self.mask]

    @property
    def sample(self) -> tuple[bytes, bytes]:
        """Return a key that is the same for parts that are resampled alike."""
        return self.mask.tobytes(), b"" if self.clusters is None else self.clusters.tobytes()


def _parts(losses: Mapping[str, Losses], measure: Measure) -> list[_Part]:
    """Return the measure as a sum of means, one over each group of targets; empty if a part of it is missing."""
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


def _costs(examined: Losses, cost: Cost) -> np.ndarray | None:
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
    """Return tokens; the value is None if more are used than were tried, or if more context hurts."""
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
