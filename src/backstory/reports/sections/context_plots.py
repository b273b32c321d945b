"""Figures of the experiments on context: curves over the context and over boundaries, and bars by kinds of words."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backstory.reports import svg
from backstory.reports.phrases import MOST_SHADED, Examined, context_caption, counted_in, spread_words
from backstory.reports.sections import context_sentences as sentences
from backstory.reports.sections.context_sentences import Examination, Examinations, boundary_of, groups_by_class
from backstory.reports.svg import LARGEST, Plot, added_loss, bounded, curve, labels, level, log_axis, perplexity_axis
from backstory.results import TruncationFigures
from backstory.results.examination_record import CACHE, EffectRecord, PicturedFigures, conditions_with
from backstory.results.published_values import Published
from backstory.utils.formats import count

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Bars = Sequence[tuple[str, Sequence[EffectRecord | None]]]
"""The bars of each colour: name, and one condition per position on the axis."""
Marks = Sequence[Sequence[float | None]]
"""The published value of each bar, in percent of perplexity."""
Line = tuple[str, Sequence[EffectRecord]]


@dataclass(frozen=True)
class Panel:
    """An experiment on one model, to be drawn alone or beside other models."""

    title: str
    across: str
    up: str
    finding: sentences.ContextFinding
    note: str
    """How to read the picture."""
    results: Sequence[Examination]
    draw: "Callable[[Axes], None]"


def beside(panels: Sequence[tuple[str, Panel]], prefix: str) -> Plot:
    """Draw one experiment on several models, a panel each on the same axes. Text that all share appears once."""
    first = panels[0][1]
    several = len(panels) > 1
    ours = [(name, panel.finding.ours) for name, panel in panels]
    lines = [f"{name}: {text[:1].lower()}{text[1:]}." if several else f"{text}." for name, text in ours]
    shared = dict.fromkeys(text for _, panel in panels for text in (panel.finding.published, panel.note) if text)

    def draw(width: float) -> "Figure":
        figure, all_axes = svg.panels(width, len(panels), 2.3 if several else svg.HEIGHT)
        handles: dict[str, Artist] = {}
        for axes, (name, panel) in zip(all_axes, panels, strict=True):
            panel.draw(axes)
            if several:
                axes.set_title(svg.label(name, 30), fontsize=9)
            handles |= {str(handle.get_label()): handle for handle in axes.get_legend_handles_labels()[0]}
        figure.supxlabel(first.across, fontsize=9)
        figure.supylabel(first.up, fontsize=9)
        svg.legend(figure, list(handles.values()))
        return figure

    return svg.plot(draw, prefix, first.title, "\n".join([*lines, " ".join(shared)]))


def context_curves(
    examinations: Sequence[Examined], prefix: str = "context", published: Published | None = None
) -> Plot | None:
    """Draw figure 1a: loss added by cutting the context; None if there are no truncation experiments.

    x: context in tokens, logarithmic; y: increase of the mean negative log-likelihood over the full context, in nats.
    """
    if not examinations:
        return None
    all_figures = [result.figures for _, result in examinations]

    def draw(width: float) -> "Figure":
        figure, axes = svg.blank(width)
        for index, f in enumerate(all_figures):
            curve(axes, f.conditions, "context", index)
            _context_mark(axes, f, index, shaded=len(examinations) <= MOST_SHADED)
        threshold = all_figures[0].effective_context.threshold_percent
        axes.axhline(0, color=svg.INK, linewidth=0.6)
        dashed = math.log1p(threshold / 100)
        level(axes, dashed, f"{threshold:g}%")
        unit = counted_in(all_figures)
        log_axis(axes, f"context ({unit}s)", added_loss(unit), (1, 2, 5))
        if len(examinations) == 1:
            _number_the_mark(axes, all_figures[0], dashed)
        else:
            labels(figure, [_context_label(name, result.figures) for name, result in examinations])
        return figure

    return svg.plot(draw, prefix, "How much context is used", context_caption(examinations, published))


def _context_mark(axes: "Axes", figures: TruncationFigures, index: int, shaded: bool) -> None:
    """Draw a vertical line at the effective context, and shade its interval where few curves are drawn."""
    colour, effective = svg.series(index)["color"], figures.effective_context
    if effective.context is None:
        return
    if shaded:
        low, high = effective.interval or (effective.context, effective.context)
        right = figures.maximum_context if high is None else high
        axes.axvspan(low or effective.context, right, color=colour, alpha=0.1, linewidth=0, zorder=0)
    axes.axvline(effective.context, color=colour, linewidth=1, zorder=1)


def _number_the_mark(axes: "Axes", figures: TruncationFigures, dashed: float) -> None:
    """Write the effective context beside its line, away from the label of the dashed line at the height `dashed`."""
    context, (low, high) = figures.effective_context.context, axes.get_ylim()
    if context is None:
        return
    height = 0.62 if abs((dashed - low) / (high - low) - 0.62) > 0.15 else 0.3
    axes.annotate(_context_number(figures), (context, height), xytext=(4, 0), va="center",
                  xycoords=axes.get_xaxis_transform(), textcoords="offset points")  # fmt: skip


def _context_label(name: str, figures: TruncationFigures) -> str:
    effective = figures.effective_context
    if effective.best is not None:
        return f"{name} best at {count(effective.best[0])}"
    return f"{name} {_context_number(figures)}"


def _context_number(figures: TruncationFigures) -> str:
    """Return the effective context, or its bound: `150`, `>1,000`, `≥100`."""
    context = figures.effective_context.context
    if context is None:
        return f">{count(figures.maximum_context)}"
    return f"{'≥' * figures.is_lower_bound()}{count(context)}"


def levels(examinations: Sequence[Examined], published: Published | None, prefix: str) -> Plot | None:
    """Draw figure 1b: perplexity against context, for several models; None for fewer than two."""
    if len(examinations) < 2:
        return None

    def draw(width: float) -> "Figure":
        figure, axes = svg.blank(width)
        all_values: list[float] = []
        for index, (_, result) in enumerate(examinations):
            shown = [c for c in result.figures.conditions if c.context > 0 and c.perplexity < LARGEST]
            values = [c.perplexity for c in shown]
            all_values += values
            axes.plot([c.context for c in shown], values, marker="o", markersize=3.2, **svg.series(index))
        unit, first = counted_in([result.figures for _, result in examinations]), examinations[0][1].figures
        log_axis(axes, f"context ({unit}s)", f"perplexity per {first.unit}", (1, 2, 5))
        perplexity_axis(axes, min(all_values, default=1), max(all_values, default=2))
        labels(figure, [name for name, _ in examinations])
        return figure

    return svg.plot(draw, prefix, "Perplexity by context length", str(sentences.levels(examinations, published)))


def frequency(examined: Examinations, published: Published | None) -> Panel | None:
    """Draw figure 1c: added loss against context, for frequent and infrequent words."""
    title = "Frequent and infrequent words"
    return _truncated(examined, "frequency", None, title, sentences.frequency, published)


def speech(examined: Examinations, published: Published | None) -> Panel | None:
    """Draw figure 1d: added loss against context, for some parts of speech."""
    return _truncated(examined, "tag", sentences.TAGS, "Parts of speech", sentences.speech, published)


def _truncated(
    examined: Examinations,
    by: str,
    names: Mapping[str, str] | None,
    title: str,
    sentence: sentences.Sentence,
    published: Published | None,
) -> Panel | None:
    """Draw added loss against context, a line per group of targets; None without this split."""
    lines: list[Line] = [
        (f"{names[g]} ({g})" if names else g, group.conditions)
        for g, group in sentences.truncation_groups(examined, by).items()
        if not names or g in names
    ]
    if not examined.truncation or not lines:
        return None
    unit = examined.truncation.figures.counted_in
    finding = sentence(examined, published)
    return _curves(lines, "context", f"context ({unit}s)", unit, title, finding, [examined.truncation])


def local_order(examined: Examinations, published: Published | None) -> Panel | None:
    """Draw figure 2a: added loss against the distance at which words are reordered."""
    across = f"{examined.counted_in()}s between the target and what is changed"
    return _order(examined, "local", across, "Order of words close by", sentences.local_order, published)


def global_order(examined: Examinations, published: Published | None) -> Panel | None:
    """Draw figure 2b: added loss against the number of nearest tokens left unchanged."""
    across, title = f"nearest {examined.counted_in()}s left as they are", "Order and identity of all words farther away"
    return _order(examined, "global", across, title, sentences.global_order, published)


def _order(
    examined: Examinations,
    span: str,
    across: str,
    title: str,
    sentence: sentences.Sentence,
    published: Published | None,
) -> Panel | None:
    changed = {name: conditions_with(result.figures.conditions, span=span) for name, result in examined.results.items()}
    used = [examined.results[name] for name in sentences.CHANGES if changed.get(name)]
    if not used:
        return None
    # An experiment keeps its colour on every model, whichever others were run.
    lines: list[Line] = [(word, changed.get(name, ())) for name, word in sentences.CHANGES.items()]
    finding = sentence(examined, published)
    return _curves(lines, "boundary", across, examined.counted_in(), title, finding, used)


def _curves(
    lines: Sequence[Line],
    parameter: str,
    across: str,
    unit: str,
    title: str,
    finding: sentences.ContextFinding,
    results: Sequence[Examination],
) -> Panel:
    """Return effects against a number of tokens or words (`unit`), a line with its band for each."""

    def draw(axes: "Axes") -> None:
        axes.axhline(0, color=svg.INK, linewidth=0.6)
        for index, (name, conditions) in enumerate(lines):
            if conditions:
                curve(axes, conditions, parameter, index, 0.2 if len(lines) < 4 else 0.1, name)
        log_axis(axes, "", "", (1, 2, 5))

    return Panel(title, across, added_loss(unit), finding, f"Bands: {spread_words(results)}.", results, draw)


def dropped(examined: Examinations, published: Published | None) -> Panel | None:
    """Draw figure 3: added loss when content or function words are dropped, next to as many words at random."""
    result = examined.results.get("drop")
    if result is None:
        return None
    f, bars, names = result.figures, [], []
    boundaries = sorted({boundary_of(c) for c in f.conditions})
    for kind in ("content", "function"):
        for control in (False, True):
            conditions = {
                boundary_of(c): c for c in reversed(conditions_with(f.conditions, words=kind, control=control))
            }
            bars.append((f"at random, for {kind}" if control else f"{kind} words", [*map(conditions.get, boundaries)]))
            names.append([f"drop-{kind}-{b}" + ("-control" if control else "") for b in boundaries])
    return _barred(examined, bars, names, published, title="Content and function words dropped", note="",
                   finding=sentences.dropped(examined, published), places=[*map(count, boundaries)],
                   across=f"nearest {f.counted_in}s that none are dropped from", results=[result])  # fmt: skip


def copied(examined: Examinations, published: Published | None) -> Panel | None:
    """Draw figure 4a: added loss by a word's last occurrence, without that word and without all distant context."""
    titles = {"drop-target": "earlier occurrences dropped", "drop-distant": "distant context dropped"}
    used = [name for name in titles if name in examined.results]
    if not used:
        return None
    bars = [(titles[name], [examined.in_class(name, group) for group in sentences.CLASSES]) for name in used]
    names = [[f"{name}-{group}" for group in sentences.CLASSES] for name in used]
    finding = sentences.copied(examined, published)
    return _by_class(examined, "Repeated words", finding, bars, names, used, published)


def replaced(examined: Examinations, published: Published | None) -> Panel | None:
    """Draw figure 4b: added loss by a word's last occurrence, with that word replaced or dropped."""
    if "replace-target" not in examined.results:
        return None
    bars: list[tuple[str, list[EffectRecord | None]]] = []
    for replacement, name in (("unknown", "replaced by <unk>"), ("similar", "replaced by a similar word")):
        conditions = [examined.in_class("replace-target", g, replacement=replacement) for g in sentences.CLASSES]
        bars.append((name, conditions))
    used = ["replace-target"]
    if "drop-target" in examined.results:
        bars.append(("dropped", [examined.in_class("drop-target", group) for group in sentences.CLASSES]))
        used.append("drop-target")
    finding = sentences.replaced(examined, published)
    return _by_class(examined, "Repeated words, replaced", finding, bars, [], used, published)


def cached(examined: Examinations, published: Published | None) -> Panel | None:
    """Draw figure 7: loss without the cache, by a word's last occurrence."""
    if CACHE not in examined.results:
        return None
    bars = [("without the cache", [examined.in_class(CACHE, group) for group in sentences.CLASSES])]
    names = [[f"without-cache-{group}" for group in sentences.CLASSES]]
    finding = sentences.cached(examined, published)
    return _by_class(examined, "Effect of the cache", finding, bars, names, [CACHE], published)


def pictured(result: Examination) -> Panel | None:
    """Draw an experiment from its own description: a line per series, or bars by groups of targets."""
    f = result.figures
    if not isinstance(f, PicturedFigures):
        return None
    title, finding, unit = f.picture.title, sentences.pictured(f), f.counted_in
    series = sentences.by_series(f.conditions)
    if f.picture.by is None:
        across = f"nearest {unit}s left as they are"
        if not any(map(boundary_of, f.conditions)):
            return None
        return _curves([*series.items()], "boundary", across, unit, title, finding, [result])
    groups = f.groups_by(f.picture.by)
    if not groups:
        return None
    by_group = [sentences.by_series(group.conditions) for group in groups.values()]
    bars: Bars = [(name, [next(iter(one.get(name, ())), None) for one in by_group]) for name in series]
    places = [f"{name}\n{count(group.targets)}" for name, group in groups.items()]
    examined = Examinations(result.name, {f.experiment: result})
    return _barred(examined, bars, [], None, title=title, finding=finding, note="Numbers: how many targets. ",
                   places=places, across=f.picture.by, results=[result])  # fmt: skip


def _by_class(
    examined: Examinations,
    title: str,
    finding: sentences.ContextFinding,
    bars: Bars,
    names: Sequence[Sequence[str]],
    used: Sequence[str],
    published: Published | None,
) -> Panel | None:
    """Draw bars for those of the classes near, far and none that exist."""
    results = [examined.results[name] for name in used]
    classes = sentences.IN_WINDOW if used == [CACHE] else sentences.CLASSES
    targets = {name: g.targets for r in results for name, g in groups_by_class(r).items() if name in classes}
    if not targets:
        return None
    near, unit = results[0].figures.near, results[0].figures.counted_in
    far = "only before them, in the cache’s window" if used == [CACHE] else "only before them"
    about = f"Near: the word occurred among the nearest {count(near)} {unit}s; far: {far}. Numbers: how many targets."
    places = [f"{name}\n{count(targets.get(group, 0))}" for group, name in classes.items()]
    return _barred(examined, bars, names, published, title=title, finding=finding, note=f"{about} ", places=places,
                   across="where the word occurred before", results=results)  # fmt: skip


def _barred(
    examined: Examinations,
    bars: Bars,
    names: Sequence[Sequence[str]],
    published: Published | None,
    *,
    title: str,
    finding: sentences.ContextFinding,
    note: str,
    places: Sequence[str],
    across: str,
    results: Sequence[Examination],
) -> Panel:
    """Return a panel of grouped bars with their intervals, and diamonds for published values on the same text."""
    marks = [[_printed(published, examined.corpus, name) for name in row] for row in names]
    diamonds = " Diamonds: published." if any(value is not None for row in marks for value in row) else ""
    unit = counted_in([result.figures for result in results])
    note = f"{note}Lines on bars: {spread_words(results)}.{diamonds}"
    return Panel(title, across, added_loss(unit), finding, note, results, lambda axes: _bars(axes, places, bars, marks))


def _printed(published: Published | None, corpus: str, name: str) -> float | None:
    printed = published.beside(corpus, name) if published else None
    return printed.values[0] if printed and printed.same else None


def _bars(axes: "Axes", places: Sequence[str], bars: Bars, marks: Marks) -> None:
    width = 0.8 / len(bars)
    for number, (name, conditions) in enumerate(bars):
        colour = svg.series(number)["color"]
        shown = [(i, c) for i, c in enumerate(conditions) if c is not None and abs(c.effect) < LARGEST]
        x = [i + width * (number - (len(bars) - 1) / 2) for i, _ in shown]
        axes.bar(x, [c.effect for _, c in shown], 0.9 * width, color=colour, label=name)
        for at, (_, condition) in zip(x, shown, strict=True):
            if condition.spread is not None:
                axes.plot([at, at], [*map(bounded, condition.spread)], color=svg.INK, linewidth=0.9)
    for number, row in enumerate(marks):
        for i, value in enumerate(row):
            if value is not None:
                at = i + width * (number - (len(bars) - 1) / 2)
                axes.plot([at], [math.log1p(value / 100)], "D", markersize=4.5, markerfacecolor="#ffffff",
                          markeredgecolor=svg.INK, markeredgewidth=0.9, zorder=5)  # fmt: skip
    axes.axhline(0, color=svg.INK, linewidth=0.6)
    axes.set_xticks(range(len(places)), places)
