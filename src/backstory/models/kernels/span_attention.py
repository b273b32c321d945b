"""Attention over spans (span-based neural buffer, eqs. 5 to 7): scores of queries for their spans, and weighted sums."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Parts = tuple[Tensor, Tensor]
"""Vectors of spans, the older ones first."""


def dot_scores(queries: Tensor, keys: Parts, index: Tensor | None) -> Tensor:
    """q_t . k_i of queries (B, T, D) with keys (B, N, D) in parts: all (B, T, N), or those at an index (T, m): (B, T, m).

    One matrix product per part computes all scores, and `gather` picks those of the index: more arithmetic than a loop over
    the spans, but several times faster.
    """
    products = torch.cat([queries @ part.to(queries.dtype).transpose(1, 2) for part in keys], 2)
    return products if index is None else products.gather(2, index.expand(len(products), *index.shape))


def weighted_sum(weights: Tensor, values: Parts, index: Tensor | None) -> Tensor:
    """Return sum_i alpha_ti s_i of weights (B, T, m) and values (B, N, D) in parts, at an index (T, m): (B, T, D)."""
    old, new = values
    spread, split = weights.to(old.dtype), old.shape[1]
    if index is not None:
        spread = spread.new_zeros(*weights.shape[:2], split + new.shape[1]).scatter(2, index.expand_as(weights), spread)
    return spread[:, :, :split] @ old + spread[:, :, split:] @ new.to(old.dtype)


def masked_softmax(scores: Tensor, present: Tensor) -> Tensor:
    """Softmax over the spans that are present; all zero if none is. In at least float32."""
    return torch.softmax(_masked(scores, present), 2) * present


def log_mean_exp(scores: Tensor, present: Tensor) -> Tensor:
    """Return log of the mean of exp(score) over the spans that are present (B, T); 0 if none is. In at least float32."""
    masked = _masked(scores, present)
    mean = torch.logsumexp(masked, 2) - present.sum(2).clamp(min=1).to(masked.dtype).log()
    return mean.masked_fill(~present.any(2), 0.0)


def _masked(scores: Tensor, present: Tensor) -> Tensor:
    """Return the scores in at least float32, with the lowest finite number for spans that are not present."""
    wide = torch.promote_types(scores.dtype, torch.float32)
    return scores.to(wide).masked_fill(~present, torch.finfo(wide).min)


def additive_scores(queries: Tensor, keys: Tensor, v: Tensor, starts: Sequence[int], width: int) -> Tensor:
    """v . tanh(q_t + k) for every query (B, T, A) and span j: (B, T, m), in at least float32.

    The keys (B, N, A) of span j begin at starts[j]: one per query if `width` is T, or one for all queries if it is 1. No tensor
    (B, T, m, A) is made, and no hyperbolic tangent of a pair is computed: it is 1 - 2u with u = 1 / (1 + e^2q e^2k), from one
    exponential per query and one per key.
    """
    wide = torch.promote_types(queries.dtype, torch.float32)
    return _AdditiveScores.apply(queries.to(wide), keys.to(wide), v.to(wide), starts, width)


CACHED = 1 << 16
"""Numbers of an intermediate that fit in the cache of one processor core; larger batches are cut into blocks."""


class _AdditiveScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, queries, keys, v, starts, width):  # type: ignore[override]
        exponentials = _doubled_exponential(queries), _doubled_exponential(keys)
        ctx.save_for_backward(*exponentials, v)
        ctx.starts, ctx.width = starts, width
        return (v.sum() - 2 * _sigmoid_sums(*exponentials, v, starts, width)).permute(0, 2, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[override]
        queries, keys, v = ctx.saved_tensors
        d_queries, d_keys = torch.zeros_like(queries), torch.zeros_like(keys)
        grad = grad.permute(0, 2, 1).contiguous()
        d_v = grad.sum() * torch.ones_like(v)
        for rows in _blocks(queries):
            q, k, d_q, d_k = queries[rows], keys[rows], d_queries[rows], d_keys[rows]
            d_sum = torch.empty_like(q)
            for j, u in _sigmoids(q, k, ctx.starts, ctx.width):
                g, part = grad[rows, j], slice(ctx.starts[j], ctx.starts[j] + ctx.width)
                d_v -= 2 * (g.flatten() @ u.flatten(0, 1))
                # d tanh / dq = 4 u (1 - u); v and the 4 are multiplied in at the end.
                torch.ops.aten.sigmoid_backward.grad_input(g.unsqueeze(2).expand_as(u), u, grad_input=d_sum)
                d_q += d_sum
                d_k[:, part] += d_sum if ctx.width > 1 else d_sum.sum(1, keepdim=True)
        return d_queries.mul_(4 * v), d_keys.mul_(4 * v), d_v, None, None


def _sigmoid_sums(queries: Tensor, keys: Tensor, v: Tensor, starts: Sequence[int], width: int) -> Tensor:
    """Return sum_a v_a u_a (B, m, T)."""
    sums = queries.new_empty(len(queries), len(starts), queries.shape[1])
    for rows in _blocks(queries):
        for j, u in _sigmoids(queries[rows], keys[rows], starts, width):
            sums[rows, j] = (u.flatten(0, 1) @ v).view(u.shape[:2])
    return sums


def _sigmoids(queries: Tensor, keys: Tensor, starts: Sequence[int], width: int) -> Iterator[tuple[int, Tensor]]:
    """Yield u = 1 / (1 + e^2q e^2k) of each span, (B, T, A); the next one overwrites it."""
    one, u = queries.new_ones(()), torch.empty_like(queries)
    for j, start in enumerate(starts):
        yield j, torch.addcmul(one, queries, keys[:, start : start + width], out=u).reciprocal_()


def _doubled_exponential(x: Tensor) -> Tensor:
    """e^2x, finite and above zero: x is clamped to bounds (44 in float32) at which a hyperbolic tangent is 1.

    Queries and keys are clamped apart: where both exceed the bounds with opposite signs, their sum is taken for about zero.
    """
    bound = math.log(torch.finfo(x.dtype).max) - 1
    return (2 * x).clamp_(-bound, bound).exp_()


def _blocks(queries: Tensor) -> Iterator[slice]:
    """Yield slices of the batch that are processed together."""
    rows, size = len(queries), max(1, queries[0].numel())
    step = max(1, CACHED // size) if queries.device.type == "cpu" else rows
    return (slice(start, start + step) for start in range(0, rows, step))
