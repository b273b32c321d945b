"""The neural Turing machine's memory (Graves et al. 2014; eqs. 2 to 7 of Lee et al. 2020): content, then location.

w^c = content, w^g = g w^c + (1 - g) w_{t-1}, w~ = w^g shifted in a circle by s over {-1, 0, 1}, w = w~^gamma / sum(w~^gamma).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backstory.models.memory.addressing import Keys, content_weights
from backstory.models.memory.interface import Looked, Machine, MemoryState, one_plus, sharpened
from backstory.models.memory.rows import Rows


@dataclass(frozen=True)
class TuringMachine(Machine):
    """R heads that read and one that writes, each with a key, its strength, g, s and gamma."""

    @property
    def interface_size(self) -> int:
        return (self.heads + 1) * (self.width + 6) + 2 * self.width

    def start(self, like: Tensor, batch_size: int) -> MemoryState:
        # All heads look at row 0: rows of zeros are all alike, and only their places tell them apart.
        state = self.empty(like, batch_size)
        state.read_weights[:, :, 0] = 1
        state.write_weights[:, 0] = 1
        return state

    def step(
        self, interface: Tensor, state: MemoryState, rows: Rows | None = None, looked: list[Looked] | None = None
    ) -> MemoryState:
        rows = rows or Rows(state.memory)
        size = self.width
        heads, erase, vector = interface.split([(self.heads + 1) * (size + 6), size, size], 1)
        heads = heads.unflatten(1, (self.heads + 1, size + 6))
        vectors, strengths, gates, shifts, sharpness = heads.split([size, 1, 1, 3, 1], 2)
        strengths = one_plus(strengths[:, :, 0])
        first, others = (Keys(vectors[:, part], strengths[:, part]) for part in (slice(0, 1), slice(1, None)))
        location = torch.sigmoid(gates), torch.softmax(shifts, 2), one_plus(sharpness)

        found = rows.look(first, others)
        content = content_weights(found, first.strengths, self.addressing)
        write = self._located(content, state.write_weights.unsqueeze(1), [x[:, :1] for x in location])[:, 0]
        erase = torch.sigmoid(erase)
        rows.write(write, erase, vector, None)
        found_then = rows.look(others)
        content_then = content_weights(found_then, others.strengths, self.addressing)
        weights = self._located(content_then, state.read_weights, [x[:, 1:] for x in location])
        if looked is not None:
            of_write, of_read = (found, content, write.unsqueeze(1)), (found_then, content_then, weights)
            looked.append(Looked.of_heads(of_write, of_read, erase))
        return MemoryState(rows.memory, rows.read(weights), weights, write)

    def _located(self, content: Tensor, before: Tensor, how: Sequence[Tensor]) -> Tensor:
        return content if self.addressing.kind == "window" else located(content, before, *how)


def located(content: Tensor, before: Tensor, gate: Tensor, shift: Tensor, sharpness: Tensor) -> Tensor:
    """Location addressing (eqs. 3 to 5) of weights (B, H, N): gate and sharpness (B, H, 1), shift (B, H, 3) by -1, 0, 1."""
    mixed = before + gate * (content - before)
    left, stay, right = shift.split(1, 2)
    moved = left * mixed.roll(-1, 2) + stay * mixed + right * mixed.roll(1, 2)
    return sharpened(moved, sharpness)
