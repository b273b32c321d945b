"""Gate curves: use of the auxiliary prediction, and perplexity of each prediction alone, after every epoch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backstory.reports import document as pieces
from backstory.reports import svg
from backstory.reports.document import Piece, Section, of_kind
from backstory.reports.phrases import MOST_DESCRIBED
from backstory.reports.svg import LARGEST, Plot, perplexity_axis, whole_numbers
from backstory.reports.tables import Table, columns
from backstory.results import Figures, RunResults
from backstory.results.evaluation_record import GateRecord
from backstory.results.published_values import Published
from backstory.utils.formats import count, decimal, percent, perplexity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Lines = tuple[tuple[str, str], ...]
"""Fields of an epoch that are drawn, with the names of their lines."""

SHARES: Lines = (("utilization", "λ ≥ ½ (PoU)"), ("win_share", "oracle"), ("mean_lambda", "mean λ"))
PARTS: Lines = (("valid_perplexity", "mixture"), ("p_perplexity", "p alone"), ("q_perplexity", "q alone"))
REACH = 5
"""Height of the axis as a multiple of the mixture's largest perplexity; a far worse q would flatten all else."""
PANEL = 1.9
"""Height of a panel next to others, in inches."""


@dataclass(frozen=True, kw_only=True)
class GateEpoch(GateRecord):
    """An epoch and its gate statistics."""

    epoch: int
    valid_perplexity: float


COLUMNS = (
    "λ is the weight that the gate gives the auxiliary prediction q; the model’s own prediction p has the rest. ‘q is better’ "
    "counts the tokens to which q gives more probability than p. q alone has no bound: it may give almost no probability to a "
    "token that it does not expect."
)
Gated = tuple[str, list[GateEpoch]]
"""A run's name, and its gate after each epoch."""


def gate_epochs(run: RunResults) -> list[GateEpoch]:
    """Return the epochs whose validation has finite gate statistics."""
    epochs = []
    for e in run.epochs:
        if (g := e.gate) is None or e.valid_perplexity >= LARGEST:
            continue
        if all(0 <= share <= 1 for share in (g.utilization, g.win_share, g.mean_lambda)):
            epochs.append(GateEpoch(epoch=e.epoch, valid_perplexity=e.valid_perplexity, **vars(g)))
    return epochs


def _pieces(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    """Yield the use of both predictions by the gate of a model with an auxiliary one, after every epoch."""
    gated = [(run.name, epochs) for run in runs if (epochs := gate_epochs(run))]
    if gated:
        trainings = [run.training for run in runs if run.training and gate_epochs(run)]
        yield pieces.figure(shares(gated), trainings)
        yield pieces.figure(parts(gated), trainings)
        yield from pieces.compact(gates_table(gated), "Gates after the best epoch")
        yield pieces.Note(COLUMNS)


SECTION = Section("Gate", of_kind(Figures), _pieces)  # from the training log, so it needs no result


def gates_table(gated: Sequence[Gated]) -> Table:
    """Return the gate statistics of each run after its best epoch, whose weights are kept."""
    rows = []
    for name, epochs in gated:
        e = _best(epochs)
        rows.append((name, count(e.epoch), percent(100 * e.utilization), percent(100 * e.win_share),
                     decimal(e.mean_lambda, 3), *(_perplexity(getattr(e, part)) for part, _ in PARTS)))  # fmt: skip
    heads = ("Epoch#", "λ ≥ ½#", "q is better#", "Mean λ#", "Mixture#", "p alone#", "q alone#")
    return Table(columns("Run", *heads), tuple(rows))


def _perplexity(value: float) -> str:
    """Format a perplexity. That of the auxiliary prediction alone may have hundreds of meaningless digits."""
    return perplexity(value) if value < 1e4 else "above 10⁴"


def _best(epochs: Sequence[GateEpoch]) -> GateEpoch:
    return min(epochs, key=lambda e: e.valid_perplexity)


def shares(gated: Sequence[Gated]) -> Plot:
    """Draw, by epoch, the share of tokens with lambda at least one half, that of an oracle, and mean lambda."""
    caption = (
        "Share of validation tokens at which the gate gives the auxiliary prediction half the weight or more (PoU), share at "
        "which it is the better prediction, so that an oracle would choose it, and its mean weight λ."
    )
    if len(gated) <= MOST_DESCRIBED:
        words = (
            f"{name} uses it at {percent(100 * e.utilization)}, an oracle would at {percent(100 * e.win_share)}"
            for name, e in ((name, _best(epochs)) for name, epochs in gated)
        )
        caption += f" After the best epoch {'; '.join(words)}."

    def draw(width: float) -> "Figure":
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        figure = _panels(gated, SHARES, 1.0, width)
        figure.axes[0].yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        figure.axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g}%"))
        figure.axes[0].set_ylim(
            0, 1.06 * max(0.01, *(getattr(e, key) for _, epochs in gated for e in epochs for key, _ in SHARES))
        )
        return figure

    return svg.plot(draw, "gate-shares", "Use of the auxiliary prediction", caption)


def parts(gated: Sequence[Gated]) -> Plot:
    """Draw, by epoch, validation perplexity of the mixture and of either prediction alone."""
    values = [getattr(e, key) for _, epochs in gated for e in epochs for key, _ in PARTS]
    limit = REACH * max(e.valid_perplexity for _, epochs in gated for e in epochs)
    caption = (
        "Validation perplexity of the mixture, the model’s own prediction alone (p) and the auxiliary one alone (q)."
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

    def draw(width: float) -> "Figure":
        figure = _panels(gated, PARTS, limit, width)
        perplexity_axis(figure.axes[0], min(values), min(limit, max(values)))
        return figure

    return svg.plot(draw, "gate-parts", "Each prediction by itself", caption)


def _panels(gated: Sequence[Gated], lines: Lines, limit: float, width: float) -> "Figure":
    """Draw a panel for each run, all on the same axes. Values beyond the limit are marked at the edge."""
    alone = len(gated) == 1
    figure, panels = svg.panels(width, len(gated), svg.HEIGHT if alone else PANEL, least=1.9)
    for axes, (name, epochs) in zip(panels, gated, strict=True):
        for index, (key, called) in enumerate(lines):
            _line(axes, [(e.epoch, getattr(e, key)) for e in epochs], index, limit, called)
        if not alone:
            axes.set_title(svg.label(name, 24), fontsize=9)
    figure.supxlabel("epoch", fontsize=9)
    figure.supylabel("share of tokens" if lines is SHARES else "perplexity", fontsize=9)
    svg.legend(figure, panels[0].get_legend_handles_labels()[0])
    _epoch_axis(panels[0], [e.epoch for _, epochs in gated for e in epochs])
    return figure


def _line(axes: "Axes", points: Sequence[tuple[float, float]], index: int, limit: float, called: str) -> None:
    # dashed, because lines coincide for a gate that is all or nothing
    look: dict[str, Any] = {"color": svg.COLOURS[index], "linestyle": svg.DASHES[index]}
    marker = "o" if len(points) == 1 and points[0][1] <= limit else ""
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
