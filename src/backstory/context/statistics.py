"""Bootstrap intervals over targets, paired: every resample compares conditions on the same targets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
CHUNK = 1 << 24
"""Most counts of resampled targets held at once."""


@dataclass(frozen=True)
class Interval:
    """An estimate with the limits of its 95% interval."""

    value: float
    low: float
    high: float


def resampled_means(values: np.ndarray, seed: int, resamples: int = RESAMPLES) -> np.ndarray:
    """Means over targets drawn with replacement: values (N, C) -> (resamples, C), the same draw for all C conditions."""
    return np.concatenate(list(_means(values, np.random.default_rng(seed), resamples)))


def _means(values: np.ndarray, random: np.random.Generator, resamples: int) -> Iterator[np.ndarray]:
    count = len(values)
    size = max(1, CHUNK // count)
    for start in range(0, resamples, size):
        # How often each target is drawn; sampling counts costs a line of memory per resample and makes the mean a product.
        draws = random.multinomial(count, np.full(count, 1 / count), size=min(size, resamples - start))
        yield draws @ values / count


def paired_intervals(differences: np.ndarray, seed: int = 0) -> list[Interval]:
    """The mean of paired differences (N, C) of each of C conditions and its 95% percentile bootstrap interval."""
    limits = np.quantile(resampled_means(differences, seed), [0.025, 0.975], axis=0)
    return [Interval(*map(float, found)) for found in zip(differences.mean(0), *limits, strict=True)]


def paired_interval(differences: np.ndarray, seed: int = 0) -> Interval:
    """The same of one condition (N,)."""
    return paired_intervals(differences[:, None], seed)[0]


def effective_context(
    contexts: Sequence[int], baseline: np.ndarray, conditions: np.ndarray, threshold: float = 0.01, seed: int = 0
) -> tuple[int | None, int | None, int | None]:
    """The smallest context whose perplexity is within `threshold` of the baseline's, with its 95% bootstrap interval.

    contexts (C,) ascending; nats of the same targets: baseline (N,), conditions (N, C). None stands for "more than the
    longest context".
    """
    excess = conditions - baseline[:, None]
    within = np.log1p(threshold)

    def smallest(means: np.ndarray) -> np.ndarray:
        """Index of the first context within the threshold, C where there is none; means (..., C)."""
        good = means <= within
        return np.where(good.any(-1), good.argmax(-1), len(contexts))

    value = smallest(excess.mean(0))
    # Percentiles of an ordered category: the limits are contexts that were tried, not averages of two.
    limits = np.quantile(smallest(resampled_means(excess, seed)), [0.025, 0.975], method="inverted_cdf")
    # A minimum over conditions that are all close to the threshold comes out lower when resampled than in the data.
    limits = min(limits[0], value), max(limits[1], value)
    named = [None if i == len(contexts) else int(contexts[int(i)]) for i in (value, *limits)]
    return named[0], named[1], named[2]
