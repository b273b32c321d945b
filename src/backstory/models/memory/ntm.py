"""The neural Turing machine's memory (Graves et al. 2014; eqs. 2 to 7 of Lee et al. 2020): content, then location.

w^c = content, w^g = g w^c + (1 - g) w_{t-1}, w~ = w^g shifted in a circle by s over {-1, 0, 1}, w = w~^gamma / sum(w~^gamma).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backstory.models.memory.addressing import Keys, content_weights
from backstory.models.memory.interface import AddressingTrace, Machine, MemoryState, one_plus, sharpened
from backstory.models.memory.slots import Slots


@dataclass(frozen=True)
class TuringMachine(Machine):
    """R heads that read and one that writes, each with a key, its strength, g, s and gamma."""

    @property
    def interface_size(self) -> int:
        return (self.heads + 1) * (self.width + 6) + 2 * self.width

    def start(self, like: Tensor, batch_size: int) -> MemoryState:
        # All heads start at slot 0: in a memory of zeros only the position tells slots apart.
        state = self.empty(like, batch_size)
        state.read_weights[:, :, 0] = 1
        state.write_weights[:, 0] = 1
        return state

    def step(
        self,
        interface: Tensor,
        state: MemoryState,
        slots: Slots | None = None,
        trace: list[AddressingTrace] | None = None,
    ) -> MemoryState:
        slots = slots or Slots(state.memory)
        size = self.width
        heads, erase, vector = interface.split([(self.heads + 1) * (size + 6), size, size], 1)
        heads = heads.unflatten(1, (self.heads + 1, size + 6))
        vectors, strengths, gates, shifts, sharpness = heads.split([size, 1, 1, 3, 1], 2)
        strengths = one_plus(strengths[:, :, 0])
        first, others = (Keys(vectors[:, part], strengths[:, part]) for part in (slice(0, 1), slice(1, None)))
        location = torch.sigmoid(gates), torch.softmax(shifts, 2), one_plus(sharpness)

        cosine = slots.look(first, others)
        content = content_weights(cosine, first.strengths, self.addressing)
        write = self._located(content, state.write_weights.unsqueeze(1), [x[:, :1] for x in location])[:, 0]
        erase = torch.sigmoid(erase)
        slots.write(write, erase, vector, None)
        read_cosine = slots.look(others)
        read_content = content_weights(read_cosine, others.strengths, self.addressing)
        weights = self._located(read_content, state.read_weights, [x[:, 1:] for x in location])
        if trace is not None:
            of_write, of_read = (cosine, content, write.unsqueeze(1)), (read_cosine, read_content, weights)
            trace.append(AddressingTrace.of_heads(of_write, of_read, erase))
        return MemoryState(slots.memory, slots.read(weights), weights, write)

    def _located(self, content: Tensor, before: Tensor, location: Sequence[Tensor]) -> Tensor:
        return content if self.addressing.kind == "window" else located(content, before, *location)


def located(content: Tensor, before: Tensor, gate: Tensor, shift: Tensor, sharpness: Tensor) -> Tensor:
    """Location addressing (eqs. 3 to 5) of weights (B, H, N): gate and sharpness (B, H, 1), shift (B, H, 3) by -1, 0, 1."""
    mixed = before + gate * (content - before)
    left, stay, right = shift.split(1, 2)
    moved = left * mixed.roll(-1, 2) + stay * mixed + right * mixed.roll(1, 2)
    return sharpened(moved, sharpness)
