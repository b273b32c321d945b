"""Show a comparison of readers along a text: its picture, tables, and passages word by word."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from backstory.reports import document as pieces
from backstory.reports import passage_terminal, theme
from backstory.reports.document import Piece, Section, of_kind, print_text
from backstory.reports.sections.comparison_plots import along, by_position
from backstory.reports.svg import bounded
from backstory.reports.tables import Column, Table, columns, to_text
from backstory.results import ComparisonFigures, Result, RunResults
from backstory.results.explanation_record import ExcerptRecord, GainRecord, PairRecord
from backstory.results.published_values import Published
from backstory.utils import formats
from backstory.utils import scores as measures
from backstory.utils.errors import plural
from backstory.utils.formats import MISSING, count, quantity, signed
from backstory.utils.terminal import printable, shortened

DIGITS = 3
"""Decimals of a score in nats."""
Comparison = Result[ComparisonFigures]
MOST_ROWS = 15
"""Maximum number of documents in a table that is not collapsed."""
GAIN, LOSS = theme.ramp("cool", dark=False)[-1], theme.ramp("warm", dark=False)[-1]
EIGHTHS = " ▁▂▃▄▅▆▇█"
HANGING = " ▔▔▔▀▀▀██"
"""Blocks that hang from above. Unicode has them for one, four and eight eighths only."""
HEIGHT = 3
"""Lines of a column above zero."""
LABEL = 7
"""Width of the numbers left of the columns, in characters."""
SHORT = 7
"""Maximum length of a reader's name in a column heading; longer names are replaced by letters."""
MOST_DOCUMENTS = 20
"""Maximum number of documents in the terminal's table; the longest are kept."""


def _pieces(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    """Yield each comparison of readers: its picture, tables, and passages word by word."""
    results = [(run, result) for run in runs for result in run.of(ComparisonFigures)]
    for number, (run, result) in enumerate(results, start=1):
        title = result.figures.title
        yield pieces.Heading(f"{run.name}: {title}" if len(runs) > 1 else title)
        yield pieces.Paragraph(compared(result))
        yield from comparison_pieces(result, f"comparison{number}", 4)


def comparison_pieces(result: Comparison, prefix: str, level: int) -> Iterator[Piece | None]:
    """Yield the comparison, under headings of that level. `prefix` begins its ids and must be unique on a page."""
    f = result.figures
    yield pieces.Tabular(readers_table(f), "Readers")
    yield pieces.Tabular(pairs_table(f), "Gains")
    yield pieces.figure(along(f, f"{prefix}-nats"), [result])
    if not in_bits(f):
        note = "Differences of perplexities do not add up, and a few hard blocks outweigh all the others."
        plot = along(f, f"{prefix}-perplexity", "perplexity")
        yield pieces.details("The same in perplexity", pieces.figure(plot), pieces.Note(note))
    yield pieces.figure(by_position(f, f"{prefix}-positions"), [result])
    yield pieces.details("Every position in a document", pieces.Tabular(positions_table(f), "Gain by position"))
    documents = pieces.Tabular(documents_table(f), "Gain of every document")
    heading = f"Every document ({len(f.documents):,})"
    if len(f.documents) > MOST_ROWS:
        yield pieces.details(heading, documents)
    else:
        yield pieces.Heading(heading, level)
        yield documents
    for number, one in enumerate(f.passages, start=1):
        yield pieces.Heading(passage_title(one, number, f), level)
        yield pieces.Note(one.passage.title)
        yield pieces.Words(one.passage, f"{prefix}-passage{number}")


# --- sentences and tables ---


def gain(record: GainRecord, intervals: bool = True) -> str:
    """Return a gain with its interval, if it has one: `+0.120 (+0.100 to +0.140)`."""
    return f"{signed(record.gain)} ({_interval(record)})" if intervals and record.interval else signed(record.gain)


def _interval(record: GainRecord) -> str:
    return MISSING if record.interval is None else " to ".join(map(signed, record.interval))


def compared(result: Comparison) -> str:
    """Return one or two sentences on a comparison: each reader's score, and the gain at the start and later."""
    f, pair = result.figures, result.figures.comparisons[-1]
    best, *others = _scores(f)
    measure = measures.measure_of(f.unit)
    scores = [f"{best} {measure}" if in_bits(f) else f"{measure} {best}", *others]
    read = ", ".join(f"{score} with {r.name}" for score, r in zip(scores, f.readers, strict=True))
    interval = f" (95%: {_interval(pair)})" if pair.interval else ""
    unknown, documents = f.unknown_among(f.tokens).phrase(), quantity(len(f.documents), "document")
    sentence = (
        f"{result.name} reads {quantity(f.tokens, f.unit)}{unknown and f' ({unknown})'} in "
        f"{documents} at {read}: {pair.name} gains {signed(pair.gain)} nats per {f.unit}{interval}."
    )
    first, *later = f.positions
    if first.from_ or not later:
        return sentence
    # The last stretch may come from a single long document.
    most = max(later, key=lambda position: position.tokens)
    return (
        f"{sentence} The gain is {signed(first.gains[-1].gain)} in the first {count(first.to)} {plural(f.unit)} of a document, "
        f"and {signed(most.gains[-1].gain)} after {count(most.from_)} to {count(most.to)}."
    )


def in_bits(figures: ComparisonFigures) -> bool:
    """Return True if scores are bits of each token, and not perplexities."""
    return figures.unit in measures.IN_BITS


def _scores(figures: ComparisonFigures) -> list[str]:
    """Return the score of every reader."""
    return [formats.figure(r.nats_per_token, figures.unit) for r in figures.readers]


def passage_title(one: ExcerptRecord, number: int, figures: ComparisonFigures) -> str:
    """Return the heading of a passage: `1. The largest gain, +0.420 nats per word`."""
    why = one.why[:1].upper() + one.why[1:]
    return f"{number}. {why}: {figures.comparisons[-1].name} {signed(one.gains[-1])} nats per {figures.unit}"


def readers_table(figures: ComparisonFigures) -> Table:
    """Return the score and the settings of each reader on the stretch."""
    f = figures
    heads = "Reader", f"{measures.measure_of(f.unit).capitalize()}#", f"Nats per {f.unit}#", "Over#", "Settings"
    rows = [
        (r.name, score if in_bits(f) else f"{score} per {f.unit}", formats.decimal(r.nats_per_token, DIGITS),
         quantity(f.tokens, f.unit), _settings(r.layers))
        for score, r in zip(_scores(f), f.readers, strict=True)
    ]  # fmt: skip
    return Table(columns(*heads), tuple(rows))


def _settings(layers: Any) -> str:
    """Return the settings of a reader and their origin."""
    parts = []
    for layer in layers if isinstance(layers, list) else []:
        settings = layer.get("settings") if isinstance(layer, dict) else None
        if isinstance(settings, dict) and settings:
            values = ", ".join(f"{name} {formats.plain(value)}" for name, value in settings.items())
            parts.append(f"{layer.get('name')}: {values} ({layer.get('origin')})")
    return "; ".join(parts) or MISSING


def pairs_table(figures: ComparisonFigures) -> Table:
    """Return the gain of each comparison over the whole stretch."""
    f = figures
    documents = quantity(len(f.documents), "document")
    rows = [(p.name, signed(p.gain), _interval(p), _gained(f, p), documents) for p in f.comparisons]
    measure = measures.measure_of(f.unit).capitalize()
    heads = columns("Gain of", f"Nats per {f.unit}#", "95% interval#", f"{measure} gain#", "Over#")
    return Table(heads, tuple(rows))


def _gained(figures: ComparisonFigures, pair: PairRecord) -> str:
    """Return a gain in the unit of the scores."""
    return signed(measures.bits(pair.gain)) if in_bits(figures) else signed(pair.perplexity_gain, 1)


def documents_table(figures: ComparisonFigures) -> Table:
    """Return each document of the stretch with the readers' scores and the gains, in nats per token."""
    f = figures
    rows = [
        (
            d.title_at(i),
            count(d.start),
            count(d.tokens),
            *(formats.decimal(v, DIGITS) for v in d.nats),
            *map(signed, d.gains),
        )
        for i, d in enumerate(f.documents)
    ]
    heads = (Column("Document"), Column(f"From {f.unit}", True), Column(plural(f.unit).capitalize(), True))
    return Table((*heads, *(Column(r.name, True) for r in f.readers), *_gain_columns(f)), tuple(rows))


def positions_table(figures: ComparisonFigures, intervals: bool = True) -> Table:
    """Return the gains in nats per token by distance from the document's start; optionally with their intervals."""
    rows = [
        (
            f"{count(p.from_)} to {count(p.to)}",
            count(p.tokens),
            count(p.documents),
            *(gain(g, intervals) for g in p.gains),
        )
        for p in figures.positions
    ]
    units = plural(figures.unit).capitalize()
    heads = columns(f"{units} into a document", f"{units}#", "Documents#")
    return Table((*heads, *_gain_columns(figures)), tuple(rows))


def _gain_columns(figures: ComparisonFigures) -> tuple[Column, ...]:
    return tuple(Column(p.name, True) for p in figures.comparisons)


# --- terminal ---


def _terminal(result: Comparison, console: Console) -> None:
    """Print a comparison: a sentence, the gains in all, along the text and by document, and the passages."""
    f = result.figures
    brief = lettered(f)
    _say(console, f.title, "bold")
    _say(console, f"{compared(result)}\n")
    if brief is not f:
        key = (f"{short.name}  {full.name}" for short, full in zip(brief.readers, f.readers, strict=True))
        _say(console, "\n".join(key) + "\n")
    print_text(console, to_text(pairs_table(brief)))
    for row, (pair, short) in enumerate(zip(f.comparisons, brief.comparisons, strict=True)):
        code = "" if brief is f else f"{short.name}: "
        _say(console, f"\n{code}{pair.name}, nats per {f.unit}", "bold")
        for line in gain_columns(f, row, console.width):
            console.print(line, highlight=False)
    if len(f.positions) > 1:
        _say(console, "\nBy position in a document", "bold")
        table = positions_table(brief)
        print_text(console, to_text(table if _fits(table, console) else positions_table(brief, intervals=False)))
    _print_documents(console, brief)
    for number, one in enumerate(f.passages, start=1):
        _say(console, f"\n{passage_title(one, number, f)}", "bold")
        passage_terminal.show(one.passage, console)


def lettered(figures: ComparisonFigures) -> ComparisonFigures:
    """Rename the readers to A, B, C, ... if their names are too long for column headings."""
    names = [reader.name for reader in figures.readers]
    if max(map(len, names)) <= SHORT:
        return figures
    letters = dict(zip(names, (chr(ord("A") + i) for i in range(len(names))), strict=True))
    readers = [replace(r, name=letters[r.name]) for r in figures.readers]
    pairs = [replace(p, reader=letters[p.reader], over=letters[p.over]) for p in figures.comparisons]
    return replace(figures, readers=tuple(readers), comparisons=tuple(pairs))


def _fits(table: Table, console: Console) -> bool:
    return max(map(cell_len, to_text(table).splitlines())) <= console.width


def gain_columns(figures: ComparisonFigures, row: int, width: int) -> Iterator[Text]:
    """Yield the gain along the text as columns up and down from zero, as wide as the terminal, and the documents."""
    blocks = figures.comparisons[row].blocks
    wide = max(1, min(len(blocks), width - LABEL - 1))
    edges = [i * len(blocks) // wide for i in range(wide + 1)]
    means = [bounded(sum(blocks[a:b]) / (b - a)) for a, b in pairwise(edges)]
    scale = max(abs(v) for v in means) or 1.0
    down = HEIGHT if min(means) < -scale / 2 else 1
    eighths = [round(8 * HEIGHT * v / scale) for v in means]
    for level in reversed(range(HEIGHT)):
        cells = "".join(EIGHTHS[min(8, max(0, n - 8 * level))] for n in eighths)
        label = signed(scale, 2) if level == HEIGHT - 1 else "0" if level == 0 else ""
        yield Text(f"{label:>{LABEL}} ").append(cells, GAIN)
    for level in range(down):
        cells = "".join(HANGING[min(8, max(0, -n - 8 * level))] for n in eighths)
        if cells.strip():
            yield Text(" " * (LABEL + 1)).append(cells, LOSS)
    if len(figures.documents) > 1:
        yield Text(" " * (LABEL + 1) + _marks(figures, wide), "dim")


def _marks(figures: ComparisonFigures, wide: int) -> str:
    """Return the line under the columns: the number of each document at its start, as far as they fit."""
    line = ""
    for number, d in enumerate(figures.documents, start=1):
        column = int((d.start - figures.at) / figures.tokens * wide)
        mark = f"|{number}"
        if column >= len(line) + bool(line) and column + len(mark) <= wide:
            line = f"{line:<{column}}{mark}"
    return line


def _print_documents(console: Console, figures: ComparisonFigures) -> None:
    """Print the documents with their numbers under the columns; of many, only the longest."""
    f, table = figures, documents_table(figures)
    order: Sequence[int] = range(len(f.documents))
    if len(order) < 2:
        return
    if len(order) > MOST_DOCUMENTS:
        order = sorted(sorted(order, key=lambda i: -f.documents[i].tokens)[:MOST_DOCUMENTS])
    most = f", the {MOST_DOCUMENTS} longest of {count(len(f.documents))}" if len(order) < len(f.documents) else ""
    _say(console, f"\nBy document{most}", "bold")
    room = max(12, console.width - 16 - 9 * (len(table.columns) - 3))
    rows = [(str(i + 1), shortened(f.documents[i].title_at(i), room), *table.rows[i][2:]) for i in order]
    print_text(console, to_text(Table((Column("", True), Column("Document"), *table.columns[2:]), tuple(rows))))


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(printable(text), style), highlight=False)


SECTION = Section("Readers against each other", of_kind(ComparisonFigures), _pieces, _terminal)
