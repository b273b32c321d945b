"""A reader's distribution as whole numbers: each type has a share of 2^32 in proportion to its probability, one at least."""

import numpy as np
from torch import Tensor

from backstory.codec.range_coder import TOTAL_BITS
from backstory.config import UserError

TOLERANCE = 1e-3
"""Largest distance of the sum of a distribution from one; the rounding of float32 over a large vocabulary stays far below."""


def cumulative_shares(log_probs: Tensor, reader: str) -> np.ndarray:
    """Return log-probabilities (B, V) as cumulative shares (B, V + 1) int64: type i has the share from i to i + 1.

    Raises UserError for a distribution that does not sum to one, with its sum.
    """
    probabilities = np.exp(log_probs.double().cpu().numpy())
    sums = probabilities.sum(1, keepdims=True)
    wrong = sums[~(np.abs(sums - 1) <= TOLERANCE)]
    if wrong.size:
        raise UserError(
            f"the reader {reader} gives a distribution that sums to {wrong[0]:.6g}, not to 1; "
            "a code needs whole distributions, so correct the reader"
        )
    types = probabilities.shape[1]
    shares = np.zeros((len(probabilities), types + 1), np.int64)
    # One for every type, and the rest in proportion; rounding down leaves the total just below 2^32.
    np.floor(probabilities * (((1 << TOTAL_BITS) - types) / sums), out=probabilities)
    shares[:, 1:] = probabilities
    shares[:, 1:] += 1
    return shares.cumsum(1)
