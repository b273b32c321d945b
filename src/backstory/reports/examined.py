"""What was examined of one model on one text: the results of its experiments on context, by their names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backstory.reports.results import Record, Result, RunResults

EXPERIMENTS = (
    *("truncate", "shuffle", "reverse", "replace", "drop"),
    *("drop-target", "drop-distant", "replace-target", "cache"),
)
"""The experiments that a report knows how to show."""
TRUNCATE, CACHE = "truncate", "cache"
SMALL = 1.0
"""Percent of perplexity: what costs less has next to no effect."""


@dataclass(frozen=True)
class Examinations:
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
        """The name of the text; in lower case it is another than the published figures are of."""
        name, config = str(self.first.corpus.get("name", "unnamed text")), self.first.provenance.get("config")
        text = config.get("text") if isinstance(config, dict) else None
        return f"{name} in lower case" if isinstance(text, dict) and text.get("lowercase") else name


def grouped(runs: Sequence[RunResults]) -> list[Examinations]:
    """The examinations of all runs, those of one run that can stand in one figure together, in the order of EXPERIMENTS."""
    found: dict[tuple[object, ...], list[tuple[str, dict[str, Result]]]] = {}
    for run in runs:
        known = [r for r in run.of_kind("examination") if r.figures["experiment"] in EXPERIMENTS]
        for result in sorted(known, key=lambda r: EXPERIMENTS.index(r.figures["experiment"])):
            f, name = result.figures, name_of(run.name, result)
            alike = found.setdefault((name, f["split"], f["unit"]), [])
            # What was examined twice stands in two of them.
            there = next((results for _, results in alike if f["experiment"] not in results), None)
            if there is None:
                there = {}
                alike.append((f"{name} ({folder_of(result)})" if alike else name, there))
            there[f["experiment"]] = result
    return [Examinations(name, results) for alike in found.values() for name, results in alike]


def folder_of(result: Result) -> str:
    """The folder of a result inside its run."""
    return result.source.removesuffix("/result.json")


def name_of(run: str, result: Result) -> str:
    """A run's name and what is not usual about how it was examined."""
    # A cache is what its experiment is about: the conditions are read without it.
    usual = result.reader == "static" or result.figures["experiment"] == CACHE
    more = [] if usual else [result.reader]
    more += ["within documents"] if result.figures.get("within_documents") else []
    return ", ".join([run, *more])


def groups_of(result: Result, by: str) -> dict[str, Record]:
    """The groups of one split of the targets by their names; none where it was not split so."""
    return {g["group"]: g for g in result.figures.get("groups", []) if g["by"] == by}


def conditions_of(figures: Record, **wanted: object) -> list[Record]:
    """The conditions of a result or of a group that have these parameters, in their order."""
    return [c for c in figures["conditions"] if all(c.get(key) == value for key, value in wanted.items())]


def split_of(experiment: str) -> str:
    """The split of an experiment by where a word came before: of the cache by what its window holds."""
    return "cache" if experiment == CACHE else "class"


def in_class(examined: Examinations, experiment: str, group: str, **wanted: object) -> Record | None:
    """A condition of an experiment on the targets of a class (near, far, none); None where that is not known."""
    result = examined.results.get(experiment)
    found = groups_of(result, split_of(experiment)).get(group) if result else None
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
