"""Attention in which every token sees a window of the tokens before it, in memory that grows with the text times the window."""

import torch
import torch.nn.functional as F
from torch import Tensor

from backstory.models.dropout import keep_mask

Turns = tuple[Tensor, Tensor]
"""cos and sin (positions, d/2) of the angles that rotary positions turn by."""

QUERIES = 128
"""Positions whose scores are made at once, unless the window is longer."""


def windowed_attention(queries: Tensor, keys: Tensor, values: Tensor, reach: Tensor, dropout: float = 0.0) -> Tensor:
    """softmax(q k / sqrt(d)) v over the last reach[b, t] keys up to position t's own.

    queries (B, N, T, d); keys and values (B, N, R + T, d), of which the first R are of before; reach (B, T) int64, from 1 to
    R + 1 -> (B, N, T, d). The weights are dropped with probability `dropout`.
    """
    steps = queries.shape[2]
    before = keys.shape[2] - steps
    # A query sees R + 1 keys, so that many queries in a row see twice as many.
    size, found = max(before + 1, QUERIES), []
    for first in range(0, steps, size):
        last = min(first + size, steps)
        seen = slice(first, before + last)
        own = torch.arange(before, before + last - first, device=reach.device)
        apart = own.unsqueeze(1) - torch.arange(before + last - first, device=reach.device)
        there = (apart >= 0) & (apart < reach[:, first:last, None])
        parts = queries[:, :, first:last], keys[:, :, seen], values[:, :, seen], there.unsqueeze(1)
        found.append(_dropped(*parts, dropout) if dropout else F.scaled_dot_product_attention(*parts))
    return found[0] if len(found) == 1 else torch.cat(found, 2)


def _dropped(queries: Tensor, keys: Tensor, values: Tensor, there: Tensor, dropout: float) -> Tensor:
    """The same for all queries at once, with a mask of its own for every weight."""
    scores = (queries @ keys.transpose(2, 3) * queries.shape[3] ** -0.5).masked_fill(~there, -torch.inf)
    weights = torch.softmax(scores, 3)
    return (weights * keep_mask(tuple(weights.shape), dropout, weights)).to(values.dtype) @ values


def turns(count: int, size: int, like: Tensor) -> Turns:
    """Of vectors of that size at the positions 0 to count - 1, in at least float32."""
    wide = torch.promote_types(like.dtype, torch.float32)
    positions = torch.arange(count, device=like.device, dtype=wide)
    angles = positions.unsqueeze(1) * rates(size // 2, positions)
    return angles.cos(), angles.sin()


def rotated(x: Tensor, by: Turns) -> Tensor:
    """x (B, N, T, d) at the last T of the positions, each pair of units turned by the position times a rate of its own.

    Unit i and unit i + d/2 are turned by 10000^(-2i/d); what is turned by other angles has the product of vectors that far
    apart (Su et al. 2021).
    """
    cos, sin = (of[-x.shape[2] :] for of in by)
    a, b = x.chunk(2, 3)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], 3).to(x.dtype)


def rates(count: int, like: Tensor) -> Tensor:
    """(n,): 10000^(-i/n)."""
    return 10_000.0 ** (-torch.arange(count, device=like.device, dtype=like.dtype) / count)
