"""Weights of a mixture by a gate that is learned while reading, from how sure each reader is.

    v_k = l_k exp(A_k . f) / sum_j l_j exp(A_j . f)
    A_k' = A_k + rate d_k f / sqrt(1 + G_k),    d_k = v_k P_k(w_t) / sum_j v_j P_j(w_t) - v_k,    G_k' = G_k + (d_k f)^2

l are the readers' fixed weights, so that reading begins with the fixed mixture (A = 0). The features f are 1, and of each
reader the entropy of its prediction, as a share of the largest, and its largest probability. d_k f is the gradient of
log P(w_t), and the steps are those of AdaGrad (Duchi et al. 2011). He, Neubig and Berg-Kirkpatrick (2021) set the weight of a
nearest-neighbour model by such features of the language model's prediction, with a network that is trained beforehand.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backstory.models import Prediction
from backstory.models.positions import all_positions


@dataclass(frozen=True)
class GateInputs:
    """Fixed weights and features, from which a gate sets the weights at each position."""

    log_shares: np.ndarray
    """(B, T, K): log l; minus infinity: it takes no part."""
    features: np.ndarray
    """(B, T, F)"""

    def rows(self, count: int) -> "GateInputs":
        """Return the inputs of one row for several."""
        return GateInputs(*(np.broadcast_to(a, (count, *a.shape[1:])) for a in (self.log_shares, self.features)))


def first_gate(rows: int, experts: int) -> np.ndarray:
    """Return A and G before the first position, (R, 2, K, F)."""
    return np.zeros((rows, 2, experts, 1 + 2 * experts))


@torch.no_grad()
def gate_inputs(experts: Sequence[Prediction], shares: Tensor, sizes: Sequence[int]) -> GateInputs:
    """Return the inputs from K predictions and the share of each in its own reader's prediction (B, T, K).

    The predictions are those of several readers, so many of each.
    """
    positions = all_positions(shares)
    sure = [torch.cat([_sureness(table.exp()) for _, _, table in expert.tables(*positions)]) for expert in experts]
    return GateInputs(log_fixed_weights(shares, sizes), _features([each.view(*shares.shape[:2], 2) for each in sure]))


def gate_features(probabilities: Sequence[Tensor]) -> np.ndarray:
    """Return the features (B, t, F) at some steps from the probabilities (B, t, V) of K predictions there."""
    return _features([_sureness(p) for p in probabilities])


def _features(sure: Sequence[Tensor]) -> np.ndarray:
    """Return the features (B, t, F) from the `_sureness` (B, t, 2) of K predictions."""
    return torch.cat([torch.ones_like(sure[0][..., :1]), *sure], -1).double().cpu().numpy()


def _sureness(p: Tensor) -> Tensor:
    """Return the entropy of distributions (..., V) as a share of the largest, and their largest probability: (..., 2)."""
    return torch.stack([torch.special.entr(p).sum(-1) / math.log(p.shape[-1]), p.amax(-1)], -1).float()


def log_fixed_weights(shares: Tensor, sizes: Sequence[int]) -> np.ndarray:
    """Return log l (B, T, K) of `fixed_weights`."""
    with np.errstate(divide="ignore"):
        return np.log(fixed_weights(shares, sizes).double().cpu().numpy())


def fixed_weights(shares: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the weight of each prediction (B, T, K) in the mean of the readers' own predictions."""
    weights = []
    for own in shares.split(list(sizes), 2):
        left, parts = torch.ones_like(own[..., 0]), []
        for k in range(own.shape[2] - 1, 0, -1):
            parts.append(left * own[..., k])
            left = left * (1 - own[..., k])
        weights += [left, *reversed(parts)]
    return torch.stack(weights, 2) / len(sizes)


def gates_along(scores: np.ndarray, inputs: GateInputs, gate: np.ndarray, rate: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights v at each position (R, T, K), which sum to one, and the gate after the last (R, 2, K, F).

    Log-probabilities of the targets (R, T, K); rate may be (R, 1).
    """
    along = np.empty(scores.shape)
    slopes, squares = gate[:, 0].copy(), gate[:, 1].copy()
    for t in range(scores.shape[1]):
        f = inputs.features[:, t]
        v = along[:, t] = _softmax(inputs.log_shares[:, t] + (slopes @ f[:, :, None])[..., 0])
        with np.errstate(divide="ignore"):
            gradient = (_softmax(np.log(v) + scores[:, t]) - v)[..., None] * f[:, None]
        squares += gradient**2
        slopes += np.asarray(rate)[..., None] * gradient / np.sqrt(1 + squares)
    return along, np.stack([slopes, squares], 1)


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)
