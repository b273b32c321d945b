"""Adversarial training of the softmax (Wang, Gong and Liu 2019): the target's probability under the worst shift of its row."""

import torch
from torch import Tensor

LARGEST = 80.0
"""The most nats that a logit is shifted by; the exponential of more overflows float32."""


@torch.no_grad()
def worst_shift(hidden: Tensor, weight: Tensor, targets: Tensor, epsilon: float) -> Tensor:
    """What the target's logit w_y h loses to the worst change of w_y inside a ball of radius epsilon |w_y|.

    hidden (..., D), weight (V, D), targets (...) or what broadcasts to it -> (...), in at least float32, without a
    gradient: epsilon |w_y| |h| where w_y h > 0, elsewhere 0. Every position has its own, also where a target repeats.
    """
    wide, rows = torch.promote_types(hidden.dtype, torch.float32), weight[targets]
    of_rows, of_hidden = (torch.linalg.vector_norm(vectors, dim=-1, dtype=wide) for vectors in (rows, hidden))
    acute = (hidden * rows).sum(-1) > 0
    return torch.where(acute, (epsilon * of_rows * of_hidden).clamp(max=LARGEST), 0.0)


def shifted(log_prob: Tensor, shift: Tensor) -> Tensor:
    """log p of the targets once their logits are lower by `shift` (at most LARGEST); same shapes.

    With p = e^z / (e^z + R) of the logit z and the other words' R, e^(z - s) / (e^(z - s) + R) = p / (p + (1 - p) e^s):
    no logit is needed again, and the gradient goes through log p.
    """
    return log_prob - torch.log1p(-torch.expm1(log_prob) * torch.expm1(shift))
