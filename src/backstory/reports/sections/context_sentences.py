"""Experiments on context of one model, and what they found in a sentence each, the published numbers beside."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from backstory.config import formats, plural
from backstory.config.formats import count, percent
from backstory.reports.phrases import Examined, counted_in
from backstory.results import ExaminationFigures, Result, RunResults, TruncationFigures
from backstory.results.examination_record import (
    CACHE,
    EXPERIMENTS,
    SMALL,
    TRUNCATE,
    CacheEffect,
    EffectRecord,
    GroupRecord,
    PicturedEffect,
    PicturedFigures,
    TruncationGroup,
    conditions_with,
)
from backstory.results.published_values import Published

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
        return next(iter(conditions_with(targets.conditions, **parameters)), None) if targets else None


def groups_by_class(result: Examination) -> dict[str, GroupRecord]:
    """Return the targets by where a word occurred before: of the cache by what its window holds."""
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
    ways = {"within documents": f.within_documents, "with the start token": f.start_token}
    return ", ".join([*parts, *(name for name, used in ways.items() if used)])


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


Sentence = Callable[[Examinations, Published | None], str]
CHANGES = {"shuffle": "shuffled", "reverse": "reversed", "replace": "replaced"}
TAGS = {"NN": "nouns", "VB": "verbs", "JJ": "adjectives", "DT": "determiners", "IN": "prepositions"}
"""Tags of figure 1d; those of the Penn Treebank that begin so."""
CLASSES = {"near": "near", "far": "far", "none": "not before"}
"""Classes of targets by their last occurrence, and their names."""
IN_WINDOW = {**CLASSES, "none": "not in its window"}
"""The same of a cache, which holds a window."""


def raised(condition: EffectRecord | None) -> str:
    """Return the cost of a condition, in percent of perplexity with its sign: `+12.3%`."""
    if condition is None:
        return formats.MISSING
    return f"{'+' if condition.effect_percent > 0 else ''}{percent(condition.effect_percent)}"


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part) + "."


def _printed(published: Published | None, figure: str, corpus: str, names: Sequence[str], text: str) -> str:
    """Return the values that a figure of the paper prints, in a template of their own; empty without them."""
    printed = published.beside(corpus, *names) if published else None
    if published is None or printed is None:
        return ""
    values = text.format(*(f"{value:g}" for value in printed.values))
    return f"{published.cited}, figure {figure} ({printed.where}): {values}"


def levels(examinations: Sequence[Examined], published: Published | None) -> str:
    """Describe figure 1b: how far the models are apart with little and with all context."""
    results = [result for _, result in examinations]
    figures = [result.figures for result in results]
    parts = ["Models differ in level and in the context they use"]
    if shared := set.intersection(*({c.context for c in f.conditions} for f in figures)):
        least = min(shared)
        few = [next(c.perplexity for c in f.conditions if c.context == least) for f in figures]
        full = [f.baseline.perplexity for f in figures]
        with_least = f"{max(few) / min(few):.2f} times the lowest with {count(least)} {counted_in(figures)}s"
        parts.append(f"the highest perplexity is {with_least}, and {max(full) / min(full):.2f} times with all context")
    return _joined(*parts, _printed(published, "1b", str(results[0].corpus.name), ["effective-context-average"],
                                    "settings change the level, not the trend, and about {} tokens are used"))  # fmt: skip


def frequency(examined: Examinations, published: Published | None) -> str:
    """Describe figure 1c: how much context frequent and infrequent words need."""
    groups = {f"{name} words": group for name, group in truncation_groups(examined, "frequency").items()}
    names = ["effective-context-frequent", "effective-context-infrequent"]
    printed = _printed(published, "1c", examined.corpus, names, "frequent {}, infrequent more than {} tokens")
    return _joined(_beyond(examined, groups), printed)


def speech(examined: Examinations, published: Published | None) -> str:
    """Describe figure 1d: how much context words of each part of speech need."""
    groups = {TAGS[tag]: g for tag, g in truncation_groups(examined, "tag").items() if tag in TAGS}
    return _joined(_beyond(examined, groups), _tagged(examined.results["truncate"]),
                   _printed(published, "1d", examined.corpus, ["effective-context-DT"],
                            "determiners {} tokens, nouns and verbs more than any other"))  # fmt: skip


def truncation_groups(examined: Examinations, by: str) -> dict[str, GroupRecord]:
    """Return the groups of the truncation experiment's targets; empty where they were not split so."""
    return examined.truncation.figures.groups_by(by) if examined.truncation else {}


def _beyond(examined: Examinations, groups: Mapping[str, GroupRecord]) -> str:
    """Return how much context each group of words needs, and of which words that is not known, or more context hurts."""
    needed, others = [], []
    for name, group in groups.items():
        if examined.truncation and isinstance(group, TruncationGroup):
            figures = examined.truncation.figures
            of, words = f"{name} ({percent(100 * group.share)} of the targets)", figures.context_in_words(group)
            if figures.is_lower_bound(group):
                others.append(f"{of} need {words}")
            elif group.effective_context.best is not None or figures.undecided(group):
                others.append(f"{of} {words}")
            else:
                needed.append(f"{of} {words}")
    return "; ".join([*(["Less than 1% is gained beyond: " + ", ".join(needed)] if needed else []), *others])


def _tagged(result: Result[ExaminationFigures]) -> str:
    """Return who gave the tags, and how many words have none of a known word."""
    f = result.figures
    if not f.tagger:
        return ""
    share = f.unknown_tag_share
    unknown = "" if share is None else f", {percent(100 * share)} of the {f.counted_in}s tagged unknown"
    return f"tags: {f.tagger}{unknown}"


def local_order(examined: Examinations, published: Published | None) -> str:
    """Describe figure 2a: what the order of near words is worth."""
    unit = examined.counted_in()
    changed = f"20 {unit}s of the context are changed, by the number of {unit}s between them and the predicted {unit}"
    return _order(examined, "local", changed,
                  _printed(published, "2a", examined.corpus, ["local-order"],
                           "order matters among the nearest {} tokens"))  # fmt: skip


def global_order(examined: Examinations, published: Published | None) -> str:
    """Describe figure 2b: what the order and the identity of far words are worth."""
    changed = f"all but the nearest {examined.counted_in()}s of the context are changed, by the number that stay"
    return _order(examined, "global", changed,
                  _printed(published, "2b", examined.corpus, ["global-order"],
                           "beyond {} tokens other words matter, another order does not"))  # fmt: skip


def _order(examined: Examinations, span: str, changed: str, printed: str) -> str:
    costs = []
    for experiment, change in CHANGES.items():
        result = examined.results.get(experiment)
        if conditions := result.figures.conditions_with(span=span) if result else []:
            costs.append(f"{change} {_by_boundary(conditions)}")
    return _joined(f"Perplexity when {changed}: {', '.join(costs)}", printed)


def _by_boundary(conditions: Sequence[EffectRecord]) -> str:
    """Return the cost at the nearest boundary, and from where on it is small: `+12.3% at 5 and less than 1% from 100 on`."""
    ordered = sorted(conditions, key=boundary_of)
    nearest, farthest, end = ordered[0], ordered[-1], small_from(conditions)
    first = f"{raised(nearest)} at {count(boundary_of(nearest))}"
    if len(ordered) == 1:
        return first
    if end is None:
        return f"{first} and {raised(farthest)} at {count(boundary_of(farthest))}"
    small = f"less than {SMALL:g}% from {count(end)} on"
    return small if end == boundary_of(nearest) else f"{first} and {small}"


def pictured(figures: PicturedFigures) -> str:
    """Return what an experiment that describes its own picture found: each series by boundary, or by group of the targets."""
    costs = []
    for series, conditions in by_series(figures.conditions).items():
        if figures.picture.by is None:
            costs.append(f"{series} {_by_boundary(conditions)}")
        else:
            groups = figures.groups_by(figures.picture.by)
            effects = ((name, by_series(group.conditions).get(series)) for name, group in groups.items())
            costs.append(f"{series} {', '.join(f'{name} {raised(cs[0])}' for name, cs in effects if cs)}")
    return f"{figures.picture.sentence}: {'; '.join(costs)}."


def by_series(conditions: Sequence[PicturedEffect]) -> dict[str, list[PicturedEffect]]:
    """Return the conditions by the series that they belong to, in their order."""
    series: dict[str, list[PicturedEffect]] = {}
    for condition in conditions:
        series.setdefault(condition.series, []).append(condition)
    return series


def dropped(examined: Examinations, published: Published | None) -> str:
    """Describe figure 3: what content and function words are worth, beside as many words dropped at random."""
    result = examined.results["drop"]
    nearest = min(map(boundary_of, result.figures.conditions))
    costs = []
    for words in ("content", "function"):
        pair = {c.control: c for c in result.figures.conditions_with(words=words, boundary=nearest)}  # type: ignore[attr-defined]
        if False in pair:
            costs.append(f"{words} words {raised(pair[False])}, as many at random {raised(pair.get(True))}")
    names = ["drop-content-5", "drop-content-5-control", "drop-function-5"]
    printed = _printed(published, "3", examined.corpus, names, "content +{}%, as many at random +{}%, function +{}%")
    return _joined(f"Dropped beyond {count(nearest)} {result.figures.counted_in}s: {'; '.join(costs)}", _tagged(result),
                   printed if nearest == 5 else "")  # fmt: skip


def copied(examined: Examinations, published: Published | None) -> str:
    """Describe figure 4a: whether words that come back are copied or expected from what the text is about."""
    costs = []
    for group, title in CLASSES.items():
        # A word that did not come before has nothing to drop.
        target = examined.in_class("drop-target", group) if group != "none" else None
        distant = examined.in_class("drop-distant", group)
        parts = [f"{raised(target)} without the word itself"] if target else []
        parts += [f"{raised(distant)} without the distant context"] if distant else []
        costs += [f"{title} {' and '.join(parts)}"] if parts else []
    if not costs:
        return "Perplexity of words by where they occurred before: examine again with --by class."
    experiments = [name for name in ("drop-target", "drop-distant") if name in examined.results]
    names = [f"{name}-{group}" for group in ("near", "far") for name in experiments]
    both = "+{}% and +{}%" if len(experiments) == 2 else "+{}%"
    return _joined(f"Perplexity of words by where they occurred before: {', '.join(costs)}",
                   _printed(published, "4a", examined.corpus, names, f"near {both}, far {both}"))  # fmt: skip


def replaced(examined: Examinations, published: Published | None) -> str:
    """Describe figure 4b: what it costs when earlier occurrences of a word are another word."""
    costs = []
    for group in ("near", "far"):
        pairs = [("unknown", "by <unk>"), ("similar", "by a similar word")]
        conditions = [(examined.in_class("replace-target", group, replacement=kind), words) for kind, words in pairs]
        parts = [f"{raised(c)} {words}" for c, words in conditions if c]
        costs += [f"{CLASSES[group]} {' and '.join(parts)}"] if parts else []
    if not costs:
        return "Perplexity of words whose earlier occurrences are replaced: examine again with --by class."
    return _joined(f"Perplexity of words whose earlier occurrences are replaced: {', '.join(costs)}",
                   _printed(published, "4b", examined.corpus, ["replace-target-near"],
                            "near up to +{}%, far next to nothing"))  # fmt: skip


def cached(examined: Examinations, published: Published | None) -> str:
    """Describe figure 7: what a cache is worth for words that come back within its window, and how many words it harms."""
    condition = examined.results[CACHE].figures.conditions[0]
    costs = [(title, examined.in_class(CACHE, group)) for group, title in IN_WINDOW.items()]
    by_class = ", ".join(f"{title} {raised(c)}" for title, c in costs if c)
    outside = harmed = ""
    if isinstance(condition, CacheEffect) and condition.outside_window is not None:
        outside = f"{percent(100 * condition.outside_window)} of the text is not in its window"
    if isinstance(condition, CacheEffect) and condition.hurt is not None:
        harmed = f"it harms {percent(100 * condition.hurt)} of the words"
    names = ["without-cache-near", "without-cache-far", "outside-window"]
    text = "near +{}%, far +{}%; {}% of the text not in its window"
    where = f", by where a word occurred before: {by_class}" if by_class else ""
    older = "" if by_class else "by where a word occurred before: examine again"
    printed = _printed(published, "7", examined.corpus, names, text)
    return _joined(f"Perplexity without the cache {raised(condition)}{where}", older, outside, harmed, printed)


def comparability(examined: Examinations, published: Published) -> str:
    """Return what the published figures are of, and in what this examination differs."""
    f = examined.first.figures
    # The baseline of the cache's experiment is with it.
    level = f.conditions[0].perplexity if f.experiment == CACHE else f.baseline.perplexity
    same = published.beside(examined.corpus, f.split) or published.beside(examined.corpus, "valid")
    if same and same.same:
        differs = [f"its perplexity is {same.values[0]:g} ({same.corpus}) and this model’s {formats.perplexity(level)}"]
    else:
        differs = [f"their text is another (here {examined.corpus})"]
    if f.unit != "word":
        differs.append(f"it reads words, and this model {plural(f.unit)}")
    if f.split not in ("valid", "validation"):
        differs.append(f"this is the {f.split} split")
    if f.read_by != "static" and f.experiment != CACHE:
        differs.append(f"the reader here is {f.read_by}")
    models = f"{len(f.models)} models" if len(f.models) > 1 else "one model"
    differs.append(f"here {count(f.targets)} {plural(f.unit, f.targets)} are scored, by {models}")
    return (
        f"Published figures are of {published.model}. The conditions differ: {'; '.join(differs)}. "
        "Compare directions, and sizes only roughly."
    )
