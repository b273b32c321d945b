"""Effects of the conditions of an experiment, from the losses of its targets, of one model or several."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from backstory.context.bootstrap import (
    EffectiveContext,
    Interval,
    effective_context,
    over_seeds,
    paired_intervals,
    resampled_means,
)
from backstory.context.examination import Groups
from backstory.context.losses import LOSSES, Losses
from backstory.results.effective_context import ContextRecord, ThresholdContext
from backstory.results.examination_record import (
    EFFECTS,
    TRUNCATE,
    BaselineRecord,
    EffectRecord,
    ExaminationFigures,
    GroupRecord,
    PicturedEffect,
    PicturedFigures,
    TruncationFigures,
    TruncationGroup,
)
from backstory.results.validation import LARGEST_NUMBER
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError
from backstory.utils.scores import perplexity

THRESHOLD = 0.01


@dataclass(frozen=True)
class Effects:
    """The fields of `ExaminationFigures` that follow from the losses."""

    targets: int
    baseline: BaselineRecord
    conditions: tuple[Any, ...]
    """An EffectRecord each, of the experiment's own kind."""
    groups: tuple[Any, ...] = ()
    """A GroupRecord each."""
    effective_context: ThresholdContext | None = None
    """Of truncations alone."""

    def figures(self, settings: Mapping[str, Any]) -> ExaminationFigures[Any]:
        """Return the figures of an examination: these, and its fields of these names."""
        own = {name: value for name, value in vars(self).items() if value is not None}
        if self.effective_context is not None:
            return TruncationFigures(**settings, **own)
        return (PicturedFigures if "picture" in settings else ExaminationFigures)(**settings, **own)


@checked(seed=0)
def figures(models: Sequence[Losses], by: Sequence[str] = (), seed: int = 0) -> Effects:
    """Return the effects of the conditions on the targets: baseline, conditions, groups and effective context.

    For several models, examined on the same targets and conditions, return means with the deviation over the models. `by` names
    splits that the losses hold. Raises UserError.
    """
    if not models:
        raise UserError("models must be the losses of one or more, not none")
    _check_alike(models)
    first = models[0]
    if missing := next((name for name in by if name not in first.splits), None):
        raise UserError(f"the losses hold no split by {missing}; there are {', '.join(first.splits)}")
    groups = tuple(group for name in by for group in _groups(models, name, first.splits[name], seed))
    return replace(_effects(models, np.ones(len(first.positions), bool), seed), groups=groups)


def _kind(losses: Losses) -> type[EffectRecord]:
    """Return the type of record for the experiment's conditions; the general one if the losses name no experiment."""
    pictured = all("series" in condition for condition in losses.conditions)
    return EFFECTS.get(losses.settings.get("experiment", ""), PicturedEffect if pictured else EffectRecord)


def _check_alike(models: Sequence[Losses]) -> None:
    """Raise UserError unless the losses are of the same targets under the same conditions."""

    def settings(losses: Losses) -> tuple[Any, ...]:
        measured = ("dropped",)
        conditions = [{k: v for k, v in condition.items() if k not in measured} for condition in losses.conditions]
        return conditions, losses.baseline_context, losses.positions.tolist()

    first = models[0]
    for other in models[1:]:
        if settings(other) != settings(first):
            raise UserError(
                "the models were examined on other targets or under other conditions; use the same settings"
            )
        if not np.array_equal(first.targets, other.targets):
            raise UserError("the models were examined on other text; compare models of one corpus")


def _groups(models: Sequence[Losses], by: str, groups: Groups, seed: int) -> list[GroupRecord[Any]]:
    records = []
    for code, name in enumerate(groups.names):
        inside = groups.codes == code
        if inside.any():
            effects = _effects(models, inside, seed)
            fields: dict[str, Any] = {"by": by, "group": name, "share": effects.targets / len(inside)}
            fields |= {name: getattr(effects, name) for name in ("targets", "baseline", "conditions")}
            if effects.effective_context is None:
                records.append(GroupRecord(**fields))
            else:
                context = ContextRecord(**vars(effects.effective_context))
                records.append(TruncationGroup(**fields, effective_context=context))
    return records


def _effects(models: Sequence[Losses], inside: np.ndarray, seed: int) -> Effects:
    """Return baseline, conditions and effective context of the targets in a mask (N,) bool."""
    kind, several, count = _kind(models[0]), len(models) > 1, int(inside.sum())
    baselines = np.stack([m.baseline[inside] for m in models])
    nats = np.stack([m.nats[:, inside] for m in models])  # (models, C, n)
    effects = (nats - baselines[:, None]).mean(2)
    baseline, mean = baselines.mean(0), nats.mean(0)
    clusters = None if models[0].clusters is None else models[0].clusters[inside]
    differences = (mean - baseline).T
    resamples = resampled_means(differences, seed, clusters=clusters)
    intervals = paired_intervals(differences, seed, clusters, resamples)
    if several:
        intervals = [over_seeds(effects[:, i].tolist(), [one]) for i, one in enumerate(intervals)]
    conditions = []
    for i, (condition, interval) in enumerate(zip(models[0].conditions, intervals, strict=True)):
        values: dict[str, Any] = {**condition, "targets": count, **_level(mean[i]), "effect": interval.value}
        values |= {"low": _limit(interval.low), "high": _limit(interval.high), "effect_percent": _percent(interval)}
        if condition["method"] == "without-cache":
            values["hurt"] = float((nats[:, i] < baselines).mean())
        if several:
            values |= {"deviation": float(effects[:, i].std(ddof=1)), "effects": tuple(effects[:, i].tolist())}
        conditions.append(kind.of(values))
    deviation = float(baselines.mean(1).std(ddof=1)) if several else None
    level = BaselineRecord(context=models[0].baseline_context, **_level(baseline), deviation=deviation)
    used = None
    if models[0].conditions[0]["method"] == TRUNCATE:
        contexts = [c["context"] for c in models[0].conditions]
        same: dict[str, Any] = {"threshold": THRESHOLD, "seed": seed, "clusters": clusters}
        of_set = {"effects": intervals, "models": effects if several else None, "resamples": resamples}
        used = _context_record(effective_context(contexts, baseline, mean.T, **of_set, **same))
        if several:
            each = [effective_context(contexts, b, n.T, **same) for b, n in zip(baselines, nats, strict=True)]
            used = replace(used, models=tuple(one.context for one in each))
    return Effects(count, level, tuple(conditions), (), used)


def _context_record(used: EffectiveContext) -> ThresholdContext:
    """Return an effective context as results record it."""
    best: dict[str, Any] = {}
    if used.best is not None:
        effect = used.best.effect
        best = {"best_length": used.best.length, "best_effect": effect.value, "best_low": effect.low}
        best |= {"best_high": effect.high, "best_effect_percent": _percent(effect)}
    return ThresholdContext(
        context=used.context,
        low=used.low,
        high=used.high,
        threshold_percent=100 * THRESHOLD,
        more_context_hurts=used.best is not None,
        **best,
    )


def _limit(limit: float) -> float | None:
    """Return the limit of an interval as results record it; None for that of a single target."""
    return limit if math.isfinite(limit) else None


def _percent(effect: Interval) -> float:
    """Return an effect in percent of perplexity, at most the largest number that results hold."""
    return min(100 * float(np.expm1(min(effect.value, 700))), LARGEST_NUMBER)


def _level(nats: np.ndarray) -> dict[str, float]:
    mean = float(nats.mean())
    return {"nats": mean, "perplexity": perplexity(mean)}


@checked(seed=0)
def regroup(
    folder: Path | str,
    by: Sequence[str] = (),
    labels: Mapping[str, tuple[np.ndarray, Sequence[str]]] | None = None,
    seed: int = 0,
) -> Effects:
    """Return the effects of a finished examination with its targets split in other ways; nothing is run again.

    `folder` holds `losses.npz`. `by` names splits that are saved there, or those of `labels`: a name with the group of each
    target (N,), in the order of the targets' positions, and the names of the groups. Raises UserError.
    """
    losses = Losses.load(Path(folder) / LOSSES)
    added = {name: Groups(np.asarray(codes, np.int16), tuple(names)) for name, (codes, names) in (labels or {}).items()}
    for name, groups in added.items():
        if groups.codes.shape != losses.positions.shape:
            raise UserError(
                f"the split {name} has {groups.codes.size:,} labels for {len(losses.positions):,} targets; give one for each"
            )
    return figures([replace(losses, splits={**losses.splits, **added})], by, seed)
