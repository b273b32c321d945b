"""The slots of a memory as a step looks at, writes and reads them: differentiable, or in place if no gradient is wanted.

Both give the same numbers. A step costs passes over the memory, and newly allocated memory costs more than any arithmetic. The
version in place therefore writes pieces that stay in the processor's cache, remembers the norms of the slots, and skips slots
without weight.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from backstory.models.kernels.memory_passes import (
    PIECE,
    follow_into,
    followed,
    key_products,
    pieces,
    write_into,
    written,
)
from backstory.models.memory.addressing import Keys, cosines, known_cosines


class Slots:
    """Differentiable slots. No argument is changed, but with `overwrite` the gradient of a link in the backward pass is."""

    def __init__(self, memory: Tensor, overwrite: bool = False) -> None:
        self.memory, self.overwrite = memory, overwrite

    def look(self, keys: Keys, later: Keys | None = None) -> Tensor:
        """Return the cosines (B, H, N) of all slots with all keys. `later` are the keys of the look after the next write."""
        return cosines(self.memory, keys)

    def write(self, weights: Tensor, erase: Tensor, vector: Tensor, retention: Tensor | None) -> None:
        """EM o (1 - w e^T) + w v^T (eq. 7): w (B, N), e and v (B, M).

        `retention` (B, N) is the share of each slot that was not freed; it multiplies the memory first.
        """
        self.memory = written(self.memory, weights, erase, vector, retention)

    def read(self, weights: Tensor) -> Tensor:
        """EM^T w (eq. 6) with the weights (B, R, N) of each head: (B, R, M)."""
        return torch.bmm(weights, self.memory)

    def follow(self, link: Tensor, write: Tensor, precedence: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the link (B, N, N) after a write w (B, N), and the weights of heads that follow it back and forward (B, R, N).

        The link is (1 - w_i - w_j) L[i, j] + w_i p_j with zeros on the diagonal; the heads have weights (B, R, N) before.
        """
        return followed(link, write, precedence, weights, self.overwrite)


class SlotsInPlace(Slots):
    """Slots without gradients, on the CPU. The memory and the link are overwritten.

    With `sparse` weights, which are 0 but for a few slots, the look after a write is computed before it, together with the one
    before it, and again only for the slots that were written.
    """

    def __init__(self, memory: Tensor, sparse: bool) -> None:
        self.replace(memory)
        self.sparse = sparse
        self.products: Tensor | None = None
        self.touched: list[tuple[int, int]] = []
        self.scratch = memory.new_empty(
            max(PIECE, *memory.shape[1:])
        )  # of the memory or of its link: one slot at least

    def replace(self, memory: Tensor) -> None:
        """Continue with another memory of the same shape."""
        self.memory = memory
        self.squares: Tensor | None = None

    def look(self, keys: Keys, later: Keys | None = None) -> Tensor:
        if keys.masks is not None:
            return cosines(self.memory, keys)
        if (squares := self.squares) is None:
            squares = self.squares = torch.linalg.vector_norm(self.memory, dim=2).square_()
        if not self.sparse:
            return known_cosines(key_products(self.memory, keys.vectors), keys.vectors, squares)
        if later is not None:
            both = key_products(self.memory, torch.cat([keys.vectors, later.vectors], 1))
            count = keys.vectors.shape[1]
            self.products = both[:, count:]
            return known_cosines(both[:, :count], keys.vectors, squares)
        assert self.products is not None
        for b, (first, end) in enumerate(self.touched):
            torch.mm(keys.vectors[b], self.memory[b, first:end].t(), out=self.products[b, :, first:end])
        return known_cosines(self.products, keys.vectors, squares)

    def write(self, weights: Tensor, erase: Tensor, vector: Tensor, retention: Tensor | None) -> None:
        for b, part in self._pieces(weights, retention):
            slots = self.memory[b, part]
            retained = None if retention is None else retention[b, part]
            write_into(slots, slots, weights[b, part], erase[b], vector[b], retained, self.scratch)
            if self.squares is not None:  # while the piece is in the cache
                self.squares[b, part] = torch.linalg.vector_norm(slots, dim=2).square_()

    def _pieces(self, weights: Tensor, retention: Tensor | None) -> Iterator[tuple[slice, slice]]:
        """Yield the memories and slots of each piece of a write: only slots with a weight, if finding them pays."""
        count, slots, width = self.memory.shape
        if retention is not None or (not self.sparse and slots * width <= PIECE):
            self.touched = [(0, slots)] * count
            return pieces(count, slots, width)
        self.touched = nonzero_ranges(weights)
        return (
            (slice(b, b + 1), slice(first + part.start, first + part.stop))
            for b, (first, end) in enumerate(self.touched)
            for _, part in pieces(1, end - first, width)
        )

    def read(self, weights: Tensor) -> Tensor:
        if not self.sparse:
            return torch.bmm(weights, self.memory)
        heads = weights.shape[1]
        reads = self.memory.new_empty(len(weights), heads, self.memory.shape[2])
        for i, (first, end) in enumerate(nonzero_ranges(weights.flatten(0, 1))):
            b, head = divmod(i, heads)
            torch.mv(self.memory[b, first:end].t(), weights[b, head, first:end], out=reads[b, head])
        return reads

    def follow(self, link: Tensor, write: Tensor, precedence: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return link, *follow_into(link, link, write, precedence, weights, self.scratch)


def nonzero_ranges(weights: Tensor) -> list[tuple[int, int]]:
    """Return, for each of (B, N), the first slot with a weight and the one after the last."""
    nonzero = weights != 0
    count = weights.shape[1]
    first = nonzero.to(torch.uint8).argmax(1)
    end = count - nonzero.flip(1).to(torch.uint8).argmax(1)
    present = nonzero.any(1)
    return [(f, e) if p else (0, 0) for f, e, p in zip(first.tolist(), end.tolist(), present.tolist(), strict=True)]
