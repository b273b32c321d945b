"""Read a stream of tokens once, in one row or several, and score every token of it."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from backstory.config import NonFiniteError, UserError
from backstory.config.arguments import checked
from backstory.models import Prediction
from backstory.readers.base import Reader
from backstory.readers.blocks import Block, blocks


@dataclass(frozen=True)
class Reading:
    """What came of reading a stream once."""

    nats: float
    """Mean negative log-probability per token."""
    tokens: int
    """Tokens scored: every token of the stream, its first included."""
    batch_size: int
    seconds: float


@dataclass(frozen=True)
class Position:
    """How far a reading has come, between two blocks."""

    block: int = 0
    """Blocks read."""
    nats: float = 0.0
    """Sum over the tokens that were scored."""
    tokens: int = 0
    seconds: float = 0.0


class Observer(Protocol):
    """Looks at the reader before it reads a block, and at the log-probabilities (B, T) of the block then (the audit)."""

    def before(self, reader: Reader, block: Block) -> None: ...

    def after(self, block: Block, log_prob: Tensor) -> None: ...


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
    """Read a stream of token ids (N,) once, every token scored before the reader may learn from it.

    `batch_size` above one cuts the stream into rows that are read side by side, each from an empty state: faster, and a little
    worse where rows begin; a reader whose weights move would learn from later rows before it scores earlier ones, so it
    reads one row only. Blocks have `block` tokens, else the reader's own. `each` is given every block, its prediction and
    its log-probabilities (B, T). Without `reset` the reader goes on from what it has read. `at` goes on
    with a reading from where it stood, the reader having been put there; `passed` is told where it stands after every block.
    Raises UserError, and NonFiniteError when a score is not a number.
    """
    if batch_size > 1 and reader.capabilities.adapts_weights:
        raise UserError(f"the reader {reader.name} learns as it reads, so it reads one row only; use --batch-size 1")
    began = time.perf_counter()
    device = next(reader.model.parameters()).device
    before = at or Position()
    total, tokens = before.nats, before.tokens
    if reset and at is None:
        reader.start(min(batch_size, len(ids)))
    for piece in blocks(ids, first, batch_size, block or reader.block, device, before.block):
        if observer is not None:
            observer.before(reader, piece)
        prediction = reader.predict(piece.tokens)
        with reader.precision.context(device):
            log_prob = prediction.log_prob(piece.targets)
        kept = log_prob.double()[piece.scored]
        total, tokens = total - kept.sum().item(), tokens + kept.numel()
        if not math.isfinite(total):
            raise NonFiniteError(
                f"the score of block {piece.index} is {total} nats: the weights or a step of the reader broke down"
            )
        if observer is not None:
            observer.after(piece, log_prob)
        if each is not None:
            each(piece, prediction, log_prob)
        reader.observe(piece.targets)
        if passed is not None:
            passed(Position(piece.index + 1, total, tokens, before.seconds + time.perf_counter() - began))
    return Reading(total / tokens, tokens, min(batch_size, len(ids)), before.seconds + time.perf_counter() - began)
