"""Read a stream of tokens once, block by block: predict, score, and only then let the reader learn."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from backstory.models import Prediction
from backstory.readers.base import Block, Reader, blocks, check_rows
from backstory.utils.arguments import checked
from backstory.utils.clock import CLOCK
from backstory.utils.errors import NonFiniteError


@dataclass(frozen=True)
class Reading:
    """Score of a stream that was read once."""

    nats: float
    """Mean negative log-probability per token."""
    tokens: int
    """Tokens scored: every token of the stream, its first included."""
    batch_size: int
    seconds: float


@dataclass(frozen=True)
class Position:
    """Progress of a reading between two blocks."""

    block: int = 0
    """Blocks read."""
    nats: float = 0.0
    """Sum over the tokens that were scored."""
    tokens: int = 0
    seconds: float = 0.0


class ScoredBlock(NamedTuple):
    """A block with its prediction, before the reader learns from it."""

    block: Block
    prediction: Prediction
    log_prob: Tensor
    """(B, T): log-probability of each target, nats."""


class Observer(Protocol):
    """Checks a reading from outside (the audit): the reader before each block, and its log-probabilities (B, T) after."""

    def before(self, reader: Reader, block: Block) -> None: ...

    def after(self, block: Block, log_prob: Tensor) -> None: ...


class StreamReading:
    """One pass of a reader over a stream of token ids (N,): for each of `remaining()`, `score`, then `observe`.

    `first` is the token before the stream. A `batch_size` above 1 cuts the stream into contiguous rows that are read side by
    side, each from an empty state. Blocks have `block` tokens of each row, by default the reader's own number. Without
    `reset` the reader continues from what it has read. From a `position` the reading resumes there; the reader must already
    have been restored. `rows` are those of the batch that are read here, at least one, by default all. Raises UserError for
    several rows with a reader whose weights move: it would learn from later rows before it scores earlier ones.
    """

    def __init__(
        self,
        reader: Reader,
        ids: np.ndarray,
        first: int,
        *,
        batch_size: int = 1,
        block: int | None = None,
        observer: Observer | None = None,
        reset: bool = True,
        position: Position | None = None,
        rows: slice = slice(None),
    ) -> None:
        check_rows(reader, batch_size)
        self.reader, self.ids, self.first, self.observer = reader, ids, first, observer
        self.batch_size, self.block, self.rows = min(batch_size, len(ids)), block or reader.block, rows
        self.position = position or Position()
        self._started = CLOCK.seconds() - self.position.seconds
        self.nats, self.tokens = self.position.nats, self.position.tokens
        """Sum of the nats of all tokens scored so far, and their number."""
        if reset and position is None:
            reader.start(len(range(self.batch_size)[rows]))

    def remaining(self) -> Iterator[Block]:
        """Yield the blocks that have not been read."""
        device = next(self.reader.model.parameters()).device
        return blocks(self.ids, self.first, self.batch_size, self.block, device, self.position.block, self.rows)

    @torch.no_grad()
    def score(self, block: Block) -> ScoredBlock:
        """Predict a block and score its targets. Raises NonFiniteError if a score is not a number."""
        if self.observer is not None:
            self.observer.before(self.reader, block)
        prediction = self.reader.predict(block.tokens)
        with self.reader.precision.context(block.tokens.device):
            log_prob = prediction.log_prob(block.targets)
        scores = log_prob.double()[block.scored]
        self.nats, self.tokens = self.nats - scores.sum().item(), self.tokens + scores.numel()
        if not math.isfinite(self.nats):
            raise NonFiniteError(
                f"the score of block {block.index} is {self.nats} nats: the weights or a step of the reader broke down"
            )
        if self.observer is not None:
            self.observer.after(block, log_prob)
        return ScoredBlock(block, prediction, log_prob)

    @torch.no_grad()
    def observe(self, block: Block) -> None:
        """Let the reader learn from a block that was scored."""
        self.reader.observe(block.targets)
        self.position = Position(block.index + 1, self.nats, self.tokens, CLOCK.seconds() - self._started)

    def result(self) -> Reading:
        """Return the score of what was read."""
        seconds = CLOCK.seconds() - self._started
        return Reading(self.nats / self.tokens, self.tokens, self.batch_size, seconds)


@checked(first=0, batch_size=1, block=1)
@torch.no_grad()
def read(
    reader: Reader,
    ids: np.ndarray,
    first: int,
    *,
    batch_size: int = 1,
    block: int | None = None,
    observer: Observer | None = None,
    each: Callable[[Block, Prediction, Tensor], None] | None = None,
    reset: bool = True,
    at: Position | None = None,
    passed: Callable[[Position], None] | None = None,
) -> Reading:
    """Read a stream of token ids (N,) once, every token scored before the reader may learn from it (`StreamReading`).

    `each` is called with every block, its prediction and its log-probabilities (B, T), `passed` with the position after
    every block; `at` is the position to resume from. Raises UserError and NonFiniteError.
    """
    stream = StreamReading(
        reader, ids, first, batch_size=batch_size, block=block, observer=observer, reset=reset, position=at
    )
    for piece in stream.remaining():
        scored = stream.score(piece)
        if each is not None:
            each(*scored)
        del scored  # its activations would take their memory while the next block is predicted
        stream.observe(piece)
        if passed is not None:
            passed(stream.position)
    return stream.result()
