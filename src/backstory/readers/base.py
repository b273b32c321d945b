"""Reading is `predict`, then `observe`: readers, and the blocks of text that they read."""

import copy
import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from backstory.models import LanguageModel, Precision, Prediction, State, clone
from backstory.models.devices import exact_float32
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError

BLOCK = 256
"""Tokens of a row that are predicted at once, unless the reader says otherwise."""


@dataclass(frozen=True)
class ReaderCapabilities:
    """Properties that a reader declares, and the audit checks."""

    block_invariant: bool = True
    """Scores do not depend on how the text is cut into blocks."""
    adapts_weights: bool = False
    """Weights move while it reads (in a copy; the loaded model stays as it was)."""
    independent_rows: bool = True
    """A row's scores do not depend on the other rows."""
    collects_blocks: bool = False
    """A block may come in pieces: learning waits until all of it was observed."""


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
    """The reader that this one wraps."""
    interpolates: bool = False
    """True if it predicts the Interpolation of the reader that it wraps with a prediction of its own."""
    adapts: bool = False
    """True if it learns from the text by something other than moving weights: a cache, counts, weights of a mixture."""

    def __repr__(self) -> str:
        settings = getattr(self, "settings", None)
        values = vars(settings) if dataclasses.is_dataclass(settings) else {}
        own = f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"
        inside = repr(self.inner) if self.inner is not None else repr(self.model).splitlines()[0]
        return f"{own} over {inside}"

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
        """Return what results record besides its settings: the text it learned on, and the memory it holds."""
        return {}

    def prepared(self) -> list[str]:
        """Return the names of the checkpoints in the run's folder of readers that it was built from."""
        return []

    def other_models(self) -> dict[str, str]:
        """Return the SHA-256 (hex), by name, of the weights of other models that it reads with.

        They include the preparations of these models' readers.
        """
        return {} if self.inner is None else self.inner.other_models()

    def models(self) -> list[LanguageModel]:
        """Return all models that it reads with, its own first."""
        return [self.model] if self.inner is None else self.inner.models()

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


def joint_capabilities(readers: Sequence[Reader]) -> ReaderCapabilities:
    """Return the capabilities of a reader that reads with all of these at once."""
    able = [reader.capabilities for reader in readers]
    return dataclasses.replace(
        able[0],
        block_invariant=all(one.block_invariant for one in able),
        adapts_weights=any(one.adapts_weights for one in able),
        independent_rows=all(one.independent_rows for one in able),
        collects_blocks=all(one.collects_blocks or one.block_invariant for one in able),
    )


def joint_block(readers: Sequence[Reader]) -> int:
    """Return the block size of a reader over all of these: the largest that does not split a learning reader's block."""
    most = min(reader.block for reader in readers)
    learning = [reader.block for reader in readers if not reader.capabilities.block_invariant]
    if not learning:
        return most
    common = math.gcd(*learning)
    return max(size for size in range(1, most + 1) if common % size == 0)


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Set the model to evaluation mode for the block, without gradients; then every part is in its own mode again."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:  # a module comes before its parts, some of which may be frozen
            if part.training != training:
                part.train(training)


class StaticReader(Reader):
    """The model as trained: nothing but its state changes while it reads."""

    name = "static"

    @checked()
    def __init__(self, model: LanguageModel, precision: Precision | None = None) -> None:
        exact_float32()
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


class WrappingReader(Reader):
    """Base of a reader on top of another, whose model, block and capabilities are its own too.

    A reader without state of its own implements only `predict`; any other extends the four methods here.
    """

    inner: Reader

    def __init__(self, inner: Reader, kind: str) -> None:
        """`kind` is the name of this kind of reader, which follows that of the inner one: `dynamic+cache`."""
        self.inner = inner
        self.name = kind if inner.name == "static" else f"{inner.name}+{kind}"
        self.model, self.precision, self.block = inner.model, inner.precision, inner.block
        self.capabilities = inner.capabilities

    def start(self, batch_size: int) -> None:
        self.inner.start(batch_size)

    def observe(self, targets: Tensor) -> None:
        self.inner.observe(targets)

    def snapshot(self) -> Any:
        return self.inner.snapshot()

    def restore(self, snapshot: Any) -> None:
        self.inner.restore(snapshot)


def check_rows(reader: Reader, batch_size: int) -> None:
    """Raise UserError for several rows with a reader whose weights move."""
    if batch_size > 1 and reader.capabilities.adapts_weights:
        raise UserError(f"the reader {reader.name} learns as it reads, so it reads one row only; use --batch-size 1")


class Block(NamedTuple):
    """A piece of the stream, cut into rows."""

    tokens: Tensor
    """(B, T) inputs."""
    targets: Tensor
    """(B, T): the token after each input."""
    scored: Tensor
    """(B, T) bool; False where a row has ended already."""
    index: int
    """Number of the block."""
    starts: np.ndarray | None = None
    """Index (B,) of the first target of each row in the stream; None for lines, which have no order."""


def blocks(
    ids: np.ndarray,
    first: int,
    batch_size: int,
    block: int,
    device: torch.device,
    done: int = 0,
    rows: slice = slice(None),
) -> Iterator[Block]:
    """Cut a stream (N,) into blocks of `batch_size` contiguous rows; leave out the first `done` blocks, and all but some rows.

    `first` is fed before the first token. Every token of the stream is a target exactly once; only the last rows may be
    shorter: `first` fills these up, so that a target is the next input there too.
    """
    batch_size = min(batch_size, len(ids))
    length = math.ceil(len(ids) / batch_size)
    starts = np.arange(batch_size)[rows] * length
    for index, start in enumerate(range(done * block, length, block), done):
        # Only the block's own tokens are fetched: ids may lie on disk.
        positions = starts[:, None] + np.arange(start, min(start + block, length))
        scored = positions < len(ids)
        targets = np.where(scored, ids[np.minimum(positions, len(ids) - 1)], first)
        outside = (positions == 0) | (positions > len(ids))
        inputs = np.where(outside, first, ids[np.clip(positions - 1, 0, len(ids) - 1)])
        tokens, after = (torch.from_numpy(array.astype(np.int64)).to(device) for array in (inputs, targets))
        yield Block(tokens, after, torch.from_numpy(scored).to(device), index, starts)


def line_batches(lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Return the numbers of the lines that are read side by side: in their order one at a time, else by length."""
    order = np.arange(len(lengths)) if batch_size == 1 else np.argsort(lengths, kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def places_of(block: Block, size: int) -> np.ndarray:
    """Return the index (B, T) of each target in a text that is read in blocks of `size`; any beyond a row's end."""
    assert block.starts is not None
    return block.starts[:, None] + block.index * size + np.arange(block.targets.shape[1])


@checked(tokens=1, batch_size=1, block=1)
def block_count(tokens: int, batch_size: int, block: int) -> int:
    """Return the number of blocks that `blocks` yields."""
    return math.ceil(math.ceil(tokens / min(batch_size, tokens)) / block)
