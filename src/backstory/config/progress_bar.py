"""Progress of long work: bars on a terminal, a line a minute elsewhere; a text that is prepared meanwhile has its own."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.console import Console

from backstory.config.terminal import make_console, say

if TYPE_CHECKING:
    from rich.progress import Progress

ProgressCallback = Callable[[int, int], None]
"""Receives how much is done, and how much there is to do."""

EVERY = 60.0
"""Seconds between two lines of progress."""
SAID = 1_000_000
"""Bytes of a text from which on its preparation is said at once where there is no terminal."""


@dataclass(frozen=True)
class _Display:
    """The console of a block that shows progress, and its bars if it is a terminal."""

    console: Console
    bars: "Progress | None"


_DISPLAY: ContextVar[_Display | None] = ContextVar("display", default=None)


@contextmanager
def shown_progress(console: Console | None = None) -> Iterator[None]:
    """Show the progress of the texts that the block prepares, on standard error by default."""
    if _DISPLAY.get() is not None:
        yield
        return
    console = console or make_console(stderr=True)
    bars = _bars(console) if console.is_terminal and not console.quiet else None
    token = _DISPLAY.set(_Display(console, bars))
    try:
        if bars is None:
            yield
        else:
            with bars:
                yield
    finally:
        _DISPLAY.reset(token)


@contextmanager
def progress_bar(description: str, unit: str = "tokens", size: int = 1) -> Iterator[ProgressCallback]:
    """Show a progress bar for the block; call the yielded function with (done, total), where `size` make one shown unit.

    Without a terminal it prints a line every minute, and nothing if the work ends before.
    """
    with shown_progress():
        display = _DISPLAY.get()
        assert display is not None
        if display.bars is None:
            yield _lines(display.console, description, unit, size)
            return
        bars, task = display.bars, display.bars.add_task(description, total=1, unit=unit)
        try:
            yield lambda done, total: bars.update(task, completed=done / size, total=total / size)
        finally:
            bars.remove_task(task)


@contextmanager
def preparing(name: str, size: int) -> Iterator[ProgressCallback]:
    """Show that a text of `size` bytes is prepared, in a block that shows progress; elsewhere nothing is shown."""
    display = _DISPLAY.get()
    if display is None:
        yield lambda done, total: None
        return
    description = f"preparing {name} ({shown_size(size)})"
    if display.bars is None and size >= SAID:
        say(display.console, description)
    with progress_bar(description, "MB", 1_000_000) as progress:
        yield progress


def shown_size(size: int) -> str:
    """Return a number of bytes in words: `30 MB`."""
    for unit, bytes_ in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= bytes_:
            return f"{size / bytes_:.0f} {unit}" if size >= 10 * bytes_ else f"{size / bytes_:.1f} {unit}"
    return f"{size} bytes"


def _bars(console: Console) -> "Progress":
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    # No markup: a description may hold a path with square brackets.
    counts = TextColumn("{task.completed:,.0f} of {task.total:,.0f} {task.fields[unit]}", markup=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(None), counts, TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)


def _lines(console: Console, description: str, unit: str, size: int) -> ProgressCallback:
    started = printed = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal printed
        now = time.monotonic()
        if now - printed < EVERY or not 0 < done < total:
            return
        printed = now
        left = timedelta(seconds=round((now - started) * (total - done) / done))
        counts = f"{done / size:,.0f} of {total / size:,.0f} {unit}"
        console.print(f"{description}: {counts}, {left} left", markup=False, highlight=False, soft_wrap=True)

    return show
