"""Reading is `predict`, then `observe`: the readers, and the rule that nothing is learned anywhere else."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from backstory.config.arguments import checked
from backstory.models import LanguageModel, Precision, Prediction, State, clone

BLOCK = 256
"""Tokens of a row that are predicted at once, unless the reader says otherwise."""


@dataclass(frozen=True)
class ReaderCapabilities:
    """What a reader declares of itself; the audit checks what is declared."""

    block_invariant: bool = True
    """Scores do not depend on how the text is cut into blocks."""
    adapts_weights: bool = False
    """Weights move while it reads (in a copy; the loaded model stays as it was)."""
    independent_rows: bool = True
    """A row's scores do not depend on the rows that are read beside it."""


class Reader(ABC):
    """Reads B texts side by side, block by block: `predict(tokens)`, score, `observe(targets)`, and on to the next block.

    It is called with gradients off; a reader that learns turns them on for itself.
    """

    name: str
    capabilities: ReaderCapabilities = ReaderCapabilities()
    model: LanguageModel
    precision: Precision
    block: int = BLOCK
    """Tokens of a row that are predicted at once; a reader that learns between blocks chooses its own."""
    inner: "Reader | None" = None
    """The reader that this one goes around."""

    @abstractmethod
    def start(self, batch_size: int) -> None:
        """Forget everything read and begin `batch_size` texts."""

    @abstractmethod
    def predict(self, tokens: Tensor) -> Prediction:
        """Return the prediction at each position of the block tokens (B, T).

        Position t may depend on tokens up to t and on all that was observed before, on nothing else. Calling it again
        before `observe` replaces the block.
        """

    @abstractmethod
    def observe(self, targets: Tensor) -> None:
        """Take the block as read, its targets (B, T) known: the only place where anything may be learned."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Return a copy of everything that reading has changed."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Restore a snapshot, which stays usable."""

    def facts(self) -> dict[str, Any]:
        """Return what results record of it beside its settings: what it learned on, and what it holds."""
        return {}

    def prepared(self) -> list[str]:
        """Return the names of the checkpoints in the run's folder of readers that it was built from."""
        return []

    def stack(self) -> "list[Reader]":
        """Return the reader and those that it wraps, the innermost first."""
        return [self] if self.inner is None else [*self.inner.stack(), self]

    def fork(self) -> Self:
        """Return another reader in the same state over the same model; reading with it does not change this one."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Reader):  # a reader that wraps another gets a fork of that one too
                setattr(other, name, value.fork())
        other.restore(self.snapshot())
        return other


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Set the model to evaluation mode for the block, without gradients."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


class StaticReader(Reader):
    """The model as trained: nothing but its state changes while it reads."""

    name = "static"

    @checked()
    def __init__(self, model: LanguageModel, precision: Precision | None = None) -> None:
        self.model = model
        self.precision = precision or Precision(torch.float32, "the default for reading")
        self.capabilities = ReaderCapabilities(block_invariant=model.capabilities.exact_state)
        self.block = min(BLOCK, model.capabilities.maximum_length or BLOCK)
        self._state: State = None
        self._next: State = None

    @checked(batch_size=1)
    def start(self, batch_size: int) -> None:
        self._state = self._next = self.model.start(batch_size)

    def predict(self, tokens: Tensor) -> Prediction:
        with evaluating(self.model), self.precision.context(tokens.device):
            prediction, self._next = self.model(tokens, self._state)
        return prediction

    def observe(self, targets: Tensor) -> None:
        self._state = self._next

    def snapshot(self) -> State:
        return clone(self._state)

    def restore(self, snapshot: State) -> None:
        self._state = self._next = clone(snapshot)
