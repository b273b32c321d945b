"""The experiments on context of one model on one text, by their names, and their conditions on parts of the targets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backstory.results import ExaminationFigures, Result, RunResults, TruncationFigures
from backstory.results.examination_record import CACHE, EXPERIMENTS, SMALL, TRUNCATE, EffectRecord, GroupRecord

Examination = Result[ExaminationFigures]


@dataclass(frozen=True)
class Examinations:
    """The experiments on one model (or one set of models) that score the same text by the same reader."""

    name: str
    """The run, and whatever tells it apart from what else is known of it."""
    results: Mapping[str, Examination]
    """By experiment; there is at least one."""

    @property
    def first(self) -> Examination:
        """The first of them."""
        return next(iter(self.results.values()))

    @property
    def truncation(self) -> Result[TruncationFigures] | None:
        """The truncation experiment, if there is one."""
        result = self.results.get(TRUNCATE)
        return result if result and isinstance(result.figures, TruncationFigures) else None  # type: ignore[return-value]

    @property
    def corpus(self) -> str:
        """The name of the text; in lower case it is another than the published figures are of."""
        config, name = self.first.provenance.config, self.first.corpus.title()
        text = config.get("text") if config else None
        return f"{name} in lower case" if isinstance(text, dict) and text.get("lowercase") else name

    def counted_in(self) -> str:
        """Return what contexts are counted in: words where the tokens of some are pieces of words, else tokens."""
        return "word" if any(r.figures.pieces_per_word for r in self.results.values()) else "token"

    def in_class(self, experiment: str, group: str, **parameters: object) -> EffectRecord | None:
        """Return a condition of an experiment on the targets of a class (near, far, none); None where that is not known."""
        result = self.results.get(experiment)
        targets = groups_by_class(result).get(group) if result else None
        found = [c for c in targets.conditions if has(c, parameters)] if targets else []
        return found[0] if found else None


def has(condition: EffectRecord, parameters: Mapping[str, object]) -> bool:
    """Return True if a condition has these parameters."""
    return all(getattr(condition, name, None) == value for name, value in parameters.items())


def groups_by_class(result: Examination) -> dict[str, GroupRecord]:
    """Return the targets by where a word came before: of the cache by what its window holds."""
    return result.figures.groups_by("cache" if result.figures.experiment == CACHE else "class")


def examined_models(runs: Sequence[RunResults]) -> list[Examinations]:
    """Return the examinations of all runs, those of one run that can stand in one figure together."""
    order = list(EXPERIMENTS)
    models: dict[tuple[object, ...], list[tuple[str, dict[str, Examination]]]] = {}
    for run in runs:
        known = [r for r in run.of(ExaminationFigures) if r.figures.experiment in order]
        pictured = [r for r in run.of(ExaminationFigures) if r.figures.experiment not in order]
        for result in [*sorted(known, key=lambda r: order.index(r.figures.experiment)), *pictured]:
            f, name = result.figures, name_of(run.name, result)
            alike = models.setdefault((name, f.split, f.unit), [])
            # What was examined twice stands in two of them.
            results = next((one for _, one in alike if f.experiment not in one), None)
            if results is None:
                results = {}
                alike.append((f"{name} ({result.folder})" if alike else name, results))
            results[f.experiment] = result
    return [Examinations(name, results) for alike in models.values() for name, results in alike]


def name_of(run: str, result: Examination) -> str:
    """Return a run's name with what is not usual about how it was examined."""
    f, parts = result.figures, [run]
    # A cache is what its experiment is about: the conditions are read without it.
    if f.read_by != "static" and f.experiment != CACHE:
        parts.append(f.read_by)
    return ", ".join([*parts, "within documents"] if f.within_documents else parts)


def small_from(conditions: Sequence[EffectRecord]) -> int | None:
    """Return the boundary from which on every effect, in percent of perplexity, is small; None where the farthest is not."""
    boundary = None
    for condition in sorted(conditions, key=lambda c: -boundary_of(c)):
        if condition.effect_percent >= SMALL:
            break
        boundary = boundary_of(condition)
    return boundary


def boundary_of(condition: EffectRecord) -> int:
    """Return how many of the nearest tokens a condition leaves as they are."""
    return getattr(condition, "boundary", None) or 0
