"""log softmax(h W^T + b) at the targets only, in chunks: neither pass ever holds more than one chunk of the logits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from backstory.models.devices import compute_dtype
from backstory.models.kernels import compiled
from backstory.models.kernels.factored_gradients import collector, matrix_gradient

CHUNK = 1 << 24
"""Upper bound of the logits held at once (32 MiB in bfloat16). A segment that fits keeps them for the backward pass;
a larger one computes them again there, a third more work for a bounded memory."""
ALIGNED = 32
"""Columns that a processor multiplies at a time in bfloat16; a product over a multiple of them is up to twice as fast."""
BLOCK = 128
"""Numbers of a narrow dtype that are summed in it at a time; these sums are then summed in a wider dtype."""


class Residuals(NamedTuple):
    """Values of the logits of n positions that the backward pass needs."""

    numbers: Tensor
    """(n, V): exp(logits - max), from which the row's sum s is subtracted at the target.

    Divided by -s, it is the gradient of log p_y by the logits.
    """
    sums: Tensor
    """(n,): s."""
    log_prob: Tensor
    """(n,): log p_y."""


@dataclass
class ScoredTargets:
    """Targets of a prediction's last scoring without gradients, and the scores.

    Kept so that neither scoring the same targets again nor learning from them computes the logits again.
    """

    targets: Tensor | None = None
    dtype: torch.dtype | None = None
    """That of the products."""
    log_prob: Tensor | None = None
    residuals: Residuals | None = None
    """Kept if something may be learned from the targets."""

    def holds(self, targets: Tensor, dtype: torch.dtype) -> bool:
        """Return True if these targets were scored last, with products in this dtype."""
        return self.targets is not None and dtype == self.dtype and torch.equal(targets, self.targets)

    def score(
        self, targets: Tensor, dtype: torch.dtype, compute: Callable[[], tuple[Tensor, Residuals | None]]
    ) -> Tensor:
        """Return the log-probabilities of targets, computed with their residuals unless they are held."""
        if self.log_prob is None or not self.holds(targets, dtype):
            log_prob, residuals = compute()
            self.targets, self.dtype, self.log_prob, self.residuals = targets.clone(), dtype, log_prob, residuals
        return self.log_prob.clone()  # a copy, as the caller may change it


def linear_log_prob(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    chunk: int = CHUNK,
    scored: ScoredTargets | None = None,
    learning: bool = False,
) -> Tensor:
    """log softmax(hidden weight^T + bias)[targets], in at least float32.

    hidden (N, D), weight (V, D), bias (V,) or None, targets (N,) -> (N,). Products run in autocast's dtype; the sum of
    exponentials is taken in float32, because bfloat16 loses a tenth of a nat there. Without gradients the exponentials are
    in float32 too: each is rounded by up to 0.4% in bfloat16, which training does not notice and a score would.

    `scored` belongs to these hidden vectors and weights, which must not change between calls. It keeps what a call without
    gradients computes for later calls with the same targets; with `learning` also for calls with gradients.
    """
    _refuse_negative(targets, len(weight))
    dtype, targets = compute_dtype(hidden), targets.long()
    if bias is None:
        bias = weight.new_zeros(weight.shape[0])
    rows = max(1, chunk // weight.shape[0])
    if torch.is_grad_enabled():
        known = scored.residuals if scored is not None and scored.holds(targets, dtype) else None
        return _LinearLogProb.apply(hidden, weight, bias, targets, dtype, rows, known)
    if scored is None:
        return _without_gradients(hidden, weight, bias, targets, dtype, rows, False)[0]
    return scored.score(
        targets, dtype, lambda: _without_gradients(hidden, weight, bias, targets, dtype, rows, learning)
    )


def _refuse_negative(targets: Tensor, types: int) -> None:
    """Raise ValueError for a negative target, before an operation fails on it with an error that does not name it."""
    if targets.is_cuda and torch.is_grad_enabled():
        return  # a training step does not wait for the GPU
    if targets.device.type in ("cpu", "cuda") and targets.numel() and targets.min() < 0:
        raise ValueError(f"targets must be ids from 0 to {types - 1}, not {int(targets.min())}")


def _without_gradients(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, dtype: torch.dtype, rows: int, learning: bool
) -> tuple[Tensor, Residuals | None]:
    """Return log p of the targets (N,); with `learning` also the residuals, if one chunk in full precision computes them."""
    if torch.finfo(dtype).bits < 32:
        return _wide_log_prob(hidden, weight, bias, targets, dtype, rows), None
    if learning and len(hidden) <= rows:
        residuals = _residuals(*_operands(hidden, weight, bias, dtype), targets, True)
        return residuals.log_prob, residuals
    return _LinearLogProb.apply(hidden, weight, bias, targets, dtype, rows, None), None


def _wide_log_prob(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, dtype: torch.dtype, rows: int
) -> Tensor:
    """Compute products in this dtype and everything after them in float32, `rows` of the logits at once."""
    with torch.autocast(hidden.device.type, enabled=False):
        h, w, b = _operands(hidden, weight, bias, dtype)
        pieces = [
            torch.log_softmax(_products(part, w, b), 1, dtype=torch.float32).gather(1, t[:, None])[:, 0]
            for part, t in zip(h.split(rows), targets.split(rows), strict=True)
        ]
    return torch.cat(pieces)


def _products(h: Tensor, w: Tensor, b: Tensor | None, reading: bool = False) -> Tensor:
    if reading and b is not None and _compiled(h, w):
        return compiled.linear(h.contiguous(), w, b)
    return torch.mm(h, w.t()) if b is None else torch.addmm(b, h, w.t())


def _compiled(h: Tensor, w: Tensor) -> bool:
    """Return True if the products of h (n, D) with w (V, D) are faster by a compiled pass."""
    return len(h) <= compiled.FEW_ROWS and compiled.takes(w) and h.dtype == w.dtype


def _operands(hidden: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return hidden (N, K) and weight (V, K) in this dtype, and the bias unless it is one of their columns.

    Weights that are cast anyway get the bias as a column, with a column of ones in hidden and zeros up to ALIGNED: the products
    then add the bias and sum its gradient.
    """
    if weight.dtype == dtype:
        return hidden.to(dtype), weight, bias.to(dtype)
    size = weight.shape[1]
    columns = -(-(size + 1) // ALIGNED) * ALIGNED
    h, w = (numbers.new_zeros(numbers.shape[0], columns, dtype=dtype) for numbers in (hidden, weight))
    h[:, :size], w[:, :size] = hidden, weight
    h[:, size], w[:, size] = 1.0, bias
    return h, w, None


def _row_sums(numbers: Tensor, wide: torch.dtype) -> Tensor:
    """Sum every row, (n, V) -> (n,), in a wide dtype without a wide copy of all numbers."""
    if numbers.dtype == wide:
        return numbers.sum(1)
    whole = numbers.shape[1] // BLOCK * BLOCK
    blocks = numbers[:, :whole].unflatten(1, (-1, BLOCK)).sum(2).sum(1, dtype=wide)
    return blocks + numbers[:, whole:].sum(1, dtype=wide)


def _residuals(h: Tensor, w: Tensor, b: Tensor | None, targets: Tensor, reading: bool = False) -> Residuals:
    """Return the residuals of h (n, D), so that the backward pass needs nothing but products.

    `reading`: the weights move while a text is read, which compiled passes are for.
    """
    logits = _products(h, w, b, reading)
    wide = torch.promote_types(logits.dtype, torch.float32)
    at_target = torch.arange(len(h), device=h.device), targets
    largest = logits.amax(1, keepdim=True)
    # Unlike an index, `gather` takes no negative target for one from the end, on any device.
    shifted = logits.gather(1, targets[:, None])[:, 0].to(wide) - largest.to(wide).squeeze(1)
    exponentials = logits.sub_(largest).exp_()
    sums = _row_sums(exponentials, wide)
    exponentials[at_target] = (exponentials[at_target] - sums).to(logits.dtype)
    return Residuals(exponentials, sums, shifted - sums.log())


class _LinearLogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, dtype, rows, known):  # type: ignore[override]
        with torch.autocast(hidden.device.type, enabled=False):
            h, w, b = _operands(hidden, weight, bias, dtype)
            single = h.shape[0] <= rows
            saved: tuple[Tensor, ...] = ()
            pieces = []
            for start in range(0, h.shape[0], rows):
                part = slice(start, start + rows)
                residuals, sums, log_prob = known or _residuals(h[part], w, b, targets[part], collector() is not None)
                pieces.append(log_prob)
                if single and any(ctx.needs_input_grad):
                    saved = (residuals, sums)
                del residuals
        ctx.save_for_backward(h, w, b, targets, *saved)
        ctx.rows, ctx.size, ctx.collector = rows, weight.shape[1], collector()
        ctx.dtypes = hidden.dtype, weight.dtype, bias.dtype
        return torch.cat(pieces) if pieces else hidden.new_zeros(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[override]
        h, w, b, targets, *saved = ctx.saved_tensors
        wide, most = torch.promote_types(h.dtype, torch.float32), torch.finfo(h.dtype).max
        d_hidden = torch.empty(h.shape[0], ctx.size, dtype=wide, device=h.device)
        # In reading, a segment has few positions: passes over tensors of the weight's size are kept to a minimum.
        d_weight, d_bias = None, torch.zeros(w.shape[0], dtype=wide, device=w.device)
        for start in range(0, h.shape[0], ctx.rows):
            part = slice(start, start + ctx.rows)
            residuals, sums = saved or _residuals(h[part], w, b, targets[part])[:2]
            scale = -(grad[part].to(wide) / sums)[:, None]
            few = ctx.collector is not None and _compiled(residuals, w)
            d_logits = compiled.matmul(residuals, w) if few else torch.mm(residuals, w)
            torch.mul(d_logits[:, : ctx.size], scale, out=d_hidden[part])
            # Clamped: the factor of a target whose probability underflows is infinite, and 0 times infinity is NaN.
            scaled = (h[part] * scale).clamp_(-most, most).to(h.dtype)
            product = matrix_gradient(ctx.collector, w, residuals, scaled)
            if b is not None:
                d_bias += torch.mm(scale.t().to(h.dtype), residuals)[0]
            if product is not None:
                if b is None:
                    d_bias += product[:, ctx.size]
                product = product[:, : ctx.size].to(wide)
                d_weight = product if d_weight is None else d_weight.add_(product)
        hidden_dtype, weight_dtype, bias_dtype = ctx.dtypes
        if not len(h):
            d_weight = w.new_zeros(w.shape[0], ctx.size)
        d_weight = None if d_weight is None else d_weight.to(weight_dtype)
        return d_hidden.to(hidden_dtype), d_weight, d_bias.to(bias_dtype), None, None, None, None
