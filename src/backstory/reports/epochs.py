"""Learning curves of a reproduction: validation perplexity after every epoch, system by system, over its seeds."""

import itertools
import statistics
from collections.abc import Sequence

from backstory.reports import formats, svg
from backstory.reports.formats import MISSING, count
from backstory.reports.plots import LARGEST, Plot, height_of, labels, perplexity_axis, whole_numbers
from backstory.reports.results import Record, Result
from backstory.reports.tables import Table, columns

CAPTION = (
    "Validation perplexity after every epoch: the mean over seeds, and from the lowest to the highest of them shaded. What a "
    "system gains from the first epoch on and loses again towards the last is a faster start; what it keeps is a better model."
)


def table(result: Result) -> Table:
    """Mean validation perplexity after the first epochs of every system, after each doubling, and after the last."""
    curves = _curves(result)
    last = max((len(curve) for of_row in curves.values() for curve in of_row), default=0)
    shown = [epoch for epoch in (2**power for power in range(20)) if epoch < last] + ([last] if last else [])
    rows = [
        (row, *(_at([c[epoch - 1] for c in of_row if len(c) >= epoch]) for epoch in shown), count(len(of_row)))
        for row, of_row in curves.items()
    ]
    heads = (f"Epoch {count(epoch)}#" for epoch in shown)
    return Table(columns("System", *heads, "Seeds#"), tuple(rows))


def plot(result: Result, prefix: str) -> Plot | None:
    """A line for each system; None where no run was trained for more than an epoch."""
    curves = _curves(result)
    if not curves:
        return None
    title = "Validation by epoch"
    with svg.style():
        figure, axes = svg.blank(height=height_of(len(curves)))
        ends = []
        for place, of_row in enumerate(curves.values()):
            look, epochs = svg.series(place), range(1, 1 + min(map(len, of_row)))
            seeds = [[curve[epoch - 1] for curve in of_row] for epoch in epochs]
            means = [statistics.fmean(values) for values in seeds]
            axes.fill_between(epochs, [min(v) for v in seeds], [max(v) for v in seeds], color=look["color"], alpha=0.2,
                              linewidth=0)  # fmt: skip
            axes.plot(epochs, means, **look)
            ends += [means[0], means[-1], min(means)]
        perplexity_axis(axes, min(ends), max(ends))
        whole_numbers(axes)
        axes.set_xlabel("epoch")
        axes.set_ylabel(f"perplexity per {result.figures['unit'] or 'token'}")
        labels(axes, list(curves))
        return Plot(title, svg.inline(figure, prefix, title, CAPTION), CAPTION)


def _curves(result: Result) -> dict[str, list[Sequence[float]]]:
    """Validation perplexities by epoch of every run of more than one, by system; older results record none."""
    found: dict[str, list[Sequence[float]]] = {}
    for run in result.figures["runs"]:
        curve = _curve(run)
        if len(curve) > 1:
            found.setdefault(run["system"], []).append(curve)
    return found


def _curve(run: Record) -> Sequence[float]:
    """Up to where the training broke down, if it did."""
    return list(itertools.takewhile(lambda value: value < LARGEST, (value for _, value in run.get("curve", []))))


def _at(values: Sequence[float]) -> str:
    return formats.decimal(statistics.fmean(values), 2) if values else MISSING
