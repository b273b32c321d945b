"""Attention of every token to a window of the tokens before it, and rotary positions (Su et al. 2021).

Its memory grows with the text times the window.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from backstory.models.dropout import keep_mask

Rotary = tuple[Tensor, Tensor]
"""cos and sin (positions, d/2) of the angles of rotary positions."""

QUERIES = 128
"""Positions whose scores are computed at once, unless the window is longer."""


def windowed_attention(queries: Tensor, keys: Tensor, values: Tensor, reach: Tensor, dropout: float = 0.0) -> Tensor:
    """softmax(q k / sqrt(d)) v over the last reach[b, t] keys up to position t's own.

    queries (B, N, T, d); keys and values (B, N, R + T, d), of which the first R are from before the segment; reach (B, T)
    int64, from 1 to R + 1 -> (B, N, T, d). The weights are dropped with probability `dropout`.
    """
    steps = queries.shape[2]
    before = keys.shape[2] - steps
    # A query sees R + 1 keys, so R + 1 queries in a row see twice as many.
    size, outputs = max(before + 1, QUERIES), []
    for first in range(0, steps, size):
        last = min(first + size, steps)
        seen = slice(first, before + last)
        own = torch.arange(before, before + last - first, device=reach.device)
        distance = own.unsqueeze(1) - torch.arange(before + last - first, device=reach.device)
        mask = (distance >= 0) & (distance < reach[:, first:last, None])
        parts = queries[:, :, first:last], keys[:, :, seen], values[:, :, seen], mask.unsqueeze(1)
        outputs.append(_with_dropout(*parts, dropout) if dropout else F.scaled_dot_product_attention(*parts))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)


def _with_dropout(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, dropout: float) -> Tensor:
    """Attention of one block of queries, with dropout of every weight."""
    scores = (queries @ keys.transpose(2, 3) * queries.shape[3] ** -0.5).masked_fill(~mask, -torch.inf)
    weights = torch.softmax(scores, 3)
    return (weights * keep_mask(tuple(weights.shape), dropout, weights)).to(values.dtype) @ values


def rotary_table(count: int, size: int, like: Tensor) -> Rotary:
    """Return the table for vectors of this size at the positions 0 to count - 1, in at least float32."""
    wide = torch.promote_types(like.dtype, torch.float32)
    positions = torch.arange(count, device=like.device, dtype=wide)
    angles = positions.unsqueeze(1) * rotary_rates(size // 2, positions)
    return angles.cos(), angles.sin()


def apply_rotary(x: Tensor, table: Rotary) -> Tensor:
    """Rotate x (B, N, T, d), which stands at the last T positions of the table.

    Units i and i + d/2 are rotated by the position times 10000^(-2i/d), so that a product of two rotated vectors depends on
    their distance alone.
    """
    cos, sin = (part[-x.shape[2] :] for part in table)
    a, b = x.chunk(2, 3)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], 3).to(x.dtype)


def rotary_rates(count: int, like: Tensor) -> Tensor:
    """(n,): 10000^(-i/n)."""
    return 10_000.0 ** (-torch.arange(count, device=like.device, dtype=like.dtype) / count)
