"""Where readers gain: what they pay for a token by how many tokens ago the same one came last, beside the static reader."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup
from rich.console import Console

from backstory.config import formats, plural
from backstory.config.formats import count, decimal, span
from backstory.config.terminal import one_line
from backstory.reports import html_pieces as html
from backstory.reports import svg
from backstory.reports.axes import LARGEST, height_of, labels, level, log_axis
from backstory.reports.sections.section import Section, print_lines
from backstory.reports.sections.side_by_side import Evaluation, Named, grouped_by_text, title_of_text
from backstory.reports.svg import Plot
from backstory.reports.tables import Table, columns
from backstory.results import EvaluationFigures, RunResults
from backstory.results.evaluation_record import RecencyRecord
from backstory.results.examination_record import Published

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TICKS = (1, 3, 10, 30, 100, 300, *(10**power for power in range(3, 9)))
"""Distances that the axis names; longer numbers need more room."""


def _html(runs: Sequence[RunResults], published: Published | None) -> Iterator[Markup]:
    groups = same_tokens(runs)
    for number, group in enumerate(groups, start=1):
        text = _text(group[0][1])
        heading = f"Nats by how many tokens ago the same one came last: {text}"
        yield html.heading(text) if len(groups) > 1 else Markup()
        yield html.html_plot(recency_curves(group, f"recency{number}"))
        yield html.details(heading, html.html_table(recency_table(group), heading))


def same_tokens(runs: Sequence[RunResults]) -> list[list[Named]]:
    """Return the evaluations that have recency, those of the same tokens in as many rows in one group."""
    return grouped_by_text(runs, lambda f: f.recency, _tokens)


def _tokens(recency: RecencyRecord) -> tuple[int, ...]:
    """Return how many tokens each distance has: equal where the same tokens were read in as many rows."""
    return recency.new.tokens, *(n for b in recency.bins for n in (b.from_, b.tokens))


def recency_of(result: Evaluation) -> RecencyRecord:
    """Return the recency of an evaluation that has it."""
    assert result.figures.recency is not None
    return result.figures.recency


def _text(result: Evaluation) -> str:
    batch = result.figures.batch_size or 1
    return title_of_text(result) + ("" if batch == 1 else f", batch of {count(batch)}")


def static_baseline(group: Sequence[Named]) -> Named | None:
    """Return the reading that the others gain on: the first static one; None where there is none, or no other."""
    static = (named for named in group if named[1].figures.reader == "static")
    return next(static, None) if len(group) > 1 else None


def recency_table(group: Sequence[Named]) -> Table:
    """Return what each reading pays, a row for each distance and one for the tokens that are new."""
    records = [recency_of(result) for _, result in group]
    rows = [
        (span(*b.ends), count(b.tokens), *(decimal(one.bins[place].nats, 3) for one in records))
        for place, b in enumerate(records[0].bins)
    ]
    rows.append(("new", count(records[0].new.tokens), *(decimal(one.new.nats, 3) for one in records)))
    return Table(columns("Tokens ago", "Over#", *(f"{name}#" for name, _ in group)), tuple(rows))


def recency_curves(group: Sequence[Named], prefix: str) -> Plot | None:
    """Draw what readings gain on the static one, against tokens since the same one came last; None where nothing comes back.

    A line for each reading, and a point apart for the tokens that are new. Where there is nothing to gain on, what they pay.
    """
    baseline = static_baseline(group)
    shown = [named for named in group if named is not baseline]
    distances = [b.distance for b in recency_of(group[0][1]).bins]
    if not distances:
        return None
    with svg.style():
        figure, axes = svg.blank(height=height_of(len(shown)))
        apart = 3 * distances[-1]
        for place, (_, result) in enumerate(shown):
            line, new = _points(recency_of(result), None if baseline is None else recency_of(baseline[1]))
            points = [(x, y) for x, y in zip(distances, line, strict=True) if abs(y) < LARGEST]
            axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=3.2, **svg.series(place))
            if new is not None and abs(new) < LARGEST:
                # Side by side: readers that lose the same share of their prediction pay the same for what is new.
                beside_others = apart * 2 ** ((place + 0.5) / len(shown) - 0.5)
                axes.plot([beside_others], [new], "D", markersize=4, color=svg.series(place)["color"])
        if baseline:
            level(axes, 0.0, svg.label(baseline[0]), "-")
        up = f"nats gained on {svg.label(baseline[0])}" if baseline else "nats"
        log_axis(axes, "tokens since the same one came last", up)
        _set_apart(axes, distances[-1], apart)
        if len(shown) > 1 or baseline:
            labels(axes, [svg.label(name) for name, _ in shown])
        return svg.plot(figure, prefix, "Recency", _caption(group[0][1], baseline))


def _points(recency: RecencyRecord, baseline: RecencyRecord | None) -> tuple[list[float], float | None]:
    """Return the nats of each distance and of what is new, or the gain on those of another reading of the same tokens."""
    bins, new = [b.nats for b in recency.bins], recency.new.nats
    if baseline is None:
        return bins, new
    gains = [b.nats - nats for b, nats in zip(baseline.bins, bins, strict=True)]
    return gains, None if new is None or baseline.new.nats is None else baseline.new.nats - new


def _caption(result: Evaluation, baseline: Named | None) -> str:
    f, new = result.figures, recency_of(result).new.tokens
    rows = "" if (f.batch_size or 1) == 1 else f", in each of {count(f.batch_size)} rows of the batch"
    measure = f"Nats per token gained on {baseline[0]} (above 0: better)" if baseline else "Nats per token"
    return (
        f"{measure}, by how many tokens ago the same one came last. New: one that had not come before "
        f"({formats.percent(100 * new / f.tokens)} of {count(f.tokens)} {plural(f.unit, f.tokens)}{rows})."
    )


def _set_apart(axes: "Axes", last: float, apart: float) -> None:
    """Mark a place for what is new, to the right of all distances."""
    ticks = [tick for tick in TICKS if tick <= last]
    axes.set_xticks([*ticks, apart], [*map(count, ticks), "new"])
    axes.axvline((last * apart) ** 0.5, color=svg.INK, linewidth=0.6, alpha=0.3)


def _terminal(result: Evaluation, console: Console) -> None:
    """Print what the nearest and the farthest repetitions cost, and what is new."""
    recency, unit = recency_of(result), plural(result.figures.unit, 2)
    ends = [*recency.bins[:1], *recency.bins[1:][-1:]]
    costs = [f"{decimal(b.nats, 2)} for {unit} seen {span(*b.ends)} ago" for b in ends]
    costs += [f"{decimal(recency.new.nats, 2)} for new {unit}"] if recency.new.tokens else []
    print_lines(console, [f"  recency     nats: {one_line(', '.join(costs))}"])


SECTION = Section("Recency", lambda f: isinstance(f, EvaluationFigures) and f.recency is not None, _html, _terminal)
