"""Gate curves: after every epoch, how often a gate takes the auxiliary prediction, and what each of the two is worth alone."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backstory.config.formats import count, decimal, percent, perplexity
from backstory.reports import pieces, svg
from backstory.reports.axes import LARGEST, perplexity_axis, whole_numbers
from backstory.reports.phrases import MOST_DESCRIBED
from backstory.reports.pieces import Piece
from backstory.reports.sections.section import Section
from backstory.reports.svg import Plot
from backstory.reports.tables import Table, columns
from backstory.results import RunResults
from backstory.results.evaluation_record import GateRecord
from backstory.results.examination_record import Published

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Lines = tuple[tuple[str, str], ...]
"""The figures of an epoch that are drawn, and what their lines are called."""

SHARES: Lines = (("utilization", "λ ≥ ½ (PoU)"), ("win_share", "oracle"), ("mean_lambda", "mean λ"))
PARTS: Lines = (("valid_perplexity", "mixture"), ("p_perplexity", "p alone"), ("q_perplexity", "q alone"))
REACH = 5
"""Height of the axis, in times the mixture's largest perplexity: a q that is far worse would press all else flat."""
ACROSS = 3
"""Panels in a row, one for each run."""
WIDTH, PANEL = 7.6, 1.9
"""Inches: of a figure of several panels, and of the height of a row of them."""


@dataclass(frozen=True, kw_only=True)
class GateEpoch(GateRecord):
    """The gate after an epoch."""

    epoch: int
    valid_perplexity: float


Gated = tuple[str, list[GateEpoch]]
"""A run's name, and its gate after each epoch."""


def gate_epochs(run: RunResults) -> list[GateEpoch]:
    """Return the epochs whose validation measured a gate that can be drawn."""
    epochs = []
    for e in run.epochs:
        if (g := e.gate) is None or e.valid_perplexity >= LARGEST:
            continue
        if all(0 <= share <= 1 for share in (g.utilization, g.win_share, g.mean_lambda)):
            epochs.append(GateEpoch(epoch=e.epoch, valid_perplexity=e.valid_perplexity, **vars(g)))
    return epochs


def _pieces(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    gated = [(run.name, epochs) for run in runs if (epochs := gate_epochs(run))]
    if gated:
        yield pieces.figure(shares(gated))
        yield pieces.figure(parts(gated))
        yield pieces.Tabular(gates_table(gated), "Gates after the best epoch")


SECTION = Section("Gate", lambda _: True, _pieces)  # from the training log, whatever results there are


def gates_table(gated: Sequence[Gated]) -> Table:
    """Return what the gate of each run makes of its predictions after its best epoch, whose weights are kept."""
    rows = []
    for name, epochs in gated:
        e = _best(epochs)
        rows.append((name, count(e.epoch), percent(100 * e.utilization), percent(100 * e.win_share),
                     decimal(e.mean_lambda, 3), *(_perplexity(getattr(e, part)) for part, _ in PARTS)))  # fmt: skip
    heads = ("epoch#", "λ ≥ ½#", "q is better#", "mean λ#", *(f"{name}#" for _, name in PARTS))
    return Table(columns("run", *heads), tuple(rows))


def _perplexity(value: float) -> str:
    """Return a perplexity, of which the auxiliary prediction's may have hundreds of digits."""
    return perplexity(value) if value < LARGEST else "above 10¹²"


def _best(epochs: Sequence[GateEpoch]) -> GateEpoch:
    return min(epochs, key=lambda e: e.valid_perplexity)


def shares(gated: Sequence[Gated], prefix: str = "gate") -> Plot:
    """Draw the share of tokens at which lambda is one half or more, that of an oracle, and mean lambda, after each epoch."""
    caption = (
        "Tokens of the validation text at which the gate gives the auxiliary prediction one half or more (PoU), tokens at "
        "which that is the better one, which an oracle would give it, and its mean share λ."
    )
    if len(gated) <= MOST_DESCRIBED:
        words = (
            f"{name} uses it at {percent(100 * e.utilization)}, an oracle would at {percent(100 * e.win_share)}"
            for name, e in ((name, _best(epochs)) for name, epochs in gated)
        )
        caption += f" After the best epoch {'; '.join(words)}."
    with svg.style():
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        figure = _panels(gated, SHARES, 1.0)
        figure.axes[0].yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        figure.axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g}%"))
        figure.axes[0].set_ylim(
            0, 1.06 * max(0.01, *(getattr(e, key) for _, epochs in gated for e in epochs for key, _ in SHARES))
        )
        return svg.plot(figure, f"{prefix}-shares", "Use of the auxiliary prediction", caption)


def parts(gated: Sequence[Gated], prefix: str = "gate") -> Plot:
    """Draw validation perplexity of the mixture and of either prediction by itself, after each epoch."""
    values = [getattr(e, key) for _, epochs in gated for e in epochs for key, _ in PARTS]
    limit = REACH * max(e.valid_perplexity for _, epochs in gated for e in epochs)
    caption = (
        "Validation perplexity of the mixture, of the model’s own prediction alone (p), of the second one alone (q)."
    )
    if max(values) > limit:
        caption += " Triangles: beyond the axis."
    if len(gated) <= MOST_DESCRIBED:
        words = (
            f"{name} {mixed}, with p alone {p} and with q alone {q}"
            for name, (mixed, p, q) in (
                (n, (_perplexity(getattr(_best(f), key)) for key, _ in PARTS)) for n, f in gated
            )
        )
        caption += f" After the best epoch: {'; '.join(words)}."
    with svg.style():
        figure = _panels(gated, PARTS, limit)
        perplexity_axis(figure.axes[0], min(values), min(limit, max(values)))
        return svg.plot(figure, f"{prefix}-parts", "Each prediction by itself", caption)


def _panels(gated: Sequence[Gated], lines: Lines, limit: float) -> "Figure":
    """Draw a panel for each run, all on the same axes; values beyond the limit are marked at it."""
    from matplotlib.figure import Figure

    alone, across = len(gated) == 1, min(len(gated), ACROSS)
    rows = math.ceil(len(gated) / across)
    figure = Figure((5.0, 3.1) if alone else (WIDTH, 0.6 + PANEL * rows), layout="constrained")
    figure.subplots(rows, across, sharex=True, sharey=True)
    for empty in figure.axes[len(gated) :]:
        empty.remove()
    for i, (axes, (name, epochs)) in enumerate(zip(figure.axes, gated, strict=True)):
        for index, (key, called) in enumerate(lines):
            _line(axes, [(e.epoch, getattr(e, key)) for e in epochs], index, limit, called)
        lowest = i + across >= len(gated)
        axes.tick_params(labelleft=i % across == 0, labelbottom=lowest)
        axes.set_xlabel("epoch" if lowest else "")
        axes.set_ylabel("" if i % across else "share of tokens" if lines is SHARES else "perplexity")
        if not alone:
            axes.set_title(svg.label(name, 24), fontsize=9)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=len(lines))
    _epoch_axis(figure.axes[0], [e.epoch for _, epochs in gated for e in epochs])
    return figure


def _line(axes: "Axes", points: Sequence[tuple[float, float]], index: int, limit: float, called: str) -> None:
    # Dashed, as a gate that is all or nothing puts one line on another.
    look: dict[str, Any] = {"color": svg.COLOURS[index], "linestyle": svg.DASHES[index]}
    marker = "o" if len(points) == 1 else ""
    axes.plot(
        [x for x, _ in points], [min(y, limit) for _, y in points], marker=marker, clip_on=False, label=called, **look
    )
    if beyond := [x for x, y in points if y > limit]:
        axes.plot(beyond, [limit] * len(beyond), "^", color=look["color"], markeredgecolor="none", clip_on=False)


def _epoch_axis(axes: "Axes", numbers: Sequence[float]) -> None:
    low, high = min(numbers), max(numbers)
    margin = 0.02 * (high - low) or 0.5
    axes.set_xlim(low - margin, high + margin)
    whole_numbers(axes, 6)
