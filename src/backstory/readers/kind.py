"""Kinds of reader: how each is built, what its settings are, and how these are tuned."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from backstory.models import Precision, Prediction
from backstory.readers.base import Block, Reader
from backstory.readers.gradient_statistics import NoStatistics, Statistics, load_statistics
from backstory.readers.ngram_counts import NgramCounts, count_ngrams
from backstory.runs.run import Run
from backstory.storage.atomic import within
from backstory.storage.run_files import SAVED
from backstory.utils.errors import UserError

T = TypeVar("T")
Loaded = dict[tuple[Any, ...], Any]
"""Statistics and counts of a run, from one reader of it to the next."""


@dataclass(frozen=True)
class NoSettings:
    """Settings of a reader that has none."""


@dataclass(frozen=True)
class BuildContext:
    """Inputs of a reader: a loaded run, the precision of its products, and the reader it wraps."""

    run: Run
    precision: Precision
    inner: Reader | None = None
    """The reader that it wraps; None for one that reads with the model itself."""
    loaded: Loaded = field(default_factory=dict)
    """Objects already loaded or counted for the run."""

    def statistics(self, moving: str) -> Statistics:
        """Return the run's statistics of the weights that move, read from its folder once. Raises UserError."""
        self.run.check_as_trained("statistics of training gradients are")
        try:
            return self._once(
                ("statistics", moving),
                lambda: load_statistics(saved_in(self.run), self.run.weights_hash, moving, self.run.argument),
            )
        except NoStatistics:
            if not self.run.in_memory:
                raise
            raise UserError(
                f"{self.run.name} is in memory, and statistics of training gradients can only be collected from a saved run; "
                "do without them: --reader dynamic:rule=sgd,rate=0.0001"
            ) from None

    def ngrams(self, order: int, across_lines: bool) -> NgramCounts:
        """Return the n-grams of the run's training text up to a length, counted once. Raises UserError if it is not there."""

        def count() -> NgramCounts:
            text = self._once(("training text",), self.run.training_text)
            return count_ngrams(*text, order, across_lines)

        return self._once(("ngrams", order, across_lines), count)

    def _once(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        if key not in self.loaded:
            self.loaded[key] = make()
        return self.loaded[key]

    def wrapped(self) -> Reader:
        """Return the reader that it wraps."""
        assert self.inner is not None, "this reader wraps another"
        return self.inner


class GridScorer(Protocol):
    """Scores every combination of a reader's settings from one reading with the reader inside it, in one row."""

    def update(self, block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        """Score a block that the inner reader has predicted."""

    def scores(self) -> Sequence[tuple[Any, float]]:
        """Return all settings, in the order of the grid, with their nats per token."""
        ...


def joined(blocks: Sequence[Tensor]) -> Tensor:
    """Return what a scorer kept of each block (T,) as one (N,), in float64 on the CPU.

    Moved once: a copy after every block would wait for a GPU.
    """
    return torch.cat(list(blocks)).cpu().double()


@dataclass(frozen=True)
class ReaderKind:
    """A kind of reader: one entry in the registry."""

    name: str
    description: str
    build: Callable[[BuildContext, Any], Reader]
    """Makes the reader with these settings. Raises UserError if it does not fit the run."""
    settings: type = NoSettings
    """Its dataclass of settings, with the published ones as defaults."""
    wraps: bool = False
    """True if it wraps another reader."""
    adapts_weights: bool = False
    """True if weights move while it reads (`ReaderCapabilities`)."""
    control: bool = False
    """True for a control: its audit fails by design, and its figures are no score."""
    needs: Callable[[Any], dict[str, str]] = lambda settings: {}
    """For some settings: what it takes from the run's folder of readers, by name, and the command of `backstory reader` that
    makes it."""
    identity: tuple[str, ...] = ()
    """Settings that make it another reader: their values are in the name of the file of tuned settings."""
    written: Mapping[str, Callable[[str], str]] = field(default_factory=dict)
    """How such a value, by its setting, is written there, where it is not written as it was typed."""
    steps: Callable[[Any], dict[str, float]] | None = None
    """For a search that steps up and down from some settings: the factor of each setting."""
    grid_scorer: Callable[[BuildContext, Mapping[str, Sequence[Any]], int], GridScorer] | None = None
    """For a search by one reading: scores a grid, the values of some settings, around the inner reader of a context and over
    so many tokens. Raises UserError."""

    @staticmethod
    def ignored(settings: Any) -> dict[str, str]:
        """Return the names of the settings that have no effect beside the others, and why (their `ignored_settings`)."""
        return getattr(settings, "ignored_settings", dict)()

    @property
    def tunable(self) -> bool:
        """True if there is a way to tune it."""
        return self.steps is not None or self.grid_scorer is not None


def saved_in(run: Run) -> Path:
    """Return the folder for what a run's readers have learned. Raises UserError if a link leads out of the run."""
    return within(run.folder, SAVED)
