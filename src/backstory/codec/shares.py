"""A reader's distribution as whole numbers: each type has a share of 2^32 in proportion to its probability, one at least."""

import numpy as np
import torch
from torch import Tensor

from backstory.codec.range_coder import TOTAL_BITS
from backstory.config import UserError

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
    rows, types = probabilities.shape
    # One for every type, and the rest in proportion, rounded down.
    probabilities *= (((1 << TOTAL_BITS) - types - _ROUNDING) / sums).float()
    shares = torch.zeros(rows, types + 1, dtype=torch.int64)
    shares[:, 1:] = probabilities.floor_()
    shares[:, 1:] += 1
    return shares.cumsum_(1).numpy()
