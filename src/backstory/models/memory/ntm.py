"""The neural Turing machine's memory (Graves et al. 2014; eqs. 2 to 7 of Lee et al. 2020): content, then location.

w^c = content, w^g = g w^c + (1 - g) w_{t-1}, w~ = w^g shifted in a circle by s over {-1, 0, 1}, w = w~^gamma / sum(w~^gamma).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from backstory.models.memory.addressing import Keys, content_weights, cosines
from backstory.models.memory.machine import Looked, Machine, MemoryState, one_plus, read, sharpened, written


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

    def step(self, interface: Tensor, state: MemoryState, looked: list[Looked] | None = None) -> MemoryState:
        size = self.width
        heads, erase, vector = interface.split([(self.heads + 1) * (size + 6), size, size], 1)
        heads = heads.unflatten(1, (self.heads + 1, size + 6))
        vectors, strengths, gates, shifts, sharpness = heads.split([size, 1, 1, 3, 1], 2)
        keys = Keys(vectors, one_plus(strengths[:, :, 0]))
        location = torch.sigmoid(gates), torch.softmax(shifts, 2), one_plus(sharpness)

        def weights(memory: Tensor, part: slice, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            found = cosines(memory, Keys(keys.vectors[:, part], keys.strengths[:, part]))
            content = content_weights(found, keys.strengths[:, part], self.addressing)
            if self.addressing.kind == "window":
                return found, content, content
            return found, content, located(content, before, *(x[:, part] for x in location))

        writes, reads = slice(0, 1), slice(1, None)
        *found, write = weights(state.memory, writes, state.write_weights.unsqueeze(1))
        memory = written(state.memory, write[:, 0], torch.sigmoid(erase), vector)
        *found_then, read_weights = weights(memory, reads, state.read_weights)
        if looked is not None:
            looked.append(Looked(*(torch.cat(both, 1) for both in zip(found, found_then, strict=True))))
        return MemoryState(memory, read(memory, read_weights), read_weights, write[:, 0])


def located(content: Tensor, before: Tensor, gate: Tensor, shift: Tensor, sharpness: Tensor) -> Tensor:
    """Location addressing (eqs. 3 to 5) of weights (B, H, N): gate and sharpness (B, H, 1), shift (B, H, 3) by -1, 0, 1."""
    mixed = before + gate * (content - before)
    left, stay, right = shift.split(1, 2)
    moved = left * mixed.roll(-1, 2) + stay * mixed + right * mixed.roll(1, 2)
    return sharpened(moved, sharpness)
