"""Perturbations: what is done to the tokens before a target (Khandelwal et al. 2018, section 3)."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Perturbation(Protocol):
    """A context (n,) of token ids, nearest last, and the token that follows it, to another context.

    Randomness comes only from the generator given.
    """

    def __call__(self, context: np.ndarray, target: int, random: np.random.Generator) -> np.ndarray: ...


@dataclass(frozen=True)
class Truncate:
    """Keep the `keep` tokens nearest to the target."""

    keep: int

    def __call__(self, context: np.ndarray, target: int, random: np.random.Generator) -> np.ndarray:
        return context[len(context) - min(self.keep, len(context)) :]
