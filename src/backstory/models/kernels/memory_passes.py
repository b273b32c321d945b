"""Passes of a step over a memory and its temporal link; their backward passes store inputs and outputs alone."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from backstory.storage.provenance import processor

LARGE = 1 << 21
"""Numbers from which a memory fits in no cache."""

PIECE = 1 << 17
"""Numbers that are processed at a time, so that they stay in the processor's cache."""


def pieces(count: int, slots: int, width: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of `count` memories and of their slots that are processed together: whole memories, or part of one."""
    several, step = at_once(slots * width), at_once(width)
    for first in range(0, count, several):
        for i in range(0, slots, step):
            yield slice(first, first + several), slice(i, min(i + step, slots))


def pieces_of(tensor: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield the pieces of memories (B, N, M) or links (B, N, N); on a GPU there is one piece."""
    return pieces(*tensor.shape) if tensor.device.type == "cpu" else iter([(slice(None), slice(None))])


def at_once(numbers: int) -> int:
    """Return how many items of this many numbers are processed together."""
    return max(1, PIECE // max(1, numbers))


def scratch_for(tensor: Tensor) -> Tensor:
    """Return a buffer that holds each of `pieces_of` the tensor."""
    largest = max(PIECE, tensor.shape[2]) if tensor.device.type == "cpu" else tensor.numel()
    return tensor.new_empty(min(tensor.numel(), largest))


def write_into(
    new: Tensor,
    slots: Tensor,
    weights: Tensor,
    erase: Tensor,
    vector: Tensor,
    retention: Tensor | None,
    scratch: Tensor | None = None,
) -> None:
    """Write (`written`) slots (B, n, M) into `new`: w and retention (B, n), e and v (B, M).

    `scratch` is needed if `new` is `slots`.
    """
    shares = new if scratch is None else scratch[: slots.numel()].view_as(slots)
    if retention is None:
        retention = torch.ones_like(weights)
    torch.addcmul(retention.unsqueeze(2), (retention * weights).unsqueeze(2), erase.unsqueeze(1), value=-1, out=shares)
    torch.mul(slots, shares, out=new).addcmul_(weights.unsqueeze(2), vector.unsqueeze(1))


def follow_into(
    new: Tensor, link: Tensor, write: Tensor, precedence: Tensor, weights: Tensor, scratch: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the next link (`followed`) of links (B, N, N) with w and p (B, N) into `new`.

    `scratch`, of one piece at least, is needed if `new` is `link`. Returns the weights of heads with weights (B, R, N) that
    follow the new link back and forward, each (B, R, N).
    """
    for b, part in pieces_of(link):
        old, w = link[b, part], write[b]
        shares = new[b, part] if scratch is None else scratch[: old.numel()].view_as(old)
        torch.sub((1 - w[:, part]).unsqueeze(2), w.unsqueeze(1), out=shares)
        updated = torch.mul(old, shares, out=new[b, part])
        updated.addcmul_(w[:, part].unsqueeze(2), precedence[b].unsqueeze(1))
    new.diagonal(dim1=1, dim2=2).zero_()
    return torch.bmm(weights, new), torch.bmm(weights, new.transpose(1, 2))


def written(memory: Tensor, weights: Tensor, erase: Tensor, vector: Tensor, retention: Tensor | None) -> Tensor:
    """EM o (1 - w e^T) + w v^T of memory EM (B, N, M), multiplied by retention (B, N) first: w (B, N), e and v (B, M)."""
    return _Written.apply(memory, weights, erase, vector, retention)  # type: ignore[return-value]


def key_products(memory: Tensor, keys: Tensor) -> Tensor:
    """k.m of every slot of memory (B, N, M) with every key (B, H, M): (B, H, N)."""
    if memory.device.type == "cpu" and memory.numel() >= LARGE and _memory_first():
        return torch.bmm(memory, keys.transpose(1, 2)).transpose(1, 2).contiguous()
    return torch.bmm(keys, memory.transpose(1, 2))


@cache
def _memory_first() -> bool:
    """True if EM k is faster than k EM^T for a large memory: two to four times on AMD's processors, but 12 times slower on
    Intel's.

    The make of the processor decides, and no measurement: a close race could end differently when a run is resumed, and the two
    products round differently.
    """
    return any(name in processor() for name in ("AMD ", "AuthenticAMD"))


def squared_lengths(memory: Tensor, shares: Tensor) -> Tensor:
    """sum_i z_i m_i^2 of every slot of memory (B, N, M), with the shares z (B, H, M) of every head: (B, H, N)."""
    lengths = memory.new_empty(*shares.shape[:2], memory.shape[1])
    scratch = scratch_for(memory)
    for b, part in pieces_of(memory):
        slots = memory[b, part]
        squares = torch.mul(slots, slots, out=scratch[: slots.numel()].view_as(slots))
        lengths[b, :, part] = key_products(squares, shares[b])
    return lengths


def outer(a: Tensor, b: Tensor) -> Tensor:
    """Sum the outer products of all heads: (B, H, N) and (B, H, M) -> (B, N, M)."""
    across = a.transpose(1, 2)
    return across * b if a.shape[1] == 1 else torch.bmm(across, b)  # bmm is slow for a single head


def followed(
    link: Tensor, write: Tensor, precedence: Tensor, weights: Tensor, overwrite: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the link after a write, and the weights of heads that follow it back and forward.

    (1 - w_i - w_j) L[i, j] + w_i p_j with zeros on the diagonal, for link (B, N, N), w and p (B, N); and the weights (B, R, N)
    of the heads times it and times its transpose. With `overwrite` the backward pass writes the gradient of the old link over
    that of the new one.
    """
    return _Followed.apply(link, write, precedence, weights, overwrite)  # type: ignore[return-value]


class _Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, memory, weights, erase, vector, retention):  # type: ignore[override]
        ctx.save_for_backward(memory, weights, erase, vector, retention)
        new = torch.empty_like(memory)
        for b, part in pieces_of(memory):
            retained = None if retention is None else retention[b, part]
            write_into(new[b, part], memory[b, part], weights[b, part], erase[b], vector[b], retained)
        return new

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_new):  # type: ignore[override]
        memory, weights, erase, vector, retention = ctx.saved_tensors
        across = weights.unsqueeze(1)
        product = d_new * memory
        if retention is not None:
            product.mul_(retention.unsqueeze(2))
        d_weights = (torch.bmm(d_new, vector.unsqueeze(2)) - torch.bmm(product, erase.unsqueeze(2))).squeeze(2)
        d_erase, d_vector = -torch.bmm(across, product).squeeze(1), torch.bmm(across, d_new).squeeze(1)
        d_memory = torch.mul(d_new, erase.unsqueeze(1), out=product)
        torch.addcmul(d_new, weights.unsqueeze(2), product, value=-1, out=d_memory)
        if retention is None:
            return d_memory, d_weights, d_erase, d_vector, None
        d_retention = (d_memory * memory).sum(2)
        return d_memory.mul_(retention.unsqueeze(2)), d_weights, d_erase, d_vector, d_retention


class _Followed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, link, write, precedence, weights, overwrite):  # type: ignore[override]
        new = torch.empty_like(link)
        backward, forward = follow_into(new, link, write, precedence, weights)
        ctx.save_for_backward(link, new, write, precedence, weights)
        ctx.overwrite = overwrite
        return new, backward, forward

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_new, d_backward, d_forward):  # type: ignore[override]
        link, new, write, precedence, weights = ctx.saved_tensors
        d_link = d_new if ctx.overwrite else torch.empty_like(link).copy_(d_new)
        d_weights = torch.bmm(d_backward, new.transpose(1, 2)).baddbmm_(d_forward, new)
        d_write, d_precedence = torch.empty_like(write), torch.empty_like(precedence)
        several = at_once(link[0].numel()) if link.device.type == "cpu" else len(link)
        scratch = torch.empty_like(link[:several])
        for i in range(0, len(link), several):
            b = slice(i, i + several)
            d, w, p = d_link[b], write[b], precedence[b]
            heads = weights[b].unbind(1), d_backward[b].unbind(1), d_forward[b].unbind(1)
            for head, d_back, d_ahead in zip(*heads, strict=True):
                d.addcmul_(head.unsqueeze(2), d_back.unsqueeze(1)).addcmul_(d_ahead.unsqueeze(2), head.unsqueeze(1))
            d.diagonal(dim1=1, dim2=2).zero_()
            shares = torch.mul(d, link[b], out=scratch[: len(d)])
            d_write[b] = torch.bmm(d, p.unsqueeze(2)).squeeze(2) - shares.sum(2) - shares.sum(1)
            d_precedence[b] = torch.bmm(w.unsqueeze(1), d).squeeze(1)
            d.mul_(torch.sub((1 - w).unsqueeze(2), w.unsqueeze(1), out=shares))
        return d_link, d_write, d_precedence, d_weights, None
