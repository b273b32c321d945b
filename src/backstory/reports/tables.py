"""Tables of text, written as HTML (reports), Markdown (README and docs) or terminal text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from backstory.utils.arguments import checked
from backstory.utils.errors import UserError
from backstory.utils.formats import MISSING
from backstory.utils.terminal import cell, padded


@dataclass(frozen=True)
class Column:
    """A column: its heading, and whether it holds numbers (right-aligned)."""

    heading: str
    numeric: bool = False


@dataclass(frozen=True)
class Table:
    """Columns and rows of text. The first column names the row. Text is raw; writers escape it."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]

    def only(self, headings: Sequence[str]) -> "Table":
        """Return the columns with these headings, in the table's order."""
        return self.take([i for i, column in enumerate(self.columns) if column.heading in headings])

    def without(self, headings: Sequence[str]) -> "Table":
        """Return the table without the columns with these headings."""
        return self.only([column.heading for column in self.columns if column.heading not in headings])

    def take(self, indices: Sequence[int]) -> "Table":
        """Return the columns at these indices."""
        rows = tuple(tuple(row[i] for i in indices) for row in self.rows)
        return Table(tuple(self.columns[i] for i in indices), rows)


@checked()
def to_text(table: Table) -> str:
    """Return the table for a terminal, printable: columns side by side, without a final line break."""
    lines = [tuple(map(cell, line)) for line in ([c.heading for c in table.columns], *table.rows)]
    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    numeric = [column.numeric for column in table.columns]
    formed = (map(padded, line, widths, numeric) for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in formed)


@checked()
def to_markdown(table: Table) -> str:
    """Return the table as GitHub Markdown, escaped, without a final line break."""
    lines = [[c.heading for c in table.columns], *table.rows]
    head, *rows = ("| " + " | ".join(escape_markdown(cell) for cell in line) + " |" for line in lines)
    rule = "|" + "|".join("---:" if column.numeric else "---" for column in table.columns) + "|"
    return "\n".join([head, rule, *rows])


def columns(*headings: str) -> tuple[Column, ...]:
    """Return columns from headings; a heading that ends in # is a column of numbers."""
    return tuple(Column(h.removesuffix("#"), h.endswith("#")) for h in headings)


def without_empty_columns(table: Table) -> Table:
    """Drop columns, except the first, that are empty in all rows. A table without rows keeps all columns."""
    if not table.rows:
        return table
    return table.take([i for i in range(len(table.columns)) if i == 0 or any(row[i] != MISSING for row in table.rows)])


def compact(table: Table) -> tuple[Table, str]:
    """Move units that a column shares into its heading and constant columns into a sentence. Return both."""
    table = _units_in_heads(table)
    if len(table.rows) < 2:
        return table, ""
    alike = [i for i in range(1, len(table.columns)) if len({row[i] for row in table.rows}) == 1]
    other = [i for i in range(len(table.columns)) if i not in alike]
    if not alike or len(other) < 2:
        return table, ""
    same = "; ".join(f"{table.columns[i].heading.lower()}: {table.rows[0][i]}" for i in alike)
    return table.take(other), f"The same in every row: {same}."


_WITH_UNIT = re.compile(r"(perplexity )?(above 10⁶|[\d.,]+%?)( (?:per )?[a-z]{2,}(?: [a-z]+)?)")


def _units_in_heads(table: Table) -> Table:
    """Move the unit that all numbers of a column share into its heading: `Perplexity per word`."""
    heads, columns = [], []
    for column, cells in zip(table.columns, zip(*table.rows, strict=True), strict=False):
        units = {_unit(cell) for cell in cells if cell != MISSING} if column.numeric else set()
        if len(units) == 1 and None not in units:
            before, after = units.pop() or ("", "")
            unit = after if after.startswith(" per ") else f" ({after.strip()})"
            heads.append(Column(f"{column.heading}{before and f' {before.strip()}'}{unit}", True))
            cells = tuple(cell.removeprefix(before).removesuffix(after) for cell in cells)
        else:
            heads.append(column)
        columns.append(cells)
    return Table(tuple(heads), tuple(zip(*columns, strict=True))) if table.rows else table


def _unit(cell: str) -> tuple[str, str] | None:
    """Return the text before and after the number of a cell; None if it is not a number with a unit."""
    match = _WITH_UNIT.fullmatch(cell)
    return (match[1] or "", match[3]) if match else None


def escape_markdown(text: str) -> str:
    """Escape Markdown, HTML and mathematics."""
    return re.sub(r"([\\`*_\[\]<>|&~$#])", r"\\\1", " ".join(text.split()))


@checked()
def fill(text: str, name: str, table: Table) -> str:
    """Replace the text between `<!-- table: NAME -->` and the next `<!-- end -->` by the table.

    Filling again with the same table changes nothing. Raises UserError if the marker or its end is absent.
    """
    pattern = re.compile(rf"(<!-- table: {re.escape(name)} -->)((?:(?!<!-- table: ).)*?)(<!-- end -->)", re.DOTALL)
    filled, number = pattern.subn(lambda m: f"{m[1]}\n{to_markdown(table)}\n{m[3]}", text)
    if number == 0:
        raise UserError(
            f"the text has no place for table '{name}'; add the lines `<!-- table: {name} -->` and `<!-- end -->`"
        )
    return filled
