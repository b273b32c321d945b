"""Gain of one set of seeds over another, with its 95% interval by Student's t: paired for the same seeds, else Welch's."""

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class SeedGain:
    """Mean difference between the scores of two sides, positive if the first is lower, with its 95% interval over the seeds."""

    value: float
    low: float
    high: float
    paired: bool
    variance: float
    """Variance of `value`."""
    freedom: float
    """Degrees of freedom."""


def seed_gain(better: Mapping[Any, float], than: Mapping[Any, float]) -> SeedGain | None:
    """Return the gain of `better` over `than`, given their scores by seed; None if a side has one seed."""
    if min(len(better), len(than)) < 2:
        return None
    value = statistics.fmean(than.values()) - statistics.fmean(better.values())
    if paired := better.keys() == than.keys():
        variance = statistics.variance(than[seed] - better[seed] for seed in better) / len(better)
        freedom: float = len(better) - 1
    else:
        variance, freedom = _welch(list(better.values()), list(than.values()))
    margin = t_limit(freedom) * math.sqrt(variance)
    return SeedGain(value, value - margin, value + margin, paired, variance, freedom)


def _welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Return the variance of the difference of two means and its degrees of freedom (Welch and Satterthwaite)."""
    parts = [(statistics.variance(side) / len(side), len(side) - 1) for side in (a, b)]
    variance = sum(v for v, _ in parts)
    below = sum(v * v / n for v, n in parts)
    return variance, variance * variance / below if below else sum(n for _, n in parts)


@functools.cache
def t_limit(freedom: float, inside: float = 0.95) -> float:
    """Return the t for which Student's distribution has the mass `inside` between -t and t.

    With t = sqrt(n) tan(a), the density of the angle a is proportional to cos(a)^(n-1), which is integrated numerically.
    """
    # For many degrees of freedom all of the mass is near 0, where the steps would be too wide; 12 deviations hold it.
    angles = np.linspace(0.0, min(math.pi / 2, 12 / math.sqrt(freedom)), 50_001)
    heights = np.cos(angles) ** (freedom - 1)
    mass = np.concatenate([[0.0], np.cumsum((heights[1:] + heights[:-1]) / 2)])
    return math.sqrt(freedom) * math.tan(np.interp(inside * mass[-1], mass, angles))
