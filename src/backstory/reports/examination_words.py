"""What experiments on context found, in a sentence each: this model's numbers, and the published ones beside them."""

from collections.abc import Mapping, Sequence

from backstory.config import plural
from backstory.reports import formats
from backstory.reports.examined import (
    CACHE,
    SMALL,
    TRUNCATE,
    Examinations,
    conditions_of,
    groups_of,
    in_class,
    small_from,
)
from backstory.reports.formats import count, percent
from backstory.reports.phrases import context_hurts, effective_context, measured_in
from backstory.reports.published_section import Published
from backstory.reports.results import Record, Result

DONE = {"shuffle": "shuffling", "reverse": "reversing", "replace": "replacing"}
TAGS = {"NN": "nouns", "VB": "verbs", "JJ": "adjectives", "DT": "determiners", "IN": "prepositions"}
"""Tags of figure 1d; those of the Penn Treebank that begin so."""
CLASSES = {"near": "near", "far": "far", "none": "not before"}
"""Where a word came last, and what it is called."""
IN_WINDOW = {**CLASSES, "none": "not in its window"}
"""The same of a cache, which holds a window."""


def raised(condition: Record | None) -> str:
    """What a condition costs, in percent of perplexity with its sign: `+12.3%`."""
    if condition is None:
        return formats.MISSING
    value = condition["effect_percent"]
    return f"{'+' if value > 0 else ''}{percent(value)}"


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part) + "."


def _printed(published: Published | None, figure: str, corpus: str, names: Sequence[str], text: str) -> str:
    """The printed figures of a figure of the paper in a template of their own; empty without them."""
    found = published.beside(corpus, *names) if published else None
    if published is None or found is None:
        return ""
    told = text.format(*(f"{value:g}" for value in found.values))
    return f"{published.cited}, figure {figure} ({found.where}): {told}"


def levels(examinations: Sequence[tuple[str, Result]], published: Published | None) -> str:
    """Figure 1b: how far the models are apart with little and with all context, and how much each uses."""
    corpus = str(examinations[0][1].corpus.get("name"))
    shared = set.intersection(*({c["context"] for c in r.figures["conditions"]} for _, r in examinations))
    told = ", ".join(f"{name} {effective_context(r.figures)}" for name, r in examinations)
    parts = [f"Models differ in level and in the context they use: {told}"]
    if shared:
        least, unit = min(shared), measured_in(*(r.figures for _, r in examinations))
        few = [next(iter(conditions_of(r.figures, context=least)))["perplexity"] for _, r in examinations]
        full = [r.figures["baseline"]["perplexity"] for _, r in examinations]
        apart = f"{max(few) / min(few):.2f} and {max(full) / min(full):.2f} times the lowest"
        parts.append(f"the highest perplexity is, with {count(least)} {unit}s and with all context, {apart}")
    return _joined(*parts, _printed(published, "1b", corpus, ["effective-context-average"],
                                    "settings change the level, not the trend, and about {} tokens are used"))  # fmt: skip


def frequency(examined: Examinations, published: Published | None) -> str:
    """Figure 1c: how much context frequent and infrequent words need."""
    result = examined.results[TRUNCATE]
    found = groups_of(result, "frequency")
    told = _beyond(result, {f"{name} words": group for name, group in found.items()})
    names = ["effective-context-frequent", "effective-context-infrequent"]
    said = _printed(published, "1c", examined.corpus, names, "frequent {}, infrequent more than {} tokens")
    return _joined(told, said)


def speech(examined: Examinations, published: Published | None) -> str:
    """Figure 1d: how much context words of each part of speech need."""
    result = examined.results[TRUNCATE]
    found = {tag: g for tag, g in groups_of(result, "tag").items() if tag in TAGS}
    told = _beyond(result, {TAGS[tag]: group for tag, group in found.items()})
    return _joined(told, _tagged(result),
                   _printed(published, "1d", examined.corpus, ["effective-context-DT"],
                            "determiners {} tokens, nouns and verbs more than any other"))  # fmt: skip


def _beyond(result: Result, groups: Mapping[str, Record]) -> str:
    """How much context each group of words needs, and of which words more context hurts."""
    needed, hurt = [], []
    for name, group in groups.items():
        figures = {**result.figures, **group}
        (hurt if context_hurts(figures) else needed).append(f"{name} ({_share(group)}) {effective_context(figures)}")
    return "; ".join([*(["Less than 1% is gained beyond: " + ", ".join(needed)] if needed else []), *hurt])


def _share(group: Record) -> str:
    return f"{percent(100 * group['share'])} of the targets"


def _tagged(result: Result) -> str:
    """Who gave the tags, and how many words have none of a known word."""
    f = result.figures
    share = f.get("unknown_tag_share")
    if not f.get("tagger"):
        return ""
    unknown = (
        f", {percent(100 * share)} of the {measured_in(f)}s tagged unknown" if isinstance(share, int | float) else ""
    )
    return f"tags: {f['tagger']}{unknown}"


def order(examined: Examinations, span: str, published: Published | None) -> str:
    """Figures 2a and 2b: what the order of near and of far words is worth."""
    told, unit = [], measured_in(*(result.figures for result in examined.results.values()))
    for experiment, doing in DONE.items():
        if found := _of_span(examined, experiment, span):
            nearest, farthest, end = count(found[0]["boundary"]), count(found[-1]["boundary"]), small_from(found)
            on = (
                f"less than {SMALL:g}% from {count(end)} on"
                if end is not None
                else f"{raised(found[-1])} at {farthest}"
            )
            told.append(f"{doing} {raised(found[0])} at {nearest}, {on}")
    if span == "local":
        what = f"20 {unit}s that begin so many {unit}s away"
        said = _printed(published, "2a", examined.corpus, ["local-order"], "order matters among the nearest {} tokens")
    else:
        what = f"all {unit}s that are farther away than so many"
        said = _printed(published, "2b", examined.corpus, ["global-order"],
                        "beyond {} tokens other words matter, another order does not")  # fmt: skip
    return _joined(f"Perplexity after changing {what}: {', '.join(told)}", said)


def _of_span(examined: Examinations, experiment: str, span: str) -> list[Record]:
    result = examined.results.get(experiment)
    found = conditions_of(result.figures, span=span) if result else []
    return sorted(found, key=lambda c: c["boundary"])


def dropped(examined: Examinations, published: Published | None) -> str:
    """Figure 3: what content and function words are worth, beside as many words dropped at random."""
    result = examined.results["drop"]
    nearest = min(c["boundary"] for c in result.figures["conditions"])
    told = []
    for words in ("content", "function"):
        pair = [
            next(iter(conditions_of(result.figures, words=words, control=control, boundary=nearest)), None)
            for control in (False, True)
        ]
        if pair[0]:
            told.append(f"{words} words {raised(pair[0])}, as many at random {raised(pair[1])}")
    names = ["drop-content-5", "drop-content-5-control", "drop-function-5"]
    said = _printed(published, "3", examined.corpus, names, "content +{}%, as many at random +{}%, function +{}%")
    unit = measured_in(result.figures)
    return _joined(
        f"Dropped beyond {count(nearest)} {unit}s: {'; '.join(told)}",
        said if nearest == 5 else "",
        _tagged(result),
    )


def copied(examined: Examinations, published: Published | None) -> str:
    """Figure 4a: whether words that come back are copied or expected from what the text is about."""
    told = []
    for group, called in CLASSES.items():
        # A word that did not come before has nothing to drop.
        target = in_class(examined, "drop-target", group) if group != "none" else None
        distant = in_class(examined, "drop-distant", group)
        parts = [f"{raised(target)} without the word itself"] if target else []
        parts += [f"{raised(distant)} without the distant context"] if distant else []
        told += [f"{called} {' and '.join(parts)}"] if parts else []
    made = [name for name in ("drop-target", "drop-distant") if name in examined.results]
    names = [f"{name}-{group}" for group in ("near", "far") for name in made]
    both = "+{}% and +{}%" if len(made) == 2 else "+{}%"
    return _joined(f"Perplexity of words by where they came before: {', '.join(told)}",
                   _printed(published, "4a", examined.corpus, names, f"near {both}, far {both}"))  # fmt: skip


def replaced(examined: Examinations, published: Published | None) -> str:
    """Figure 4b: what it costs when earlier occurrences of a word are another word."""
    told = []
    for group in ("near", "far"):
        found = [in_class(examined, "replace-target", group, replacement=r) for r in ("unknown", "similar")]
        kinds = ("by <unk>", "by a similar word")
        parts = [f"{raised(c)} {kind}" for c, kind in zip(found, kinds, strict=True) if c]
        told += [f"{CLASSES[group]} {' and '.join(parts)}"] if parts else []
    return _joined(f"Perplexity of words whose earlier occurrences are replaced: {', '.join(told)}",
                   _printed(published, "4b", examined.corpus, ["replace-target-near"],
                            "near up to +{}%, far next to nothing"))  # fmt: skip


def cached(examined: Examinations, published: Published | None) -> str:
    """Figure 7: what a cache is worth for words that come back within its window, and how many words it harms."""
    result = examined.results[CACHE]
    condition = result.figures["conditions"][0]
    found = [(called, in_class(examined, CACHE, group)) for group, called in IN_WINDOW.items()]
    told = ", ".join(f"{called} {raised(c)}" for called, c in found if c)
    share, hurt = condition.get("outside_window"), condition.get("hurt")
    outside = f"{percent(100 * share)} of the text is not in its window" if share is not None else ""
    harmed = f"it harms {percent(100 * hurt)} of the words" if hurt is not None else ""
    names = ["without-cache-near", "without-cache-far", "outside-window"]
    text = "near +{}%, far +{}%; {}% of the text not in its window"
    where = f", by where a word came before: {told}" if told else ""
    older = "" if told else "by where a word came before: examine again"
    said = _printed(published, "7", examined.corpus, names, text)
    return _joined(f"Perplexity without the cache {raised(condition)}{where}", older, outside, harmed, said)


def comparability(examined: Examinations, published: Published) -> str:
    """What the published figures are of, and in what this examination differs."""
    result, f = examined.first, examined.first.figures
    unit, level = f["unit"], f["baseline"]["perplexity"]
    if f["experiment"] == CACHE:  # whose baseline is with it
        level = f["conditions"][0]["perplexity"]
    there = published.beside(examined.corpus, f["split"]) or published.beside(examined.corpus, "valid")
    differs = []
    if there and there.same:
        differs.append(
            f"its perplexity is {there.values[0]:g} ({there.corpus}) and this model’s {formats.perplexity(level)}"
        )
    else:
        differs.append(f"the text is {examined.corpus}, which it was not measured on")
    if unit != "word":
        differs.append(f"it reads words, and this model {plural(unit)}")
    if f["split"] not in ("valid", "validation"):
        differs.append(f"this is the {f['split']} split")
    if result.reader != "static" and f["experiment"] != CACHE:
        differs.append(f"this is read by {result.reader}")
    models = len(f.get("models", []))
    differs.append(f"here {count(f['targets'])} {plural(unit, f['targets'])} are scored"
                   + (f", by {models} models" if models > 1 else ", by one model"))  # fmt: skip
    return f"Published figures are of {published.model}: {'; '.join(differs)}. Directions compare, sizes only roughly."
