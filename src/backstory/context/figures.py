"""Figures of an experiment from the losses of its targets, over all of them and group by group, of one model or several."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from backstory.config import UserError
from backstory.config.measures import perplexity
from backstory.context.losses import Losses
from backstory.context.splits import Groups
from backstory.context.statistics import effective_context, paired_intervals

THRESHOLD = 0.01
Figures = dict[str, Any]


def figures(models: Sequence[Losses], by: Sequence[str] = (), seed: int = 0) -> Figures:
    """The fields `targets`, `baseline`, `conditions`, `groups` and `effective_context` of a result (docs/results.md).

    Of several models, which had the same targets and conditions: means with the deviation over the models. `by` names splits
    that the losses hold. Raises UserError.
    """
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
        same = [json_of(c) for c in first.conditions] == [json_of(c) for c in other.conditions]
        same = same and first.baseline_context == other.baseline_context
        if not same or not np.array_equal(first.positions, other.positions):
            raise UserError(
                "the models were examined on other targets or under other conditions; use the same settings"
            )
        if not np.array_equal(first.targets, other.targets):
            raise UserError("the models were examined on other text; compare models of one corpus")


def json_of(condition: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a condition without what was measured."""
    return {key: value for key, value in condition.items() if key != "dropped"}


def _groups(models: Sequence[Losses], by: str, groups: Groups, seed: int) -> list[Figures]:
    found = []
    for code, name in enumerate(groups.names):
        chosen = groups.codes == code
        if count := int(chosen.sum()):
            head = {"by": by, "group": name, "targets": count, "share": count / len(chosen)}
            found.append(head | _of(models, chosen, seed))
    return found


def _of(models: Sequence[Losses], chosen: np.ndarray, seed: int) -> Figures:
    """Baseline, conditions and effective context of the chosen targets (N,) bool."""
    baselines = np.stack([m.baseline[chosen] for m in models])
    nats = np.stack([m.nats[:, chosen] for m in models])  # (models, C, n)
    effects = (nats - baselines[:, None]).mean(2)
    baseline, mean = baselines.mean(0), nats.mean(0)
    intervals = paired_intervals((mean - baseline).T, seed)
    conditions = []
    for place, (described, interval) in enumerate(zip(models[0].conditions, intervals, strict=True)):
        record = {**described, "targets": int(chosen.sum()), **_level(mean[place]), "effect": interval.value}
        record |= {"low": interval.low, "high": interval.high}
        record["effect_percent"] = 100 * float(np.expm1(min(interval.value, 700)))
        if described["method"] == "without-cache":
            record["hurt"] = float((nats[:, place] < baselines).mean())
        if len(models) > 1:
            of_models = effects[:, place]
            record |= {"deviation": float(of_models.std(ddof=1)), "effects": of_models.tolist()}
        conditions.append(record)
    level = {"context": models[0].baseline_context, **_level(baseline)}
    if len(models) > 1:
        level["deviation"] = float(baselines.mean(1).std(ddof=1))
    found: Figures = {"baseline": level, "conditions": conditions}
    if models[0].conditions[0]["method"] == "truncate":
        found["effective_context"] = _effective(models, baselines, nats, seed)
    return found


def _effective(models: Sequence[Losses], baselines: np.ndarray, nats: np.ndarray, seed: int) -> Figures:
    contexts = [c["context"] for c in models[0].conditions]
    value, low, high = effective_context(contexts, baselines.mean(0), nats.mean(0).T, THRESHOLD, seed)
    found: Figures = {"context": value, "low": low, "high": high, "threshold_percent": 100 * THRESHOLD}
    if len(models) > 1:
        pairs = zip(baselines, nats, strict=True)
        found["models"] = [effective_context(contexts, b, n.T, THRESHOLD, seed)[0] for b, n in pairs]
    return found


def _level(nats: np.ndarray) -> dict[str, float]:
    mean = float(nats.mean())
    return {"nats": mean, "perplexity": perplexity(mean)}
