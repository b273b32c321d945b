"""What a step does to a memory and to a link, with gradients that keep nothing but what was given."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

PIECE = 1 << 17
"""Numbers that are worked on at a time: they stay in the processor's cache."""


def pieces(count: int, rows: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Which of so many memories, and which of their rows of that size, are worked on together: whole ones, or part of one."""
    several, step = at_once(rows * size), at_once(size)
    for first in range(0, count, several):
        for i in range(0, rows, step):
            yield slice(first, first + several), slice(i, min(i + step, rows))


def at_once(numbers: int) -> int:
    """How many of what has so many numbers are worked on together."""
    return max(1, PIECE // max(1, numbers))


def scratch_for(memory: Tensor) -> Tensor:
    """Room for a piece of a memory (B, N, M) or of its link: a row of it at least."""
    return memory.new_empty(max(PIECE, *memory.shape[1:]))


def write_into(
    new: Tensor, rows: Tensor, weights: Tensor, erase: Tensor, vector: Tensor, kept: Tensor | None, scratch: Tensor
) -> None:
    """Of rows (B, n, M) of some memories with w (B, n), e and v (B, M); `new` may be `rows`."""
    if kept is not None:
        torch.mul(rows, kept.unsqueeze(2), out=new)
        rows = new
    torch.addcmul(vector.unsqueeze(1), rows, erase.unsqueeze(1), value=-1, out=scratch)
    torch.addcmul(rows, weights.unsqueeze(2), scratch, out=new)


def link_into(new: Tensor, link: Tensor, write: Tensor, precedence: Tensor, scratch: Tensor) -> None:
    """Of links (B, N, N) with w and p (B, N); `new` may be `link`, and `scratch` holds a piece at least."""
    for b, rows in pieces(len(link), link.shape[1], link.shape[2]):
        old, mine = link[b, rows], write[b]
        shares = scratch[: old.numel()].view_as(old)
        torch.sub((1 - mine[:, rows]).unsqueeze(2), mine.unsqueeze(1), out=shares)
        now = torch.mul(old, shares, out=new[b, rows])
        now.addcmul_(mine[:, rows].unsqueeze(2), precedence[b].unsqueeze(1))
    new.diagonal(dim1=1, dim2=2).zero_()


def written(memory: Tensor, weights: Tensor, erase: Tensor, vector: Tensor) -> Tensor:
    """EM o (1 - w e^T) + w v^T of memory (B, N, M), w (B, N), e and v (B, M)."""
    return _Written.apply(memory, weights, erase, vector)  # type: ignore[return-value]


def linked(link: Tensor, write: Tensor, precedence: Tensor) -> Tensor:
    """(1 - w_i - w_j) L[i, j] + w_i p_j with zeros on the diagonal: link (B, N, N), w and p (B, N)."""
    return _Linked.apply(link, write, precedence)  # type: ignore[return-value]


def squares(memory: Tensor) -> Tensor:
    """|EM[i]|^2: (B, N, M) -> (B, N)."""
    return _Squares.apply(memory)  # type: ignore[return-value]


class _Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, memory, weights, erase, vector):  # type: ignore[override]
        ctx.save_for_backward(memory, weights, erase, vector)
        added = torch.addcmul(vector.unsqueeze(1), memory, erase.unsqueeze(1), value=-1)
        return torch.addcmul(memory, weights.unsqueeze(2), added, out=added)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_new):  # type: ignore[override]
        memory, weights, erase, vector = ctx.saved_tensors
        across = weights.unsqueeze(1)
        there = d_new * memory
        d_weights = (torch.bmm(d_new, vector.unsqueeze(2)) - torch.bmm(there, erase.unsqueeze(2))).squeeze(2)
        d_erase, d_vector = -torch.bmm(across, there).squeeze(1), torch.bmm(across, d_new).squeeze(1)
        torch.mul(d_new, erase.unsqueeze(1), out=there)
        return torch.addcmul(d_new, weights.unsqueeze(2), there, value=-1, out=there), d_weights, d_erase, d_vector


class _Linked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, link, write, precedence):  # type: ignore[override]
        ctx.save_for_backward(link, write, precedence)
        new = torch.empty_like(link)
        link_into(new, link, write, precedence, scratch_for(link))
        return new

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_new):  # type: ignore[override]
        link, write, precedence = ctx.saved_tensors
        d_link, d_write, d_precedence = torch.empty_like(link), torch.empty_like(write), torch.empty_like(precedence)
        several = at_once(link[0].numel())
        scratch = torch.empty_like(link[:several])
        for i in range(0, len(link), several):
            b = slice(i, i + several)
            d, w, p = d_link[b].copy_(d_new[b]), write[b], precedence[b]
            d.diagonal(dim1=1, dim2=2).zero_()
            shares = torch.mul(d, link[b], out=scratch[: len(d)])
            d_write[b] = torch.bmm(d, p.unsqueeze(2)).squeeze(2) - shares.sum(2) - shares.sum(1)
            d_precedence[b] = torch.bmm(w.unsqueeze(1), d).squeeze(1)
            d.mul_(torch.sub((1 - w).unsqueeze(2), w.unsqueeze(1), out=shares))
        return d_link, d_write, d_precedence


class _Squares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, memory):  # type: ignore[override]
        ctx.save_for_backward(memory)
        return torch.linalg.vector_norm(memory, dim=2).square_()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_squares):  # type: ignore[override]
        (memory,) = ctx.saved_tensors
        return memory * (2 * d_squares).unsqueeze(2)
