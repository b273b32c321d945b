"""Rich consoles that print printable text in our styles, and do not fail when nobody reads their output."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment

from backstory.config.output import plain
from backstory.config.printable import cell, printable


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def make_console(stderr: bool = False, **options: bool) -> Console:
    """A console on standard output, or on standard error; `options` are rich's."""
    return _Console(file=plain(sys.stderr if stderr else sys.stdout), **options)  # pyright: ignore[reportArgumentType]


def say(console: Console, line: str) -> None:
    """Print one line, without markup; it is not wrapped where there is no terminal."""
    console.print(cell(line), highlight=False, markup=False, soft_wrap=not console.is_terminal)


class LiveDisplay:
    """A display that is updated in place on a terminal. Elsewhere `_live` is None, and it prints lines."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None

    @contextmanager
    def shown(self) -> Iterator[Self]:
        """Show the display for the block."""
        if self._live is None:
            yield self
        else:
            with self._live:
                yield self
