"""Show a result in interactive Python: as a pandas frame, and as a small HTML table in notebooks."""

import html
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from backstory.utils.errors import UserError
from backstory.utils.formats import count, plain
from backstory.utils.terminal import cell

if TYPE_CHECKING:
    import pandas

LONGEST_TABLE = 20
"""Maximum number of rows in an HTML table; the frame has all."""
LONGEST_CELL = 60
"""Maximum length of a cell in characters."""


class Displayable:
    """Base of classes that notebooks display."""

    rows_in: ClassVar[str] = ""
    """The field whose records are the rows of `to_frame()`; empty for a single row."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""

    def caption(self) -> str:
        """Return the heading of the HTML table; empty for none."""
        return ""

    def frame_rows(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows of `to_frame()`."""
        values = self.to_dict()
        return values[self.rows_in] if self.rows_in else [values]

    def to_frame(self) -> "pandas.DataFrame":
        """Return the result as a pandas frame: a row per epoch, condition, trial, system, reader or word, else a single row.

        Fields of nested records have dotted names (`audit.passed`); columns without a value are left out. Raises UserError
        if pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise UserError("to_frame() needs pandas; install it with `pip install pandas`, or use to_dict()") from None
        return pandas.json_normalize([dict(row) for row in self.frame_rows()]).dropna(axis="columns", how="all")

    def _repr_html_(self) -> str:
        """Return a table of the single values and, if there are any, a table of the rows. All text is escaped."""
        values, rows = self.to_dict(), self.frame_rows()
        return _values_table(values, self.caption()) + (_rows_table(rows) if rows != [values] else "")


def _scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _values_table(values: Mapping[str, Any], caption: str) -> str:
    """Return single values as lines of name and value, without absent and nested ones."""
    shown = {name: value for name, value in values.items() if value is not None and _scalar(value)}
    for name, value in values.items():
        if isinstance(value, Mapping):
            shown |= {f"{name}.{key}": one for key, one in value.items() if one is not None and _scalar(one)}
    head = f"<caption>{escaped(caption)}</caption>" if caption else ""
    body = "".join(f"<tr><th>{escaped(name)}</th>{_cell(value)}</tr>" for name, value in shown.items())
    return f"<table>{head}<tbody>{body}</tbody></table>" if head or body else ""


def _rows_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of single values under their names; of many rows, the first and a note on the others."""
    first = rows[:LONGEST_TABLE]
    names = [
        name
        for name in dict.fromkeys(name for row in first for name in row)
        if all(_scalar(row.get(name)) for row in first) and any(row.get(name) is not None for row in first)
    ]
    head = "".join(f"<th>{escaped(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(_cell(row.get(name)) for name in names)}</tr>" for row in first)
    more = len(rows) - len(first)
    note = f"<p>{count(more)} more rows; <code>to_frame()</code> has all.</p>" if more else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}" if names else ""


def _cell(value: Any) -> str:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return f"<td>{escaped(count(value) if whole else plain(value))}</td>"


def escaped(text: str) -> str:
    """Return text for a cell, on one line, shortened if it is long."""
    short = text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"
    return html.escape(cell(short))
