"""Passages word by word, sample text, and the heads of an external memory over a passage."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console

from backstory.reports import document as pieces
from backstory.reports import passage_terminal, svg
from backstory.reports.document import Piece, Section, of_kind, print_lines
from backstory.reports.phrases import passage_summary
from backstory.reports.svg import Plot, whole_numbers
from backstory.reports.tables import Table, columns, to_text
from backstory.reports.theme import STEPS
from backstory.results import ExplanationFigures, Result, RunResults, SampleFigures
from backstory.results.explanation_record import MemoryExplanation, MemoryWeights
from backstory.results.published_values import Published
from backstory.utils.formats import count, decimal, percent, plain, quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED = 48
"""Maximum number of tokens labelled one by one below the picture; more are numbered."""
MARKED = 12
"""Maximum number of slots that are numbered."""
ROW, LEAST = 0.055, 1.3
"""Height of a row and minimum height of a panel, in inches."""


def _samples_pieces(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    """Yield text that the models wrote."""
    for run in runs:
        for result in run.of(SampleFigures):
            f = result.figures
            settings = (f"{name.replace('_', ' ')} {plain(v)}" for name, v in f.settings.items() if v is not None)
            yield pieces.Heading(run.name) if len(runs) > 1 else None
            yield pieces.Quote(f.prompt, f.text)
            after = " after the grey words" if f.prompt else ""
            yield pieces.Note(f"Written by the model{after}. {', '.join(settings)}")


def _pieces(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    """Yield explained passages word by word."""
    results = [(run, result) for run in runs for result in run.of(ExplanationFigures)]
    for number, (run, result) in enumerate(results, start=1):
        passage = result.figures.passage
        yield pieces.Heading(f"{run.name}: {passage.title}" if len(runs) > 1 else passage.title)
        yield pieces.Paragraph(passage_summary(result))
        yield pieces.Words(passage, f"passage{number}")
        yield from memory_pieces(result.figures, f"weights{number}")


def _terminal(result: Result[ExplanationFigures], console: Console) -> None:
    """Print the passage and, for a memory, the means of its heads."""
    passage_terminal.show(result.figures.passage, console)
    if isinstance(result.figures, MemoryExplanation):
        print_lines(console, ["", *to_text(heads_table(result.figures)).splitlines(), older_words(result.figures)])


SAMPLES = Section("Sample text", of_kind(SampleFigures), _samples_pieces)
PASSAGES = Section("Word by word", of_kind(ExplanationFigures), _pieces, _terminal)


def memory_pieces(figures: ExplanationFigures, prefix: str) -> Iterator[Piece | None]:
    """Yield the statistics and weights of a memory's heads; nothing for other explanations."""
    if isinstance(figures, MemoryExplanation):
        yield pieces.Tabular(heads_table(figures), "The heads of the memory")
        yield pieces.Paragraph(older_words(figures))
    yield pieces.figure(memory_weights(figures, prefix))


def heads_table(figures: MemoryExplanation) -> Table:
    """Return the means over the passage, a row for each head."""
    f, reading = figures, len(figures.entropy_bits.read)
    names = ["write", *(["read"] if reading == 1 else [f"read {head}" for head in range(1, reading + 1)])]
    parts = (f.entropy_bits, f.largest_percent, f.window_percent, f.fall_back_percent)
    measured = [[means.write, *means.read] for means in parts]
    rows = [
        (name, decimal(bits, 2), *map(percent, shares)) for name, bits, *shares in zip(names, *measured, strict=True)
    ]
    entropy = f"Entropy, of {math.log2(f.settings.slots):.3g} bits#"
    of_rows = f"of {quantity(f.window, 'slot')}#"
    several = f.windows or 1  # older results have one
    window = f"In a window {of_rows}" if several == 1 else f"In {count(several)} windows {of_rows}"
    return Table(columns("Head", entropy, "Largest weight#", window, "Fall-back#"), tuple(rows))


def older_words(figures: MemoryExplanation) -> str:
    """Return a sentence on the share of reads from words before those shown."""
    return f"{percent(figures.older_percent)} of what is read comes from older words."


def memory_weights(figures: ExplanationFigures, prefix: str = "weights") -> Plot | None:
    """Draw the weights that an explanation of a memory holds; None for another.

    `prefix` begins the ids inside the SVG.
    """
    weights = figures.weights
    if weights is None:
        return None

    def draw(width: float) -> "Figure":
        from matplotlib.figure import Figure

        height = max(LEAST, ROW * len(weights.slots))
        figure = Figure((width, 0.9 + 2 * height), layout="constrained")
        figure.subplots(2, 1, sharex=True)
        for axes, (name, slots) in zip(figure.axes, (("write", weights.write), ("read", weights.read)), strict=True):
            _panel(axes, slots)
            axes.set_ylabel(f"{name}: slot")
            _slots(axes, weights.slots)
        _tokens(figure.axes[-1], weights.tokens, width)
        return figure

    return svg.plot(draw, prefix, "Weights over time", weights_caption(weights, figures.tokens))


def weights_caption(weights: MemoryWeights, total: int | None) -> str:
    """Describe the picture, and what it leaves out of a passage of `total` tokens."""
    fulls = [f"{max(map(max, slots)):.2g}" for slots in (weights.write, weights.read)]
    shown, slots, tokens = len(weights.slots), weights.of, len(weights.tokens)
    of = f"the {count(shown)} of {count(slots)} slots with the most weight"
    if shown == slots:
        of = f"all {count(slots)} slots"
    mean = f", the mean of {count(weights.heads)} heads" if weights.heads > 1 else ""
    cut = f", the first {count(tokens)} of {count(total)}" if total is not None and tokens < total else ""
    return (
        f"Write weights (above) and read weights (below{mean}) of {of} of the memory, at each token of the passage{cut}. "
        f"Before each prediction, the previous token is written, then the memory is read. The full colour is {fulls[0]} above "
        f"and {fulls[1]} below."
    )


def _panel(axes: "Axes", weights: Sequence[Sequence[float]]) -> None:
    """Draw one path per shade; a rectangle per cell would take megabytes."""
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
    """Label some slots by their numbers in the memory."""
    marked = range(0, len(slots), -(-len(slots) // MARKED))
    axes.set_yticks([slot + 0.5 for slot in marked], [count(slots[slot]) for slot in marked])


def _tokens(axes: "Axes", tokens: Sequence[str], width: float) -> None:
    if len(tokens) > NAMED * width / svg.WIDE:
        axes.set_xlabel("token of the passage")
        whole_numbers(axes)
        return
    ticks = [i + 0.5 for i in range(len(tokens))]
    axes.set_xticks(ticks, [svg.label(token, 14) for token in tokens], rotation=90)
