"""Where readers gain: what they pay for a token by how many tokens ago the same one came last, beside the static reader."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from backstory.config import plural
from backstory.config.terminal import one_line
from backstory.reports import formats, svg
from backstory.reports import html_pieces as pieces
from backstory.reports.formats import count, decimal, span
from backstory.reports.groups import Named, groups, text_of
from backstory.reports.plots import LARGEST, Plot, height_of, labels, level, log_axis
from backstory.reports.results import Record, Result, RunResults
from backstory.reports.tables import Table, columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TICKS = (1, 3, 10, 30, 100, 300, *(10**power for power in range(3, 9)))
"""Distances that the axis names; longer numbers need more room."""


def body(runs: Sequence[RunResults]) -> str:
    """Everything about recency in HTML; empty where no evaluation has measured it."""
    parts, found = [], grouped(runs)
    for number, group in enumerate(found, start=1):
        text = _text(group[0][1])
        heading = f"Nats by how many tokens ago the same one came last: {text}"
        parts.append(f"<h3>{escape(text)}</h3>" if len(found) > 1 else "")
        parts.append(pieces.plot(curves(group, f"recency{number}")))
        parts.append(pieces.details(heading, pieces.table(beside(group), heading)))
    return "\n".join(part for part in parts if part)


def grouped(runs: Sequence[RunResults]) -> list[list[Named]]:
    """The evaluations that have recency, those of the same tokens in as many rows in one group, under names that differ."""
    return groups(runs, "recency", _tokens)


def _tokens(recency: Record) -> tuple[int, ...]:
    """How many tokens each distance has: equal where the same tokens were read in as many rows."""
    return recency["new"]["tokens"], *(n for b in recency["bins"] for n in (b["from"], b["tokens"]))


def _text(result: Result) -> str:
    batch = result.figures.get("batch_size", 1)
    return text_of(result) + ("" if batch == 1 else f", batch of {count(batch)}")


def compared_with(group: Sequence[Named]) -> Named | None:
    """The reading that the others gain on: the first static one; None where there is none, or no other."""
    static = (named for named in group if named[1].figures["reader"] == "static")
    return next(static, None) if len(group) > 1 else None


def beside(group: Sequence[Named]) -> Table:
    """What each reading pays, a row for each distance and one for the tokens that are new."""
    found = [result.figures["recency"] for _, result in group]
    rows = [
        (span(b["from"], b["to"]), count(b["tokens"]), *(decimal(one["bins"][place]["nats"], 3) for one in found))
        for place, b in enumerate(found[0]["bins"])
    ]
    rows.append(("new", count(found[0]["new"]["tokens"]), *(decimal(one["new"]["nats"], 3) for one in found)))
    return Table(columns("Tokens ago", "Over#", *(f"{name}#" for name, _ in group)), tuple(rows))


def curves(group: Sequence[Named], prefix: str) -> Plot | None:
    """What readings gain on the static one, against tokens since the same one came last; None where nothing comes back.

    A line for each reading, and a point apart for the tokens that are new. Where there is nothing to gain on, what they pay.
    """
    base = compared_with(group)
    shown = [named for named in group if named is not base]
    drawn = [_points(result.figures["recency"], base and base[1].figures["recency"]) for _, result in shown]
    distances = [b["distance"] for b in group[0][1].figures["recency"]["bins"]]
    if not distances:
        return None
    title, caption = "Recency", _caption(group[0][1], base)
    with svg.style():
        figure, axes = svg.blank(height=height_of(len(shown)))
        apart = 3 * distances[-1]
        for place, (line, new) in enumerate(drawn):
            points = [(x, y) for x, y in zip(distances, line, strict=True) if abs(y) < LARGEST]
            axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=3.2, **svg.series(place))
            if new is not None and abs(new) < LARGEST:
                # Side by side: readers that lose the same share of their prediction pay the same for what is new.
                beside_others = apart * 2 ** ((place + 0.5) / len(shown) - 0.5)
                axes.plot([beside_others], [new], "D", markersize=4, color=svg.series(place)["color"])
        up = "nats"
        if base:
            level(axes, 0.0, svg.label(base[0]), "-")
            up = f"nats gained on {svg.label(base[0])}"
        log_axis(axes, "tokens since the same one came last", up)
        _set_apart(axes, distances[-1], apart)
        if len(shown) > 1 or base:
            labels(axes, [svg.label(name) for name, _ in shown])
        return Plot(title, svg.inline(figure, prefix, title, caption), caption)


def _points(recency: Record, base: Record | None) -> tuple[list[float], float | None]:
    """The nats of each distance and of what is new, or the gain on those of another reading of the same tokens."""
    bins, new = [b["nats"] for b in recency["bins"]], recency["new"]["nats"]
    if base is None:
        return bins, new
    gains = [b["nats"] - nats for b, nats in zip(base["bins"], bins, strict=True)]
    return gains, None if new is None else base["new"]["nats"] - new


def _caption(result: Result, base: Named | None) -> str:
    f, new = result.figures, result.figures["recency"]["new"]["tokens"]
    rows = "" if f.get("batch_size", 1) == 1 else f", in each of {count(f['batch_size'])} rows of the batch"
    what = f"Nats per token gained on {base[0]} (above 0: better)" if base else "Nats per token"
    return (
        f"{what}, by how many tokens ago the same one came last. New: one that had not come before "
        f"({formats.percent(100 * new / f['tokens'])} of {count(f['tokens'])} {plural(f['unit'], f['tokens'])}{rows})."
    )


def _set_apart(axes: "Axes", last: float, apart: float) -> None:
    """A place for what is new, to the right of all distances."""
    ticks = [tick for tick in TICKS if tick <= last]
    axes.set_xticks([*ticks, apart], [*map(count, ticks), "new"])
    axes.axvline((last * apart) ** 0.5, color=svg.INK, linewidth=0.6, alpha=0.3)


def terminal(figures: Record) -> list[str]:
    """An evaluation's figures in a line: what the nearest and the farthest repetitions cost, and what is new."""
    recency, unit = figures["recency"], plural(figures["unit"], 2)
    ends = recency["bins"][:1] + recency["bins"][1:][-1:]
    costs = [(b["nats"], f"{unit} seen {span(b['from'], b['to'])} ago") for b in ends]
    costs += [(recency["new"]["nats"], f"new {unit}")] if recency["new"]["tokens"] else []
    told = ", ".join(f"{decimal(nats, 2)} for {what}" for nats, what in costs)
    return [f"  recency     nats: {one_line(told)}"]
