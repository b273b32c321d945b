"""A progress bar with the time left, on standard error, for long work."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(description: str, unit: str = "tokens", size: int = 1) -> Iterator[Callable[[int, int], None]]:
    """A bar for the block; call what it yields with (done, total), of which `size` make a unit of those shown.

    Nothing is shown where there is no terminal.
    """
    console = Console(stderr=True)
    # Not as markup: a description may hold a path, and that square brackets.
    counts = TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit, markup=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(None), counts, TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(description, total=1)
        yield lambda done, total: bar.update(task, completed=done / size, total=total / size)
