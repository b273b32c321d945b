"""What was examined of one model on one text: the results of its experiments on context, by their names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backstory.reports.results import Record, Result, RunResults

EXPERIMENTS = (
    *("truncate", "shuffle", "reverse", "replace", "drop"),
    *("drop-target", "drop-distant", "replace-target", "cache"),
)
"""The experiments that a report knows how to show."""
TRUNCATE = "truncate"
SMALL = 1.0
"""Percent of perplexity: what costs less has next to no effect."""


@dataclass(frozen=True)
class Examined:
    """The experiments on one model (or one set of models) that score the same text by the same reader."""

    name: str
    """The run, and whatever tells it apart from what else is known of it."""
    results: Mapping[str, Result]
    """By experiment; there is at least one."""

    @property
    def first(self) -> Result:
        return next(iter(self.results.values()))

    @property
    def corpus(self) -> str:
        """The name of the text."""
        return str(self.first.corpus.get("name", "unnamed text"))


def grouped(runs: Sequence[RunResults]) -> list[Examined]:
    """The examinations of all runs, those of one run that can stand in one figure together."""
    found: list[tuple[tuple[object, ...], str, dict[str, Result]]] = []
    for run in runs:
        for result in run.of_kind("examination"):
            f = result.figures
            if f["experiment"] not in EXPERIMENTS:
                continue
            key = (run.name, f["split"], f["unit"], result.reader, f.get("within_documents", False))
            # What was examined twice stands in two of them.
            free = (r for k, _, r in found if k == key and f["experiment"] not in r)
            there = next(free, None)
            if there is None:
                there = {}
                found.append((key, name_of(run.name, result), there))
            there[f["experiment"]] = result
    return [Examined(name, results) for _, name, results in found]


def name_of(run: str, result: Result) -> str:
    """A run's name and what is not usual about how it was examined."""
    more = [] if result.reader == "static" else [result.reader]
    more += ["within documents"] if result.figures.get("within_documents") else []
    return ", ".join([run, *more])


def groups_of(result: Result, by: str) -> dict[str, Record]:
    """The groups of one split of the targets by their names; none where it was not split so."""
    return {g["group"]: g for g in result.figures.get("groups", []) if g["by"] == by}


def conditions_of(figures: Record, **wanted: object) -> list[Record]:
    """The conditions of a result or of a group that have these parameters, in their order."""
    return [c for c in figures["conditions"] if all(c.get(key) == value for key, value in wanted.items())]


def in_class(examined: Examined, experiment: str, group: str, **wanted: object) -> Record | None:
    """A condition of an experiment on the targets of a class (near, far, none); None where that is not known."""
    result = examined.results.get(experiment)
    found = groups_of(result, "class").get(group) if result else None
    return next(iter(conditions_of(found, **wanted)), None) if found else None


def spread(condition: Record) -> tuple[float, float]:
    """The ends of a condition's band: a standard deviation either way of several models, else its 95% interval."""
    deviation = condition.get("deviation")
    if isinstance(deviation, int | float):
        return condition["effect"] - deviation, condition["effect"] + deviation
    return condition["low"], condition["high"]


def spread_words(results: Sequence[Result]) -> str:
    """What bands and bars of these results are."""
    several = {len(r.figures["models"]) for r in results if len(r.figures.get("models", [])) > 1}
    interval = any(len(r.figures.get("models", [])) < 2 for r in results)
    parts = [f"a standard deviation either way over {n} models" for n in sorted(several)]
    return " or ".join([*parts, *(["95% intervals (paired bootstrap)"] if interval else [])])


def small_from(conditions: Sequence[Record]) -> int | None:
    """The boundary from which on every effect, in percent of perplexity, is small; None where the farthest is not."""
    found = None
    for condition in sorted(conditions, key=lambda c: -c["boundary"]):
        if condition["effect_percent"] >= SMALL:
            break
        found = condition["boundary"]
    return found
