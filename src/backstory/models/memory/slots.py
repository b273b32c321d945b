"""The slots of a memory: a step compares them with keys, writes and reads them, and follows the link between them.

`Slots` is differentiable, `SlotsInPlace` overwrites the memory where no gradient is wanted; both give the same numbers. A step
costs passes over the memory, and newly allocated memory costs more than any arithmetic. Passes therefore go piece by piece
through the processor's cache, and their backward passes store inputs and outputs alone. In place, the norms of the slots are
remembered, and slots without weight are skipped.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from backstory.models.memory.addressing import EPSILON
from backstory.storage.provenance import processor

LARGE = 1 << 21
"""Size from which a memory fits in no cache."""

PIECE = 1 << 17
"""Numbers that are processed at a time, so that they stay in the processor's cache."""


class Keys(NamedTuple):
    """Keys of H heads."""

    vectors: Tensor
    """(B, H, M)"""
    strengths: Tensor
    """(B, H), at least 1."""
    masks: Tensor | None = None
    """(B, H, M) in (0, 1): the weight of each number of a slot and of the key."""


class Slots:
    """Differentiable slots. No argument is changed, but with `overwrite` the gradient of a link in the backward pass is."""

    def __init__(self, memory: Tensor, overwrite: bool = False) -> None:
        self.memory, self.overwrite = memory, overwrite

    def look(self, keys: Keys, later: Keys | None = None) -> Tensor:
        """Return the cosines (B, H, N) of all slots with all keys. `later` are the keys of the look after the next write."""
        return cosines(self.memory, keys)

    def write(self, weights: Tensor, erase: Tensor, vector: Tensor, retention: Tensor | None) -> None:
        """EM o (1 - w e^T) + w v^T (eq. 7): w (B, N), e and v (B, M).

        `retention` (B, N) is the share of each slot that was not freed; it multiplies the memory first.
        """
        self.memory = _Written.apply(self.memory, weights, erase, vector, retention)  # type: ignore[assignment]

    def read(self, weights: Tensor) -> Tensor:
        """Return EM^T w (eq. 6) with the weights (B, R, N) of each head: (B, R, M)."""
        return torch.bmm(weights, self.memory)

    def follow(self, link: Tensor, write: Tensor, precedence: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the link (B, N, N) after a write w (B, N), and the weights of heads that follow it back and forward (B, R, N).

        The link is (1 - w_i - w_j) L[i, j] + w_i p_j with zeros on the diagonal; the heads have weights (B, R, N) before.
        """
        return _Followed.apply(link, write, precedence, weights, self.overwrite)  # type: ignore[return-value]


class SlotsInPlace(Slots):
    """Slots without gradients, on the CPU. The memory and the link are overwritten.

    With `sparse` weights, which are 0 but for a few slots, the look after a write is computed before it, together with the one
    before it, and again only for the slots that were written.
    """

    def __init__(self, memory: Tensor, sparse: bool) -> None:
        self.replace(memory)
        self.sparse = sparse
        self.products: Tensor | None = None
        self.touched: list[tuple[int, int]] = []
        self.scratch = memory.new_empty(max(PIECE, *memory.shape[1:]))  # at least one slot of the memory or of its link

    def replace(self, memory: Tensor) -> None:
        """Continue with another memory of the same shape."""
        self.memory = memory
        self.squares: Tensor | None = None

    def look(self, keys: Keys, later: Keys | None = None) -> Tensor:
        if keys.masks is not None:
            return cosines(self.memory, keys)
        if (squares := self.squares) is None:
            squares = self.squares = torch.linalg.vector_norm(self.memory, dim=2).square_()
        if not self.sparse:
            return known_cosines(key_products(self.memory, keys.vectors), keys.vectors, squares)
        if later is not None:
            both = key_products(self.memory, torch.cat([keys.vectors, later.vectors], 1))
            count = keys.vectors.shape[1]
            self.products = both[:, count:]
            return known_cosines(both[:, :count], keys.vectors, squares)
        assert self.products is not None
        for b, (first, end) in enumerate(self.touched):
            torch.mm(keys.vectors[b], self.memory[b, first:end].t(), out=self.products[b, :, first:end])
        return known_cosines(self.products, keys.vectors, squares)

    def write(self, weights: Tensor, erase: Tensor, vector: Tensor, retention: Tensor | None) -> None:
        for b, part in self._pieces(weights, retention):
            slots = self.memory[b, part]
            retained = None if retention is None else retention[b, part]
            write_into(slots, slots, weights[b, part], erase[b], vector[b], retained, self.scratch)
            if self.squares is not None:  # while the piece is in the cache
                self.squares[b, part] = torch.linalg.vector_norm(slots, dim=2).square_()

    def _pieces(self, weights: Tensor, retention: Tensor | None) -> Iterator[tuple[slice, slice]]:
        """Yield the memories and slots of each piece of a write: only slots with a weight, if finding them pays."""
        count, slots, width = self.memory.shape
        if retention is not None or (not self.sparse and slots * width <= PIECE):
            self.touched = [(0, slots)] * count
            return pieces(count, slots, width)
        self.touched = nonzero_ranges(weights)
        return (
            (slice(b, b + 1), slice(first + part.start, first + part.stop))
            for b, (first, end) in enumerate(self.touched)
            for _, part in pieces(1, end - first, width)
        )

    def read(self, weights: Tensor) -> Tensor:
        if not self.sparse:
            return torch.bmm(weights, self.memory)
        heads = weights.shape[1]
        reads = self.memory.new_empty(len(weights), heads, self.memory.shape[2])
        for i, (first, end) in enumerate(nonzero_ranges(weights.flatten(0, 1))):
            b, head = divmod(i, heads)
            torch.mv(self.memory[b, first:end].t(), weights[b, head, first:end], out=reads[b, head])
        return reads

    def follow(self, link: Tensor, write: Tensor, precedence: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return link, *follow_into(link, link, write, precedence, weights, self.scratch)


def nonzero_ranges(weights: Tensor) -> list[tuple[int, int]]:
    """Return, for each of (B, N), the first slot with a weight and the one after the last."""
    nonzero = weights != 0
    count = weights.shape[1]
    first = nonzero.to(torch.uint8).argmax(1)
    end = count - nonzero.flip(1).to(torch.uint8).argmax(1)
    present = nonzero.any(1)
    return [(f, e) if p else (0, 0) for f, e, p in zip(first.tolist(), end.tolist(), present.tolist(), strict=True)]


def cosines(memory: Tensor, keys: Keys) -> Tensor:
    """Return the cosines of every slot of memory (B, N, M) with every key: (B, H, N); 0 for a slot of zeros."""
    return _Cosines.apply(memory, keys.vectors, keys.masks)  # type: ignore[return-value]


def known_cosines(products: Tensor, vectors: Tensor, squares: Tensor) -> Tensor:
    """Return the cosines without gradients, from products (B, H, N) with keys (B, H, M) and the slots' squared norms (B, N)."""
    return products * _inverse_norms(squares.unsqueeze(1), vectors.square().sum(2, keepdim=True))


def _inverse_norms(slot_squares: Tensor, key_squares: Tensor) -> Tensor:
    """Return 1 / (|m| |k|) from the squares of both norms."""
    squares = (slot_squares + EPSILON) * (key_squares + EPSILON)
    return squares.clamp_min(torch.finfo(squares.dtype).tiny).rsqrt()  # 0 in float16 where both are zeros


class _Cosines(torch.autograd.Function):
    """c = m.k / (|m| |k|), or of the masked m o z and k o z, with products of z^2: no copy of the memory for each head."""

    @staticmethod
    def forward(ctx: Any, memory, vectors, masks):  # type: ignore[override]
        if masks is None:
            keys, slot_squares = vectors, torch.linalg.vector_norm(memory, dim=2).square_().unsqueeze(1)
        else:
            shares = masks.square()
            keys, slot_squares = vectors * shares, squared_lengths(memory, shares)
        key_squares = (keys * vectors).sum(2, keepdim=True)
        inverse = _inverse_norms(slot_squares, key_squares)
        cosine = key_products(memory, keys) * inverse
        ctx.save_for_backward(memory, vectors, masks, keys, slot_squares, key_squares, inverse, cosine)
        return cosine

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_cosine):  # type: ignore[override]
        memory, vectors, masks, keys, slot_squares, key_squares, inverse, cosine = ctx.saved_tensors
        d_products, both = d_cosine * inverse, d_cosine * cosine
        of_slots, of_keys = both / (slot_squares + EPSILON), both.sum(2, keepdim=True) / (key_squares + EPSILON)
        d_keys, shorter = torch.bmm(d_products, memory), of_keys * vectors
        if masks is None:
            d_vectors, d_masks, of_numbers = d_keys - shorter, None, of_slots.sum(1).unsqueeze(2)
        else:
            shares = masks.square()
            d_vectors, of_numbers = shares * (d_keys - shorter), outer(of_slots, shares)
            d_masks = masks * (vectors * (2 * d_keys - shorter) - torch.bmm(of_slots, memory.square()))
        return outer(d_products, keys).addcmul_(memory, of_numbers, value=-1), d_vectors, d_masks


def key_products(memory: Tensor, keys: Tensor) -> Tensor:
    """Return k.m of every slot of memory (B, N, M) with every key (B, H, M): (B, H, N)."""
    if memory.device.type == "cpu" and memory.numel() >= LARGE and _memory_first():
        return torch.bmm(memory, keys.transpose(1, 2)).transpose(1, 2).contiguous()
    return torch.bmm(keys, memory.transpose(1, 2))


@cache
def _memory_first() -> bool:
    """Return True if EM k is faster than k EM^T for a large memory: two to four times on AMD, but 12 times slower on Intel.

    The make of the processor decides instead of a measurement, which could differ when a run is resumed: the two products round
    differently.
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


def write_into(
    new: Tensor,
    slots: Tensor,
    weights: Tensor,
    erase: Tensor,
    vector: Tensor,
    retention: Tensor | None,
    scratch: Tensor | None = None,
) -> None:
    """Write (`Slots.write`) slots (B, n, M) into `new`: w and retention (B, n), e and v (B, M).

    `scratch` is needed if `new` is `slots`.
    """
    shares = new if scratch is None else scratch[: slots.numel()].view_as(slots)
    if retention is None:
        retention = torch.ones_like(weights)
    torch.addcmul(retention.unsqueeze(2), (retention * weights).unsqueeze(2), erase.unsqueeze(1), value=-1, out=shares)
    torch.mul(slots, shares, out=new).addcmul_(weights.unsqueeze(2), vector.unsqueeze(1))


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


def follow_into(
    new: Tensor, link: Tensor, write: Tensor, precedence: Tensor, weights: Tensor, scratch: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the next link (`Slots.follow`) of links (B, N, N) with w and p (B, N) into `new`.

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
    """Return the number of items of this size that are processed together."""
    return max(1, PIECE // max(1, numbers))


def scratch_for(tensor: Tensor) -> Tensor:
    """Return a buffer that holds each of `pieces_of` the tensor."""
    largest = max(PIECE, tensor.shape[2]) if tensor.device.type == "cpu" else tensor.numel()
    return tensor.new_empty(min(tensor.numel(), largest))
