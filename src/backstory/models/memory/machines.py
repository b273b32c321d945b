"""External memories as machines: from the controller's output and a state to the next state and its reads.

The neural Turing machine (Graves et al. 2014; eqs. 2 to 7 of Lee et al. 2020), and the differentiable neural computer (Graves
et al. 2016) with three additions (Csordas and Schmidhuber 2019): masked keys, de-allocation and a sharpened link distribution.
With all of them it is the core `mdm`.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from backstory.models.memory.addressing import (
    EPSILON,
    Addressing,
    allocation_weights,
    content_weights,
    located,
    sharpened,
)
from backstory.models.memory.slots import Keys, Slots


class MemoryState(NamedTuple):
    """A memory of N slots of size M with R read heads; parts that a kind of memory lacks are None."""

    memory: Tensor
    """(B, N, M)"""
    reads: Tensor
    """(B, R, M): the last reads."""
    read_weights: Tensor
    """(B, R, N)"""
    write_weights: Tensor
    """(B, N)"""
    usage: Tensor | None = None
    """(B, N)"""
    precedence: Tensor | None = None
    """(B, N): the degree to which each slot was the last one written."""
    link: Tensor | None = None
    """(B, N, N): [i, j] is the degree to which slot i was written after slot j."""

    def tensors(self) -> list[Tensor]:
        """Return the tensors that are not None, in order."""
        return [t for t in self if t is not None]

    def like(self, tensors: Iterable[Tensor]) -> "MemoryState":
        """Return a state of the same parts from as many tensors."""
        left = iter(tensors)
        return MemoryState(*(cast(Tensor, None if t is None else next(left)) for t in self))

    def restarted(self, start: "MemoryState", mask: Tensor) -> "MemoryState":
        """Return this state with `start`, of batch size 1, in the texts of the mask (B,)."""
        pairs = zip(start.tensors(), self.tensors(), strict=True)
        return self.like(torch.where(expand_mask(mask, now), first, now) for first, now in pairs)


class AddressingTrace(NamedTuple):
    """The addressing of one step, recorded to be shown: the write head first, then the read heads."""

    cosines: Tensor
    """(B, 1 + R, N)"""
    content: Tensor
    """(B, 1 + R, N): the weights of content alone."""
    weights: Tensor
    """(B, 1 + R, N): the final weights."""
    left: Tensor
    """(B, N): the share of a slot's content that survives the write, on average over its numbers."""

    @classmethod
    def of_heads(
        cls, write: tuple[Tensor, ...], read: tuple[Tensor, ...], erase: Tensor, retention: Tensor | None = None
    ) -> "AddressingTrace":
        """Build the trace from cosines, content and weights of the write head (B, 1, N) and of the read heads (B, R, N).

        `erase` (B, M) is the erase vector, and `retention` (B, N) the share of each slot that was not freed before.
        """
        left = 1 - write[-1][:, 0] * erase.mean(1, keepdim=True)
        cosines, content, weights = (torch.cat(pair, 1) for pair in zip(write, read, strict=True))
        return cls(cosines, content, weights, left if retention is None else retention * left)


@dataclass(frozen=True)
class Machine(ABC):
    """The rules by which a memory is addressed, read and written. It has no weights."""

    slots: int
    """N"""
    width: int
    """M"""
    heads: int
    """R, the number of read heads; one more head writes."""
    addressing: Addressing

    @property
    @abstractmethod
    def interface_size(self) -> int:
        """Return the size of the controller's output for a step."""

    @abstractmethod
    def start(self, like: Tensor, batch_size: int) -> MemoryState:
        """Return the state before the first step, of `like`'s dtype and device."""

    @abstractmethod
    def step(
        self,
        interface: Tensor,
        state: MemoryState,
        slots: Slots | None = None,
        trace: list[AddressingTrace] | None = None,
    ) -> MemoryState:
        """Write, then read: from the controller's output (B, interface_size) and a state to the next state.

        Differentiable and without side effects, unless the `slots`, which hold the state's memory, work in place. Appends the
        addressing to `trace`.
        """

    def empty(self, like: Tensor, batch_size: int) -> MemoryState:
        """Return a memory of zeros, before anything was read."""
        zeros = like.new_zeros
        shape = (batch_size, self.heads, self.slots)
        return MemoryState(
            zeros(batch_size, self.slots, self.width),
            zeros(batch_size, self.heads, self.width),
            zeros(shape),
            zeros(batch_size, self.slots),
        )

    def _content(self, slots: Slots, keys: Keys, later: Keys | None = None) -> tuple[Tensor, Tensor]:
        """Return the cosines of slots and keys, and the weights of content alone; `later` as for `Slots.look`."""
        cosine = slots.look(keys, later)
        return cosine, content_weights(cosine, keys.strengths, self.addressing)


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

        cosine, content = self._content(slots, first, others)
        write = self._located(content, state.write_weights.unsqueeze(1), [x[:, :1] for x in location])[:, 0]
        erase = torch.sigmoid(erase)
        slots.write(write, erase, vector, None)
        read_cosine, read_content = self._content(slots, others)
        weights = self._located(read_content, state.read_weights, [x[:, 1:] for x in location])
        if trace is not None:
            of_write, of_read = (cosine, content, write.unsqueeze(1)), (read_cosine, read_content, weights)
            trace.append(AddressingTrace.of_heads(of_write, of_read, erase))
        return MemoryState(slots.memory, slots.read(weights), weights, write)

    def _located(self, content: Tensor, before: Tensor, location: Sequence[Tensor]) -> Tensor:
        return content if self.addressing.kind == "window" else located(content, before, *location)


class Interface(NamedTuple):
    """The controller's output at a step after its nonlinearities; parts that the machine lacks are None."""

    write_key: Keys
    read_keys: Keys
    erase: Tensor
    """(B, M)"""
    vector: Tensor
    """(B, M)"""
    write_gate: Tensor
    """(B, 1): g_w"""
    allocation_gate: Tensor | None
    """(B, 1): g_a"""
    free_gates: Tensor | None
    """(B, R, 1): f"""
    modes: Tensor | None
    """(B, R, 3): m, backward, content, forward."""
    sharpness: Tensor | None
    """(B, R, 2): rho, backward, forward."""


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
        retention = None
        if parts.free_gates is not None:  # the gradient of `prod` waits for the device, which no CUDA graph can record
            retention = functools.reduce(torch.mul, (1 - parts.free_gates * state.read_weights).unbind(1))
        cosine, content = self._content(slots, parts.write_key, parts.read_keys)
        write, usage = content[:, 0], None
        if parts.allocation_gate is not None:
            assert state.usage is not None and retention is not None
            # u_t = (u_{t-1} + w_{t-1} - u_{t-1} w_{t-1}) psi, w_t = g_w (g_a a + (1 - g_a) CA); psi is the retention.
            # No gradient through w, as in DeepMind's code; the published equations have it.
            written_before = state.write_weights.detach()
            usage = (state.usage + written_before * (1 - state.usage)) * retention
            write = parts.allocation_gate * allocation_weights(usage) + (1 - parts.allocation_gate) * write
        write = parts.write_gate * write
        emptied = retention if self.deallocation else None
        slots.write(write, parts.erase, parts.vector, emptied)
        read_cosine, read_content = self._content(slots, parts.read_keys)
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


def expand_mask(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask (B,) that broadcasts to a tensor (B, ...)."""
    return mask.view(-1, *[1] * (like.dim() - 1))


def one_plus(x: Tensor) -> Tensor:
    """Return 1 + log(1 + e^x): at least 1."""
    return 1 + F.softplus(x)
