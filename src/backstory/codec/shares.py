"""A reader's distribution as whole numbers: each type has a share of 2^32 in proportion to its probability, one at least."""

import numpy as np
import torch
from torch import Tensor

from backstory.codec.range_coder import TOTAL_BITS
from backstory.models.kernels import compiled
from backstory.utils.errors import UserError

TOLERANCE = 1e-3
"""Largest distance of the sum of a distribution from one; the rounding of float32 over a large vocabulary stays far below."""
_ROUNDING = 1 << 10
"""Steps that are left free, as shares in float32 may be rounded up."""


def cumulative_shares(log_probs: Tensor, reader: str) -> np.ndarray:
    """Return log-probabilities (B, V) as cumulative shares (B, V + 1) int64: type i has the share from i to i + 1.

    Raises UserError for a distribution that does not sum to one, with its sum.
    """
    probabilities = log_probs.cpu().float().exp()
    sums = probabilities.sum(1, keepdim=True, dtype=torch.float64)
    wrong = sums[~((sums - 1).abs() <= TOLERANCE)]
    if wrong.numel():
        raise UserError(
            f"the reader {reader} gives a distribution that sums to {wrong[0]:.6g}, not to 1; "
            "a code needs whole distributions, so correct the reader"
        )
    scale = (((1 << TOTAL_BITS) - probabilities.shape[1] - _ROUNDING) / sums).float()
    cumulate = compiled.cumulate_shares if compiled.takes(probabilities, scale) else _cumulate
    return cumulate(probabilities, scale).numpy()


def _cumulate(probabilities: Tensor, scale: Tensor) -> Tensor:
    """Return the sums (B, V + 1) int64 of one for every type and scale (B, 1) times its probability (B, V), rounded down."""
    rows, types = probabilities.shape
    shares = torch.zeros(rows, types + 1, dtype=torch.int64)
    shares[:, 1:] = probabilities.mul(scale).floor_()
    shares[:, 1:] += 1
    return shares.cumsum_(1)
