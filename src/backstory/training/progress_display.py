"""Progress of a training: a bar with speed and time left on a terminal, else a line a minute; and a line for every epoch."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from backstory.results.training_record import EpochRecord
from backstory.utils.clock import CLOCK
from backstory.utils.scores import IN_BITS, bits, perplexity
from backstory.utils.terminal import say

LINE_SECONDS = 60.0
"""Seconds between two lines of progress."""
TIMED_STEPS = 10
"""Steps after which the time of an epoch is estimated."""
SHORT_EPOCH = 5.0
"""Seconds of an epoch that ends before an estimate is of use."""


class Display:
    """Progress by tokens trained on, and one line per epoch."""

    def __init__(
        self,
        console: Console,
        total_tokens: int,
        done_tokens: int,
        unit: str = "word",
        minutes: float | None = None,
        epoch_tokens: int = 0,
        unigram_nats: float | None = None,
    ) -> None:
        """`unit` is the scored token; a perplexity is per word unless it says otherwise. `minutes` is the planned time.

        `unigram_nats` is what word frequencies alone reach on validation; an epoch that is no better is marked.
        """
        self.console = console
        self._unigram, self._unit = unigram_nats, unit
        per = "" if unit == "word" else f" per {unit}"
        self._measure, self._score = (f"bits{per}", bits) if unit in IN_BITS else (f"perplexity{per}", perplexity)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(None),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._task = self._bar.add_task("first steps", total=total_tokens, completed=done_tokens, figures="")
        self._minutes = minutes
        self._total, self._first, self._done = total_tokens, done_tokens, done_tokens
        self._started = self._printed = CLOCK.seconds()
        self._printed_done = done_tokens
        self._epoch_tokens, self._steps, self._timed = epoch_tokens, 0, (0.0, 0)

    @contextmanager
    def shown(self) -> Iterator[Self]:
        """Show the bar for the block; without a terminal, print how much is to be trained."""
        if not self.console.is_terminal and self._done < self._total:
            length = f"{self._share()} of {self._total:,} tokens done"
            if self._minutes is not None:
                length = f"{self._minutes:g} min" + (" in all" if self._done else "")
            say(self.console, f"training: {length}; a line follows every minute")
        self._started = self._printed = CLOCK.seconds()
        with self._bar:
            yield self

    def advance(self, epoch: str, tokens: int) -> None:
        """Count the tokens of a step. Without a terminal, print a line if the last one is a minute old."""
        self._done += tokens
        self._bar.update(self._task, description=epoch, advance=tokens)
        now = CLOCK.seconds()
        self._steps += 1
        if self._steps in (1, TIMED_STEPS):
            self._estimate(now)
        if self.console.is_terminal or now - self._printed < LINE_SECONDS or self._done >= self._total:
            return
        speed = (self._done - self._printed_done) / (now - self._printed)
        seconds = (now - self._started) * (self._total - self._done) / (self._done - self._first)
        left = timedelta(seconds=round(seconds))
        say(self.console, f"{epoch}: {self._share()} done, {speed:,.0f} tokens/s, {left} left")
        self._printed, self._printed_done = now, self._done

    def _estimate(self, now: float) -> None:
        """Note the time after the first step, which is slower than the others; after ten, say how long an epoch takes."""
        began, done = self._timed
        self._timed = now, self._done
        if self._steps > 1 and self._epoch_tokens:
            seconds = (now - began) * self._epoch_tokens / (self._done - done)
            if seconds >= SHORT_EPOCH:
                say(self.console, f"an epoch takes about {timedelta(seconds=round(seconds))}, plus validation")

    def set_total(self, tokens: int) -> None:
        """Set the tokens of the whole training, when they are known only now."""
        self._total = tokens
        self._bar.update(self._task, total=tokens)

    def window(self, nats: float | None, speed: float) -> None:
        """Show the mean nats of the last steps, unless they are None, and their tokens per second."""
        score = "" if nats is None else f"{self._measure} {self._figure(nats)}  "
        self._bar.update(self._task, figures=f"{score}{speed:,.0f} tokens/s")

    def epoch(self, epoch: EpochRecord) -> None:
        """Print the line of an epoch, with the seconds since the start: of a small model on words it fits 80 characters."""
        mark = "  best" if epoch.best else ""
        answers = ""
        if epoch.answers is not None:
            answers = f"  {epoch.answers.token_accuracy:.1%} of answers right"
        averaging = "  averaged" if epoch.averaging else ""
        if self._unigram is not None and epoch.valid_nats >= self._unigram:
            mark += f"  no better than {self._unit} frequencies ({self._figure(self._unigram).strip()})"
        say(
            self.console,
            f"epoch {epoch.epoch:3d}  train {self._measure} {self._figure(epoch.train_nats)}"
            f"  valid {self._figure(epoch.valid_nats)}  {epoch.tokens_per_second:,.0f} tokens/s"
            f"  {epoch.seconds:.0f} s{answers}{averaging}{mark}",
        )

    def _share(self) -> str:
        return f"{self._done / self._total:.1%}"

    def _figure(self, nats: float) -> str:
        """Return the measure of mean nats in seven characters, whatever its size."""
        value = self._score(nats)
        if self._score is bits:
            return f"{value:7.4f}"
        return f"{value:7.2f}" if value < 1e4 else f"{value:7.1e}"
