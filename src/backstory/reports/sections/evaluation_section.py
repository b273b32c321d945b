"""Measures of evaluations besides the score, side by side for each text: answers, memory and recency."""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from rich.console import Console

from backstory.reports import document as pieces
from backstory.reports import svg
from backstory.reports.document import Piece, Pieces, Section, print_lines
from backstory.reports.phrases import MOST_DESCRIBED
from backstory.reports.svg import LARGEST, Plot, labels, level, log_axis
from backstory.reports.tables import Table, columns, to_text
from backstory.results import EvaluationFigures, Record, Result, RunResults
from backstory.results.evaluation_record import (
    AnswerCounts,
    AnswersRecord,
    CostRecord,
    CurveRecord,
    MemoryRecord,
    RecencyRecord,
)
from backstory.results.published_values import Published
from backstory.utils import formats
from backstory.utils.errors import plural
from backstory.utils.formats import count, decimal, percent, quantity, span
from backstory.utils.terminal import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LENGTHS = 24
"""Maximum number of task lengths that a terminal shows, evenly spaced."""
TICKS = (1, 3, 10, 30, 100, 300, *(10**power for power in range(3, 9)))
"""Distances labelled on the axis; longer numbers need more space."""
Evaluation = Result[EvaluationFigures]
R = TypeVar("R", bound=Record)


class Named(NamedTuple, Generic[R]):
    """An evaluation with its name among others, and the part of its figures that is shown."""

    name: str
    result: Evaluation
    part: R


def grouped_by_text(
    runs: Sequence[RunResults],
    part: Callable[[EvaluationFigures], R | None],
    alike: Callable[[R], Hashable] = lambda _: None,
) -> list[list[Named[R]]]:
    """Group the evaluations that have this part by text, with the static reader first in each run.

    `alike` returns whatever else the parts of a group must share.
    """
    groups: dict[Hashable, list[Named[R]]] = {}
    for run in runs:
        # static reader first, as the others are compared with it
        for result in sorted(run.of(EvaluationFigures), key=lambda r: (r.figures.reader != "static", r.folder)):
            if (record := part(result.figures)) is not None:
                text = (formats.plain(result.corpus.fingerprint), result.figures.split, alike(record))
                groups.setdefault(text, []).append(Named(run.name, result, record))
    return [_renamed(group) for group in groups.values()]


def _renamed(group: Sequence[Named[R]]) -> list[Named[R]]:
    """Name evaluations by reader, by run if there are several, and by settings and folder if names are still equal."""
    one_run = len({named.name for named in group}) == 1
    static = {named.result.figures.reader for named in group} == {"static"}
    names = [""] * len(group)
    for describe in (lambda r: re.sub(r":[^+]*", "", r.figures.reader), lambda r: r.figures.reader, lambda r: r.folder):
        times = Counter(names)
        for i, (run, result, _) in enumerate(group):
            if times[names[i]] > 1 or not names[i]:
                described = describe(result)
                names[i] = described if one_run else run if static and not names[i] else f"{run}, {described}"
    return [named._replace(name=name) for name, named in zip(names, group, strict=True)]


# --- answers to a synthetic task, by the length of its sequences ---


def _answers_pieces(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    """Yield the accuracy of the answers to a synthetic task, by length."""
    for group in grouped_by_text(runs, lambda f: f.answers):
        first = group[0].result
        yield pieces.Note(f"{first.corpus.text(first.figures.split)}: {formats.plain(first.corpus.provenance)}")
        for name, result, answers in group:
            yield pieces.Tabular(
                answers_table(answers), f"Answers by length: {name}, {result.corpus.part(result.figures.split)}"
            )


def answers_table(answers: AnswersRecord, most: int | None = None) -> Table:
    """Return a row for each length, and one for all."""
    lengths = answers.lengths
    if most is not None and len(lengths) > most:
        lengths = [lengths[round(i * (len(lengths) - 1) / (most - 1))] for i in range(most)]
    rows = [(count(one.length), *_answers_row(one)) for one in lengths]
    heads = columns("Length", "Documents#", "Nats#", "Tokens right#", "Bits right#", "Documents right#")
    return Table(heads, (*rows, ("all", *_answers_row(answers))))


def _answers_row(one: AnswerCounts) -> tuple[str, ...]:
    shares = (percent(100 * share) for share in (one.token_accuracy, one.bit_accuracy, one.document_accuracy))
    return count(one.documents), decimal(one.nats_per_answer_token, 3), *shares


def _answers_terminal(result: Evaluation, console: Console) -> None:
    """Print all answers, then a row for each length."""
    if answers := result.figures.answers:
        table = to_text(answers_table(answers, MOST_LENGTHS))
        print_lines(console, [f"  {one_line(answers.task):<11} {answers.in_words()}; by length:"])
        print_lines(console, (f"    {line}" for line in table.splitlines()))


# --- memory: nats above the exact cost, by distance to the last occurrence ---


def _memory_pieces(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    """Yield the cost above the exact cost by distance, for texts with a known exact cost."""
    groups = grouped_by_text(runs, lambda f: f.memory)
    for number, group in enumerate(groups, start=1):
        first = group[0].result
        text = first.corpus.text(first.figures.split)
        yield pieces.Heading(text) if len(groups) > 1 else None
        yield pieces.Note(f"{text}: {formats.plain(first.corpus.provenance)}")
        kinds = dict.fromkeys(curve.kind for named in group for curve in named.part.curves)
        results = [named.result for named in group]
        for index, kind in enumerate(kinds, start=1):
            yield pieces.figure(memory_curves(group, kind, f"memory{number}-{index}"), results)
            yield pieces.Tabular(excess_table(group, kind), f"Nats above the exact cost: {kind}")
        yield pieces.collapsed("Nats above the exact cost, by kind of token", kinds_table(group))
        for name, result, memory in group:
            part = result.corpus.part(result.figures.split)
            yield pieces.collapsed(f"Every cost: {name}, {part}", costs_table(memory))


def _curve(memory: MemoryRecord, kind: str) -> CurveRecord | None:
    return next((curve for curve in memory.curves if curve.kind == kind), None)


def kinds_table(group: Sequence[Named[MemoryRecord]]) -> Table:
    """Return each reading's perplexity, the exact one, and its cost above the exact cost for each kind of token."""
    kinds, rows = [cost.kind for cost in group[0].part.kinds], []
    for name, result, memory in group:
        excess = {cost.kind: cost.excess for cost in memory.kinds}
        rows.append((name, formats.perplexity(result.figures.perplexity), formats.perplexity(memory.exact_perplexity),
                     decimal(memory.excess_nats_per_token, 3), *(decimal(excess.get(k), 3) for k in kinds)))  # fmt: skip
    headings = ("Reading", "Perplexity#", "Exact perplexity#", "All above exact#", *(f"{kind}#" for kind in kinds))
    return Table(columns(*headings), tuple(rows))


def excess_table(group: Sequence[Named[MemoryRecord]], kind: str) -> Table:
    """Return the cost of each reading above the exact cost, a row per distance."""
    curves = [(named.name, curve) for named in group if (curve := _curve(named.part, kind))]
    tokens = {b.ends: b.tokens for _, curve in curves for b in curve.bins}
    excess = [{b.from_: b.excess for b in curve.bins} for _, curve in curves]
    rows = [
        (span(low, high), count(tokens[low, high]), *(decimal(one.get(low), 3) for one in excess))
        for low, high in sorted(tokens, key=lambda ends: ends[0])
    ]
    return Table(columns("Tokens ago", "Over#", *(f"{name}#" for name, _ in curves)), tuple(rows))


def costs_table(memory: MemoryRecord) -> Table:
    """Return all costs of one reading, by kind of token and, for recurring ones, by distance."""

    def row(kind: str, ago: str, cost: CostRecord) -> tuple[str, ...]:
        nats = (decimal(value, 3) for value in (cost.nats, cost.exact, cost.excess))
        return kind, ago, count(cost.tokens), *nats

    rows = []
    for cost in memory.kinds:
        rows.append(row(cost.kind, "any", cost))
        curve = _curve(memory, cost.kind)
        rows += [row(cost.kind, span(*b.ends), b) for b in curve.bins] if curve else []
    return Table(columns("What", "Tokens ago", "Over#", "Nats#", "Exact#", "Above exact#"), tuple(rows))


def _memory_terminal(result: Evaluation, console: Console) -> None:
    """Print the exact perplexity, then a row for each distance."""
    if (memory := result.figures.memory) is None:
        return
    more = f"this reader pays {decimal(memory.excess_nats_per_token, 3)} nats per token more"
    exact = formats.perplexity(memory.exact_perplexity)
    print_lines(console, [f"  exact       {exact} is the perplexity with perfect memory; {more}"])
    if not memory.curves:
        return
    excess = [{b.ends: b.excess for b in curve.bins} for curve in memory.curves]
    spans = sorted({ends for one in excess for ends in one}, key=lambda ends: ends[0])
    rows = [(span(*ends), *(decimal(one.get(ends), 2) for one in excess)) for ends in spans]
    rows.append(("all forgotten", *(decimal(curve.forgotten, 2) for curve in memory.curves)))
    table = Table(columns("tokens ago", *(f"{curve.kind}#" for curve in memory.curves)), tuple(rows))
    print_lines(console, ["  nats above exact, by how many tokens ago it was last seen:"])
    print_lines(console, (f"    {line}" for line in to_text(table).splitlines()))


def memory_curves(group: Sequence[Named[MemoryRecord]], kind: str, prefix: str) -> Plot | None:
    """Draw the cost above the exact cost of recurring tokens by distance to their last occurrence; None without any.

    One line per reading, in nats. Zero is the exact cost; the dashed line is the cost to a reader that knows the
    statistics but nothing of the document.
    """
    curves = [(named.name, curve) for named in group if (curve := _curve(named.part, kind))]
    if not curves:
        return None
    forgotten = curves[0][1].forgotten
    caption = (
        f"Nats above the exact cost of what recurs ({kind}), by how many tokens ago it was last seen. "
        "Zero: nothing is forgotten. Dashed: the statistics are known, but nothing of the document "
        f"({decimal(forgotten, 2)} nats)."
    )

    def draw(width: float) -> "Figure":
        figure, axes = svg.blank(width)
        for index, (_, curve) in enumerate(curves):
            _line(axes, [(b.distance, b.excess) for b in curve.bins], index)
        level(axes, 0.0, "exact", "-")
        level(axes, forgotten, "forgotten")
        log_axis(axes, "tokens since it was last seen", "nats above exact")
        labels(figure, [name for name, _ in curves])
        return figure

    return svg.plot(draw, prefix, f"Memory: {kind}", caption)


def _line(axes: "Axes", points: Sequence[tuple[float, float]], index: int) -> None:
    """Draw the line of a reading through its finite points."""
    shown = [(x, y) for x, y in points if abs(y) < LARGEST]
    axes.plot([x for x, _ in shown], [y for _, y in shown], marker="o", markersize=3.2, **svg.series(index))


# --- recency: nats by distance to the last occurrence of the same token ---


def _recency_pieces(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    """Yield the gain of each reading over the static one, by distance to the last occurrence of the same token."""
    groups = same_tokens(runs)
    for number, group in enumerate(groups, start=1):
        first = group[0].result
        batch = first.figures.batch_size or 1
        text = first.corpus.text(first.figures.split) + ("" if batch == 1 else f", batch of {count(batch)}")
        yield pieces.Heading(text) if len(groups) > 1 else None
        yield pieces.figure(recency_curves(group, f"recency{number}"), (named.result for named in group))
        yield pieces.collapsed(f"Nats by distance to the last occurrence: {text}", recency_table(group))


def same_tokens(runs: Sequence[RunResults]) -> list[list[Named[RecencyRecord]]]:
    """Group the evaluations that have recency by tokens and batch size."""

    def tokens(recency: RecencyRecord) -> tuple[int, ...]:
        return recency.new.tokens, *chain.from_iterable((b.from_, b.tokens) for b in recency.bins)

    return grouped_by_text(runs, lambda f: f.recency, tokens)


def static_baseline(group: Sequence[Named[RecencyRecord]]) -> Named[RecencyRecord] | None:
    """Return the first static reading, which gains are measured over; None without it, or without another reading."""
    static = (named for named in group if named.result.figures.reader == "static")
    return next(static, None) if len(group) > 1 else None


def recency_table(group: Sequence[Named[RecencyRecord]]) -> Table:
    """Return the cost of each reading, a row per distance and one for new tokens."""
    records = [named.part for named in group]
    rows = [
        (span(*b.ends), count(b.tokens), *(decimal(one.bins[index].nats, 3) for one in records))
        for index, b in enumerate(records[0].bins)
    ]
    rows.append(("new", count(records[0].new.tokens), *(decimal(one.new.nats, 3) for one in records)))
    return Table(columns("Tokens ago", "Over#", *(f"{named.name}#" for named in group)), tuple(rows))


def recency_curves(group: Sequence[Named[RecencyRecord]], prefix: str) -> Plot | None:
    """Draw gains over the static reading against the distance to the last occurrence; None if nothing recurs.

    One line per reading, and a separate point for new tokens. Without a static reading, draw costs.
    """
    baseline = static_baseline(group)
    shown = [named for named in group if named is not baseline]
    distances = [b.distance for b in group[0].part.bins]
    if not distances:
        return None

    def draw(width: float) -> "Figure":
        figure, axes = svg.blank(width)
        apart = 3 * distances[-1]
        for index, named in enumerate(shown):
            line, new = _gains(named.part, None if baseline is None else baseline.part)
            _line(axes, list(zip(distances, line, strict=True)), index)
            if new is not None and abs(new) < LARGEST:
                # Side by side, as readers that give away the same share of their prediction lose equally on new tokens.
                beside_others = apart * 2 ** ((index + 0.5) / len(shown) - 0.5)
                axes.plot([beside_others], [new], "D", markersize=4, color=svg.series(index)["color"])
        if baseline:
            axes.axhline(0, color=svg.INK, linewidth=0.6)
        up = f"gain over {svg.label(baseline.name)} (nats)" if baseline else "nats"
        log_axis(axes, "tokens since the last occurrence", up)
        _set_apart(axes, distances[-1], apart)
        if len(shown) > 1 or baseline:
            labels(figure, [named.name for named in shown])
        return figure

    return svg.plot(draw, prefix, "Recency", _recency_caption(group[0], shown, baseline))


def _gains(recency: RecencyRecord, baseline: RecencyRecord | None) -> tuple[list[float], float | None]:
    """Return the nats for each distance and for new tokens, or the gain over another reading of the same tokens."""
    bins, new = [b.nats for b in recency.bins], recency.new.nats
    if baseline is None:
        return bins, new
    gains = [b.nats - nats for b, nats in zip(baseline.bins, bins, strict=True)]
    return gains, None if new is None or baseline.new.nats is None else baseline.new.nats - new


def _recency_caption(
    first: Named[RecencyRecord], shown: Sequence[Named[RecencyRecord]], baseline: Named[RecencyRecord] | None
) -> str:
    """Return what the curves are, and for a few readings where each gains most, or its first and last cost."""
    f, new = first.result.figures, first.part.new.tokens
    batch = "" if (f.batch_size or 1) == 1 else f", in each of {count(f.batch_size)} rows of the batch"
    measure = f"Gain over {baseline.name} in nats per token (above 0: better)" if baseline else "Nats per token"
    caption = (
        f"{measure}, by how many tokens ago the same token last occurred. New: a token that had not occurred before "
        f"({percent(100 * new / f.tokens)} of {quantity(f.tokens, f.unit)}{batch})."
    )
    if len(shown) > MOST_DESCRIBED:
        return caption
    return "\n".join([caption, *(_recency_outcome(named, baseline) for named in shown)])


def _recency_outcome(named: Named[RecencyRecord], baseline: Named[RecencyRecord] | None) -> str:
    """Return a sentence on a reading: its largest gain over the static one and that on new tokens, or what tokens cost."""
    line, new = _gains(named.part, None if baseline is None else baseline.part)
    spans = [span(*b.ends) for b in named.part.bins]
    if baseline is None:
        farthest = f", {decimal(line[-1], 2)} at {spans[-1]}" if len(line) > 1 else ""
        on_new = "" if new is None else f", {decimal(new, 2)} on new tokens"
        return f"{named.name}: {decimal(line[0], 2)} at {spans[0]} tokens ago{farthest}{on_new}."
    best = max(range(len(line)), key=line.__getitem__)
    on_new = "" if new is None else f", and {formats.signed(new, 2)} on new tokens"
    return f"{named.name} gains most at {spans[best]} tokens ago: {formats.signed(line[best], 2)}{on_new}."


def _set_apart(axes: "Axes", last: float, apart: float) -> None:
    """Mark a position for new tokens, to the right of all distances."""
    ticks = [tick for tick in TICKS if tick <= last]
    axes.set_xticks([*ticks, apart], [*map(count, ticks), "new"])
    axes.axvline((last * apart) ** 0.5, color=svg.INK, linewidth=0.6, alpha=0.3)


def _recency_terminal(result: Evaluation, console: Console) -> None:
    """Print the cost of the nearest and the farthest repetitions, and of new tokens."""
    if (recency := result.figures.recency) is None:
        return
    unit = plural(result.figures.unit, 2)
    costs = [
        f"{decimal(b.nats, 2)} for {unit} seen {span(*b.ends)} ago" for b in (*recency.bins[:1], *recency.bins[1:][-1:])
    ]
    costs += [f"{decimal(recency.new.nats, 2)} for new {unit}"] if recency.new.tokens else []
    print_lines(console, [f"  recency     nats: {one_line(', '.join(costs))}"])


def _section(heading: str, part: str, pieces: Pieces, terminal: Callable[[Evaluation, Console], None]) -> Section:
    """Return the section for evaluations that have a part."""
    return Section(
        heading, lambda f: isinstance(f, EvaluationFigures) and getattr(f, part) is not None, pieces, terminal
    )


MEMORY = _section("Memory", "memory", _memory_pieces, _memory_terminal)
ANSWERS = _section("Answers", "answers", _answers_pieces, _answers_terminal)
RECENCY = _section("Recency", "recency", _recency_pieces, _recency_terminal)
