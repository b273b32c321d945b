"""Memory curves: what readers pay above the exact cost of a text, by how long ago what comes back was last seen."""

from collections.abc import Sequence
from html import escape

from backstory.reports import formats, svg
from backstory.reports import html_pieces as pieces
from backstory.reports.formats import count, decimal, span
from backstory.reports.groups import Named, groups, text_of
from backstory.reports.plots import LARGEST, Plot, height_of, labels, level, log_axis
from backstory.reports.results import Record, Result, RunResults
from backstory.reports.tables import Table, columns, to_text


def body(runs: Sequence[RunResults]) -> str:
    """Everything about memory in HTML; empty where no evaluation has measured it."""
    parts, found = [], groups(runs, "memory")
    for number, group in enumerate(found, start=1):
        first = group[0][1]
        text = text_of(first)
        parts.append(f"<h3>{escape(text)}</h3>" if len(found) > 1 else "")
        parts.append(f'<p class="note">{escape(text)}: {escape(formats.plain(first.corpus.get("provenance")))}</p>')
        for place, kind in enumerate(kinds(group), start=1):
            parts.append(pieces.plot(memory_curves(group, kind, f"memory{number}-{place}")))
            parts.append(pieces.table(beside(group, kind), f"Nats above the exact cost: {kind}"))
        heading = "Nats above the exact cost, by what a token is"
        parts.append(pieces.details(heading, pieces.table(summary(group), heading)))
        for name, result in group:
            heading = f"Every cost: {name}, {result.figures['split']}"
            parts.append(pieces.details(heading, pieces.table(costs(result), heading)))
    return "\n".join(part for part in parts if part)


def kinds(group: Sequence[Named]) -> list[str]:
    """What comes back in the text of a group."""
    return list(dict.fromkeys(curve["kind"] for _, result in group for curve in _curves(result)))


def summary(group: Sequence[Named]) -> Table:
    """Each reading's perplexity beside the exact one, and what it pays above the exact cost of each kind of token."""
    first = group[0][1].figures["memory"]["kinds"]
    rows = []
    for name, result in group:
        f, memory = result.figures, result.figures["memory"]
        excess = {cost["kind"]: cost["excess"] for cost in memory["kinds"]}
        rows.append((name, formats.perplexity(f["perplexity"]), formats.perplexity(memory["exact_perplexity"]),
                     decimal(memory["excess_nats_per_token"], 3),
                     *(decimal(excess.get(cost["kind"]), 3) for cost in first)))  # fmt: skip
    headings = ("Reading", "Perplexity#", "Exact perplexity#", "All above exact#", *(f"{c['kind']}#" for c in first))
    return Table(columns(*headings), tuple(rows))


def beside(group: Sequence[Named], kind: str) -> Table:
    """What each reading pays above the exact cost, a row for each distance."""
    curves = [(name, curve) for name, result in group if (curve := _curve(result, kind))]
    held = {(b["from"], b["to"]): b["tokens"] for _, curve in curves for b in curve["bins"]}
    found = [{b["from"]: b["excess"] for b in curve["bins"]} for _, curve in curves]
    rows = [
        (span(low, high), count(held[low, high]), *(decimal(one.get(low), 3) for one in found))
        for low, high in sorted(held, key=lambda ends: ends[0])
    ]
    return Table(columns("Tokens ago", "Over#", *(f"{name}#" for name, _ in curves)), tuple(rows))


def costs(result: Result) -> Table:
    """All costs of one reading: each kind of token, and of those that come back each distance."""
    rows = []
    for cost in result.figures["memory"]["kinds"]:
        rows.append((cost["kind"], "any", *_costs(cost)))
        curve = _curve(result, cost["kind"])
        rows += [(cost["kind"], span(b["from"], b["to"]), *_costs(b)) for b in curve["bins"]] if curve else []
    return Table(columns("What", "Tokens ago", "Over#", "Nats#", "Exact#", "Above exact#"), tuple(rows))


def _costs(cost: Record) -> tuple[str, ...]:
    return count(cost["tokens"]), *(decimal(cost[key], 3) for key in ("nats", "exact", "excess"))


def terminal(figures: Record) -> list[str]:
    """The memory curves of an evaluation's figures in lines: the exact perplexity, then a row for each distance."""
    memory = figures["memory"]
    lines = [
        f"  exact       {formats.perplexity(memory['exact_perplexity'])} is the perplexity of who forgets nothing; "
        f"{decimal(memory['excess_nats_per_token'], 3)} nats per token more are paid"
    ]
    if not memory["curves"]:
        return lines
    found = [{(b["from"], b["to"]): b["excess"] for b in curve["bins"]} for curve in memory["curves"]]
    spans = sorted({ends for one in found for ends in one}, key=lambda ends: ends[0])
    rows = [(span(*ends), *(decimal(one.get(ends), 2) for one in found)) for ends in spans]
    rows.append(("all forgotten", *(decimal(curve["forgotten"], 2) for curve in memory["curves"])))
    table = Table(columns("tokens ago", *(f"{curve['kind']}#" for curve in memory["curves"])), tuple(rows))
    return [*lines, "  paid above exact, in nats, where what was seen so long ago comes back:",
            *(f"    {line}" for line in to_text(table).splitlines())]  # fmt: skip


def memory_curves(group: Sequence[Named], kind: str, prefix: str) -> Plot | None:
    """Nats above the exact cost of what comes back, against tokens since it was last seen; None where nothing does.

    A line for each reading. 0 is the exact cost; the dashed line is what a reader pays who knows the statistics but nothing of
    the document.
    """
    curves = [(name, curve) for name, result in group if (curve := _curve(result, kind))]
    if not curves:
        return None
    title = f"Memory: {kind}"
    caption = (
        f"What is paid above the exact cost where something comes back ({kind}), by how many tokens ago it was last seen. "
        f"Zero: nothing is forgotten. Dashed: the statistics are known, but nothing of the document "
        f"({decimal(curves[0][1]['forgotten'], 2)} nats)."
    )
    with svg.style():
        figure, axes = svg.blank(height=height_of(len(curves)))
        for place, (_, curve) in enumerate(curves):
            bins = [b for b in curve["bins"] if abs(b["excess"]) < LARGEST]
            axes.plot([b["distance"] for b in bins], [b["excess"] for b in bins], marker="o", markersize=3.2,
                      **svg.series(place))  # fmt: skip
        level(axes, 0.0, "exact", "-")
        level(axes, curves[0][1]["forgotten"], "forgotten")
        log_axis(axes, "tokens since it was last seen", "nats above exact")
        labels(axes, [svg.label(name, 18) for name, _ in curves])
        return Plot(title, svg.inline(figure, prefix, title, caption), caption)


def _curves(result: Result) -> list[Record]:
    return result.figures["memory"]["curves"]


def _curve(result: Result, kind: str) -> Record | None:
    return next((curve for curve in _curves(result) if curve["kind"] == kind), None)
