"""log softmax(h W^T + b) at the targets only, in chunks: neither pass ever holds more than one chunk of the logits."""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from backstory.models.precision import compute_dtype

CHUNK = 1 << 24
"""Most logits held at once (32 MiB in bfloat16). A segment that fits keeps them for the backward pass; a larger one
computes them again there, a third more work for a bounded memory."""


def linear_log_prob(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk: int = CHUNK) -> Tensor:
    """log softmax(hidden weight^T + bias)[targets], in at least float32.

    hidden (N, D), weight (V, D), bias (V,) or None, targets (N,) -> (N,). Products run in autocast's dtype; the sum of
    exponentials is taken in float32, because bfloat16 loses a tenth of a nat there.
    """
    dtype = compute_dtype(hidden)
    if bias is None:
        bias = weight.new_zeros(weight.shape[0])
    return _LinearLogProb.apply(hidden, weight, bias, targets, dtype, max(1, chunk // weight.shape[0]))


def _exponentials(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp(logits - max) (n, V), their sums (n,) in at least float32, and log-probabilities of the targets (n,)."""
    logits = torch.addmm(bias, hidden, weight.t())
    wide = torch.promote_types(logits.dtype, torch.float32)
    largest = logits.amax(1, keepdim=True)
    shifted = logits.gather(1, targets[:, None]).to(wide) - largest.to(wide)
    exponentials = logits.sub_(largest).exp_()
    sums = exponentials.sum(1, dtype=wide)
    return exponentials, sums, shifted.squeeze(1) - sums.log()


class _LinearLogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, dtype, rows):  # type: ignore[override]
        with torch.autocast(hidden.device.type, enabled=False):
            h, w, b = hidden.to(dtype), weight.to(dtype), bias.to(dtype)
            single = h.shape[0] <= rows
            kept: tuple[Tensor, ...] = ()
            pieces = []
            for start in range(0, h.shape[0], rows):
                exponentials, sums, log_prob = _exponentials(
                    h[start : start + rows], w, b, targets[start : start + rows]
                )
                pieces.append(log_prob)
                if single and any(ctx.needs_input_grad):
                    kept = (exponentials, sums)
                del exponentials
        ctx.save_for_backward(h, w, b, targets, *kept)
        ctx.rows = rows
        ctx.dtypes = hidden.dtype, weight.dtype, bias.dtype
        return torch.cat(pieces) if pieces else hidden.new_zeros(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[override]
        h, w, b, targets, *kept = ctx.saved_tensors
        wide = torch.promote_types(h.dtype, torch.float32)
        d_hidden = torch.empty_like(h)
        # Nothing of the weight's size is touched more often than need be: in reading, a segment has few rows.
        d_weight, d_bias = None, torch.zeros(b.shape, dtype=wide, device=b.device)
        for start in range(0, h.shape[0], ctx.rows):
            part = slice(start, start + ctx.rows)
            exponentials, sums = kept or _exponentials(h[part], w, b, targets[part])[:2]
            g, index = grad[part, None].to(wide), targets[part, None]
            # d log p_y / d logits = onehot(y) - p, written over a copy of the exponentials that are no longer needed.
            scale = g / sums[:, None]
            at_target = g - scale * exponentials.gather(1, index).to(wide)
            d_logits = exponentials.mul(-scale.to(h.dtype)) if kept else exponentials.mul_(-scale.to(h.dtype))
            d_logits.scatter_(1, index, at_target.to(h.dtype))
            torch.mm(d_logits, w, out=d_hidden[part])
            product = torch.mm(d_logits.t(), h[part]).to(wide)
            d_weight = product if d_weight is None else d_weight.add_(product)
            d_bias += d_logits.sum(0, dtype=wide)
        d_weight = torch.zeros_like(w) if d_weight is None else d_weight
        hidden_dtype, weight_dtype, bias_dtype = ctx.dtypes
        return d_hidden.to(hidden_dtype), d_weight.to(weight_dtype), d_bias.to(bias_dtype), None, None, None
