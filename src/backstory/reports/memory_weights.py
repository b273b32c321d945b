"""What the heads of an external memory did: means over a passage, and a picture over time, rows down and tokens across."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from backstory.config import plural
from backstory.reports import svg
from backstory.reports.formats import count, decimal, percent
from backstory.reports.kinds import BY_HEAD
from backstory.reports.plots import Plot, whole_numbers
from backstory.reports.results import Record, Result
from backstory.reports.shades import STEPS
from backstory.reports.tables import Table, columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED = 48
"""The most tokens that stand below the picture by themselves; more are counted."""
MARKED = 12
"""The most slots that are numbered."""
PANELS = (("write", "write"), ("read", "read"))
WIDTH, ROW, LEAST = 7.6, 0.055, 1.3
"""Inches: of the picture, of the height of a row, and of the least height of a panel."""


def heads(result: Result) -> Table | None:
    """The means over the passage of each head of a memory, a row each; None for another explanation."""
    f = result.figures
    if BY_HEAD[0] not in f:
        return None
    reading = len(f[BY_HEAD[0]]["read"])
    names = ["write", *(["read"] if reading == 1 else [f"read {head}" for head in range(1, reading + 1)])]
    measured = [[f[key]["write"], *f[key]["read"]] for key in BY_HEAD]
    rows = [
        (name, decimal(bits, 2), *map(percent, shares)) for name, bits, *shares in zip(names, *measured, strict=True)
    ]
    entropy = f"Entropy, of {math.log2(f['settings']['slots']):.3g} bits#"
    of_slots = f"of {count(f['window'])} {plural('slot', f['window'])}#"
    several = f.get("windows") or 1  # older results have one
    window = f"In a window {of_slots}" if several == 1 else f"In {count(several)} windows {of_slots}"
    return Table(columns("Head", entropy, "Largest weight#", window, "Fall-back#"), tuple(rows))


def older(result: Result) -> str:
    """How much is read of words before those that are told apart, in a sentence."""
    return f"Of what is read, {percent(result.figures['older_percent'])} is of older words."


def memory_weights(result: Result, prefix: str = "weights") -> Plot | None:
    """The weights that an explanation of a memory holds; None for another.

    `prefix` begins the ids inside the SVG.
    """
    shown = result.figures.get("weights")
    if shown is None:
        return None
    title, told = "Weights over time", caption(shown, result.figures)
    with svg.style():
        from matplotlib.figure import Figure

        height = max(LEAST, ROW * len(shown["slots"]))
        figure = Figure((WIDTH, 0.9 + 2 * height), layout="constrained")
        figure.subplots(2, 1, sharex=True)
        for axes, (key, name) in zip(figure.axes, PANELS, strict=True):
            _panel(axes, shown[key])
            axes.set_ylabel(f"{name}: slot")
            _slots(axes, shown["slots"])
        _tokens(figure.axes[-1], shown["tokens"])
        return Plot(title, svg.inline(figure, prefix, title, told), told)


def caption(shown: Record, figures: Record) -> str:
    """What is drawn, and what is left out."""
    fulls = [f"{max(map(max, shown[key])):.2g}" for key, _ in PANELS]
    there, slots, tokens = len(shown["slots"]), shown["of"], len(shown["tokens"])
    of = (
        f"all {count(slots)} slots"
        if there == slots
        else f"the {count(there)} of {count(slots)} slots that have most weight"
    )
    mean = f", the mean of {count(shown['heads'])} heads" if shown["heads"] > 1 else ""
    whole = figures.get("tokens")
    cut = f", the first {count(tokens)} of {count(whole)}" if isinstance(whole, int) and tokens < whole else ""
    return (
        f"Write weights (above) and read weights (below{mean}) of {of} of the memory, at each token of the passage{cut}. "
        f"Before a token is predicted, the one before it is written, and then is read. The full colour is {fulls[0]} above "
        f"and {fulls[1]} below."
    )


def _panel(axes: "Axes", weights: Sequence[Sequence[float]]) -> None:
    """One path for each shade: a rectangle for each cell would be a page of megabytes."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    full = max(map(max, weights))
    boxes: dict[int, list[tuple[float, float]]] = {}
    for row, values in enumerate(weights):
        steps = [round(STEPS * value / full) if full else 0 for value in values]
        end = 0
        for step, run in groupby(steps):
            start, end = end, end + len(list(run))
            corners = [(start, row), (end, row), (end, row + 1), (start, row + 1), (start, row)]
            boxes.setdefault(step, []).extend(corners)
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    for step in sorted(set(boxes) - {0}):
        path = Path(boxes[step], codes * (len(boxes[step]) // len(codes)))
        axes.add_patch(PathPatch(path, facecolor=svg.COLOURS[0], alpha=step / STEPS, linewidth=0))
    axes.set_xlim(0, len(weights[0]))
    axes.set_ylim(len(weights), 0)
    axes.grid(False)


def _slots(axes: "Axes", slots: Sequence[int]) -> None:
    """Some slots by their numbers in the memory."""
    places = range(0, len(slots), -(-len(slots) // MARKED))
    axes.set_yticks([place + 0.5 for place in places], [count(slots[place]) for place in places])


def _tokens(axes: "Axes", tokens: Sequence[str]) -> None:
    if len(tokens) > NAMED:
        axes.set_xlabel("token of the passage")
        whole_numbers(axes)
        return
    places = [place + 0.5 for place in range(len(tokens))]
    axes.set_xticks(places, [svg.label(token, 14) for token in tokens], rotation=90)
