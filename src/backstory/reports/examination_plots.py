"""The figures of experiments on context: curves over the context and over boundaries, and bars by kinds of words."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from backstory.reports import examination_words as words
from backstory.reports import svg
from backstory.reports.examined import (
    CACHE,
    TRUNCATE,
    Examinations,
    conditions_of,
    groups_of,
    in_class,
    split_of,
    spread,
    spread_words,
)
from backstory.reports.formats import count
from backstory.reports.phrases import measured_in
from backstory.reports.plots import (
    LARGEST,
    Plot,
    added_loss,
    curve,
    drawn,
    height_of,
    labels,
    log_axis,
    perplexity_axis,
)
from backstory.reports.published_section import Published
from backstory.reports.results import Record, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Bars = Sequence[tuple[str, Sequence[Record | None]]]
"""The bars of each colour: its name, and a condition for each place on the axis."""
Marks = Sequence[Sequence[float | None]]
"""What was published of each bar, in percent of perplexity."""


def levels(examinations: Sequence[tuple[str, Result]], published: Published | None, prefix: str) -> Plot | None:
    """Figure 1b: perplexity against context, for several models; None for fewer than two."""
    if len(examinations) < 2:
        return None
    title = "Perplexity with so much context"
    caption = words.levels(examinations, published)
    with svg.style():
        figure, axes = svg.blank(height=height_of(len(examinations)))
        drawn = []
        for place, (_, result) in enumerate(examinations):
            found = [c for c in result.figures["conditions"] if c["context"] > 0 and c["perplexity"] < LARGEST]
            values = [c["perplexity"] for c in found]
            drawn += values
            axes.plot([c["context"] for c in found], values, marker="o", markersize=3.2, **svg.series(place))
        unit = measured_in(*(result.figures for _, result in examinations))
        log_axis(axes, f"context ({unit}s)", f"perplexity per {examinations[0][1].figures['unit']}", (1, 2, 5))
        perplexity_axis(axes, min(drawn, default=1), max(drawn, default=2))
        labels(axes, [svg.label(name) for name, _ in examinations])
        return Plot(title, svg.inline(figure, prefix, title, caption), caption)


def frequency(examined: Examinations, published: Published | None, prefix: str) -> Plot | None:
    """Figure 1c: added loss against context, of frequent and of infrequent words."""
    return _truncated(examined, "frequency", None, "Frequent and infrequent words", prefix, words.frequency, published)


def speech(examined: Examinations, published: Published | None, prefix: str) -> Plot | None:
    """Figure 1d: added loss against context, of words of some parts of speech."""
    return _truncated(examined, "tag", words.TAGS, "Parts of speech", prefix, words.speech, published)


Sentence = Callable[[Examinations, Published | None], str]


def _truncated(
    examined: Examinations,
    by: str,
    names: Mapping[str, str] | None,
    title: str,
    prefix: str,
    say: Sentence,
    published: Published | None,
) -> Plot | None:
    """Added loss against context with a line for each group of the targets; None where they were not split so."""
    result = examined.results.get(TRUNCATE)
    found = groups_of(result, by) if result else {}
    lines = [
        (f"{names[g]} ({g})" if names else g, f["conditions"]) for g, f in found.items() if not names or g in names
    ]
    if not result or not lines:
        return None
    caption = f"{say(examined, published)} Bands: {spread_words([result])}."
    with svg.style():
        figure, axes = svg.blank(height=height_of(len(lines)))
        unit = measured_in(result.figures)
        _curves(axes, lines, "context", f"context ({unit}s)", unit)
        return Plot(title, svg.inline(figure, prefix, title, caption), caption)


def order(examined: Examinations, span: str, published: Published | None, prefix: str) -> Plot | None:
    """Figures 2a (`local`) and 2b (`global`): added loss against the nearest tokens that are left as they are."""
    called = {"shuffle": "shuffled", "reverse": "reversed", "replace": "replaced"}
    lines, used = [], []
    for experiment, name in called.items():
        result = examined.results.get(experiment)
        found = conditions_of(result.figures, span=span) if result else []
        if result and found:
            lines.append((name, found))
            used.append(result)
    if not lines:
        return None
    title = "Order of words close by" if span == "local" else "Order and identity of all words farther away"
    caption = f"{words.order(examined, span, published)} Bands: {spread_words(used)}."
    with svg.style():
        figure, axes = svg.blank()
        unit = measured_in(*(result.figures for result in used))
        away = (
            f"{unit}s between the target and what is changed"
            if span == "local"
            else f"nearest {unit}s left as they are"
        )
        _curves(axes, lines, "boundary", away, unit)
        return Plot(title, svg.inline(figure, prefix, title, caption), caption)


def dropped(examined: Examinations, published: Published | None, prefix: str) -> Plot | None:
    """Figure 3: added loss when content or function words are dropped, beside as many words at random."""
    result = examined.results.get("drop")
    if result is None:
        return None
    f = result.figures
    boundaries = sorted({c["boundary"] for c in f["conditions"]})
    kinds = [(kind, control) for kind in ("content", "function") for control in (False, True)]
    bars = [
        (f"at random, for {kind}" if control else f"{kind} words",
         [next(iter(conditions_of(f, words=kind, control=control, boundary=b)), None) for b in boundaries])
        for kind, control in kinds
    ]  # fmt: skip
    names = [[f"drop-{kind}-{b}" + ("-control" if control else "") for b in boundaries] for kind, control in kinds]
    title = "Content and function words dropped"
    places = [count(b) for b in boundaries]
    caption = words.dropped(examined, published)
    across = f"nearest {measured_in(f)}s that none are dropped from"
    return _barred(examined, title, caption, places, bars, names, across, prefix, published, [result])


def copied(examined: Examinations, published: Published | None, prefix: str) -> Plot | None:
    """Figure 4a: added loss by where a word last came, without that word and without all distant context."""
    named = {"drop-target": "earlier occurrences dropped", "drop-distant": "distant context dropped"}
    bars, names = [], []
    for experiment, name in named.items():
        if experiment in examined.results:
            bars.append((name, [in_class(examined, experiment, group) for group in words.CLASSES]))
            names.append([f"{experiment}-{group}" for group in words.CLASSES])
    if not bars:
        return None
    caption = words.copied(examined, published)
    return _by_class(examined, "Words that come back", caption, bars, names, prefix, published, list(named))


def replaced(examined: Examinations, published: Published | None, prefix: str) -> Plot | None:
    """Figure 4b: added loss by where a word last came, with that word replaced, and dropped."""
    if "replace-target" not in examined.results:
        return None
    bars: list[tuple[str, list[Record | None]]] = []
    for replacement, name in (("unknown", "replaced by <unk>"), ("similar", "replaced by a similar word")):
        found = [in_class(examined, "replace-target", g, replacement=replacement) for g in words.CLASSES]
        bars.append((name, found))
    used = ["replace-target"]
    if "drop-target" in examined.results:
        bars.append(("dropped", [in_class(examined, "drop-target", group) for group in words.CLASSES]))
        used.append("drop-target")
    title, caption = "Words that come back, replaced", words.replaced(examined, published)
    return _by_class(examined, title, caption, bars, [], prefix, published, used)


def cached(examined: Examinations, published: Published | None, prefix: str) -> Plot | None:
    """Figure 7: what is lost without the cache, by where a word last came."""
    if CACHE not in examined.results:
        return None
    bars = [("without the cache", [in_class(examined, CACHE, group) for group in words.CLASSES])]
    names = [[f"without-cache-{group}" for group in words.CLASSES]]
    title, caption = "What the cache is worth", words.cached(examined, published)
    return _by_class(examined, title, caption, bars, names, prefix, published, [CACHE])


def _by_class(
    examined: Examinations,
    title: str,
    caption: str,
    bars: Bars,
    names: Sequence[Sequence[str]],
    prefix: str,
    published: Published | None,
    used: Sequence[str],
) -> Plot | None:
    """Bars for the classes near, far and none, where there are any."""
    results = [examined.results[name] for name in used if name in examined.results]
    cached = used == [CACHE]
    classes = words.IN_WINDOW if cached else words.CLASSES
    held = {
        group: found["targets"]
        for r in results
        for group, found in groups_of(r, split_of(r.figures["experiment"])).items()
        if group in classes
    }
    if not held:
        return None
    near, unit = results[0].figures.get("near", 50), measured_in(results[0].figures)
    places = [f"{called}\n{count(held.get(group, 0))}" for group, called in classes.items()]
    far = "only before them, in the cache’s window" if cached else "only before them"
    about = (
        f"{caption} Near: the word came among the nearest {count(near)} {unit}s; far: {far}. Numbers: how many targets."
    )
    across = "where the word came before"
    return _barred(examined, title, about, places, bars, names, across, prefix, published, results)


def _barred(
    examined: Examinations,
    title: str,
    caption: str,
    places: Sequence[str],
    bars: Bars,
    names: Sequence[Sequence[str]],
    across: str,
    prefix: str,
    published: Published | None,
    results: Sequence[Result],
) -> Plot:
    """Groups of bars with their intervals; diamonds where something was published of the same text."""
    marks = [[_printed(published, examined.corpus, name) for name in row] for row in names]
    shown = any(value is not None for row in marks for value in row)
    told = f"{caption} Lines on bars: {spread_words(results)}." + (" Diamonds: published." if shown else "")
    with svg.style():
        figure, axes = svg.blank(height=3.4)
        _bars(axes, places, bars, marks)
        axes.set_xlabel(across)
        axes.set_ylabel(added_loss(measured_in(*(result.figures for result in results))))
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2 if len(bars) > 1 else 1)
        return Plot(title, svg.inline(figure, prefix, title, told), told)


def _printed(published: Published | None, corpus: str, name: str) -> float | None:
    found = published.beside(corpus, name) if published else None
    return found.values[0] if found and found.same else None


def _bars(axes: "Axes", places: Sequence[str], bars: Bars, marks: Marks) -> None:
    width = 0.8 / len(bars)
    for number, (name, conditions) in enumerate(bars):
        colour = svg.series(number)["color"]
        shown = [(i, c) for i, c in enumerate(conditions) if c is not None and abs(c["effect"]) < LARGEST]
        x = [i + width * (number - (len(bars) - 1) / 2) for i, _ in shown]
        axes.bar(x, [c["effect"] for _, c in shown], 0.9 * width, color=colour, label=name)
        for at, (_, condition) in zip(x, shown, strict=True):
            axes.plot([at, at], [*map(drawn, spread(condition))], color=svg.INK, linewidth=0.9)
    for number, row in enumerate(marks):
        for i, value in enumerate(row):
            if value is not None:
                at = i + width * (number - (len(bars) - 1) / 2)
                axes.plot([at], [math.log1p(value / 100)], "D", markersize=4.5, markerfacecolor="#ffffff",
                          markeredgecolor=svg.INK, markeredgewidth=0.9, zorder=5)  # fmt: skip
    axes.axhline(0, color=svg.INK, linewidth=0.6)
    axes.set_xticks(range(len(places)), places)


def _curves(axes: "Axes", lines: Sequence[tuple[str, Sequence[Record]]], key: str, across: str, unit: str) -> None:
    """Effects against a number of tokens or words (`unit`), a line with its band for each, named beside the axes."""
    axes.axhline(0, color=svg.INK, linewidth=0.6)
    for place, (_, conditions) in enumerate(lines):
        curve(axes, conditions, key, place, 0.2 if len(lines) < 4 else 0.1)
    log_axis(axes, across, added_loss(unit), (1, 2, 5))
    labels(axes, [svg.label(name) for name, _ in lines])
