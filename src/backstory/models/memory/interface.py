"""The one step interface of the external memories: what a controller says to a memory, and what it reads of it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from backstory.models.memory.addressing import EPSILON, Addressing
from backstory.models.memory.rows import Rows


class MemoryState(NamedTuple):
    """A memory of N rows of size M with R read heads; what a kind of memory does not have is None."""

    memory: Tensor
    """(B, N, M)"""
    reads: Tensor
    """(B, R, M): what was read last."""
    read_weights: Tensor
    """(B, R, N)"""
    write_weights: Tensor
    """(B, N)"""
    usage: Tensor | None = None
    """(B, N)"""
    precedence: Tensor | None = None
    """(B, N): how far each row is the one that was written last."""
    link: Tensor | None = None
    """(B, N, N): [i, j] is how far row i was written after row j."""

    def tensors(self) -> list[Tensor]:
        """Those that are there, in order."""
        return [t for t in self if t is not None]

    def like(self, tensors: Iterable[Tensor]) -> "MemoryState":
        """A state of the same parts out of as many tensors."""
        left = iter(tensors)
        return MemoryState(*(cast(Tensor, None if t is None else next(left)) for t in self))

    def restarted(self, start: "MemoryState", rows: Tensor) -> "MemoryState":
        """A new state, which is as `start`, of one row or as many, in the rows (B,) that are true."""
        pairs = zip(start.tensors(), self.tensors(), strict=True)
        return self.like(torch.where(along(rows, now), first, now) for first, now in pairs)


class Looked(NamedTuple):
    """How a step found its rows, for who wants to see it: write head first, then the read heads."""

    cosines: Tensor
    """(B, 1 + R, N)"""
    content: Tensor
    """(B, 1 + R, N): the weights of content alone."""
    weights: Tensor
    """(B, 1 + R, N): the weights that came of it."""
    left: Tensor
    """(B, N): the share of what a row held, on average over its numbers, that is left when the step has written."""

    @classmethod
    def of_heads(
        cls, write: tuple[Tensor, ...], read: tuple[Tensor, ...], erase: Tensor, kept: Tensor | None = None
    ) -> "Looked":
        """From cosines, content and weights of the write head (B, 1, N) and of the read heads (B, R, N).

        `erase` (B, M) is what is erased, and `kept` (B, N) the share of each row that was not set free before.
        """
        left = 1 - write[-1][:, 0] * erase.mean(1, keepdim=True)
        cosines, content, weights = (torch.cat(pair, 1) for pair in zip(write, read, strict=True))
        return cls(cosines, content, weights, left if kept is None else kept * left)


@dataclass(frozen=True)
class Machine(ABC):
    """A memory: how it is addressed, read and written. It has no weights of its own."""

    slots: int
    """N"""
    width: int
    """M"""
    heads: int
    """R, that read; one writes."""
    addressing: Addressing

    @property
    @abstractmethod
    def interface_size(self) -> int:
        """Numbers that the controller says at a step."""

    @abstractmethod
    def start(self, like: Tensor, batch_size: int) -> MemoryState:
        """The state before the first step, of `like`'s dtype and device."""

    @abstractmethod
    def step(
        self, interface: Tensor, state: MemoryState, rows: Rows | None = None, looked: list[Looked] | None = None
    ) -> MemoryState:
        """Write, then read: what the controller says (B, interface_size) and the state before to the state after.

        Differentiable, and nothing given is changed, unless `rows`, which hold the state's memory, do otherwise. Tells `looked`
        how the rows were found.
        """

    def empty(self, like: Tensor, batch_size: int) -> MemoryState:
        """A memory of zeros, that nothing was read of."""
        zeros = like.new_zeros
        shape = (batch_size, self.heads, self.slots)
        return MemoryState(
            zeros(batch_size, self.slots, self.width),
            zeros(batch_size, self.heads, self.width),
            zeros(shape),
            zeros(batch_size, self.slots),
        )


def along(rows: Tensor, like: Tensor) -> Tensor:
    """What is said of rows (B,) in the shape of a tensor (B, ...)."""
    return rows.view(-1, *[1] * (like.dim() - 1))


def one_plus(x: Tensor) -> Tensor:
    """1 + log(1 + e^x): at least 1."""
    return 1 + F.softplus(x)


def sharpened(weights: Tensor, power: Tensor) -> Tensor:
    """Weights (B, H, N) to a power (B, H, 1) of at least 1, normalised again; zeros stay zeros.

    Where even the sum of the powers of weight / EPSILON is below 1, it is next to nothing and not normalised: it fades.
    """
    return _Sharpened.apply(weights, power)  # type: ignore[return-value]


class _Sharpened(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights, power):  # type: ignore[override]
        # Powers of shares of the largest: nothing underflows, and a factor common to all rows has no gradient.
        largest = weights.amax(2, keepdim=True).clamp_min_(EPSILON)
        shares = (weights / largest).clamp_min_(0)
        powers = shares.pow(power)
        # At least 1 unless the largest was raised. Another bound beside EPSILON would let slopes be the product of both.
        total = powers.sum(2, keepdim=True)
        found = powers / total.clamp_min(1)
        ctx.save_for_backward(shares, power, found, largest, total)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_found):  # type: ignore[override]
        shares, power, found, largest, total = ctx.saved_tensors
        # Where next to nothing has weight, it was divided by 1, which has no gradient.
        d_powers = d_found - (d_found * found).sum(2, keepdim=True) * (total >= 1)
        d_power = (d_powers * torch.xlogy(found, shares)).sum(2, keepdim=True)
        return d_powers.mul_(shares.pow(power - 1)).mul_(power / (largest * total.clamp_min(1))), d_power
