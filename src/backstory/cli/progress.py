"""A progress bar with the time left, on standard error, for work that counts in tokens."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for the block; call what it yields with (done, total). Nothing is shown where there is no terminal."""
    console = Console(stderr=True)
    counts = TextColumn("{task.completed:,.0f} of {task.total:,.0f} tokens")
    columns = (TextColumn("{task.description}"), BarColumn(None), counts, TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(description, total=1)
        yield lambda done, total: bar.update(task, completed=done, total=total)
