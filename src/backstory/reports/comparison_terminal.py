"""A comparison of readers in a terminal: tables, the gain along the text as columns, and the passages."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from rich.console import Console
from rich.text import Text

from backstory.config.terminal import cell, printable
from backstory.reports import comparisons, passage_terminal, shades
from backstory.reports.comparisons import name_of, signed, title_of
from backstory.reports.formats import count
from backstory.reports.passage import from_json
from backstory.reports.plots import drawn
from backstory.reports.results import Record, Result
from backstory.reports.tables import Column, Table, to_text

GAIN, LOSS = shades.ramp("cool", dark=False)[-1], shades.ramp("warm", dark=False)[-1]
EIGHTHS = " ▁▂▃▄▅▆▇█"
HANGING = " ▔▔▔▀▀▀██"
"""What there is of eighths that hang from above: one, four, eight."""
HEIGHT = 3
"""Lines of a column above zero."""
LABEL = 7
"""Characters of the numbers left of the columns."""
SHORT = 7
"""Characters of a reader's name in the head of a column; longer ones become letters."""
MOST_DOCUMENTS = 20
"""Documents of the table, the longest ones."""


def show(result: Result, console: Console) -> None:
    """Print a comparison: a sentence, what is gained, where along the text, by document, and the passages."""
    f, brief = result.figures, lettered(result)
    _say(console, f["title"], "bold")
    _say(console, f"{comparisons.compared(result)}\n")
    if brief is not result:
        key = (f"{short['name']}  {full['name']}" for short, full in zip(_readers(brief), f["readers"], strict=True))
        _say(console, "\n".join(key) + "\n")
    _table(console, comparisons.pairs(brief))
    for row, (pair, short) in enumerate(zip(f["comparisons"], brief.figures["comparisons"], strict=True)):
        code = "" if brief is result else f"{name_of(short)}: "
        _say(console, f"\n{code}{name_of(pair)}, nats per {f['unit']}", "bold")
        for line in columns(f, row, console.width):
            console.print(line, highlight=False)
    if len(f["positions"]) > 1:
        _say(console, "\nBy place in a document", "bold")
        table = comparisons.positions(brief)
        _table(console, table if _fits(table, console) else comparisons.positions(brief, intervals=False))
    _documents(console, brief)
    for number, one in enumerate(f["passages"], start=1):
        _say(console, f"\n{comparisons.passage_title(one, number, f)}", "bold")
        passage_terminal.show(from_json(one["passage"], result.source), console)


def lettered(result: Result) -> Result:
    """The result with readers called A, B, C, ... where their names are too long for the heads of columns."""
    names = [reader["name"] for reader in result.figures["readers"]]
    if max(map(len, names)) <= SHORT:
        return result
    letters = dict(zip(names, (chr(ord("A") + i) for i in range(len(names))), strict=True))
    readers = [{**r, "name": letters[r["name"]]} for r in result.figures["readers"]]
    pairs = [{**p, **{side: letters[p[side]] for side in ("reader", "over")}} for p in result.figures["comparisons"]]
    return replace(result, figures={**result.figures, "readers": readers, "comparisons": pairs})


def _readers(result: Result) -> Sequence[Record]:
    return result.figures["readers"]


def _fits(table: Table, console: Console) -> bool:
    return max(map(len, to_text(table).splitlines())) <= console.width


def columns(figures: Record, row: int, width: int) -> Iterator[Text]:
    """The gain of a comparison along the text, as wide as the terminal: columns up and down from zero, and documents."""
    blocks = figures["comparisons"][row]["blocks"]
    wide = max(1, min(len(blocks), width - LABEL - 1))
    edges = [i * len(blocks) // wide for i in range(wide + 1)]
    means = [drawn(sum(blocks[a:b]) / (b - a)) for a, b in pairwise(edges)]
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
    if len(figures["documents"]) > 1:
        yield Text(" " * (LABEL + 1) + _marks(figures, wide), "dim")


def _marks(figures: Record, wide: int) -> str:
    """Under the columns, the number of each document where it begins, those that have room."""
    line = ""
    for number, d in enumerate(figures["documents"], start=1):
        place = int((d["start"] - figures["at"]) / figures["tokens"] * wide)
        mark = f"|{number}"
        if place >= len(line) + bool(line) and place + len(mark) <= wide:
            line = f"{line:<{place}}{mark}"
    return line


def _documents(console: Console, result: Result) -> None:
    """The documents with their numbers under the columns, the longest ones where they are many."""
    f, table = result.figures, comparisons.documents(result)
    order: Sequence[int] = range(len(f["documents"]))
    if len(order) < 2:
        return
    if len(order) > MOST_DOCUMENTS:
        order = sorted(sorted(order, key=lambda i: -f["documents"][i]["tokens"])[:MOST_DOCUMENTS])
    most = f", the {MOST_DOCUMENTS} longest of {count(len(f['documents']))}" if len(order) < len(f["documents"]) else ""
    _say(console, f"\nBy document{most}", "bold")
    room = max(12, console.width - 16 - 9 * (len(table.columns) - 3))
    rows = [(str(i + 1), _short(title_of(f["documents"][i], i), room), *table.rows[i][2:]) for i in order]
    _table(console, Table((Column("", True), Column("Document"), *table.columns[2:]), tuple(rows)))


def _short(text: str, longest: int) -> str:
    clean = cell(text)
    return clean if len(clean) <= longest else clean[: longest - 1].rstrip() + "…"


def _table(console: Console, table: Table) -> None:
    console.print(Text(to_text(table)), soft_wrap=True, highlight=False)


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(printable(text), style), highlight=False)
