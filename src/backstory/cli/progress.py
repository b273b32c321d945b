"""How far long work is, with the time left, on standard error: a bar, or a line a minute where there is no terminal."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from backstory.config.console import make_console

EVERY = 60.0
"""Seconds between two lines."""


@contextmanager
def progress_bar(description: str, unit: str = "tokens", size: int = 1) -> Iterator[Callable[[int, int], None]]:
    """A bar for the block; call what it yields with (done, total), of which `size` make a unit of those shown.

    Where there is no terminal it is a line every minute: nothing of what is over before.
    """
    console = make_console(stderr=True)
    if not console.is_terminal:
        yield _lines(console, description, unit, size)
        return
    # Not as markup: a description may hold a path, and that square brackets.
    counts = TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit, markup=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(None), counts, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=1)
        yield lambda done, total: bar.update(task, completed=done / size, total=total / size)


def _lines(console: Console, description: str, unit: str, size: int) -> Callable[[int, int], None]:
    began = told = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told < EVERY or not 0 < done < total:
            return
        told = now
        left = timedelta(seconds=round((now - began) * (total - done) / done))
        counts = f"{done / size:,.0f} of {total / size:,.0f} {unit}"
        console.print(f"{description}: {counts}, {left} left", markup=False, highlight=False, soft_wrap=True)

    return tell
