"""The adversarial softmax (Wang, Gong and Liu 2019): the shift of a target's logit by the worst change of its weights."""

import math

import torch
from torch import Tensor


def largest_shift(dtype: torch.dtype) -> float:
    """Return the largest shift for which p + (1 - p) e^s is accurate to 2% although 1 - p is rounded: 12 in float32."""
    return -math.log(torch.finfo(dtype).eps) - 4


def worst_shift(hidden: Tensor, weight: Tensor, targets: Tensor, epsilon: float) -> Tensor:
    """Return the loss of the target's logit w_y h under the worst change of w_y inside a ball of radius epsilon |w_y|.

    hidden (..., D), weight (V, D), targets (...) or a shape that broadcasts to it -> (...), in at least float32:
    epsilon |w_y| |h| if w_y h > 0, else 0. Every position has its own, also if a target repeats. As in the authors' code the
    worst change is a constant, but not h, by which it is multiplied: so the gradient is that of epsilon |w_y| |h| for h, which
    is the gradient of the worst loss, and 0 for w_y.
    """
    wide = torch.promote_types(hidden.dtype, torch.float32)
    with torch.no_grad():
        target_weight = weight[targets]
        radius = epsilon * torch.linalg.vector_norm(target_weight, dim=-1, dtype=wide)
        radius = torch.where((hidden * target_weight).sum(-1) > 0, radius, 0.0)
    return (radius * torch.linalg.vector_norm(hidden, dim=-1, dtype=wide)).clamp(max=largest_shift(wide))


def shifted(log_prob: Tensor, shift: Tensor) -> Tensor:
    """Return log p of the targets after their logits are lowered by `shift` (at most `largest_shift`); same shapes.

    With p = e^z / (e^z + R) of the logit z and the other words' R, e^(z - s) / (e^(z - s) + R) = p / (p + (1 - p) e^s):
    the logit is not needed again, and its gradient goes through log p.
    """
    return log_prob - torch.log1p(-torch.expm1(log_prob) * torch.expm1(shift))
