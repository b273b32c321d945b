"""One part of a report: the figures that it needs, its pieces, and its text in a terminal."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from backstory.config.terminal import printable
from backstory.reports.document import Piece
from backstory.results import Figures, Result, RunResults
from backstory.results.examination_record import Published

Pieces = Callable[[Sequence[RunResults], Published | None], Iterable[Piece | None]]


@dataclass(frozen=True)
class Section:
    """One part of a report. A section joins the page by a line in `sections.SECTIONS`."""

    heading: str
    requires: Callable[[Figures], bool]
    """True for the figures that it shows; without any, the report leaves it out."""
    pieces: Pieces
    """Its pieces for these runs, and for what was published of the same; it is left out where all are empty."""
    terminal: Callable[[Result[Any], Console], None] | None = None
    """Print what it shows of one result."""

    def shows(self, run: RunResults) -> bool:
        """Return True if a run has figures for it."""
        return any(self.requires(result.figures) for result in run.results)


def of_kind(*kinds: type[Figures]) -> Callable[[Figures], bool]:
    """Return the requirement of figures of these kinds."""
    return lambda figures: isinstance(figures, kinds)


def print_text(console: Console, text: str, style: str = "") -> None:
    """Print text as it is, however wide the terminal is."""
    console.print(printable(text), style=style or None, markup=False, highlight=False, soft_wrap=True)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines as they are, however wide the terminal is."""
    for line in lines:
        print_text(console, line)
