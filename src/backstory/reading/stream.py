"""Read a stream of tokens once, in one row or several, and score every token of it."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from backstory.config import NonFiniteError, UserError
from backstory.config.arguments import checked
from backstory.models import Prediction
from backstory.reading.reader import Reader


class Block(NamedTuple):
    """A piece of the stream, cut into rows."""

    tokens: Tensor
    """(rows, T) inputs."""
    targets: Tensor
    """(rows, T): the token after each input."""
    scored: Tensor
    """(rows, T) bool; False where a row has ended already."""
    index: int
    """Number of the block."""


@dataclass(frozen=True)
class Reading:
    """What came of reading a stream once."""

    nats: float
    """Mean negative log-probability per token."""
    tokens: int
    """Tokens scored: every token of the stream, its first included."""
    rows: int
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
    """Looks at the reader before it reads a block, and at the log-probabilities (rows, T) of the block then (the audit)."""

    def before(self, reader: Reader, block: Block) -> None: ...

    def after(self, block: Block, log_prob: Tensor) -> None: ...


def blocks(ids: np.ndarray, first: int, rows: int, block: int, device: torch.device, done: int = 0) -> Iterator[Block]:
    """Cut a stream (N,) into blocks of `rows` contiguous rows, and leave the first `done` blocks out.

    `first` is fed before the first token. Every token of the stream is a target exactly once; only the last rows may be
    shorter: `first` fills these up, so that a target is the next input there too.
    """
    rows = min(rows, len(ids))
    length = math.ceil(len(ids) / rows)
    for index, start in enumerate(range(done * block, length, block), done):
        # Only the block's own tokens are fetched: ids may lie on disk.
        places = np.arange(rows)[:, None] * length + np.arange(start, min(start + block, length))
        scored = places < len(ids)
        targets = np.where(scored, ids[np.minimum(places, len(ids) - 1)], first)
        outside = (places == 0) | (places > len(ids))
        inputs = np.where(outside, first, ids[np.clip(places - 1, 0, len(ids) - 1)])
        tokens, wanted = (torch.from_numpy(a.astype(np.int64)).to(device) for a in (inputs, targets))
        yield Block(tokens, wanted, torch.from_numpy(scored).to(device), index)


def places_of(block: Block, tokens: int, size: int) -> np.ndarray:
    """The place in a text of so many tokens of each target (rows, T), where blocks have `size`; beyond its row's end, any."""
    rows, times = block.targets.shape
    return np.arange(rows)[:, None] * math.ceil(tokens / rows) + block.index * size + np.arange(times)


@checked(tokens=1, rows=1, block=1)
def block_count(tokens: int, rows: int, block: int) -> int:
    """How many blocks `blocks` yields."""
    return math.ceil(math.ceil(tokens / min(rows, tokens)) / block)


@checked(first=0, rows=1, block=1)
@torch.no_grad()
def read(
    reader: Reader,
    ids: np.ndarray,
    first: int,
    *,
    rows: int = 1,
    block: int | None = None,
    observer: Observer | None = None,
    each: Callable[[Block, Prediction, Tensor], None] | None = None,
    fresh: bool = True,
    at: Position | None = None,
    passed: Callable[[Position], None] | None = None,
) -> Reading:
    """Read a stream of token ids (N,) once, every token scored before the reader may learn from it.

    `rows` above one cuts the stream into rows that are read side by side, each from an empty state: faster, and a little
    worse where rows begin; a reader whose weights move would learn from later rows before it scores earlier ones, so it
    reads one row only. Blocks have `block` tokens, else the reader's own. `each` is given every block, its prediction and
    its log-probabilities (rows, T). Without `fresh` the reader goes on from what it has read. `at` goes on
    with a reading from where it stood, the reader having been put there; `passed` is told where it stands after every block.
    Raises UserError, and NonFiniteError when a score is not a number.
    """
    if rows > 1 and reader.capabilities.adapts_weights:
        raise UserError(f"the reader {reader.name} learns as it reads, so it reads one row only; use --rows 1")
    began = time.perf_counter()
    device = next(reader.model.parameters()).device
    before = at or Position()
    total, tokens = before.nats, before.tokens
    if fresh and at is None:
        reader.start(min(rows, len(ids)))
    for piece in blocks(ids, first, rows, block or reader.block, device, before.block):
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
    return Reading(total / tokens, tokens, min(rows, len(ids)), before.seconds + time.perf_counter() - began)
