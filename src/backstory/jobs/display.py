"""Progress of jobs: a table on a terminal; elsewhere a line whenever a job has moved on."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from backstory.config.terminal import LiveDisplay, say

_LEFT = ("run", "state", "settings")
"""Columns of text; numbers stand right."""


@dataclass(frozen=True)
class JobRow:
    """What is shown of one job."""

    cells: tuple[str, ...]
    style: str | None = None
    line: str = ""
    """Said where there is no terminal, each time that it changes."""


class JobDisplay(LiveDisplay):
    """Shows the progress of jobs while they run."""

    def __init__(self, console: Console, columns: Sequence[str]) -> None:
        super().__init__(console)
        self._columns = columns
        self._said: set[str] = set()

    def say(self, line: str) -> None:
        """Print a line, above the table on a terminal."""
        say(self.console, line)

    def show(self, title: str, rows: Sequence[JobRow]) -> None:
        """Update the table, or say what has changed."""
        if self._live is not None:
            self._live.update(self._table(title, rows))
            return
        lines = [row.line for row in rows if row.line]
        for line in lines:
            if line not in self._said:
                self.say(line)
        self._said = set(lines)

    def _table(self, title: str, rows: Sequence[JobRow]) -> Group:
        table = Table()
        for heading in self._columns:
            table.add_column(heading, justify="left" if heading in _LEFT else "right", no_wrap=heading == "settings")
        for row in rows:
            table.add_row(*map(Text, row.cells), style=row.style)
        return Group(Text(title), table)
