"""Figures of a comparison of readers: gain along the text with its articles, and gain by position in a document."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from backstory.reports import svg
from backstory.reports.svg import Plot, bounded, labels
from backstory.results import ComparisonFigures
from backstory.results.explanation_record import PairRecord, PositionRecord
from backstory.utils.errors import plural
from backstory.utils.formats import count, quantity, signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL, TITLES = 1.45, 1.2
"""Heights of a panel and of the space for titles, in inches."""
APART = 12.5
"""Minimum distance between two titles, in points."""
WITHIN = 0.99
"""Share of the blocks inside the axes; the few outliers would flatten all others."""
GAIN, LOSS = svg.COLOURS[0], svg.COLOURS[1]
Measure = Literal["nats", "perplexity"]


def along(figures: ComparisonFigures, prefix: str, measure: Measure = "nats") -> Plot:
    """Draw the gain of every comparison in each block of the text, a panel each; documents are marked and named."""
    f = figures
    title = "Gain along the text" if measure == "nats" else "Gain along the text, in perplexity"
    caption = _caption(f, measure)
    hints: dict[str, str] = {}

    def draw(width: float) -> "Figure":
        from matplotlib.figure import Figure

        pairs, named = f.comparisons, any(d.title for d in f.documents)
        figure = Figure((width, 0.45 + PANEL * len(pairs) + (TITLES if named else 0)), layout="constrained")
        figure.subplots(len(pairs), sharex=True)
        for row, (pair, axes) in enumerate(zip(pairs, figure.axes, strict=True)):
            _panel(axes, f, pair, measure)
            hints.update(_documents(axes, f, row))
        first, last = figure.axes[0], figure.axes[-1]
        if named:
            _titles(first, f, width)
        last.set_xlabel(f"{f.unit} of the text")
        last.set_xlim(f.at, f.at + f.tokens)
        return figure

    return svg.plot(draw, prefix, title, caption, hints)


def by_position(figures: ComparisonFigures, prefix: str) -> Plot | None:
    """Draw the gains by distance from the document's start, with their intervals; None for a single stretch."""
    f = figures
    stretches = f.positions
    if len(stretches) < 2:
        return None
    title = "Gain by position in a document"
    bars = (
        " Bars: 95% intervals (bootstrap over documents, or long blocks of one)."
        if any(g.interval for p in stretches for g in p.gains)
        else ""
    )
    caption = (
        f"Mean gain in nats per {f.unit} over all documents, by the number of {plural(f.unit)} before it in the document; "
        f"only long documents reach far.{bars}"
    )

    def draw(width: float) -> "Figure":
        figure, axes = svg.blank(width, 2.7)
        axes.axhline(0, color=svg.INK, linewidth=0.6)
        for index in range(len(f.comparisons)):
            _positions(axes, stretches, index, len(f.comparisons))
        axes.set_xticks(range(len(stretches)), [f"{count(p.from_)}–\n{count(p.to)}" for p in stretches])
        axes.set_xlabel(f"{plural(f.unit)} into a document")
        axes.set_ylabel(f"gain (nats per {f.unit})")
        labels(figure, [pair.name for pair in f.comparisons])
        return figure

    return svg.plot(draw, prefix, title, caption)


def _positions(axes: "Axes", stretches: Sequence[PositionRecord], index: int, pairs: int) -> None:
    """Draw a line through the stretches, shifted a little from the other comparisons."""
    look = svg.series(index)
    gains = [p.gains[index] for p in stretches]
    x = [i + 0.09 * (index - (pairs - 1) / 2) for i in range(len(gains))]
    axes.plot(x, [bounded(g.gain) for g in gains], marker="o", **look)
    for at, g in zip(x, gains, strict=True):
        if g.interval:
            axes.plot([at, at], [*map(bounded, g.interval)], color=look["color"], linewidth=0.9)


def _panel(axes: "Axes", figures: ComparisonFigures, pair: PairRecord, measure: Measure) -> None:
    """Draw one comparison: blue blocks where it gains, orange where it loses, and the moving average within each document."""
    values = list(map(bounded, pair.blocks if measure == "nats" else pair.perplexity_blocks))
    edges = [min(figures.at + i * figures.block, figures.at + figures.tokens) for i in range(len(values) + 1)]
    for colour, sign in ((GAIN, 1), (LOSS, -1)):
        heights = [max(0.0, sign * v) * sign for v in values]
        axes.stairs(heights, edges, fill=True, color=colour, alpha=0.55, linewidth=0)
    axes.axhline(0, color=svg.INK, linewidth=0.6)
    smooth = smoothed(values, edges, figures)
    for x, y in smooth:
        axes.plot(x, y, color=svg.INK, linewidth=1.2)
    _limit(axes, values, [v for _, y in smooth for v in y])
    axes.set_ylabel(f"nats per {figures.unit}" if measure == "nats" else "perplexity")
    axes.set_title(svg.label(pair.name, 52), loc="left", fontsize=9, fontweight="bold", pad=12)
    axes.xaxis.set_major_formatter(lambda value, _: count(value))
    for number, one in enumerate(figures.passages, start=1):
        axes.axvspan(one.at, one.at + one.tokens, color=svg.INK, alpha=0.16, linewidth=0)
        axes.annotate(str(number), (one.at + one.tokens / 2, 1), xytext=(0, 1), ha="center", va="bottom",
                      xycoords=axes.get_xaxis_transform(), textcoords="offset points", fontsize=7.5,
                      annotation_clip=False)  # fmt: skip


def smoothed(
    values: Sequence[float], edges: Sequence[float], figures: ComparisonFigures
) -> list[tuple[list[float], list[float]]]:
    """Return the moving average of the blocks as a line (x, y) per document, so that it never spans two topics.

    A block belongs to the document that contains its middle. A document of one block has no line.
    """
    if not figures.smooth:
        return []
    middles = [(a + b) / 2 for a, b in pairwise(edges)]
    lines = []
    for d in figures.documents:
        inside = [i for i, m in enumerate(middles) if d.start <= m < d.start + d.tokens]
        if len(inside) > 1:
            half = figures.smooth / 2
            y = []
            for i in inside:
                near = [values[j] for j in inside if -half <= j - i < half] or [values[i]]
                y.append(sum(near) / len(near))
            lines.append(([middles[i] for i in inside], y))
    return lines


def _limit(axes: "Axes", values: Sequence[float], smooth: Sequence[float]) -> None:
    """Set limits that include all but the most extreme blocks, and the whole moving average."""
    low, high = _reach(values)
    low, high = min([low, *smooth]), max([high, *smooth])
    margin = 0.08 * (high - low) or 0.1
    axes.set_ylim(low - margin, high + margin)
    axes.locator_params(axis="y", nbins=5)


def _reach(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the axis: they include zero and leave out one block in 200 at each end."""
    ordered, out = sorted(values), math.floor((1 - WITHIN) / 2 * len(values))
    return min(0.0, ordered[out]), max(0.0, ordered[-1 - out])


def _documents(axes: "Axes", figures: ComparisonFigures, row: int) -> dict[str, str]:
    """Shade every other document. Return the hover text of each by gid."""
    hints = {}
    for i, d in enumerate(figures.documents):
        start, end = d.start, d.start + d.tokens
        if i % 2:
            axes.axvspan(start, end, color=svg.INK, alpha=0.06, linewidth=0, zorder=0)
        gid = f"document{row}-{i}"
        axes.axvspan(start, end, facecolor="#ffffff", alpha=0, linewidth=0, zorder=10, gid=gid)
        pair = figures.comparisons[row].name
        hints[gid] = (
            f"{d.title_at(i)}: {pair} {signed(d.gains[row])} nats per {figures.unit} "
            f"over {quantity(d.tokens, figures.unit)}"
        )
    return hints


def _titles(axes: "Axes", figures: ComparisonFigures, width: float) -> None:
    """Write slanted titles above the first panel, longest documents first, as far as they fit."""
    scale = 72 * (width - 0.8) / figures.tokens
    taken: list[float] = []
    order = sorted(enumerate(figures.documents), key=lambda pair: -pair[1].tokens)
    for i, d in order:
        centre = d.start + d.tokens / 2
        if all(abs(centre - other) * scale >= APART for other in taken):
            taken.append(centre)
            axes.annotate(svg.label(d.title_at(i), 24), (centre, 1), xytext=(-2, 24), rotation=45, ha="left", va="bottom",
                          rotation_mode="anchor", xycoords=axes.get_xaxis_transform(), textcoords="offset points",
                          fontsize=8, annotation_clip=False)  # fmt: skip


def _caption(figures: ComparisonFigures, measure: Measure) -> str:
    unit, block = figures.unit, figures.block
    what = (
        f"nats per {unit}"
        if measure == "nats"
        else "perplexity (of the block with the other reader, minus with this one)"
    )
    smooth = figures.smooth
    line = f" Line: mean over {quantity(smooth, 'block')}, within a document." if smooth else ""
    beyond = 0
    for pair in figures.comparisons:
        blocks = pair.blocks if measure == "nats" else pair.perplexity_blocks
        low, high = _reach(blocks)
        beyond += sum(not low <= v <= high for v in blocks)
    out = f" {count(beyond)} extreme {plural('block', beyond)} may reach beyond the picture." if beyond else ""
    numbers = " Numbers: the passages below." if figures.passages else ""
    return (
        f"Gain in {what} in each block of {quantity(block, unit)}: blue above zero where the "
        f"first reader does better, orange below where it does worse. The background changes with each document.{line}{numbers}"
        f"{out}"
    )
