"""Figures of an experiment from the losses of its targets: of all targets and of each group, of one model or several."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from backstory.config import UserError
from backstory.config.arguments import checked
from backstory.config.scores import perplexity
from backstory.context.bootstrap import EffectiveContext, Interval, effective_context, over_seeds, paired_intervals
from backstory.context.losses import Losses
from backstory.context.splits import Groups

THRESHOLD = 0.01
Figures = dict[str, Any]


@checked(seed=0)
def figures(models: Sequence[Losses], by: Sequence[str] = (), seed: int = 0) -> Figures:
    """Return the fields `targets`, `baseline`, `conditions`, `groups` and `effective_context` of a result (docs/results.md).

    Of several models, which had the same targets and conditions: means with the deviation over the models. `by` names splits
    that the losses hold. Raises UserError.
    """
    if not models:
        raise UserError("models must be the losses of one or more, not none")
    check_alike(models)
    first = models[0]
    for name in by:
        if name not in first.splits:
            raise UserError(f"the losses hold no split by {name}; there are {', '.join(first.splits)}")
    whole = np.ones(len(first.positions), bool)
    return {
        "targets": len(first.positions),
        **_of(models, whole, seed),
        "groups": [group for name in by for group in _groups(models, name, first.splits[name], seed)],
    }


def check_alike(models: Sequence[Losses]) -> None:
    """Raise UserError unless the losses are of the same targets under the same conditions."""
    first = models[0]
    for other in models[1:]:
        same = [parameters_of(c) for c in first.conditions] == [parameters_of(c) for c in other.conditions]
        same = same and first.baseline_context == other.baseline_context
        if not same or not np.array_equal(first.positions, other.positions):
            raise UserError(
                "the models were examined on other targets or under other conditions; use the same settings"
            )
        if not np.array_equal(first.targets, other.targets):
            raise UserError("the models were examined on other text; compare models of one corpus")


def parameters_of(condition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a condition without measured ones."""
    return {key: value for key, value in condition.items() if key != "dropped"}


def _groups(models: Sequence[Losses], by: str, groups: Groups, seed: int) -> list[Figures]:
    records = []
    for code, name in enumerate(groups.names):
        chosen = groups.codes == code
        if count := int(chosen.sum()):
            head = {"by": by, "group": name, "targets": count, "share": count / len(chosen)}
            records.append(head | _of(models, chosen, seed))
    return records


def _of(models: Sequence[Losses], chosen: np.ndarray, seed: int) -> Figures:
    """Return baseline, conditions and effective context of the chosen targets (N,) bool."""
    baselines = np.stack([m.baseline[chosen] for m in models])
    nats = np.stack([m.nats[:, chosen] for m in models])  # (models, C, n)
    effects = (nats - baselines[:, None]).mean(2)
    baseline, mean = baselines.mean(0), nats.mean(0)
    clusters = None if models[0].clusters is None else models[0].clusters[chosen]
    intervals = paired_intervals((mean - baseline).T, seed, clusters)
    if len(models) > 1:
        intervals = [over_seeds(effects[:, i].tolist(), [one]) for i, one in enumerate(intervals)]
    conditions = []
    for i, (described, interval) in enumerate(zip(models[0].conditions, intervals, strict=True)):
        record = {**described, "targets": int(chosen.sum()), **_level(mean[i]), "effect": interval.value}
        record |= {"low": interval.low, "high": interval.high}
        record["effect_percent"] = _percent(interval)
        if described["method"] == "without-cache":
            record["hurt"] = float((nats[:, i] < baselines).mean())
        if len(models) > 1:
            of_models = effects[:, i]
            record |= {"deviation": float(of_models.std(ddof=1)), "effects": of_models.tolist()}
        conditions.append(record)
    level = {"context": models[0].baseline_context, **_level(baseline)}
    if len(models) > 1:
        level["deviation"] = float(baselines.mean(1).std(ddof=1))
    figures: Figures = {"baseline": level, "conditions": conditions}
    if models[0].conditions[0]["method"] == "truncate":
        contexts = [c["context"] for c in models[0].conditions]
        same: dict[str, Any] = {"threshold": THRESHOLD, "seed": seed, "clusters": clusters}
        figures["effective_context"] = _recorded(
            effective_context(contexts, baseline, mean.T, effects=intervals, **same)
        )
        if len(models) > 1:
            each = [effective_context(contexts, b, n.T, **same) for b, n in zip(baselines, nats, strict=True)]
            figures["effective_context"]["models"] = [one.context for one in each]
    return figures


def _recorded(used: EffectiveContext) -> Figures:
    """Return an effective context as results record it (docs/results.md)."""
    record: Figures = {"context": used.context, "low": used.low, "high": used.high}
    record |= {"threshold_percent": 100 * THRESHOLD, "more_context_hurts": used.best is not None}
    if used.best is not None:
        effect = used.best.effect
        record |= {"best_length": used.best.length, "best_effect": effect.value}
        record |= {"best_low": effect.low, "best_high": effect.high}
        record["best_effect_percent"] = _percent(effect)
    return record


def _percent(effect: Interval) -> float:
    """Return an effect in percent of perplexity, bounded so that it does not overflow."""
    return 100 * float(np.expm1(min(effect.value, 700)))


def _level(nats: np.ndarray) -> dict[str, float]:
    mean = float(nats.mean())
    return {"nats": mean, "perplexity": perplexity(mean)}
