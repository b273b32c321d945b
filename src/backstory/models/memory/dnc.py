"""The differentiable neural computer's memory (Graves et al. 2016) and its three additions (Csordas and Schmidhuber 2019).

Usage and allocation say which rows are free, the temporal link which row was written after which. Mask, de-allocation and
sharpness of the link's distribution are the additions; with all of them it is the MDM-NTM.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from backstory.models.memory.addressing import EPSILON, Keys, content_weights
from backstory.models.memory.interface import Looked, Machine, MemoryState, one_plus, sharpened
from backstory.models.memory.rows import Rows


class Said(NamedTuple):
    """What the controller says at a step, squashed; None for what the machine does not have."""

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
    """The order of writing is known, and heads can follow it."""
    allocation: bool = True
    """What is written can go where the memory is free."""
    mask: bool = False
    """Heads choose which numbers of a row and of their key count."""
    deallocation: bool = False
    """Rows that are set free are emptied."""
    sharpness: bool = False
    """Heads sharpen what the link says."""
    sharpening: Literal["plain", "epsilon"] = "plain"
    """With `epsilon`, EPSILON is added to what the link says before it is sharpened: an empty row becomes uniform."""

    @property
    def _sizes(self) -> list[int]:
        """Of what is said, in order."""
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

    def said(self, interface: Tensor) -> Said:
        """The parts of the interface (B, interface_size)."""
        parts = interface.split(self._sizes, 1)
        vectors, strengths, erase, vector, write, allocate, free, modes, masks, sharp = parts
        vectors = vectors.unflatten(1, (self.heads + 1, self.width))
        strengths = one_plus(strengths)
        shares = torch.sigmoid(masks).unflatten(1, (self.heads + 1, self.width)) if self.mask else None

        def keys(part: slice) -> Keys:
            return Keys(vectors[:, part], strengths[:, part], None if shares is None else shares[:, part])

        return Said(
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
        self, interface: Tensor, state: MemoryState, rows: Rows | None = None, looked: list[Looked] | None = None
    ) -> MemoryState:
        rows = rows or Rows(state.memory)
        said = self.said(interface)
        kept = None if said.free_gates is None else (1 - said.free_gates * state.read_weights).prod(1)
        found = rows.look(said.write_key, said.read_keys)
        content = content_weights(found, said.write_key.strengths, self.addressing)
        write, usage = content[:, 0], None
        if said.allocation_gate is not None:
            assert state.usage is not None and kept is not None
            before = state.write_weights.detach()
            usage = (state.usage + before * (1 - state.usage)) * kept
            write = said.allocation_gate * free_rows(usage) + (1 - said.allocation_gate) * write
        write = said.write_gate * write
        staying = kept if self.deallocation else None
        rows.write(write, said.erase, said.vector, staying)
        found_then = rows.look(said.read_keys)
        content_then = content_weights(found_then, said.read_keys.strengths, self.addressing)
        weights, precedence, link = content_then, None, None
        if said.modes is not None:
            assert state.link is not None and state.precedence is not None
            link, backward, forward = rows.follow(state.link, write, state.precedence, state.read_weights)
            precedence = (1 - write.sum(1, keepdim=True)) * state.precedence + write
            if said.sharpness is not None:
                backward = self._sharpened(backward, said.sharpness[:, :, :1])
                forward = self._sharpened(forward, said.sharpness[:, :, 1:])
            back, here, on = said.modes.split(1, 2)
            weights = back * backward + here * content_then + on * forward
        if looked is not None:
            of_write, of_read = (found, content, write.unsqueeze(1)), (found_then, content_then, weights)
            looked.append(Looked.of_heads(of_write, of_read, said.erase, staying))
        return MemoryState(rows.memory, rows.read(weights), weights, write, usage, precedence, link)

    def _sharpened(self, weights: Tensor, power: Tensor) -> Tensor:
        return sharpened(weights + EPSILON if self.sharpening == "epsilon" else weights, power)


def free_rows(usage: Tensor) -> Tensor:
    """Allocation weights (B, N) from usage: (1 - u) times the product of the usage of all rows that are freer."""
    return _FreeRows.apply(usage)  # type: ignore[return-value]


class _FreeRows(torch.autograd.Function):
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
    def backward(ctx: Any, d_found):  # type: ignore[override]
        ranked, order, freer = ctx.saved_tensors
        d_ranked = d_found.gather(1, order).mul_(freer)
        # Each usage is a factor of what follows it: sums from behind.
        factors = (d_ranked * (1 - ranked)).flip(1).cumsum(1).flip(1)
        d_ranked[:, :-1] -= factors[:, 1:] / ranked[:, :-1]
        return torch.empty_like(ranked).scatter_(1, order, d_ranked).mul_(EPSILON - 1)
