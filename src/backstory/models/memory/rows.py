"""The rows of a memory as a step looks at, writes and reads them: differentiable, and in place where no gradient is wanted.

Both give the same numbers. Passes over a memory are what a step costs, and fresh memory costs more than any arithmetic: what is
in place writes pieces that stay in the processor's cache, knows the rows' norms, and leaves alone rows that have no weight.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from backstory.models.kernels.memory_passes import PIECE, follow_into, followed, matches, pieces, write_into, written
from backstory.models.memory.addressing import Keys, cosines, known_cosines


class Rows:
    """Differentiable; nothing that is given is changed, but with `over` the gradient of a link on the way back."""

    def __init__(self, memory: Tensor, over: bool = False) -> None:
        self.memory, self.over = memory, over

    def look(self, keys: Keys, later: Keys | None = None) -> Tensor:
        """Cosines (B, H, N) of all rows with all keys. `later` is what will be looked for after the next write."""
        return cosines(self.memory, keys)

    def write(self, weights: Tensor, erase: Tensor, vector: Tensor, kept: Tensor | None) -> None:
        """EM o (1 - w e^T) + w v^T (eq. 7): w (B, N), e and v (B, M).

        `kept` (B, N) is the share of each row that was not set free, and multiplies it first.
        """
        self.memory = written(self.memory, weights, erase, vector, kept)

    def read(self, weights: Tensor) -> Tensor:
        """EM^T w (eq. 6) with the weights (B, R, N) of each head: (B, R, M)."""
        return torch.bmm(weights, self.memory)

    def follow(self, link: Tensor, write: Tensor, precedence: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The link (B, N, N) after a write w (B, N), and what heads of weights (B, R, N) find when they follow it back and on.

        (1 - w_i - w_j) L[i, j] + w_i p_j with zeros on the diagonal.
        """
        return followed(link, write, precedence, weights, self.over)


class RowsInPlace(Rows):
    """Without gradients, on the CPU. The memory and the link given are overwritten.

    `few`: the weights are 0 but for a few rows, so that what is looked for after a write is looked for before it, together with
    what is looked for now, and again only in the rows that were written.
    """

    def __init__(self, memory: Tensor, few: bool) -> None:
        self.take(memory)
        self.few = few
        self.products: Tensor | None = None
        self.touched: list[tuple[int, int]] = []
        self.scratch = memory.new_empty(max(PIECE, *memory.shape[1:]))  # of the memory or of its link: a row at least

    def take(self, memory: Tensor) -> None:
        """Go on with another memory of the same shape."""
        self.memory = memory
        self.squares: Tensor | None = None

    def look(self, keys: Keys, later: Keys | None = None) -> Tensor:
        if keys.masks is not None:
            return cosines(self.memory, keys)
        if (squares := self.squares) is None:
            squares = self.squares = torch.linalg.vector_norm(self.memory, dim=2).square_()
        if not self.few:
            return known_cosines(matches(self.memory, keys.vectors), keys.vectors, squares)
        if later is not None:
            both = matches(self.memory, torch.cat([keys.vectors, later.vectors], 1))
            count = keys.vectors.shape[1]
            self.products = both[:, count:]
            return known_cosines(both[:, :count], keys.vectors, squares)
        assert self.products is not None
        for b, (first, end) in enumerate(self.touched):
            torch.mm(keys.vectors[b], self.memory[b, first:end].t(), out=self.products[b, :, first:end])
        return known_cosines(self.products, keys.vectors, squares)

    def write(self, weights: Tensor, erase: Tensor, vector: Tensor, kept: Tensor | None) -> None:
        for b, some in self._places(weights, kept):
            rows = self.memory[b, some]
            left = None if kept is None else kept[b, some]
            write_into(rows, rows, weights[b, some], erase[b], vector[b], left, self.scratch)
            if self.squares is not None:  # while they are in the cache
                self.squares[b, some] = torch.linalg.vector_norm(rows, dim=2).square_()

    def _places(self, weights: Tensor, kept: Tensor | None) -> Iterator[tuple[slice, slice]]:
        """The memories and rows of each piece of a write: only those with a weight, where looking for them pays."""
        count, rows, size = self.memory.shape
        if kept is not None or (not self.few and rows * size <= PIECE):
            self.touched = [(0, rows)] * count
            return pieces(count, rows, size)
        self.touched = spans(weights)
        return (
            (slice(b, b + 1), slice(first + some.start, first + some.stop))
            for b, (first, end) in enumerate(self.touched)
            for _, some in pieces(1, end - first, size)
        )

    def read(self, weights: Tensor) -> Tensor:
        if not self.few:
            return torch.bmm(weights, self.memory)
        heads = weights.shape[1]
        reads = self.memory.new_empty(len(weights), heads, self.memory.shape[2])
        for i, (first, end) in enumerate(spans(weights.flatten(0, 1))):
            b, head = divmod(i, heads)
            torch.mv(self.memory[b, first:end].t(), weights[b, head, first:end], out=reads[b, head])
        return reads

    def follow(self, link: Tensor, write: Tensor, precedence: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return link, *follow_into(link, link, write, precedence, weights, self.scratch)


def spans(weights: Tensor) -> list[tuple[int, int]]:
    """The first row with a weight and the one after the last, for each of (B, N)."""
    there = weights != 0
    count = weights.shape[1]
    first = there.to(torch.uint8).argmax(1)
    end = count - there.flip(1).to(torch.uint8).argmax(1)
    some = there.any(1)
    return [(f, e) if s else (0, 0) for f, e, s in zip(first.tolist(), end.tolist(), some.tolist(), strict=True)]
