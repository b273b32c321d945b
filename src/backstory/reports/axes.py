"""Axes that the figures of a report share: logarithmic and perplexity axes, names of lines, curves with bands."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backstory.config.formats import count
from backstory.reports import svg
from backstory.results.examination_record import EffectRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST = 1e12
"""The largest number that is drawn: larger ones say that something broke down, and axes cannot hold them."""


def bounded(value: float) -> float:
    """Return a number that axes can hold."""
    return max(-LARGEST, min(LARGEST, value))


def whole_numbers(axes: "Axes", bins: int = 8) -> None:
    """Mark whole numbers only on the level axis, that many steps at most."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=bins, integer=True, min_n_ticks=1))


def perplexity_axis(axes: "Axes", low: float, high: float) -> None:
    """Make the vertical axis one of perplexities from `low` to `high`: logarithmic where they lie far apart."""
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


def labels(figure: "Figure", texts: Sequence[str]) -> None:
    """Name the lines of a figure in their order."""
    from matplotlib.lines import Line2D

    svg.legend(figure, [Line2D([], [], label=svg.label(text, 44), **svg.series(i)) for i, text in enumerate(texts)])


def curve(
    axes: "Axes", conditions: Sequence[EffectRecord], parameter: str, index: int, alpha: float = 0.2, name: str = ""
) -> None:
    """Draw the effects of conditions against one of their parameters, a line with its band."""
    look = svg.series(index)
    # Nothing has no place on a logarithmic axis; the table has it.
    points = [(getattr(c, parameter) or 0, c) for c in conditions if abs(c.effect) < LARGEST]
    points = sorted(((x, c) for x, c in points if x > 0), key=lambda pair: pair[0])
    x, bands = [x for x, _ in points], [[*map(bounded, c.spread)] for _, c in points]
    axes.fill_between(x, [b[0] for b in bands], [b[1] for b in bands], color=look["color"], alpha=alpha, linewidth=0)
    axes.plot(x, [c.effect for _, c in points], marker="o", markersize=3.2, label=name, **look)


def added_loss(unit: str) -> str:
    """Return the title of an axis of effects, by the unit of their contexts."""
    return f"added loss (nats per {unit})"


def level(axes: "Axes", height: float, text: str, dash: object = (0, (4, 3))) -> None:
    """Draw a thin line across the axes, dashed by default, at the level that the others are compared with."""
    axes.axhline(height, color=svg.INK, linewidth=0.8, linestyle=dash, alpha=0.7)
    axes.annotate(text, (0, height), xytext=(3, 2), xycoords=axes.get_yaxis_transform(),
                  textcoords="offset points", va="bottom", fontsize=7.5)  # fmt: skip


def log_axis(axes: "Axes", across: str, up: str, steps: Sequence[int] = (1, 3)) -> None:
    """Put whole numbers of tokens on a logarithmic axis, with ticks at these multiples of powers of ten; label both axes."""
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
