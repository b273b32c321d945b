"""Lines of a pipe, a terminal or a file as they arrive, with word of when no more have come for the time being."""

import os
import select
from collections.abc import Callable, Iterator

PATIENCE, LOOK = 0.1, 0.25
"""Seconds without anything new after which what has come is all for now; seconds between two looks at whether to stop."""
PIECE = 1 << 16
"""Bytes asked for at once."""
LONGEST = 1 << 20
"""Bytes of a line that is given out in pieces."""


def arriving(descriptor: int, idle: Callable[[], None], stopped: Callable[[], bool]) -> Iterator[bytes]:
    """The lines, each with its end, of a file that is open by its number; the last may have none.

    `idle` is called each time before a wait of more than a tenth of a second, and the lines end where `stopped` says so. What
    comes without a pause is never cut by one, however slowly its lines are taken.
    """
    rest = b""
    while not stopped():
        if not _ready(descriptor, PATIENCE):
            idle()
            while not _ready(descriptor, LOOK):
                if stopped():
                    return
        came = os.read(descriptor, PIECE)
        *lines, rest = (rest + came).split(b"\n")
        for line in lines:
            if stopped():
                return
            yield line + b"\n"
        if rest and (not came or len(rest) >= LONGEST):
            yield rest
            rest = b""
        if not came:
            return


def _ready(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])
