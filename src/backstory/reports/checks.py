"""Whether a result can be shown: its kind's shape, and what its figures must have to do with each other."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from backstory.config import UserError
from backstory.reports import kinds
from backstory.reports.passage import AGAIN, from_json
from backstory.reports.shapes import NUMBER, POSITIVE, Wrong, wrong

Figures = Mapping[str, Any]


def check(data: dict[str, Any], source: str) -> None:
    """Check that a result holds what its kind must hold; figures beyond that, and other kinds, are let through.

    Raises UserError that names the first field that is absent or wrong.
    """
    _no(wrong(kinds.ENVELOPE, data, ""), source)
    kind, figures = data["kind"], data["figures"]
    _no(wrong(kinds.KINDS.get(kind, {}), figures, "figures"), source)
    if kind in _RELATIONS:
        _no(_RELATIONS[kind](figures), source)
    for passage in _passages(kind, figures):
        from_json(passage, source)


def _no(found: Iterator[Wrong], source: str) -> None:
    for path, expected in found:
        raise UserError(f"{source} is damaged: {path} must be {expected}; {AGAIN}")


def _passages(kind: str, figures: Figures) -> list[Figures]:
    if kind == "explanation":
        return [figures["passage"]]
    return [one["passage"] for one in figures["passages"]] if kind == "comparison" else []


def _training(figures: Figures) -> Iterator[Wrong]:
    known = (figures.get("unknown") or {}).get("valid", {})
    yield from _unknown(known, figures["tokens"]["valid"], "figures.unknown.valid")


def _evaluation(figures: Figures) -> Iterator[Wrong]:
    yield from _unknown(figures, figures["tokens"], "figures")
    yield from _memory(figures.get("memory"), "figures.memory")
    yield from _recency(figures.get("recency"), "figures.recency")


def _unknown(figures: Figures, tokens: float, path: str) -> Iterator[Wrong]:
    unknown = figures.get("unknown_tokens") or 0
    if not (figures.get("out_of_vocabulary_tokens") or 0) <= unknown <= tokens:
        yield f"{path}.unknown_tokens", "a number of tokens, of which those outside the vocabulary are a part"


def _memory(memory: Figures | None, path: str) -> Iterator[Wrong]:
    for index, curve in enumerate(memory["curves"] if memory else []):
        yield from _bins(curve["bins"], f"{path}.curves[{index}].bins")


def _recency(recency: Figures | None, path: str) -> Iterator[Wrong]:
    if recency:
        if (recency["new"]["nats"] is None) != (recency["new"]["tokens"] == 0):
            yield f"{path}.new.nats", "null where there are no tokens, else a number"
        yield from _bins(recency["bins"], f"{path}.bins")


def _bins(bins: list[Figures], path: str) -> Iterator[Wrong]:
    ends = [end for one in bins for end in (one["from"], math.inf if one["to"] is None else one["to"])]
    if ends != sorted(ends):
        yield path, "ranges of distances, the nearest first"


def _examination(figures: Figures) -> Iterator[Wrong]:
    yield from wrong(kinds.examination(figures["experiment"]), figures, "figures")
    if figures["experiment"] in kinds.CONDITIONS:
        yield from _unknown(figures, figures["targets"], "figures")
    for index, group in enumerate(figures.get("groups", []) if figures["experiment"] == "truncate" else []):
        yield from _effective(group["effective_context"], f"figures.groups[{index}].effective_context")
    if figures["experiment"] == "truncate":
        yield from _effective(figures["effective_context"], "figures.effective_context")


def _effective(found: Figures, path: str) -> Iterator[Wrong]:
    if found.get("more_context_hurts"):  # older results do not say whether it does
        yield from wrong(kinds.BEST, found, path)
    if ("low" in found) != ("high" in found):
        yield path, "with both ends of its interval, or neither"


def _reproduction(figures: Figures) -> Iterator[Wrong]:
    for index, run in enumerate(figures["runs"]):
        path = f"figures.runs[{index}]"
        if "settings" in run:
            yield from wrong(kinds.TAKEN_OVER, run, path)
            for name, found in run.get("effect_sizes", {}).items():
                shape = kinds.REACHED if name.startswith("effective-context") else kinds.MEASURED
                yield from wrong(shape, found, f"{path}.measured.{name}")
        for number, reading in enumerate(run.get("readings", [])):
            yield from _memory(reading.get("memory"), f"{path}.readings[{number}].memory")
            yield from _recency(reading.get("recency"), f"{path}.readings[{number}].recency")
        for number, examined in enumerate(run["examinations"]):
            if "effective_context" in examined:
                yield from wrong({"maximum_context": NUMBER}, examined, f"{path}.examinations[{number}]")
                yield from _effective(examined["effective_context"], f"{path}.examinations[{number}].effective_context")


def _search(figures: Figures) -> Iterator[Wrong]:
    numbers = [t["trial"] for t in figures["trials"]]
    if len(set(numbers)) < len(numbers):
        yield "figures.trials", "trials of numbers that differ"
    for index, trial in enumerate(figures["trials"]):
        if trial["state"] == "complete":
            yield from wrong(POSITIVE, trial["valid_perplexity"], f"figures.trials[{index}].valid_perplexity")
    for index, parameter in enumerate(figures["parameters"]):
        if not parameter["same"] and not parameter["choices"]:
            yield from wrong(dict.fromkeys(("low", "high"), NUMBER), parameter, f"figures.parameters[{index}]")
    complete = [t["trial"] for t in figures["trials"] if t["state"] == "complete"]
    if figures["best"] not in (complete or [None]):
        yield "figures.best", "a trial that is complete"


def _explanation(figures: Figures) -> Iterator[Wrong]:
    yield from _unknown(figures, figures.get("tokens") or 0, "figures")
    if kinds.BY_HEAD[0] in figures:
        yield from wrong(kinds.HEADS, figures, "figures")
        for key in kinds.BY_HEAD:
            if len(figures[key]["read"]) != len(figures[kinds.BY_HEAD[0]]["read"]):
                yield f"figures.{key}.read", "a number or null for each head that reads"
    if weights := figures.get("weights"):
        for key in ("write", "read"):
            sizes = [len(row) for row in weights[key]]
            if sizes != [len(weights["tokens"])] * len(weights["slots"]):
                yield f"figures.weights.{key}", "a list for each row, of a number for each token"


def _comparison(figures: Figures) -> Iterator[Wrong]:
    """Lists as long as each other, of readers that are there, and documents that make up the stretch."""
    yield from _unknown(figures, figures["tokens"], "figures")
    blocks, pairs = math.ceil(figures["tokens"] / figures["block"]), len(figures["comparisons"])
    lengths = [(f"comparisons[{i}].{key}", c[key], blocks) for i, c in enumerate(figures["comparisons"])
               for key in ("blocks", "perplexity_blocks")]  # fmt: skip
    for part in ("documents", "positions", "passages"):
        lengths += [(f"{part}[{i}].gains", one["gains"], pairs) for i, one in enumerate(figures[part])]
    lengths += [
        (f"documents[{i}].nats", d["nats"], len(figures["readers"])) for i, d in enumerate(figures["documents"])
    ]
    yield from ((f"figures.{path}", f"a list of {size}") for path, values, size in lengths if len(values) != size)
    names = [reader["name"] for reader in figures["readers"]]
    if not all(pair[side] in names for pair in figures["comparisons"] for side in ("reader", "over")):
        yield "figures.comparisons", "between readers that are named"
    end = figures["at"]
    for i, document in enumerate(figures["documents"]):
        if document["start"] != end:
            yield f"figures.documents[{i}].start", "where the document before it ends"
        end += document["tokens"]
    if end != figures["at"] + figures["tokens"]:
        yield "figures.documents", "all of the stretch"


_RELATIONS: dict[str, Callable[[Figures], Iterator[Wrong]]] = {
    "training": _training,
    "evaluation": _evaluation,
    "examination": _examination,
    "reproduction": _reproduction,
    "search": _search,
    "explanation": _explanation,
    "comparison": _comparison,
}
