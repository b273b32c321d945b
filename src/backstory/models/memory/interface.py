"""The step interface of the external memories: from the controller's output and a state to the next state and its reads."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from backstory.models.memory.addressing import EPSILON, Addressing
from backstory.models.memory.slots import Slots


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
    """The addressing of one step, for pictures: the write head first, then the read heads."""

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
    """R heads that read; one more writes."""
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


def expand_mask(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask (B,) that broadcasts to a tensor (B, ...)."""
    return mask.view(-1, *[1] * (like.dim() - 1))


def one_plus(x: Tensor) -> Tensor:
    """1 + log(1 + e^x): at least 1."""
    return 1 + F.softplus(x)


def sharpened(weights: Tensor, power: Tensor) -> Tensor:
    """Weights (B, H, N) to a power (B, H, 1) of at least 1, normalised again; zeros stay zeros.

    If all weights are so small that the powers of weight / EPSILON sum to less than 1, they are not normalised: they fade.
    """
    return _Sharpened.apply(weights, power)  # type: ignore[return-value]


class _Sharpened(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights, power):  # type: ignore[override]
        # Powers of shares of the largest: nothing underflows, and a factor common to all slots has no gradient.
        largest = weights.amax(2, keepdim=True).clamp_min_(EPSILON)
        shares = (weights / largest).clamp_min_(0)
        powers = shares.pow(power)
        # At least 1 unless the largest was raised to EPSILON. A second bound would multiply the slopes of the first.
        total = powers.sum(2, keepdim=True)
        output = powers / total.clamp_min(1)
        ctx.save_for_backward(shares, power, output, largest, total)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output):  # type: ignore[override]
        shares, power, output, largest, total = ctx.saved_tensors
        # Weights that fade were divided by 1, which has no gradient.
        d_powers = d_output - (d_output * output).sum(2, keepdim=True) * (total >= 1)
        d_power = (d_powers * torch.xlogy(output, shares)).sum(2, keepdim=True)
        return d_powers.mul_(shares.pow(power - 1)).mul_(power / (largest * total.clamp_min(1))), d_power
