"""Gain of one set of seeds over another, with its 95% interval by Student's t: paired for the same seeds, else Welch's."""

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from backstory.utils.arguments import checked
from backstory.utils.errors import UserError, plural


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


@checked()
def seed_gain(better: Mapping[Any, float], than: Mapping[Any, float]) -> SeedGain:
    """Compare two sets of training runs by their scores: the gain of the mean, with its 95% interval over the seeds.

    With the same seeds on both sides the interval is that of the differences seed by seed (Student's t); otherwise it is
    Welch's. Lower scores are better, such as perplexities.

    Args:
        better: The score of each run of one set, by its seed.
        than: Those of the other set.

    Returns:
        The gain: `.value`, above zero where `better` has the lower mean, `.low`, `.high`, and whether seeds were `.paired`.

    Raises UserError for a set of fewer than two seeds, and for a score that is not finite.

    Example:
        >>> gain = bs.seed_gain({1: 76.8, 2: 77.0, 3: 76.5}, {1: 78.1, 2: 77.9, 3: 77.6})
        >>> print(f"{gain.value:.1f} ({gain.low:.1f} to {gain.high:.1f})")
        1.1 (0.6 to 1.6)
    """
    for name, scores in (("better", better), ("than", than)):
        if len(scores) < 2:
            raise UserError(f"{name} has {len(scores)} {plural('seed', len(scores))}; an interval takes two at least")
        if not all(isinstance(score, Real) and math.isfinite(score) for score in scores.values()):
            raise UserError(f"{name} has a score that is not a finite number")
    return _gain(better, than)


def gain_over_seeds(better: Mapping[Any, float], than: Mapping[Any, float]) -> SeedGain | None:
    """Return the gain of `better` over `than`, given their scores by seed; None if a side has one seed."""
    return None if min(len(better), len(than)) < 2 else _gain(better, than)


def _gain(better: Mapping[Any, float], than: Mapping[Any, float]) -> SeedGain:
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
