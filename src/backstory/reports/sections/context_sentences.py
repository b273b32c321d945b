"""The findings of context experiments on one model, a sentence each, with the published numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from backstory.reports.phrases import Examined, counted_in
from backstory.results import ExaminationFigures, Result, RunResults, TruncationFigures
from backstory.results.common import OWN_TEXT
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
from backstory.utils import formats
from backstory.utils.errors import plural
from backstory.utils.formats import count, percent, quantity

Examination = Result[ExaminationFigures]


@dataclass(frozen=True)
class Examinations:
    """The experiments on one model (or one set of models) that score the same text with the same reader."""

    name: str
    """The run, with what distinguishes this examination from its others."""
    results: Mapping[str, Examination]
    """Results by experiment; never empty."""

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
        """The name of the text. Lower-cased text has its own name, as published figures are on the original."""
        config, name = self.first.provenance.config, self.first.corpus.title()
        text = config.get("text") if config else None
        return f"{name} in lower case" if isinstance(text, dict) and text.get("lowercase") else name

    def counted_in(self) -> str:
        """Return the unit of contexts: words if tokens are pieces of words, else tokens."""
        return counted_in([result.figures for result in self.results.values()])

    def in_class(self, experiment: str, group: str, **parameters: object) -> EffectRecord | None:
        """Return a condition of an experiment on the targets of a class (near, far, none); None if unknown."""
        result = self.results.get(experiment)
        targets = groups_by_class(result).get(group) if result else None
        return next(iter(conditions_with(targets.conditions, **parameters)), None) if targets else None


def groups_by_class(result: Examination) -> dict[str, GroupRecord]:
    """Return the targets by their last occurrence; for the cache, by whether its window holds it."""
    return result.figures.groups_by("cache" if result.figures.experiment == CACHE else "class")


def examined_models(runs: Sequence[RunResults]) -> list[Examinations]:
    """Return the examinations of all runs, grouping those of a run that share a figure."""
    order = list(EXPERIMENTS)
    models: dict[tuple[object, ...], list[tuple[str, dict[str, Examination]]]] = {}
    for run in runs:
        known = [r for r in run.of(ExaminationFigures) if r.figures.experiment in order]
        pictured = [r for r in run.of(ExaminationFigures) if r.figures.experiment not in order]
        for result in [*sorted(known, key=lambda r: order.index(r.figures.experiment)), *pictured]:
            f, name = result.figures, name_of(run.name, result)
            alike = models.setdefault((name, f.split, f.unit), [])
            # An experiment that was run twice opens a second group.
            results = next((one for _, one in alike if f.experiment not in one), None)
            if results is None:
                results = {}
                alike.append((f"{name} ({result.folder})" if alike else name, results))
            results[f.experiment] = result
    return [Examinations(name, results) for alike in models.values() for name, results in alike]


def name_of(run: str, result: Examination) -> str:
    """Return a run's name with the options of the examination that are not the default."""
    f, parts = result.figures, [run]
    # The cache is the subject of its experiment, whose conditions are read without it.
    if f.read_by != "static" and f.experiment != CACHE:
        parts.append(f.read_by)
    ways = {"within documents": f.within_documents, "with the start token": f.start_token}
    return ", ".join([*parts, *(name for name, used in ways.items() if used)])


def small_from(conditions: Sequence[EffectRecord]) -> int | None:
    """Return the boundary beyond which all effects in percent of perplexity are small; None if the farthest is not."""
    boundary = None
    for condition in sorted(conditions, key=lambda c: -boundary_of(c)):
        if condition.effect_percent >= SMALL:
            break
        boundary = boundary_of(condition)
    return boundary


def boundary_of(condition: EffectRecord) -> int:
    """Return the number of nearest tokens that a condition leaves unchanged."""
    return getattr(condition, "boundary", None) or 0


class ContextFinding(NamedTuple):
    """The finding of an experiment in words, without a final point, and a sentence on the published values, if any."""

    ours: str
    published: str = ""

    def __str__(self) -> str:
        return _joined(*self) + "." * (not self.published)


Sentence = Callable[[Examinations, Published | None], ContextFinding]
CHANGES = {"shuffle": "shuffled", "reverse": "reversed", "replace": "replaced"}
TAGS = {"NN": "nouns", "VB": "verbs", "JJ": "adjectives", "DT": "determiners", "IN": "prepositions"}
"""Beginnings of the Penn Treebank tags in figure 1d."""
CLASSES = {"near": "near", "far": "far", "none": "not before"}
"""Classes of targets by their last occurrence, and their names."""
IN_WINDOW = {**CLASSES, "none": "not in its window"}
"""The same for a cache, by what its window holds."""


def raised(condition: EffectRecord | None) -> str:
    """Return the cost of a condition, in percent of perplexity with its sign: `+12.3%`."""
    return formats.signed_percent(None if condition is None else condition.effect_percent)


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _printed(published: Published | None, where: str, corpus: str, names: Sequence[str], text: str) -> str:
    """Return a sentence with the values that a figure or section of the paper prints; empty without them."""
    printed = published.beside(corpus, *names) if published else None
    if published is None or printed is None:
        return ""
    values = text.format(*(f"{value:g}" for value in printed.values))
    return f"{published.cited}, {where} ({printed.where}): {values}."


def levels(examinations: Sequence[Examined], published: Published | None) -> ContextFinding:
    """Describe figure 1b: the spread of the models with little context and with all of it."""
    results = [result for _, result in examinations]
    figures = [result.figures for result in results]
    parts = ["Models differ in level and in the context they use"]
    if shared := set.intersection(*({c.context for c in f.conditions} for f in figures)):
        least = min(shared)
        few = [next(c.perplexity for c in f.conditions if c.context == least) for f in figures]
        full = [f.baseline.perplexity for f in figures]
        with_least = f"{max(few) / min(few):.2f} times the lowest with {count(least)} {counted_in(figures)}s"
        parts.append(f"the highest perplexity is {with_least}, and {max(full) / min(full):.2f} times with all context")
    printed = "settings change the level, not the trend, and about {} tokens are used"
    names = ["effective-context-average"]
    return ContextFinding(
        _joined(*parts), _printed(published, "figure 1b", str(results[0].corpus.name), names, printed)
    )


def frequency(examined: Examinations, published: Published | None) -> ContextFinding:
    """Describe figure 1c: how much context frequent and infrequent words need."""
    groups = {f"{name} words": group for name, group in truncation_groups(examined, "frequency").items()}
    names = ["effective-context-frequent", "effective-context-infrequent"]
    printed = _printed(published, "figure 1c", examined.corpus, names, "frequent {}, infrequent more than {} tokens")
    return ContextFinding(_beyond(examined, groups), printed)


def speech(examined: Examinations, published: Published | None) -> ContextFinding:
    """Describe figure 1d: how much context words of each part of speech need."""
    groups = {TAGS[tag]: g for tag, g in truncation_groups(examined, "tag").items() if tag in TAGS}
    printed = "nouns and verbs depend on distant context, determiners on the nearest {} tokens"
    return ContextFinding(_joined(_beyond(examined, groups), _tagged(examined.results[TRUNCATE])),
                   _printed(published, "figure 1d", examined.corpus, ["effective-context-DT"], printed))  # fmt: skip


def truncation_groups(examined: Examinations, by: str) -> dict[str, GroupRecord]:
    """Return the groups of the truncation experiment's targets; empty without this split."""
    return examined.truncation.figures.groups_by(by) if examined.truncation else {}


def _beyond(examined: Examinations, groups: Mapping[str, GroupRecord]) -> str:
    """Return how much context each group of words needs, and for which it is unknown or more context hurts."""
    needed, others = [], []
    for name, group in groups.items():
        if examined.truncation and isinstance(group, TruncationGroup):
            figures = examined.truncation.figures
            of, words = f"{name} ({percent(100 * group.share)} of the targets)", figures.context_in_words(group)
            if group.is_small() or group.effective_context.best is not None or figures.undecided(group):
                others.append(f"{of} {words}")
            elif figures.is_lower_bound(group):
                others.append(f"{of} need {words}")
            else:
                needed.append(f"{of} {words}")
    return "; ".join([*(["Less than 1% is gained beyond: " + ", ".join(needed)] if needed else []), *others])


def _tagged(result: Result[ExaminationFigures]) -> str:
    """Return the source of the tags, and the share of `<unk>`, which have none."""
    f = result.figures
    if not f.tagger:
        return ""
    share = f.unknown_tag_share
    unknown = "" if share is None else f", {percent(100 * share)} of the {f.counted_in}s are <unk>"
    return f"tags: {f.tagger}{unknown}"


def local_order(examined: Examinations, published: Published | None) -> ContextFinding:
    """Describe figure 2a: the value of the order of near words."""
    unit = examined.counted_in()
    changed = f"20 {unit}s of the context are changed, by the number of {unit}s between them and the predicted {unit}"
    return _order(examined, "local", changed,
                  _printed(published, "figure 2a", examined.corpus, ["local-order"],
                           "order matters among the nearest {} tokens"))  # fmt: skip


def global_order(examined: Examinations, published: Published | None) -> ContextFinding:
    """Describe figure 2b: the value of the order and the identity of far words."""
    changed = f"all but the nearest {examined.counted_in()}s of the context are changed, by the number that stay"
    return _order(examined, "global", changed,
                  _printed(published, "section 5.1", examined.corpus, ["global-order"],
                           "beyond {} tokens other words matter, another order does not"))  # fmt: skip


def _order(examined: Examinations, span: str, changed: str, printed: str) -> ContextFinding:
    costs = []
    for experiment, change in CHANGES.items():
        result = examined.results.get(experiment)
        if conditions := conditions_with(result.figures.conditions, span=span) if result else []:
            costs.append(f"{change} {_by_boundary(conditions)}")
    return ContextFinding(f"Perplexity when {changed}: {', '.join(costs)}", printed)


def _by_boundary(conditions: Sequence[EffectRecord]) -> str:
    """Return the cost at the nearest boundary, and the boundary beyond which it is small:
    `+12.3% at 5 and less than 1% from 100 on`."""
    ordered = sorted(conditions, key=boundary_of)
    nearest, farthest, end = ordered[0], ordered[-1], small_from(conditions)
    first = f"{raised(nearest)} at {count(boundary_of(nearest))}"
    if len(ordered) == 1:
        return first
    if end is None:
        return f"{first} and {raised(farthest)} at {count(boundary_of(farthest))}"
    small = f"less than {SMALL:g}% from {count(end)} on"
    return small if end == boundary_of(nearest) else f"{first} and {small}"


def pictured(figures: PicturedFigures) -> ContextFinding:
    """Describe the finding of an experiment with its own picture: each series by boundary, or by group of targets."""
    costs = []
    for series, conditions in by_series(figures.conditions).items():
        if figures.picture.by is None:
            costs.append(f"{series} {_by_boundary(conditions)}")
        else:
            groups = figures.groups_by(figures.picture.by)
            effects = ((name, by_series(group.conditions).get(series)) for name, group in groups.items())
            costs.append(f"{series} {', '.join(f'{name} {raised(cs[0])}' for name, cs in effects if cs)}")
    return ContextFinding(f"{figures.picture.sentence}: {'; '.join(costs)}")


def by_series(conditions: Sequence[PicturedEffect]) -> dict[str, list[PicturedEffect]]:
    """Group the conditions by series, in order."""
    series: dict[str, list[PicturedEffect]] = {}
    for condition in conditions:
        series.setdefault(condition.series, []).append(condition)
    return series


def dropped(examined: Examinations, published: Published | None) -> ContextFinding:
    """Describe figure 3: the value of content and function words, compared with as many words at random."""
    result = examined.results["drop"]
    nearest = min(map(boundary_of, result.figures.conditions))
    costs = []
    for words in ("content", "function"):
        pair = {c.control: c for c in conditions_with(result.figures.conditions, words=words, boundary=nearest)}  # type: ignore[attr-defined]
        if False in pair:
            costs.append(f"{words} words {raised(pair[False])}, as many at random {raised(pair.get(True))}")
    names = ["drop-content-5", "drop-content-5-control", "drop-function-5"]
    printed = _printed(
        published, "figure 3", examined.corpus, names, "content +{}%, as many at random +{}%, function +{}%"
    )
    ours = f"Dropped beyond {count(nearest)} {result.figures.counted_in}s: {'; '.join(costs)}"
    return ContextFinding(_joined(ours, _tagged(result)), printed if nearest == 5 else "")


def copied(examined: Examinations, published: Published | None) -> ContextFinding:
    """Describe figure 4a: whether recurring words are copied or predicted from the topic."""
    costs = []
    for group, title in CLASSES.items():
        # A word without an earlier occurrence has nothing to drop.
        target = examined.in_class("drop-target", group) if group != "none" else None
        distant = examined.in_class("drop-distant", group)
        parts = [f"{raised(target)} without the word itself"] if target else []
        parts += [f"{raised(distant)} without the distant context"] if distant else []
        costs += [f"{title} {' and '.join(parts)}"] if parts else []
    if not costs:
        return ContextFinding("Perplexity of words by where they occurred before: examine again with --by class")
    experiments = [name for name in ("drop-target", "drop-distant") if name in examined.results]
    names = [f"{name}-{group}" for group in ("near", "far") for name in experiments]
    both = "+{}% and +{}%" if len(experiments) == 2 else "+{}%"
    return ContextFinding(f"Perplexity of words by where they occurred before: {', '.join(costs)}",
                   _printed(published, "figure 4a", examined.corpus, names, f"near {both}, far {both}"))  # fmt: skip


def replaced(examined: Examinations, published: Published | None) -> ContextFinding:
    """Describe figure 4b: the cost of replacing earlier occurrences of a word by another."""
    costs = []
    for group in ("near", "far"):
        pairs = [("unknown", "by <unk>"), ("similar", "by a similar word")]
        conditions = [(examined.in_class("replace-target", group, replacement=kind), words) for kind, words in pairs]
        parts = [f"{raised(c)} {words}" for c, words in conditions if c]
        costs += [f"{CLASSES[group]} {' and '.join(parts)}"] if parts else []
    if not costs:
        return ContextFinding(
            "Perplexity of words whose earlier occurrences are replaced: examine again with --by class"
        )
    return ContextFinding(f"Perplexity of words whose earlier occurrences are replaced: {', '.join(costs)}",
                   _printed(published, "figure 4b", examined.corpus, ["replace-target-near"],
                            "near up to +{}%, far next to nothing"))  # fmt: skip


def cached(examined: Examinations, published: Published | None) -> ContextFinding:
    """Describe figure 7: the gain of a cache on words that recur within its window, and the share of words it harms."""
    condition = examined.results[CACHE].figures.conditions[0]
    costs = [(title, examined.in_class(CACHE, group)) for group, title in IN_WINDOW.items()]
    by_class = ", ".join(f"{title} {raised(c)}" for title, c in costs if c)
    outside = harmed = ""
    if isinstance(condition, CacheEffect) and condition.outside_window is not None:
        outside = f"{percent(100 * condition.outside_window)} of the text is not in its window"
    if isinstance(condition, CacheEffect) and condition.hurt is not None:
        harmed = f"it harms {percent(100 * condition.hurt)} of the words"
    names = ["without-cache-near", "without-cache-far", "outside-window"]
    text = "near +{}%, far +{}%; it hurts about {}% of the words, those that cannot be copied from context"
    where = f", by where a word occurred before: {by_class}" if by_class else ""
    older = "" if by_class else "by where a word occurred before: examine again"
    printed = _printed(published, "section 6.2, figure 7", examined.corpus, names, text)
    return ContextFinding(
        _joined(f"Perplexity without the cache {raised(condition)}{where}", older, outside, harmed), printed
    )


def comparability(examined: Examinations, published: Published) -> str:
    """Describe the conditions of the published figures, and how this examination differs."""
    f = examined.first.figures
    # The baseline of the cache experiment includes the cache.
    level = f.conditions[0].perplexity if f.experiment == CACHE else f.baseline.perplexity
    same = published.beside(examined.corpus, f.split) or published.beside(examined.corpus, "valid")
    if same and same.same:
        differs = [f"its perplexity is {same.values[0]:g} ({same.corpus}) and this model’s {formats.perplexity(level)}"]
    else:
        differs = [f"their text is another (here {examined.corpus})"]
    if f.unit != "word":
        differs.append(f"it reads words, and this model {plural(f.unit)}")
    if f.split not in ("valid", "validation", OWN_TEXT):
        differs.append(f"this is the {f.split} split")
    if f.read_by != "static" and f.experiment != CACHE:
        differs.append(f"the reader here is {f.read_by}")
    models = f"{len(f.models)} models" if len(f.models) > 1 else "one model"
    differs.append(f"here {quantity(f.targets, f.unit)} are scored, by {models}")
    return (
        f"Published figures are of {published.model}. The conditions differ: {'; '.join(differs)}. "
        "Compare directions, and sizes only roughly."
    )
