"""The format-independent pieces of a report, its sections, and the document that writers turn into a file."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from backstory.reports.svg import Plot
from backstory.reports.tables import Table
from backstory.reports.tables import compact as compact_table
from backstory.results import Figures, Result, RunResults
from backstory.results.passage import Passage
from backstory.results.published_values import Published
from backstory.utils.terminal import printable


@dataclass(frozen=True)
class Plain:
    """Base of the pieces that hold only text."""

    text: str


@dataclass(frozen=True)
class Heading(Plain):
    """A heading inside a section, whose own heading has level 2."""

    level: int = 3


class Paragraph(Plain):
    """A paragraph of the text."""


class Note(Plain):
    """A small paragraph, below what it is about."""


class Alarm(Plain):
    """A paragraph that must not be overlooked."""


class Code(Plain):
    """Text as it is, in a box."""


@dataclass(frozen=True)
class Tabular:
    """A table, described by `about` for screen readers and as a caption where tables are numbered."""

    table: Table
    about: str
    look: str = ""
    same: str = ""
    """Sentence on the columns left out because all rows agree in them; it ends a numbered caption."""


@dataclass(frozen=True)
class Figure:
    """A figure with its caption, and the commands that measured its numbers."""

    plot: Plot
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Details:
    """Pieces that stay collapsed until the reader opens them."""

    heading: str
    inside: "tuple[Piece, ...]"


@dataclass(frozen=True)
class Facts:
    """Terms with their descriptions."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Words:
    """A passage, word by word; `name` is unique in the document."""

    passage: Passage
    name: str


@dataclass(frozen=True)
class Quote:
    """Text that a model wrote, after a prompt."""

    prompt: str
    text: str


Piece = Plain | Tabular | Figure | Details | Facts | Words | Quote


@dataclass(frozen=True)
class Document:
    """A report: a title, its summary, and the pieces of each section under its heading."""

    title: str
    sections: tuple[tuple[str, tuple[Piece, ...]], ...]
    headline: str = ""
    """The sentence at the top; empty where there is nothing to compare."""
    summaries: tuple[str, ...] = ()
    """A sentence on each run."""
    footer: str = ""

    def pieces(self) -> Iterator[Piece]:
        """Yield all pieces, including collapsed ones."""

        def flat(pieces: Iterable[Piece]) -> Iterator[Piece]:
            for piece in pieces:
                yield piece
                yield from flat(piece.inside if isinstance(piece, Details) else ())

        for _, pieces in self.sections:
            yield from flat(pieces)

    def figures(self) -> list[Plot]:
        """Return all figures, in order."""
        return [piece.plot for piece in self.pieces() if isinstance(piece, Figure)]


def compact(table: Table, about: str) -> tuple[Tabular, Note]:
    """Return a table that states each unit once, and a sentence on its constant columns."""
    smaller, same = compact_table(table)
    return Tabular(smaller, about, same=same), Note(same)


def figure(plot: Plot | None, results: Iterable[Result[Any]] = ()) -> Figure | None:
    """Return a figure of these results as a piece, with the commands that measured them; None without one."""
    commands = (result.provenance.command for result in results)
    return None if plot is None else Figure(plot, tuple(dict.fromkeys(filter(None, commands))))


def details(heading: str, *inside: Piece | None) -> Details:
    """Return pieces that are collapsed under a heading."""
    return Details(heading, present(inside))


def collapsed(heading: str, table: Table, look: str = "") -> Details:
    """Return a table that is collapsed under its heading."""
    return details(heading, Tabular(table, heading, look))


def present(pieces: Iterable[Piece | None]) -> tuple[Piece, ...]:
    """Drop None, empty text and tables without rows."""
    return tuple(piece for piece in pieces if piece is not None and not _empty(piece))


def _empty(piece: Piece) -> bool:
    match piece:
        case Plain(text):
            return not text
        case Tabular(table):
            return not table.rows
        case Details(inside=inside):
            return not inside
        case _:
            return False


Pieces = Callable[[Sequence[RunResults], Published | None], Iterable[Piece | None]]


@dataclass(frozen=True)
class Section:
    """One part of a report. To add one, list it in `sections.SECTIONS`."""

    heading: str
    requires: Callable[[Figures], bool]
    """Test whether it shows these figures. The report omits a section that shows none."""
    pieces: Pieces
    """Build its pieces from the runs and the published values. The report omits a section without pieces."""
    terminal: Callable[[Result[Any], Console], None] | None = None
    """Print one result in a terminal."""

    def shows(self, run: RunResults) -> bool:
        """Return True if a run has figures for it."""
        return any(self.requires(result.figures) for result in run.results)


def of_kind(*kinds: type[Figures]) -> Callable[[Figures], bool]:
    """Return a test for figures of these kinds."""
    return lambda figures: isinstance(figures, kinds)


def print_text(console: Console, text: str, style: str = "") -> None:
    """Print text without wrapping it to the terminal."""
    console.print(printable(text), style=style or None, markup=False, highlight=False, soft_wrap=True)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines without wrapping them to the terminal."""
    for line in lines:
        print_text(console, line)
