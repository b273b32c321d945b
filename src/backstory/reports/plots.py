"""The figures of a report: learning curves and context curves, each with a caption that states what it shows."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backstory.config import scores as measures
from backstory.reports import svg
from backstory.reports.examined import spread
from backstory.reports.formats import count, decimal, perplexity
from backstory.reports.phrases import context_caption, context_hurts, learning_caption, measured_in, told_in_bits
from backstory.reports.published_section import Published
from backstory.reports.results import Record, Result, RunResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE = 0.08
"""The height of a label, as a part of the axes' height."""
THIN_POINTS = 300
"""The most points of a training curve; longer logs are averaged in groups."""

LARGEST = 1e12
"""The ends of what is drawn: larger numbers say that something broke down, and axes cannot hold them."""


def drawn(value: float) -> float:
    """A number that axes can hold."""
    return max(-LARGEST, min(LARGEST, value))


@dataclass(frozen=True)
class Plot:
    """A figure as an inline SVG element (its text is escaped) and its caption as raw text."""

    title: str
    svg: str
    caption: str


def learning_curves(runs: Sequence[RunResults], prefix: str = "learning") -> Plot | None:
    """Validation perplexity after each epoch, and training perplexity as a thin line; None if no run has a log.

    `prefix` begins the ids inside the SVG: figures that share a page need different ones.
    """
    runs = [run for run in runs if _finite(run.epochs)]
    if not runs:
        return None
    title, caption, told = "Learning curves", learning_caption(runs), _told(runs)
    with svg.style():
        figure, axes = svg.blank(height=height_of(len(runs)))
        for place, run in enumerate(runs):
            _learning_curve(axes, run, place, told)
        _learning_axes(axes, runs, told)
        _name_ends(axes, runs, told)
        return Plot(title, svg.inline(figure, prefix, title, caption), caption)


def context_curves(
    examinations: Sequence[tuple[str, Result]], prefix: str = "context", published: Published | None = None
) -> Plot | None:
    """Loss added by cutting the context, for truncation experiments given as (name, result); None if there are none.

    x: context in tokens, logarithmic; y: increase of the mean negative log-likelihood over the full context, in nats.
    """
    if not examinations:
        return None
    title, caption = "How much context is used", context_caption(examinations, published)
    with svg.style():
        figure, axes = svg.blank(height=height_of(len(examinations)))
        for place, (_, result) in enumerate(examinations):
            curve(axes, result.figures["conditions"], "context", place)
            _context_mark(axes, result.figures, place, alone=len(examinations) == 1)
        _context_axes(axes, [result.figures for _, result in examinations])
        if len(examinations) > 1:
            labels(axes, [_context_label(name, result.figures) for name, result in examinations])
        return Plot(title, svg.inline(figure, prefix, title, caption), caption)


def height_of(lines: int) -> float:
    """Inches that give every line's label a place of its own."""
    return max(3.1, 0.8 + 0.2 * lines)


def _finite(epochs: Sequence[Record]) -> list[Record]:
    """The epochs whose validation can be drawn."""
    return [e for e in epochs if e["valid_perplexity"] < LARGEST and abs(e["valid_nats"]) < math.log(LARGEST)]


def _told(runs: Sequence[RunResults]) -> Callable[[float], float]:
    """What is drawn of mean nats: bits where all tokens are characters or bytes, else perplexities."""
    return measures.bits if told_in_bits(runs) else measures.perplexity


def _learning_curve(axes: "Axes", run: RunResults, place: int, told: Callable[[float], float]) -> None:
    look = svg.series(place)
    epochs = _finite(run.epochs)
    x, y = [e["epoch"] for e in epochs], [told(e["valid_nats"]) for e in epochs]
    axes.plot(x, y, marker="o" if len(x) == 1 else "", **look)
    thin = _training_points(run, told)
    axes.plot([p[0] for p in thin], [p[1] for p in thin], color=look["color"], linewidth=0.7, alpha=0.75)
    best = min(range(len(y)), key=y.__getitem__)
    axes.plot(x[best], y[best], marker="o", color=look["color"], markeredgecolor="none", zorder=4)


def _training_points(
    run: RunResults, told: Callable[[float], float] = measures.perplexity
) -> list[tuple[float, float]]:
    """What is told of training against epochs, as fine as the log has it, averaged to at most THIN_POINTS points."""
    ends = {0: 0} | {e["epoch"]: e["step"] for e in run.epochs if isinstance(e.get("step"), int)}
    points: list[tuple[float, float]] = []
    for s in run.steps:
        start, end = ends.get(s["epoch"] - 1), ends.get(s["epoch"])
        if start is not None and end is not None and start < s["step"] <= end and math.isfinite(s["nats"]):
            points.append((s["epoch"] - 1 + (s["step"] - start) / (end - start), s["nats"]))
    if not points:
        points = [(e["epoch"], e["train_nats"]) for e in run.epochs if math.isfinite(e["train_nats"])]
    size = math.ceil(len(points) / THIN_POINTS)
    groups = [points[i : i + size] for i in range(0, len(points), size or 1)]
    return [(sum(p[0] for p in g) / len(g), told(sum(p[1] for p in g) / len(g))) for g in groups]


def _learning_axes(axes: "Axes", runs: Sequence[RunResults], told: Callable[[float], float]) -> None:
    values = [told(e["valid_nats"]) for run in runs for e in _finite(run.epochs)]
    # The first steps of training would press everything else flat; upwards the axis follows whole epochs only.
    whole = [told(e["train_nats"]) for run in runs for e in run.epochs if e["train_nats"] < 700]
    steps = [value for run in runs for _, value in _training_points(run, told)]
    low, high = min(values + whole + steps), max(values + whole)
    units = {run.training.figures["unit"] for run in runs if run.training}
    axes.set_xlabel("epoch")
    what = "bits" if told is measures.bits else "perplexity"
    axes.set_ylabel(f"{what} per {units.pop()}" if len(units) == 1 else what)
    whole_numbers(axes)
    perplexity_axis(axes, low, high)
    axes.set_xlim(0, max(e["epoch"] for run in runs for e in run.epochs) * 1.01)


def whole_numbers(axes: "Axes", bins: int = 8) -> None:
    """Mark whole numbers only on the level axis, that many steps at most."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=bins, integer=True, min_n_ticks=1))


def perplexity_axis(axes: "Axes", low: float, high: float) -> None:
    """Make the upright axis one of perplexities from `low` to `high`: logarithmic where they lie far apart."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if high > 3 * low > 0:
        axes.set_yscale("log")
        subs = (1, 2, 5) if high > 30 * low else (1, 1.5, 2, 3, 5, 7)
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}" if value < 1e4 else count(value)))
        axes.set_ylim(low / 1.1, high * 1.1)
    else:
        margin = 0.06 * (high - low) or 0.05 * high
        axes.set_ylim(low - margin, high + margin)


def _name_ends(axes: "Axes", runs: Sequence[RunResults], told: Callable[[float], float]) -> None:
    """Write each run's name and best validation beside the end of its curve, spread so that none overlap."""
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = []
    written = perplexity if told is measures.perplexity else lambda value: decimal(value, 3)
    for place, run in enumerate(runs):
        epochs = _finite(run.epochs)
        end = to_axes.transform((epochs[-1]["epoch"], told(epochs[-1]["valid_nats"])))[1]
        # One run needs no name: its page has it in the heading.
        name = "validation" if len(runs) == 1 else svg.label(run.name, 14)
        ends.append((float(end), place, f"{name} {written(told(min(e['valid_nats'] for e in epochs)))}"))
    ends.sort()
    heights = _spread([end for end, _, _ in ends], gap=min(LINE, 1.0 / len(ends)))
    for height, (_, place, text) in zip(heights, ends, strict=True):
        label(axes, height, place, text)


def labels(axes: "Axes", texts: Sequence[str]) -> None:
    """Label the lines in their order, in a column to the right: for curves that end together."""
    for place, text in enumerate(texts):
        label(axes, 0.97 - min(LINE, 1.0 / len(texts)) * place, place, text)


def label(axes: "Axes", height: float, place: int, text: str) -> None:
    """A piece of the line at this place and text, to the right of the axes; the height is in [0, 1]."""
    axes.plot([1.01, 1.04], [height] * 2, transform=axes.transAxes, clip_on=False, **svg.series(place))
    axes.text(1.055, height, svg.label(text, 30), transform=axes.transAxes, va="center")


def _spread(heights: Sequence[float], gap: float) -> list[float]:
    """Sorted heights in [0, 1], moved up as little as keeps them `gap` apart, then down where they leave the top."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else max(0.0, height))
    limit = 1.0
    for place in reversed(range(len(placed))):
        placed[place] = min(placed[place], limit)
        limit = placed[place] - gap
    return placed


def curve(axes: "Axes", conditions: Sequence[Record], key: str, place: int, alpha: float = 0.2) -> None:
    """The effects of conditions against one of their parameters, a line with its band."""
    look = svg.series(place)
    # Nothing has no place on a logarithmic axis; the table has it.
    found = sorted((c for c in conditions if c[key] > 0 and abs(c["effect"]) < LARGEST), key=lambda c: c[key])
    x, bands = [c[key] for c in found], [[*map(drawn, spread(c))] for c in found]
    axes.fill_between(x, [b[0] for b in bands], [b[1] for b in bands], color=look["color"], alpha=alpha, linewidth=0)
    axes.plot(x, [c["effect"] for c in found], marker="o", markersize=3.2, **look)


def _context_mark(axes: "Axes", figures: Record, place: int, alone: bool) -> None:
    """An upright line at the effective context, its interval shaded; a curve that is alone has the number beside it."""
    colour = svg.series(place)["color"]
    found, longest = figures["effective_context"], figures["maximum_context"]
    if found["context"] is None:
        return
    left = found.get("low") or found["context"]
    right = (longest if found["high"] is None else found["high"]) if "high" in found else found["context"]
    axes.axvspan(left, right, color=colour, alpha=0.1, linewidth=0, zorder=0)
    axes.axvline(found["context"], color=colour, linewidth=1, zorder=1)
    if alone:
        axes.annotate(count(found["context"]), (found["context"], 0.62), xytext=(4, 0), va="center",
                      xycoords=axes.get_xaxis_transform(), textcoords="offset points")  # fmt: skip


def _context_label(name: str, figures: Record) -> str:
    found, longest = figures["effective_context"], figures["maximum_context"]
    if context_hurts(figures):
        return f"{svg.label(name, 18)} best at {count(found['best_length'])}"
    return f"{svg.label(name, 18)} {f'>{count(longest)}' if found['context'] is None else count(found['context'])}"


def _context_axes(axes: "Axes", figures: Sequence[Record]) -> None:
    threshold = figures[0]["effective_context"]["threshold_percent"]
    axes.axhline(0, color=svg.INK, linewidth=0.6)
    level(axes, math.log1p(threshold / 100), f"{threshold:g}%")
    unit = measured_in(*figures)
    log_axis(axes, f"context ({unit}s)", added_loss(unit), (1, 2, 5))


def added_loss(unit: str) -> str:
    """What an axis of effects is called, whose contexts are counted in this."""
    return f"added loss (nats per {unit})"


def level(axes: "Axes", height: float, text: str, dash: object = (0, (4, 3))) -> None:
    """A thin line, dashed unless told otherwise, across the axes at what the others are compared with."""
    axes.axhline(height, color=svg.INK, linewidth=0.8, linestyle=dash, alpha=0.7)
    axes.annotate(text, (0, height), xytext=(3, 2), xycoords=axes.get_yaxis_transform(),
                  textcoords="offset points", va="bottom", fontsize=7.5)  # fmt: skip


def log_axis(axes: "Axes", across: str, up: str, steps: Sequence[int] = (1, 3)) -> None:
    """Whole numbers of tokens on a logarithmic axis, with ticks at these multiples of powers of ten, and the axes' labels."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set_xscale("log")
    least, most = axes.get_xlim()
    # Over more than two decades and a half the labels of three ticks in each would meet.
    axes.xaxis.set_major_locator(LogLocator(subs=steps if most < 400 * least else (1, 3)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    axes.set_xlabel(across)
    axes.set_ylabel(up)
