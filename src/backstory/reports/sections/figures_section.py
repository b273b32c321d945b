"""Figures of every run: scores with their token counts and audits, trainings, and learning curves."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from backstory.reports import document as pieces
from backstory.reports import svg
from backstory.reports.document import Piece, Section, of_kind
from backstory.reports.phrases import (
    audit_failures,
    audit_word,
    learning_caption,
    overlap_warnings,
    scored_in_bits,
    special_settings,
    text_and_unit,
    unknown_warning,
)
from backstory.reports.svg import LARGEST, Plot, labels, perplexity_axis, whole_numbers
from backstory.reports.tables import Table, columns, without_empty_columns
from backstory.results import EvaluationFigures, Figures, Result, RunResults, TrainingFigures, UnknownTokens
from backstory.results.published_values import Published
from backstory.results.training_record import EpochRecord
from backstory.utils import formats
from backstory.utils import scores as measures
from backstory.utils.arguments import checked
from backstory.utils.formats import MISSING, count, decimal, perplexity, quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EARLIER_AUDIT = "by an earlier audit"
THIN_POINTS = 300
"""Maximum number of points in a training curve; longer logs are averaged in groups."""


def _pieces(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    """Yield every score with its text, reader, token count and audit; failed audits come first."""
    evaluations = [(run, result) for run in runs for result in run.of(EvaluationFigures)]
    measured = [(run, result) for run in runs for result in (*run.of(TrainingFigures), *run.of(EvaluationFigures))]
    for run, result in evaluations:
        if reasons := audit_failures(result.figures):
            yield pieces.Alarm(f"Audit failed: {run.name}, {result.figures.label}: {'; '.join(reasons)}")
    table = figures_table(runs)
    yield from pieces.compact(table, "Figures of every run")
    if any(kind in cell for row in table.rows for cell in row for kind in ("% written", "% outside")):
        yield pieces.Note(
            "<unk>: words that are so in the text (written) and words that are outside the vocabulary (outside)."
        )
    yield from (pieces.Note(f"{'; '.join(labels)}: {warning}.") for warning, labels in _warnings(measured).items())
    # Splits of one text share a table by design; different texts and vocabularies need the warning.
    if len({text_and_unit(result) for _, result in measured}) > 1:
        yield pieces.Note("These figures are of different texts, vocabularies or units, and cannot be compared.")


def _warnings(measured: Sequence[tuple[RunResults, Result[Any]]]) -> dict[str, list[str]]:
    """Return each warning with the results it concerns; one that concerns all is printed once."""
    about: dict[str, list[str]] = {}
    for run, result in measured:
        for warning in (unknown_warning(result), *overlap_warnings(result.figures)):
            if warning:
                about.setdefault(warning, []).append(f"{run.name}, {result.figures.label}")
    return {
        warning: ["All figures"] if 2 < len(labels) == len(measured) else labels for warning, labels in about.items()
    }


def _learning_pieces(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    """Yield learning curves, and the size, length and speed of each training."""
    yield pieces.figure(learning_curves(runs), (run.training for run in runs if run.training))
    yield from pieces.compact(trainings_table(runs), "Training of every run")


FIGURES = Section("Figures", of_kind(TrainingFigures, EvaluationFigures), _pieces)
LEARNING = Section("Learning", of_kind(Figures), _learning_pieces)  # the training log needs no result


@checked()
def figures_table(runs: Sequence[RunResults]) -> Table:
    """Return every perplexity of the runs with its text, reader, unit, token count and audit, without empty columns."""
    rows = []
    for run in runs:
        rows += [_evaluation_row(run.name, result) for result in run.of(EvaluationFigures)]
        rows += [_training_row(run.name, result) for result in run.of(TrainingFigures)]
    heads = columns("Run", "Perplexity#", "Over#", "<unk>#", "Audit", "Read by", "Text", "Bits per token#",
                    "Bits per character#", "Bits per byte#", "Bits per byte, spelled#",
                    "Perplexity per word#", "Batch#")  # fmt: skip
    return without_empty_columns(Table(heads, tuple(rows)))


def trainings_table(runs: Sequence[RunResults]) -> Table:
    """Return size, length, speed and best validation perplexity of every run that was trained."""
    rows = []
    for run in runs:
        for result in run.of(TrainingFigures):
            f = result.figures
            rows.append((run.name, count(f.parameters), quantity(f.tokens.train, f.unit), count(f.epochs),
                         count(f.best_epoch), formats.score(f.valid_nats, f.unit), count(f.tokens_per_second),
                         formats.duration(result.provenance.seconds)))  # fmt: skip
    heads = columns("Run", "Parameters#", "Trained on#", "Epochs#", "Best epoch#", "Best validation#",
                    "Tokens per second#", "Time#")  # fmt: skip
    return Table(heads, tuple(rows))


def _training_row(name: str, result: Result[TrainingFigures]) -> tuple[str, ...]:
    f = result.figures
    return (name, f"{perplexity(f.valid_perplexity)} per {f.unit}", quantity(f.tokens.valid, f.unit),
            unknown_cell(f.unknown_in("valid"), f.tokens.valid), audit_word(f.audit),
            f"training, epoch {count(f.best_epoch)}", result.corpus.text("valid"), decimal(measures.bits(f.valid_nats), 3),
            MISSING, MISSING, MISSING, MISSING, MISSING)  # fmt: skip


def _evaluation_row(name: str, result: Result[EvaluationFigures]) -> tuple[str, ...]:
    f = result.figures
    after = (f", after {f.after}" if f.after else "") + special_settings(f)
    return (name, f"{perplexity(f.perplexity)} per {f.unit}", quantity(f.tokens, f.unit), unknown_cell(f, f.tokens),
            _audit(result), f.reader + after, result.corpus.text(f.split), decimal(f.bits_per_token, 3),
            decimal(f.bits_per_character, 3), decimal(f.bits_per_byte, 3),
            decimal(f.open_bits_per_byte, 3),
            # If tokens are words, it equals the perplexity.
            MISSING if f.unit == "word" else perplexity(f.perplexity_per_word),
            # A text is normally read in one row; several at once are an approximation worth a column.
            MISSING if f.batch_size == 1 else count(f.batch_size))  # fmt: skip


def unknown_cell(unknown: UnknownTokens, tokens: int) -> str:
    """Return the share of `<unk>`, and which are outside the vocabulary."""
    return unknown.unknown_among(tokens).cell() or MISSING


def _audit(result: Result[EvaluationFigures]) -> str:
    """Return the audit's verdict; for a stale result that passed, why it does not apply to the present weights.

    A result without cuts was audited by an earlier version, which some cheats pass.
    """
    audit = result.figures.audit
    word = audit_word(audit)
    if audit is None or not audit.passed:
        return word
    return result.stale or (word if audit.cuts else EARLIER_AUDIT)


# --- learning curves ---


def learning_curves(runs: Sequence[RunResults], prefix: str = "learning") -> Plot | None:
    """Draw validation perplexity after each epoch, and training perplexity as a thin line; None if no run has a log.

    `prefix` begins the ids inside the SVG: figures that share a page need different ones.
    """
    runs = [run for run in runs if _finite(run.epochs)]
    if not runs:
        return None
    # bits if all tokens are characters or bytes, else perplexities
    measure = measures.bits if scored_in_bits(runs) else measures.perplexity

    def draw(width: float) -> "Figure":
        figure, axes = svg.blank(width)
        for index, run in enumerate(runs):
            _learning_curve(axes, run, index, measure)
        _learning_axes(axes, runs, measure)
        labels(figure, [_best(run, measure) for run in runs])
        return figure

    return svg.plot(draw, prefix, "Learning curves", learning_caption(runs))


def _finite(epochs: Sequence[EpochRecord]) -> list[EpochRecord]:
    """Return the epochs whose validation can be drawn."""
    return [e for e in epochs if e.valid_perplexity < LARGEST and abs(e.valid_nats) < math.log(LARGEST)]


def _learning_curve(axes: "Axes", run: RunResults, index: int, measure: Callable[[float], float]) -> None:
    look = svg.series(index)
    epochs = _finite(run.epochs)
    x, y = [e.epoch for e in epochs], [measure(e.valid_nats) for e in epochs]
    axes.plot(x, y, marker="o" if len(x) == 1 else "", **look)
    thin = training_points(run, measure)
    axes.plot([p[0] for p in thin], [p[1] for p in thin], color=look["color"], linewidth=0.7, alpha=0.75)
    best = min(range(len(y)), key=y.__getitem__)
    axes.plot(x[best], y[best], marker="o", color=look["color"], markeredgecolor="none", zorder=4)


def training_points(
    run: RunResults, measure: Callable[[float], float] = measures.perplexity
) -> list[tuple[float, float]]:
    """Return the training loss against epochs at the log's resolution, averaged to at most THIN_POINTS points."""
    ends = {0: 0} | {e.epoch: e.step for e in run.epochs if e.step is not None}
    points: list[tuple[float, float]] = []
    for s in run.steps:
        start, end = ends.get(s.epoch - 1), ends.get(s.epoch)
        if start is not None and end is not None and start < s.step <= end and math.isfinite(s.nats):
            points.append((s.epoch - 1 + (s.step - start) / (end - start), s.nats))
    if not points:
        points = [(e.epoch, e.train_nats) for e in run.epochs if math.isfinite(e.train_nats)]
    size = math.ceil(len(points) / THIN_POINTS)
    groups = [points[i : i + size] for i in range(0, len(points), size or 1)]
    return [(sum(p[0] for p in g) / len(g), measure(sum(p[1] for p in g) / len(g))) for g in groups]


def _learning_axes(axes: "Axes", runs: Sequence[RunResults], measure: Callable[[float], float]) -> None:
    values = [measure(e.valid_nats) for run in runs for e in _finite(run.epochs)]
    # The first steps would flatten everything else, so whole epochs alone set the upper limit.
    whole = [measure(e.train_nats) for run in runs for e in run.epochs if e.train_nats < 700]
    steps = [value for run in runs for _, value in training_points(run, measure)]
    low, high = min(values + whole + steps), max(values + whole)
    units = {run.training.figures.unit for run in runs if run.training}
    axes.set_xlabel("epoch")
    name = "bits" if measure is measures.bits else "perplexity"
    axes.set_ylabel(f"{name} per {units.pop()}" if len(units) == 1 else name)
    whole_numbers(axes)
    perplexity_axis(axes, low, high)
    axes.set_xlim(0, max(e.epoch for run in runs for e in run.epochs) * 1.01)


def _best(run: RunResults, measure: Callable[[float], float]) -> str:
    """Return a run's name with its best validation score."""
    best = measure(min(e.valid_nats for e in _finite(run.epochs)))
    return f"{run.name} {decimal(best, 3) if measure is measures.bits else perplexity(best)}"
