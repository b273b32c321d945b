"""Cut a stream of token ids into blocks of a batch: the unit of reading, in which every token is a target once."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from backstory.config.arguments import checked


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


def blocks(
    ids: np.ndarray, first: int, batch_size: int, block: int, device: torch.device, done: int = 0
) -> Iterator[Block]:
    """Cut a stream (N,) into blocks of `batch_size` contiguous rows, and leave the first `done` blocks out.

    `first` is fed before the first token. Every token of the stream is a target exactly once; only the last rows may be
    shorter: `first` fills these up, so that a target is the next input there too.
    """
    batch_size = min(batch_size, len(ids))
    length = math.ceil(len(ids) / batch_size)
    for index, start in enumerate(range(done * block, length, block), done):
        # Only the block's own tokens are fetched: ids may lie on disk.
        places = np.arange(batch_size)[:, None] * length + np.arange(start, min(start + block, length))
        scored = places < len(ids)
        targets = np.where(scored, ids[np.minimum(places, len(ids) - 1)], first)
        outside = (places == 0) | (places > len(ids))
        inputs = np.where(outside, first, ids[np.clip(places - 1, 0, len(ids) - 1)])
        tokens, wanted = (torch.from_numpy(a.astype(np.int64)).to(device) for a in (inputs, targets))
        yield Block(tokens, wanted, torch.from_numpy(scored).to(device), index)


def places_of(block: Block, tokens: int, size: int) -> np.ndarray:
    """The place in a text of so many tokens of each target (B, T), where blocks have `size`; beyond its row's end, any."""
    batch_size, times = block.targets.shape
    return np.arange(batch_size)[:, None] * math.ceil(tokens / batch_size) + block.index * size + np.arange(times)


@checked(tokens=1, batch_size=1, block=1)
def block_count(tokens: int, batch_size: int, block: int) -> int:
    """How many blocks `blocks` yields."""
    return math.ceil(math.ceil(tokens / min(batch_size, tokens)) / block)
