"""The differentiable neural computer's memory (Graves et al. 2016) and three additions to it (Csordas and Schmidhuber 2019).

Usage and allocation tell which slots are free, the temporal link which slot was written after which. The additions are masked
keys, de-allocation and a sharpened link distribution; with all of them it is the MDM-NTM.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from backstory.models.memory.addressing import EPSILON, Keys, content_weights
from backstory.models.memory.interface import AddressingTrace, Machine, MemoryState, one_plus, sharpened
from backstory.models.memory.slots import Slots


class Interface(NamedTuple):
    """The controller's output at a step after its nonlinearities; parts that the machine lacks are None."""

    write_key: Keys
    read_keys: Keys
    erase: Tensor
    """(B, M)"""
    vector: Tensor
    """(B, M)"""
    write_gate: Tensor
    """(B, 1)"""
    allocation_gate: Tensor | None
    """(B, 1)"""
    free_gates: Tensor | None
    """(B, R, 1)"""
    modes: Tensor | None
    """(B, R, 3): backward, content, forward."""
    sharpness: Tensor | None
    """(B, R, 2): backward, forward."""


@dataclass(frozen=True)
class NeuralComputer(Machine):
    """R heads that read and one that writes."""

    link: bool = True
    """Heads can follow the order in which slots were written."""
    allocation: bool = True
    """The write head can choose free slots."""
    mask: bool = False
    """Heads mask the numbers of slots and keys that they compare."""
    deallocation: bool = False
    """Freed slots are emptied."""
    sharpness: bool = False
    """Heads sharpen the weights that follow the link."""
    sharpening: Literal["plain", "epsilon"] = "plain"
    """With `epsilon`, EPSILON is added to those weights before they are sharpened: empty ones become uniform."""

    @property
    def _sizes(self) -> list[int]:
        """Sizes of the parts of the controller's output, in order."""
        m, r = self.width, self.heads
        free = r * (self.allocation or self.deallocation)
        follow = 3 * r * self.link
        masks = (r + 1) * m * self.mask
        return [(r + 1) * m, r + 1, m, m, 1, int(self.allocation), free, follow, masks, 2 * r * self._sharpens]

    @property
    def _sharpens(self) -> bool:
        return self.sharpness and self.link

    @property
    def interface_size(self) -> int:
        return sum(self._sizes)

    def start(self, like: Tensor, batch_size: int) -> MemoryState:
        zeros, shape = like.new_zeros, (batch_size, self.slots)
        linked = (zeros(shape), zeros(*shape, self.slots)) if self.link else (None, None)
        return self.empty(like, batch_size)._replace(
            usage=zeros(shape) if self.allocation else None, precedence=linked[0], link=linked[1]
        )

    def interface(self, output: Tensor) -> Interface:
        """Split the controller's output (B, interface_size) and apply the nonlinearities."""
        parts = output.split(self._sizes, 1)
        vectors, strengths, erase, vector, write, allocate, free, modes, masks, sharp = parts
        vectors = vectors.unflatten(1, (self.heads + 1, self.width))
        strengths = one_plus(strengths)
        shares = torch.sigmoid(masks).unflatten(1, (self.heads + 1, self.width)) if self.mask else None

        def keys(part: slice) -> Keys:
            return Keys(vectors[:, part], strengths[:, part], None if shares is None else shares[:, part])

        return Interface(
            keys(slice(0, 1)),
            keys(slice(1, None)),
            torch.sigmoid(erase),
            vector,
            torch.sigmoid(write),
            torch.sigmoid(allocate) if self.allocation else None,
            torch.sigmoid(free).unsqueeze(2) if free.shape[1] else None,
            torch.softmax(modes.unflatten(1, (self.heads, 3)), 2) if self.link else None,
            one_plus(sharp).unflatten(1, (self.heads, 2)) if self._sharpens else None,
        )

    def step(
        self,
        interface: Tensor,
        state: MemoryState,
        slots: Slots | None = None,
        trace: list[AddressingTrace] | None = None,
    ) -> MemoryState:
        slots, parts = slots or Slots(state.memory), self.interface(interface)
        retention = None if parts.free_gates is None else (1 - parts.free_gates * state.read_weights).prod(1)
        cosine = slots.look(parts.write_key, parts.read_keys)
        content = content_weights(cosine, parts.write_key.strengths, self.addressing)
        write, usage = content[:, 0], None
        if parts.allocation_gate is not None:
            assert state.usage is not None and retention is not None
            # u = (u + w - u o w) o psi; w = g (a allocation + (1 - a) content)
            written_before = state.write_weights.detach()
            usage = (state.usage + written_before * (1 - state.usage)) * retention
            write = parts.allocation_gate * allocation_weights(usage) + (1 - parts.allocation_gate) * write
        write = parts.write_gate * write
        emptied = retention if self.deallocation else None
        slots.write(write, parts.erase, parts.vector, emptied)
        read_cosine = slots.look(parts.read_keys)
        read_content = content_weights(read_cosine, parts.read_keys.strengths, self.addressing)
        weights, precedence, link = read_content, None, None
        if parts.modes is not None:
            assert state.link is not None and state.precedence is not None
            link, backward, forward = slots.follow(state.link, write, state.precedence, state.read_weights)
            precedence = (1 - write.sum(1, keepdim=True)) * state.precedence + write
            if parts.sharpness is not None:
                backward = self._sharpened(backward, parts.sharpness[:, :, :1])
                forward = self._sharpened(forward, parts.sharpness[:, :, 1:])
            to_backward, to_content, to_forward = parts.modes.split(1, 2)
            weights = to_backward * backward + to_content * read_content + to_forward * forward
        if trace is not None:
            of_write, of_read = (cosine, content, write.unsqueeze(1)), (read_cosine, read_content, weights)
            trace.append(AddressingTrace.of_heads(of_write, of_read, parts.erase, emptied))
        return MemoryState(slots.memory, slots.read(weights), weights, write, usage, precedence, link)

    def _sharpened(self, weights: Tensor, power: Tensor) -> Tensor:
        return sharpened(weights + EPSILON if self.sharpening == "epsilon" else weights, power)


def allocation_weights(usage: Tensor) -> Tensor:
    """Allocation weights (B, N) from usage: (1 - u) times the product of the usage of all slots that are freer."""
    return _AllocationWeights.apply(usage)  # type: ignore[return-value]


class _AllocationWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, usage):  # type: ignore[override]
        ranked, order = usage.sort(dim=1, stable=True)
        ranked = ranked.mul_(1 - EPSILON).add_(EPSILON)
        freer = torch.ones_like(ranked)
        torch.cumprod(ranked[:, :-1], 1, out=freer[:, 1:])
        ctx.save_for_backward(ranked, order, freer)
        return torch.empty_like(usage).scatter_(1, order, (1 - ranked) * freer)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_weights):  # type: ignore[override]
        ranked, order, freer = ctx.saved_tensors
        d_ranked = d_weights.gather(1, order).mul_(freer)
        # Each usage is a factor of all products after it: sums from the end.
        factors = (d_ranked * (1 - ranked)).flip(1).cumsum(1).flip(1)
        d_ranked[:, :-1] -= factors[:, 1:] / ranked[:, :-1]
        return torch.empty_like(ranked).scatter_(1, order, d_ranked).mul_(EPSILON - 1)
