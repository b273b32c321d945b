"""The numbers that findings are judged by, of one run: from the losses that its experiments on context saved."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from backstory.config import UserError
from backstory.context.bootstrap import (
    RESAMPLES,
    Interval,
    effective_context,
    means_in_clusters,
    paired_intervals,
    resampled_means,
)
from backstory.context.figures import THRESHOLD
from backstory.context.losses import LOSSES, Losses
from backstory.papers.paper import EFFECTIVE_CONTEXT, Cost, Finding, Measure
from backstory.papers.plan import Run
from backstory.papers.suite_folder import SuiteFolder
from backstory.reports.results import MutableRecord

SPLIT = "valid"
"""What was examined of the published models."""
TRUNCATE = "truncate"
CONTEXT = Measure("", (Cost(TRUNCATE, EFFECTIVE_CONTEXT),))
FEWEST = 100
"""Targets of a group without which nothing is measured, and no verdict given."""

Vector = np.ndarray


def kept(context: int) -> Measure:
    """What a context of so many tokens lacks."""
    return Measure(f"with {context:,} tokens", (Cost(TRUNCATE, f"truncate-{context}"),))


def losses_of(folder: SuiteFolder, run: Run) -> dict[str, Losses]:
    """The losses of a run's finished examinations, by experiment; without those whose file is lost or damaged."""
    found = {}
    for command in folder.commands(run):
        result = command.result() if command.kind == "examination" else None
        if result is None or result.figures["split"] != SPLIT:
            continue
        try:
            found[str(result.figures["experiment"])] = Losses.load(command.out / LOSSES)
        except UserError:
            continue
    return found


def measured(found: Mapping[str, Losses], findings: Iterable[Finding]) -> dict[str, MutableRecord]:
    """By key, `value` with the `low` and `high` of its 95% interval, a bootstrap over the targets, of every measure there is.

    One whose experiment, condition, split or targets are not there is left out.
    """
    wanted = {measure.key: measure for finding in findings for measure in _wanted(finding, found)}
    record: dict[str, MutableRecord] = {}
    batches: dict[tuple[bytes, bytes], list[tuple[str, _Part]]] = {}
    for key, measure in wanted.items():
        if measure.unit == "tokens":
            if tokens := _effective_context(found, measure.plus[0]):
                record[key] = tokens
            continue
        if measure.unit == "share":
            if share := _share(found, measure.plus[0]):
                record[key] = share
            continue
        parts = _parts(found, measure)
        if len(parts) == 1:
            batches.setdefault(parts[0].sample, []).append((key, parts[0]))
        elif parts:
            record[key] = asdict(_over_groups(parts))
    # Every call draws its resamples anew, which is what takes time: one for each set of targets.
    for batch in batches.values():
        chosen, clusters = np.stack([part.chosen for _, part in batch], axis=1), batch[0][1].chosen_clusters
        intervals = paired_intervals(chosen, clusters=clusters)
        record |= {key: asdict(interval) for (key, _), interval in zip(batch, intervals, strict=True)}
    return {key: record[key] for key in wanted if key in record}


def _wanted(finding: Finding, found: Mapping[str, Losses]) -> list[Measure]:
    """A finding's measures; of one about the effective context what each context that was tried lacks."""
    if finding.about is None and not finding.paired:
        return [*finding.measures]
    tried = found[TRUNCATE].conditions if TRUNCATE in found else []
    return [*finding.measures, CONTEXT, *(kept(c["context"]) for c in tried)]


@dataclass(frozen=True, eq=False)
class _Part:
    """What is added up over some of the targets."""

    mask: np.ndarray
    """(N,) bool."""
    values: Vector
    """(N,)"""
    clusters: np.ndarray | None
    """(N,) what is drawn as a whole; None to draw targets."""

    @property
    def chosen(self) -> Vector:
        return self.values[self.mask]

    @property
    def chosen_clusters(self) -> np.ndarray | None:
        return None if self.clusters is None else self.clusters[self.mask]

    @property
    def sample(self) -> tuple[bytes, bytes]:
        """The same for the parts that are resampled alike."""
        return self.mask.tobytes(), b"" if self.clusters is None else self.clusters.tobytes()


def _parts(found: Mapping[str, Losses], measure: Measure) -> list[_Part]:
    """The measure as a sum of means, one over each group of targets; none where something of it is missing."""
    parts: dict[bytes, _Part] = {}
    signed = [*((1.0, cost) for cost in measure.plus), *((-1.0, cost) for cost in measure.minus)]
    first = found.get(measure.plus[0].experiment)
    for sign, cost in signed:
        losses = found.get(cost.experiment)
        # Experiments are compared target by target.
        if losses is None or first is None or not np.array_equal(losses.positions, first.positions):
            return []
        values, mask = _values(losses, cost), _mask(found, losses, cost)
        if values is None or mask is None:
            return []
        there = parts.get(mask.tobytes())
        clusters = losses.clusters if there is None or there.clusters is None else there.clusters
        parts[mask.tobytes()] = _Part(mask, sign * values + (0.0 if there is None else there.values), clusters)
    return [*parts.values()]


def _values(losses: Losses, cost: Cost) -> Vector | None:
    """(N,) what each target costs under the condition more than without it."""
    names = [condition["name"] for condition in losses.conditions]
    return losses.nats[names.index(cost.condition)] - losses.baseline if cost.condition in names else None


def _mask(found: Mapping[str, Losses], losses: Losses, cost: Cost) -> np.ndarray | None:
    """(N,) bool: the targets of a cost's groups; None where they are not known, or too few."""
    if not cost.by:
        return np.ones(len(losses.positions), bool)
    # Tags are known to the experiments that need them, and are those of the same targets.
    holders = [losses, *(other for other in found.values() if np.array_equal(other.positions, losses.positions))]
    groups = next((holder.splits[cost.by] for holder in holders if cost.by in holder.splits), None)
    if groups is None:
        return None
    mask = np.isin(groups.codes, [code for code, name in enumerate(groups.names) if name in cost.groups])
    return mask if mask.sum() >= FEWEST else None


def _over_groups(parts: Sequence[_Part]) -> Interval:
    """The sum of means over groups of different targets, each resampled by itself; of clusters, which hold targets of
    several groups, the same ones are drawn for all.
    """
    means = np.zeros(RESAMPLES)
    for seed, part in enumerate(parts):
        if part.clusters is None:
            means += resampled_means(part.chosen[:, None], seed)[:, 0]
        else:
            means += means_in_clusters(part.values, part.mask, part.clusters)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(sum(part.chosen.mean() for part in parts)), float(low), float(high))


def _share(found: Mapping[str, Losses], cost: Cost) -> MutableRecord | None:
    """A share of the text's tokens, all of which are counted: its interval is the share itself."""
    losses = found.get(cost.experiment)
    share = losses.conditions[0].get("outside_window") if losses is not None else None
    return None if share is None else dict.fromkeys(("value", "low", "high"), share)


def _effective_context(found: Mapping[str, Losses], cost: Cost) -> MutableRecord | None:
    """Tokens; null where there are more than were tried, and where there is none as more context hurts."""
    losses = found.get(cost.experiment)
    mask = None if losses is None else _mask(found, losses, cost)
    if losses is None or mask is None:
        return None
    contexts = [condition["context"] for condition in losses.conditions]
    clusters = None if losses.clusters is None else losses.clusters[mask]
    used = effective_context(contexts, losses.baseline[mask], losses.nats[:, mask].T, THRESHOLD, clusters=clusters)
    record: MutableRecord = {"value": used.context, "low": used.low, "high": used.high}
    return record if used.best is None else {**record, "best_length": used.best.length}
