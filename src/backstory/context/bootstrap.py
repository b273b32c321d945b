"""Paired bootstrap intervals over targets: every resample compares conditions on the same targets.

Targets that a reader adapted to together are no independent samples: whole clusters of them, documents or long blocks, are
resampled instead. Few of them call for Student's t. An interval over seeds holds the variance of seeds and that of targets.
"""

import functools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backstory.config.arguments import checked, diagnosed

RESAMPLES = 2000
CHUNK = 1 << 24
"""Counts of resampled clusters held at once, at most."""
MOST_KEPT = 1 << 23
"""Counts that are kept, at most, as the next measure of the same targets resamples them alike."""
BLOCK = 500
"""Tokens of a block that is resampled as a whole if no documents are known: about a document of Penn Treebank."""
FEWEST_CLUSTERS = 8
"""Clusters below which blocks are resampled instead of documents: fewer say little of how documents differ."""
NORMAL_LIMIT = statistics.NormalDist().inv_cdf(0.975)
"""Half of the length of a 95% interval of the normal distribution, in standard deviations: 1.96."""


def _check_sizes(contexts: Any = None, baseline: Any = None, conditions: Any = None, *_: object, **__: object) -> None:
    """Raise ValueError unless there are nats of every target under every context."""
    if (
        baseline.ndim != 1
        or not baseline.size
        or conditions.shape != (baseline.size, len(contexts))
        or not len(contexts)
    ):
        raise ValueError(
            "contexts (C,), baseline (N,) and conditions (N, C) must be of one number of contexts and of targets, 1 or more"
        )


@dataclass(frozen=True)
class Interval:
    """Estimate with the limits of its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class BetterContext:
    """Context that beats the full one."""

    length: int
    effect: Interval
    """Nats over the full context, below zero."""


@dataclass(frozen=True)
class EffectiveContext:
    """Shortest context from which on every longer one is as good as the full one, with its 95% interval.

    None stands for "more than the longest context". Where a shorter context is `best`, there is no effective context: more
    context hurts.
    """

    context: int | None = None
    low: int | None = None
    high: int | None = None
    best: BetterContext | None = None


def clusters_of(positions: np.ndarray, documents: np.ndarray | None = None, tokens: int | None = None) -> np.ndarray:
    """Return the cluster (N,) of each position (N,) in a text: its document, or its block if documents are unknown or few.

    `documents` (D,) holds where each begins. A block has `BLOCK` tokens, or an eighth of the text from the first position on
    where that is shorter than eight.
    """
    if documents is not None:
        within = np.searchsorted(documents, positions, "right")
        if len(np.unique(within)) >= FEWEST_CLUSTERS:
            return within
    span = (int(positions.max()) + 1 if tokens is None else tokens) - int(positions.min())
    return positions // max(1, min(BLOCK, span // FEWEST_CLUSTERS))


def resampled_means(
    values: np.ndarray, seed: int, resamples: int = RESAMPLES, clusters: np.ndarray | None = None
) -> np.ndarray:
    """Return bootstrap means over targets: values (N, C) -> (resamples, C), the same resample for all C conditions.

    With `clusters` (N,) whole clusters are resampled, and a mean is over all their targets; targets if all are in one.
    The means are `widened` for what is resampled. Raises ValueError unless there is a cluster for every target.
    """
    targets, counts = values, None
    if clusters is not None and clusters.shape != values.shape[:1]:
        raise ValueError(f"clusters must hold one for each of {len(values)} targets, not be of shape {clusters.shape}")
    if clusters is not None and len(sizes := np.unique(clusters, return_counts=True)[1]) > 1:
        values, counts = summed(values, clusters), sizes
    return widened(np.concatenate(list(_means(values, counts, seed, resamples))), targets.mean(0), len(values))


def widened(means: np.ndarray, centre: np.ndarray, count: int) -> np.ndarray:
    """Return bootstrap means (R, ...), spread around the mean of the sample as Student's t asks for `count` independent parts.

    Resamples of n parts have (n - 1) / n of the variance of a mean, and their percentiles are at -1.96 and 1.96 deviations, as
    if that variance were known, not estimated from n parts: t(n - 1) is right. Resamples themselves are spread, so that
    whatever comes from them (intervals, effective contexts, sums over groups) agrees. `benchmarks/coverage.py`
    measures how often intervals hold the truth with it and without.
    """
    return centre + widening(count) * (means - centre)


def widening(count: int) -> float:
    """Return the factor of `widened`: 1.29 for 8 parts, 1.04 for 40. It is 1 for one part, which shows no variance."""
    return t_limit(count - 1) / NORMAL_LIMIT * math.sqrt(count / (count - 1)) if count > 1 else 1.0


def summed(values: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Return the sums of values (N, C) over each cluster, (K, C), in the order of the clusters' numbers (N,)."""
    names, member = np.unique(clusters, return_inverse=True)
    sums = np.zeros((len(names), values.shape[1]))
    np.add.at(sums, member, values)
    return sums


def means_in_clusters(values: np.ndarray, mask: np.ndarray, clusters: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return bootstrap means (resamples,) of the values (N,) in a mask (N,), drawing the same clusters (N,) for any mask.

    They are `widened` for the clusters that hold such values. A resample without one has the mean of all of them.
    """
    sums, centre = summed(np.stack([values * mask, mask], 1), clusters), values[mask].mean()
    totals = np.concatenate(list(_means(sums, None, seed, RESAMPLES)))
    means = np.where(totals[:, 1] > 0, totals[:, 0] / np.maximum(totals[:, 1], 1e-12), centre)
    return widened(means, centre, int(np.count_nonzero(sums[:, 1])))


def _means(values: np.ndarray, counts: np.ndarray | None, seed: int, resamples: int) -> Iterator[np.ndarray]:
    """Yield means of resampled rows (N, C); with `counts` (N,) the rows are sums of that many values each."""
    rows = len(values)
    for draws in (
        [_kept_draws(rows, seed, resamples)] if rows * resamples <= MOST_KEPT else _draws(rows, seed, resamples)
    ):
        yield draws @ values / (rows if counts is None else (draws @ counts)[:, None])


def _draws(rows: int, seed: int, resamples: int) -> Iterator[np.ndarray]:
    """Yield how often each row is drawn, (R, rows), for all resamples in turn.

    Sampling counts costs a line of memory per resample and makes the mean a product.
    """
    random, size = np.random.default_rng(seed), max(1, CHUNK // rows)
    for start in range(0, resamples, size):
        yield random.multinomial(rows, np.full(rows, 1 / rows), size=min(size, resamples - start))


@functools.lru_cache(maxsize=2)  # calls for the same targets follow each other, and one entry may have 32 MiB
def _kept_draws(rows: int, seed: int, resamples: int) -> np.ndarray:
    kind = np.int16 if rows <= np.iinfo(np.int16).max else np.int32  # no row is drawn more often than there are rows
    return np.concatenate([draws.astype(kind) for draws in _draws(rows, seed, resamples)])


@checked(seed=0)
def paired_intervals(
    differences: np.ndarray,
    seed: int = 0,
    clusters: np.ndarray | None = None,
    resamples: np.ndarray | None = None,
) -> list[Interval]:
    """Return the mean paired difference (N, C) of each condition with its 95% interval, of `widened` means.

    `resamples` are the `resampled_means` of the differences, if they are known.
    """
    if differences.dtype.kind not in "fiu":
        raise TypeError(f"differences must be numbers, not of {differences.dtype}")
    if resamples is None:
        resamples = resampled_means(differences, seed, clusters=clusters)
    limits = np.quantile(resamples, [0.025, 0.975], axis=0)
    return [Interval(*map(float, one)) for one in zip(differences.mean(0), *limits, strict=True)]


@checked(seed=0)
def paired_interval(differences: np.ndarray, seed: int = 0, clusters: np.ndarray | None = None) -> Interval:
    """Return the mean of the paired differences (N,) of one condition with its 95% interval."""
    return paired_intervals(differences[:, None], seed, clusters)[0]


def over_seeds(values: Sequence[float], sampling: Sequence[Interval]) -> Interval:
    """Return the mean over seeds with its 95% interval, which holds the variance of seeds and that of targets.

    The seeds are independent: their part of the variance of the mean is S^2 / n, and of its half-width t(n - 1) S / sqrt(n).
    The targets are the same for all seeds, so that their part does not shrink with n: it is that of `sampling`, one interval
    over the targets of the mean of the seeds, or one for each seed, of which the root mean square counts. Half-widths are added
    as squares, on either side of the mean by itself (MOVER). The interaction of seeds and targets is in both parts, and
    t(n - 1) is that of seeds alone: the interval is too long rather than too short. A bootstrap over three seeds would not do:
    if seeds are all that differs, such intervals hold the truth in 74%. One seed has the interval of its targets.
    """
    value, count = statistics.fmean(values), len(values)
    margin = t_limit(count - 1) * statistics.stdev(values) / math.sqrt(count) if count > 1 else 0.0
    below = math.sqrt(statistics.fmean((one.value - one.low) ** 2 for one in sampling))
    above = math.sqrt(statistics.fmean((one.high - one.value) ** 2 for one in sampling))
    return Interval(value, value - math.hypot(margin, below), value + math.hypot(margin, above))


def resampled_seeds(effects: np.ndarray, seed: int, resamples: int = RESAMPLES) -> np.ndarray:
    """Return draws of the error of the mean over seeds: effects (S, C) of each seed -> (resamples, C).

    They are of a multivariate t distribution with S - 1 degrees of freedom and the covariance of that mean, which is the part
    of seeds in `over_seeds`, for all conditions together. Raises ValueError for a single seed.
    """
    seeds = len(effects)
    if seeds < 2:
        raise ValueError("how seeds differ cannot be seen from one seed; give the effects of two or more")
    random = np.random.default_rng([seed, seeds])
    normal = random.standard_normal((resamples, seeds)) @ (effects - effects.mean(0)) / math.sqrt(seeds * (seeds - 1))
    return normal * np.sqrt((seeds - 1) / random.chisquare(seeds - 1, (resamples, 1)))


@functools.cache
def t_limit(freedom: float, inside: float = 0.95) -> float:
    """Return the t with the mass `inside` of Student's distribution between -t and t.

    With t = sqrt(n) tan(a), the density of the angle a is proportional to cos(a)^(n-1), which is summed here.
    """
    # For many degrees of freedom all of the mass is near 0, where the steps would be too wide; 12 deviations hold it.
    angles = np.linspace(0.0, min(math.pi / 2, 12 / math.sqrt(freedom)), 50_001)
    heights = np.cos(angles) ** (freedom - 1)
    mass = np.concatenate([[0.0], np.cumsum((heights[1:] + heights[:-1]) / 2)])
    return math.sqrt(freedom) * math.tan(np.interp(inside * mass[-1], mass, angles))


def last_crossing(effects: np.ndarray, threshold: float) -> np.ndarray:
    """Return the index of the first context from which on all are within the threshold; effects (..., C), C without any.

    Within is either way: neither that much worse than the full context, in perplexity, nor that much better.
    """
    outside = (effects > np.log1p(threshold)) | (effects < np.log1p(-threshold))
    return np.where(outside.any(-1), outside.shape[-1] - outside[..., ::-1].argmax(-1), 0)


@checked(threshold=(0, 0.999), seed=0)
@diagnosed(_check_sizes)
def effective_context(
    contexts: Sequence[int],
    baseline: np.ndarray,
    conditions: np.ndarray,
    threshold: float = 0.01,
    seed: int = 0,
    clusters: np.ndarray | None = None,
    effects: Sequence[Interval] | None = None,
    models: np.ndarray | None = None,
    resamples: np.ndarray | None = None,
) -> EffectiveContext:
    """Return the smallest context from which on each is within `threshold` of the baseline's perplexity, either way.

    contexts (C,) ascending; nats of the same targets: baseline (N,), conditions (N, C). More context hurts where some context
    is better than the baseline by more than the threshold and its 95% interval lies below zero; the best of these is named.
    For the mean of several models, `effects` are its C effects with their intervals, and `models` (S, C) the effects of each:
    the interval of the effective context then covers models as well as targets. `resamples` are the `resampled_means` of the
    conditions' nats over the baseline, if they are known.
    """
    excess = conditions - baseline[:, None]
    if resamples is None:
        resamples = resampled_means(excess, seed, clusters=clusters)
    if models is not None:
        resamples = resamples + resampled_seeds(models, seed)
    if effects is None:
        limits = np.quantile(resamples, [0.025, 0.975], axis=0)
        effects = [Interval(*map(float, one)) for one in zip(excess.mean(0), *limits, strict=True)]
    better = [
        BetterContext(int(n), effect)
        for n, effect in zip(contexts, effects, strict=True)
        if effect.high < 0 and effect.value < math.log1p(-threshold)
    ]
    if better:
        return EffectiveContext(best=min(better, key=lambda one: one.effect.value))
    value = int(last_crossing(excess.mean(0), threshold))
    # Percentiles of an ordered category: the limits are contexts that were tried, not averages of two.
    limits = np.quantile(last_crossing(resamples, threshold), [0.025, 0.975], method="inverted_cdf")
    # A crossing of conditions that are all close to the threshold comes out elsewhere when resampled than in the data.
    value, low, high = (
        None if i == len(contexts) else int(contexts[i])
        for i in (value, min(int(limits[0]), value), max(int(limits[1]), value))
    )
    return EffectiveContext(value, low, high)
