"""What a step does to a memory and to a link, with gradients that keep nothing but what was given and what came of it."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from backstory.storage.provenance import processor

LARGE = 1 << 21
"""Numbers from which a memory is in no cache."""

PIECE = 1 << 17
"""Numbers that are worked on at a time: they stay in the processor's cache."""


def pieces(count: int, rows: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Which of so many memories, and which of their rows of that size, are worked on together: whole ones, or part of one."""
    several, step = at_once(rows * size), at_once(size)
    for first in range(0, count, several):
        for i in range(0, rows, step):
            yield slice(first, first + several), slice(i, min(i + step, rows))


def pieces_of(tensor: Tensor) -> Iterator[tuple[slice, slice]]:
    """Of memories (B, N, M) or links; all of them together where it is not a processor's cache that decides."""
    return pieces(*tensor.shape) if tensor.device.type == "cpu" else iter([(slice(None), slice(None))])


def at_once(numbers: int) -> int:
    """How many of what has so many numbers are worked on together."""
    return max(1, PIECE // max(1, numbers))


def scratch_for(tensor: Tensor) -> Tensor:
    """Room for each of `pieces_of` it."""
    largest = max(PIECE, tensor.shape[2]) if tensor.device.type == "cpu" else tensor.numel()
    return tensor.new_empty(min(tensor.numel(), largest))


def write_into(
    new: Tensor,
    rows: Tensor,
    weights: Tensor,
    erase: Tensor,
    vector: Tensor,
    kept: Tensor | None,
    scratch: Tensor | None = None,
) -> None:
    """Of rows (B, n, M) of some memories with w and kept (B, n), e and v (B, M); `scratch` where `new` is `rows`."""
    shares = new if scratch is None else scratch[: rows.numel()].view_as(rows)
    if kept is None:
        kept = torch.ones_like(weights)
    torch.addcmul(kept.unsqueeze(2), (kept * weights).unsqueeze(2), erase.unsqueeze(1), value=-1, out=shares)
    torch.mul(rows, shares, out=new).addcmul_(weights.unsqueeze(2), vector.unsqueeze(1))


def follow_into(
    new: Tensor, link: Tensor, write: Tensor, precedence: Tensor, weights: Tensor, scratch: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Of links (B, N, N) with w and p (B, N); `scratch` of a piece at least where `new` is `link`.

    Returns what heads of weights (B, R, N) find when they follow the new link back and on (B, R, N).
    """
    for b, rows in pieces_of(link):
        old, mine = link[b, rows], write[b]
        shares = new[b, rows] if scratch is None else scratch[: old.numel()].view_as(old)
        torch.sub((1 - mine[:, rows]).unsqueeze(2), mine.unsqueeze(1), out=shares)
        now = torch.mul(old, shares, out=new[b, rows])
        now.addcmul_(mine[:, rows].unsqueeze(2), precedence[b].unsqueeze(1))
    new.diagonal(dim1=1, dim2=2).zero_()
    return torch.bmm(weights, new), torch.bmm(weights, new.transpose(1, 2))


def written(memory: Tensor, weights: Tensor, erase: Tensor, vector: Tensor, kept: Tensor | None) -> Tensor:
    """EM o (1 - w e^T) + w v^T of memory (B, N, M), w (B, N), e and v (B, M), and first EM o kept (B, N)."""
    return _Written.apply(memory, weights, erase, vector, kept)  # type: ignore[return-value]


def matches(memory: Tensor, keys: Tensor) -> Tensor:
    """k.m of every row of memory (B, N, M) with every key (B, H, M): (B, H, N)."""
    if memory.device.type == "cpu" and memory.numel() >= LARGE and _memory_first():
        return torch.bmm(memory, keys.transpose(1, 2)).transpose(1, 2).contiguous()
    return torch.bmm(keys, memory.transpose(1, 2))


@cache
def _memory_first() -> bool:
    """Whether EM k is faster than k EM^T for a memory in no cache: on AMD's processors it is two to four times as fast, on
    Intel's up to 12 times as slow."""
    return any(name in processor() for name in ("AMD ", "AuthenticAMD"))


def squared_lengths(memory: Tensor, shares: Tensor) -> Tensor:
    """Of every row of memory (B, N, M) for every head, with shares (B, H, M) of the squares of its numbers: (B, H, N)."""
    found = memory.new_empty(*shares.shape[:2], memory.shape[1])
    scratch = scratch_for(memory)
    for b, some in pieces_of(memory):
        rows = memory[b, some]
        squares = torch.mul(rows, rows, out=scratch[: rows.numel()].view_as(rows))
        found[b, :, some] = matches(squares, shares[b])
    return found


def outer(a: Tensor, b: Tensor) -> Tensor:
    """Sums over heads of products: (B, H, N) and (B, H, M) to (B, N, M)."""
    across = a.transpose(1, 2)
    return across * b if a.shape[1] == 1 else torch.bmm(across, b)  # which is slow for a single one


def followed(
    link: Tensor, write: Tensor, precedence: Tensor, weights: Tensor, over: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The link after a write, and what heads find when they follow it back and on.

    (1 - w_i - w_j) L[i, j] + w_i p_j with zeros on the diagonal, of link (B, N, N), w and p (B, N); the weights
    (B, R, N) of heads times it and times its transpose. With `over` the gradient of the link after is overwritten by that of
    the link before, for who has no other use for it.
    """
    return _Followed.apply(link, write, precedence, weights, over)  # type: ignore[return-value]


class _Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, memory, weights, erase, vector, kept):  # type: ignore[override]
        ctx.save_for_backward(memory, weights, erase, vector, kept)
        new = torch.empty_like(memory)
        for b, some in pieces_of(memory):
            left = None if kept is None else kept[b, some]
            write_into(new[b, some], memory[b, some], weights[b, some], erase[b], vector[b], left)
        return new

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_new):  # type: ignore[override]
        memory, weights, erase, vector, kept = ctx.saved_tensors
        across = weights.unsqueeze(1)
        there = d_new * memory
        if kept is not None:
            there.mul_(kept.unsqueeze(2))
        d_weights = (torch.bmm(d_new, vector.unsqueeze(2)) - torch.bmm(there, erase.unsqueeze(2))).squeeze(2)
        d_erase, d_vector = -torch.bmm(across, there).squeeze(1), torch.bmm(across, d_new).squeeze(1)
        d_memory = torch.mul(d_new, erase.unsqueeze(1), out=there)
        torch.addcmul(d_new, weights.unsqueeze(2), there, value=-1, out=d_memory)
        if kept is None:
            return d_memory, d_weights, d_erase, d_vector, None
        d_kept = (d_memory * memory).sum(2)
        return d_memory.mul_(kept.unsqueeze(2)), d_weights, d_erase, d_vector, d_kept


class _Followed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, link, write, precedence, weights, over):  # type: ignore[override]
        new = torch.empty_like(link)
        found = follow_into(new, link, write, precedence, weights)
        ctx.save_for_backward(link, new, write, precedence, weights)
        ctx.over = over
        return new, *found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_new, d_back, d_on):  # type: ignore[override]
        link, new, write, precedence, weights = ctx.saved_tensors
        d_link = d_new if ctx.over else torch.empty_like(link).copy_(d_new)
        d_weights = torch.bmm(d_back, new.transpose(1, 2)).baddbmm_(d_on, new)
        d_write, d_precedence = torch.empty_like(write), torch.empty_like(precedence)
        several = at_once(link[0].numel()) if link.device.type == "cpu" else len(link)
        scratch = torch.empty_like(link[:several])
        for i in range(0, len(link), several):
            b = slice(i, i + several)
            d, w, p = d_link[b], write[b], precedence[b]
            for at, back, on in zip(weights[b].unbind(1), d_back[b].unbind(1), d_on[b].unbind(1), strict=True):
                d.addcmul_(at.unsqueeze(2), back.unsqueeze(1)).addcmul_(on.unsqueeze(2), at.unsqueeze(1))
            d.diagonal(dim1=1, dim2=2).zero_()
            shares = torch.mul(d, link[b], out=scratch[: len(d)])
            d_write[b] = torch.bmm(d, p.unsqueeze(2)).squeeze(2) - shares.sum(2) - shares.sum(1)
            d_precedence[b] = torch.bmm(w.unsqueeze(1), d).squeeze(1)
            d.mul_(torch.sub((1 - w).unsqueeze(2), w.unsqueeze(1), out=shares))
        return d_link, d_write, d_precedence, d_weights, None
