"""Memory curves: what readers pay above the exact cost of a text, by how long ago what comes back was last seen."""

from collections.abc import Iterator, Sequence

from markupsafe import Markup
from rich.console import Console

from backstory.config import formats
from backstory.config.formats import count, decimal, span
from backstory.reports import html_pieces as html
from backstory.reports import svg
from backstory.reports.axes import LARGEST, height_of, labels, level, log_axis
from backstory.reports.sections.section import Section, print_lines
from backstory.reports.sections.side_by_side import Evaluation, Named, grouped_by_text, title_of_text
from backstory.reports.svg import Plot
from backstory.reports.tables import Table, columns, to_text
from backstory.results import EvaluationFigures, RunResults
from backstory.results.evaluation_record import CostRecord, CurveRecord, MemoryRecord
from backstory.results.examination_record import Published


def _html(runs: Sequence[RunResults], published: Published | None) -> Iterator[Markup]:
    groups = grouped_by_text(runs, lambda f: f.memory)
    for number, group in enumerate(groups, start=1):
        first = group[0][1]
        text = title_of_text(first)
        yield html.heading(text) if len(groups) > 1 else Markup()
        yield html.note(f"{text}: {formats.plain(first.corpus.provenance)}")
        for place, kind in enumerate(kinds(group), start=1):
            yield html.html_plot(memory_curves(group, kind, f"memory{number}-{place}"))
            yield html.html_table(excess_table(group, kind), f"Nats above the exact cost: {kind}")
        heading = "Nats above the exact cost, by what a token is"
        yield html.details(heading, html.html_table(kinds_table(group), heading))
        for name, result in group:
            heading = f"Every cost: {name}, {result.figures.split}"
            yield html.details(heading, html.html_table(costs_table(memory_of(result)), heading))


def memory_of(result: Evaluation) -> MemoryRecord:
    """Return the memory of an evaluation that has one."""
    assert result.figures.memory is not None
    return result.figures.memory


def _curve(memory: MemoryRecord, kind: str) -> CurveRecord | None:
    return next((curve for curve in memory.curves if curve.kind == kind), None)


def kinds(group: Sequence[Named]) -> list[str]:
    """Return the kinds of tokens that come back in the text of a group."""
    return list(dict.fromkeys(curve.kind for _, result in group for curve in memory_of(result).curves))


def kinds_table(group: Sequence[Named]) -> Table:
    """Return each reading's perplexity beside the exact one, and what it pays above the exact cost of each kind of token."""
    first, rows = memory_of(group[0][1]).kinds, []
    for name, result in group:
        memory = memory_of(result)
        excess = {cost.kind: cost.excess for cost in memory.kinds}
        rows.append((name, formats.perplexity(result.figures.perplexity), formats.perplexity(memory.exact_perplexity),
                     decimal(memory.excess_nats_per_token, 3),
                     *(decimal(excess.get(cost.kind), 3) for cost in first)))  # fmt: skip
    headings = ("Reading", "Perplexity#", "Exact perplexity#", "All above exact#", *(f"{c.kind}#" for c in first))
    return Table(columns(*headings), tuple(rows))


def excess_table(group: Sequence[Named], kind: str) -> Table:
    """Return what each reading pays above the exact cost, a row for each distance."""
    curves = [(name, curve) for name, result in group if (curve := _curve(memory_of(result), kind))]
    tokens = {b.ends: b.tokens for _, curve in curves for b in curve.bins}
    excess = [{b.from_: b.excess for b in curve.bins} for _, curve in curves]
    rows = [
        (span(low, high), count(tokens[low, high]), *(decimal(one.get(low), 3) for one in excess))
        for low, high in sorted(tokens, key=lambda ends: ends[0])
    ]
    return Table(columns("Tokens ago", "Over#", *(f"{name}#" for name, _ in curves)), tuple(rows))


def costs_table(memory: MemoryRecord) -> Table:
    """Return all costs of one reading: each kind of token, and of those that come back each distance."""
    rows = []
    for cost in memory.kinds:
        rows.append((cost.kind, "any", *_costs(cost)))
        curve = _curve(memory, cost.kind)
        rows += [(cost.kind, span(*b.ends), *_costs(b)) for b in curve.bins] if curve else []
    return Table(columns("What", "Tokens ago", "Over#", "Nats#", "Exact#", "Above exact#"), tuple(rows))


def _costs(cost: CostRecord) -> tuple[str, ...]:
    return count(cost.tokens), *(decimal(value, 3) for value in (cost.nats, cost.exact, cost.excess))


def _terminal(result: Evaluation, console: Console) -> None:
    """Print the exact perplexity, then a row for each distance."""
    memory = memory_of(result)
    more = f"{decimal(memory.excess_nats_per_token, 3)} nats per token more are paid"
    exact = formats.perplexity(memory.exact_perplexity)
    print_lines(console, [f"  exact       {exact} is the perplexity with perfect memory; {more}"])
    if not memory.curves:
        return
    excess = [{b.ends: b.excess for b in curve.bins} for curve in memory.curves]
    spans = sorted({ends for one in excess for ends in one}, key=lambda ends: ends[0])
    rows = [(span(*ends), *(decimal(one.get(ends), 2) for one in excess)) for ends in spans]
    rows.append(("all forgotten", *(decimal(curve.forgotten, 2) for curve in memory.curves)))
    table = Table(columns("tokens ago", *(f"{curve.kind}#" for curve in memory.curves)), tuple(rows))
    print_lines(console, ["  paid above exact, in nats, where what was seen so long ago comes back:"])
    print_lines(console, (f"    {line}" for line in to_text(table).splitlines()))


SECTION = Section("Memory", lambda f: isinstance(f, EvaluationFigures) and f.memory is not None, _html, _terminal)


def memory_curves(group: Sequence[Named], kind: str, prefix: str) -> Plot | None:
    """Draw nats above the exact cost of what comes back, against tokens since it was last seen; None where nothing does.

    A line for each reading. 0 is the exact cost; the dashed line is what a reader pays who knows the statistics but nothing of
    the document.
    """
    curves = [(name, curve) for name, result in group if (curve := _curve(memory_of(result), kind))]
    if not curves:
        return None
    forgotten = curves[0][1].forgotten
    caption = (
        f"Nats above the exact cost where something comes back ({kind}), by how many tokens ago it was last seen. "
        "Zero: nothing is forgotten. Dashed: the statistics are known, but nothing of the document "
        f"({decimal(forgotten, 2)} nats)."
    )
    with svg.style():
        figure, axes = svg.blank(height=height_of(len(curves)))
        for place, (_, curve) in enumerate(curves):
            bins = [b for b in curve.bins if abs(b.excess) < LARGEST]
            x, y = [b.distance for b in bins], [b.excess for b in bins]
            axes.plot(x, y, marker="o", markersize=3.2, **svg.series(place))
        level(axes, 0.0, "exact", "-")
        level(axes, forgotten, "forgotten")
        log_axis(axes, "tokens since it was last seen", "nats above exact")
        labels(axes, [svg.label(name, 18) for name, _ in curves])
        return svg.plot(figure, prefix, f"Memory: {kind}", caption)
