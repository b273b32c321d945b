"""What a person sees while a model trains: a progress bar with speed and time left, or plain lines when not a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from backstory.config.scores import IN_BITS, bits, perplexity
from backstory.config.terminal import say


class Display:
    """Shows steps as a bar (on a terminal) and one line per epoch."""

    def __init__(self, console: Console, total_tokens: int, done_tokens: int, unit: str = "word") -> None:
        """`unit`: what a token that is scored is; a perplexity is per word where nothing is said."""
        self.console = console
        per = "" if unit == "word" else f" per {unit}"
        self._measure, self._told = (f"bits{per}", bits) if unit in IN_BITS else (f"perplexity{per}", perplexity)
        self._columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(None),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*self._columns, console=console, disable=not console.is_terminal, transient=True)
        self._task = self._bar.add_task("first steps", total=total_tokens, completed=done_tokens, figures="")

    @contextmanager
    def shown(self) -> Iterator["Display"]:
        """The bar is on the terminal for the block."""
        with self._bar:
            yield self

    def step(self, description: str, tokens: int, nats: float, speed: float) -> None:
        """Advance by a window of steps: tokens read, mean nats, tokens per second."""
        figures = f"{self._measure} {self._figure(nats)}  {speed:,.0f} tokens/s"
        self._bar.update(self._task, description=description, advance=tokens, figures=figures)

    def epoch(self, values: dict[str, Any]) -> None:
        """One line per epoch."""
        mark = "  best" if values["best"] else ""
        answers = ""
        if "answers" in values:
            answers = f"  {values['answers']['token_accuracy']:.1%} of answers right"
        averaging = "  averaged" if values["averaging"] else ""
        say(
            self.console,
            f"epoch {values['epoch']:3d}  train {self._measure} {self._figure(values['train_nats'])}"
            f"  valid {self._figure(values['valid_nats'])}  {values['tokens_per_second']:,.0f} tokens/s"
            f"  {values['seconds']:,.0f} s in all{answers}{averaging}{mark}",
        )

    def _figure(self, nats: float) -> str:
        """The measure of mean nats in eight places, whatever its size."""
        value = self._told(nats)
        if self._told is bits:
            return f"{value:8.4f}"
        return f"{value:8.2f}" if value < 1e5 else f"{value:8.1e}"
