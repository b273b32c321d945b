"""What a step does to a memory and to a link, with gradients that keep nothing but what was given."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def write_into(
    new: Tensor, rows: Tensor, weights: Tensor, erase: Tensor, vector: Tensor, kept: Tensor | None, scratch: Tensor
) -> None:
    """Of one memory's rows (n, M) with w (n,), e and v (M,); `new` may be `rows`."""
    if kept is not None:
        torch.mul(rows, kept.unsqueeze(1), out=new)
        rows = new
    torch.addcmul(vector, rows, erase, value=-1, out=scratch)
    torch.addcmul(rows, weights.unsqueeze(1), scratch, out=new)


def link_into(new: Tensor, link: Tensor, write: Tensor, precedence: Tensor, scratch: Tensor) -> None:
    """`linked`, as many rows at a time as `scratch` (n, N) has; `new` may be `link`."""
    for b in range(len(link)):  # one link after another, as what is in the cache is not fetched again
        pieces = (of.split(len(scratch)) for of in (new[b], link[b], write[b]))
        for into, rows, weights in zip(*pieces, strict=True):
            shares = scratch[: len(rows)]
            torch.sub((1 - weights).unsqueeze(1), write[b], out=shares)
            torch.mul(rows, shares, out=into)
            into.addr_(weights, precedence[b])
        new[b].diagonal().zero_()


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
        link_into(new, link, write, precedence, torch.empty_like(link[0]))
        return new

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_new):  # type: ignore[override]
        link, write, precedence = ctx.saved_tensors
        d_link, scratch = torch.empty_like(link), torch.empty_like(link[0])
        d_write, d_precedence = torch.empty_like(write), torch.empty_like(precedence)
        for b in range(len(link)):
            d = d_link[b]
            d.copy_(d_new[b])
            d.diagonal().zero_()
            torch.mul(d, link[b], out=scratch)
            d_write[b] = torch.mv(d, precedence[b]) - scratch.sum(1) - scratch.sum(0)
            d_precedence[b] = torch.mv(d.t(), write[b])
            torch.sub((1 - write[b]).unsqueeze(1), write[b], out=scratch)
            d.mul_(scratch)
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
