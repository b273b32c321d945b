"""What a cache remembers: the last pairs of a head input and the word that came after it, of several texts side by side."""

import torch
from torch import Tensor

from backstory.config import UserError
from backstory.models import clone
from backstory.models.devices import available, shown_bytes

GROWTH = 4
"""When there is no room left, a quarter of what is held is added, so that a token is copied a few times in all."""


class Pairs:
    """The last `most` pairs (h_i, w_i) of B rows, oldest first, in memory that grows with what is held.

    A block's pairs are first offered, then kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._vectors: Tensor | None = None
        self._words: Tensor | None = None
        self._start = self._end = self._offered = 0

    def __len__(self) -> int:
        """How many pairs a row holds; those offered are not counted."""
        return self._end - self._start

    def offer(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The pairs held and after them those that a block, head inputs (B, T, D) and its tokens (B, T), adds of itself.

        Vectors (B, n + T - 1, D), a view until the next call, and words (B, n + T - 1) int64; the block's last word is not
        known yet. A block that was offered before and not kept is forgotten. Raises UserError where the pairs can never fit
        into memory.
        """
        steps = hidden.shape[1]
        vectors, words = self._with_room(hidden)
        vectors[:, self._end : self._end + steps] = hidden
        words[:, self._end : self._end + steps - 1] = tokens[:, 1:]
        self._offered = steps
        known = slice(self._start, self._end + steps - 1)
        return vectors[:, known], words[:, known].clone()

    def keep(self, targets: Tensor) -> None:
        """Hold the block that was offered last, its targets (B, T) being the words; the oldest pairs go."""
        if self._words is None or not self._offered:
            return
        self._words[:, self._end : self._end + self._offered] = targets
        self._end += self._offered
        self._start, self._offered = max(self._start, self._end - self._most), 0

    def snapshot(self) -> tuple[Tensor, Tensor] | None:
        """A copy of the vectors and words that are held, without a block that was only offered; None before the first."""
        if self._vectors is None or self._words is None:
            return None
        held = slice(self._start, self._end)
        return self._vectors[:, held].clone(), self._words[:, held].clone()

    def restore(self, snapshot: tuple[Tensor, Tensor] | None) -> None:
        """Hold what a snapshot has."""
        self._vectors, self._words = (None, None) if snapshot is None else clone(snapshot)
        self._start, self._end = 0, 0 if self._words is None else self._words.shape[1]
        self._offered = 0

    def _with_room(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The buffers, with room for the block after what is held."""
        rows, steps, size = hidden.shape
        if self._vectors is None or self._words is None:
            self._check_memory(hidden)
            self._vectors, self._words = hidden.new_empty(rows, 0, size), hidden.new_empty(rows, 0, dtype=torch.long)
        if self._end + steps > self._vectors.shape[1]:
            held, count = slice(self._start, self._end), len(self)
            capacity = count + steps + max(steps, count // GROWTH)
            vectors, words = hidden.new_empty(rows, capacity, size), self._words.new_empty(rows, capacity)
            vectors[:, :count], words[:, :count] = self._vectors[:, held], self._words[:, held]
            self._vectors, self._words, self._start, self._end = vectors, words, 0, count
        return self._vectors, self._words

    def _check_memory(self, hidden: Tensor) -> None:
        """Raise UserError when a full window, and a block's scores of it, are more than is free; nothing is allocated."""
        rows, steps, size = hidden.shape
        needed = rows * self._most * ((size + steps) * hidden.itemsize + torch.long.itemsize)
        free = available(hidden.device)
        if free is not None and needed > free:
            raise UserError(
                f"a cache of {self._most:,} words needs {shown_bytes(needed)} when it is full, and {shown_bytes(free)} are "
                "free; lower its window (it never holds more words than the text has)"
            )
