"""Results that are older than present definitions, read by these as far as what they hold allows.

An effective context was the first that cost less than the threshold. Now it is the shortest from which on all are within the
threshold of the full context, either way, and there is none where more context hurts (`context.statistics`). The classes
of words that a cache was examined by were not bounded by its window: findings by these are not measured.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
MutableRecord = dict[str, Any]
_LENGTH = re.compile(r"truncate-(\d{1,15})")


def by_present_definitions(kind: str, figures: Record) -> Record:
    """The figures of a result as they are defined now."""
    if kind == "reproduction":
        findings = {"findings": [_finding(one) for one in figures["findings"]]} if "findings" in figures else {}
        return {**figures, "runs": [_run(run) for run in figures["runs"]], **findings}
    if kind != "examination" or figures["experiment"] != "truncate":
        return figures
    threshold = figures["effective_context"]["threshold_percent"]
    renewed = _examined(figures, threshold)
    if "groups" in figures:
        renewed["groups"] = [_examined(group, threshold) for group in figures["groups"]]
    return renewed


def _examined(figures: Record, threshold: float) -> MutableRecord:
    """The figures of all targets, or of a group of them."""
    return {**figures, "effective_context": redefined(figures["effective_context"], figures["conditions"], threshold)}


def _finding(finding: Record) -> Record:
    outdated = any(str(m.get("measure")).startswith(("hurt", "without-cache of class")) for m in finding["measures"])
    return {**finding, "measures": [], "verdict": "not measured"} if outdated else finding


def _run(run: Record) -> MutableRecord:
    lengths, examined = truncations(run.get("effect_sizes", {})), []
    for one in run["examinations"]:
        stored = one.get("effective_context")
        renewed = {} if not lengths or stored is None else redefined(stored, lengths, stored["threshold_percent"])
        examined.append({**one, "effective_context": renewed} if renewed else one)
    return {**run, "examinations": examined}


def truncations(measured: Mapping[str, Record]) -> list[MutableRecord]:
    """The effects of every context that was tried on all targets, ascending, from the numbers that findings are tested on."""
    tried = [(int(m[1]), value) for key, value in measured.items() if (m := _LENGTH.fullmatch(key))]
    tried.sort(key=lambda pair: pair[0])
    return [{"context": n, "effect": one["value"], "low": one["low"], "high": one["high"]} for n, one in tried]


def redefined(stored: Record, conditions: Sequence[Record], threshold_percent: float) -> MutableRecord:
    """An effective context as it is defined now; its interval is left out where the older one was another context's."""
    if "more_context_hurts" in stored:
        return {**stored}
    low, high = math.log1p(-threshold_percent / 100), math.log1p(threshold_percent / 100)
    kept = {key: stored[key] for key in ("threshold_percent", "models") if key in stored}
    if better := [c for c in conditions if c["effect"] < low and c["high"] < 0]:
        best = min(better, key=lambda c: c["effect"])
        found = {"context": None, "low": None, "high": None, **kept, "more_context_hurts": True}
        found |= {"best_length": best["context"], "best_effect": best["effect"]}
        found |= {"best_low": best["low"], "best_high": best["high"]}
        return found | {"best_effect_percent": 100 * math.expm1(best["effect"])}
    context = None
    for condition in sorted(conditions, key=lambda c: -c["context"]):
        if not low <= condition["effect"] <= high:
            break
        context = condition["context"]
    known = [end for end in ("low", "high") if end in stored and context == stored["context"]]
    interval = {end: stored[end] for end in known}
    return {"context": context, **interval, **kept, "more_context_hurts": False}
