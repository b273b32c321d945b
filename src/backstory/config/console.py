"""Rich consoles that print our styles and nobody else's, and whose output is no reason to stop."""

import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from backstory.config.output import plain
from backstory.config.printable import printable


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def make_console(stderr: bool = False, **options: bool) -> Console:
    """A console on standard output, or on standard error; `options` are rich's."""
    return _Console(file=plain(sys.stderr if stderr else sys.stdout), **options)  # pyright: ignore[reportArgumentType]
