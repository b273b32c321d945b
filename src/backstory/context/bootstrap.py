"""Paired bootstrap intervals over targets: every resample compares conditions on the same targets.

Targets are not independent if a reader adapted to them together. Then whole clusters are resampled: documents, or long blocks.
With few clusters, intervals are widened by Student's t. An interval over seeds covers the variance of both seeds and targets.
"""

import functools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backstory.results.seed_gain import t_limit
from backstory.utils.arguments import checked, diagnosed

RESAMPLES = 2000
CHUNK = 1 << 24
"""Largest number of resampling counts in memory at once."""
MOST_KEPT = 1 << 23
"""Largest number of resampling counts to cache. Measures of the same targets reuse them."""
BLOCK = 500
"""Tokens in a block, the unit of resampling where documents are unknown: about the length of a Penn Treebank document."""
FEWEST_CLUSTERS = 8
"""With fewer documents than this, resample blocks instead: a handful says little about how documents differ."""
NORMAL_LIMIT = statistics.NormalDist().inv_cdf(0.975)
"""Half-width of a 95% interval of the normal distribution, in standard deviations: 1.96."""


def _check_sizes(contexts: Any = None, baseline: Any = None, conditions: Any = None, *_: object, **__: object) -> None:
    """Raise ValueError unless every target has nats under every context."""
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
    """Estimate with the limits of its 95% interval; a single value says nothing of them, and they are infinite."""

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
    """Shortest context from which every longer one is as good as the full one, with its 95% interval.

    None means "more than the longest context". If a shorter context is `best`, more context hurts, and there is no effective
    context.
    """

    context: int | None = None
    low: int | None = None
    high: int | None = None
    best: BetterContext | None = None


def clusters_of(positions: np.ndarray, documents: np.ndarray | None = None, tokens: int | None = None) -> np.ndarray:
    """Return the cluster (N,) of each position (N,) in a text: its document, or its block if documents are unknown or few.

    `documents` (D,) holds the start of each document. A block has `BLOCK` tokens, or an eighth of the text from the
    first position on if that is less.
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
    """Return bootstrap means over targets: values (N, C) -> (resamples, C), with the same resample for all C conditions.

    With `clusters` (N,), resample whole clusters and average over all their targets. If there is one cluster only, resample
    targets. The means are `widened`. Raises ValueError unless every target has a cluster.
    """
    targets, counts = values, None
    if clusters is not None and clusters.shape != values.shape[:1]:
        raise ValueError(f"clusters must hold one for each of {len(values)} targets, not be of shape {clusters.shape}")
    if clusters is not None and len(sizes := np.unique(clusters, return_counts=True)[1]) > 1:
        values, counts = summed(values, clusters), sizes
    return widened(np.concatenate(list(_means(values, counts, seed, resamples))), targets.mean(0), len(values))


def widened(means: np.ndarray, centre: np.ndarray, count: int) -> np.ndarray:
    """Return bootstrap means (R, ...), spread around the sample mean to match Student's t for `count` independent parts.

    Resamples of n parts have only (n - 1) / n of the variance of a mean, and their 95% limits lie at 1.96 deviations, as if
    the variance were known. It is estimated from n parts, so t(n - 1) is right. Spreading the resamples themselves keeps
    everything computed from them consistent: intervals, effective contexts, sums over groups. `benchmarks/coverage.py` measures
    the coverage of the intervals with and without this factor.
    """
    return centre + widening(count) * (means - centre)


def widening(count: int) -> float:
    """Return the factor of `widened`: 1.29 for 8 parts, 1.04 for 40, and 1 for a single part, which has no variance."""
    return t_limit(count - 1) / NORMAL_LIMIT * math.sqrt(count / (count - 1)) if count > 1 else 1.0


def summed(values: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Return the sums of values (N, C) over each cluster, (K, C), in the order of the clusters' numbers (N,)."""
    names, member = np.unique(clusters, return_inverse=True)
    sums = np.zeros((len(names), values.shape[1]))
    np.add.at(sums, member, values)
    return sums


def means_in_clusters(values: np.ndarray, mask: np.ndarray, clusters: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return bootstrap means (resamples,) of the values (N,) in a mask (N,); every mask draws the same clusters (N,).

    They are `widened` by the number of clusters with a value in the mask. A resample without any gets the mean of all.
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
    """Yield how often each resample draws each row, (R, rows), a chunk of resamples at a time.

    Counts take one row of memory per resample, and turn the mean into a matrix product.
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
    """Return the mean of the paired differences (N, C) of each condition, with its 95% interval from `widened` means.

    `resamples` are the `resampled_means` of the differences, if already computed. The limits for a single target are infinite.
    """
    if differences.dtype.kind not in "fiu":
        raise TypeError(f"differences must be numbers, not of {differences.dtype}")
    if len(differences) == 1:
        return [Interval(float(value), -math.inf, math.inf) for value in differences[0]]
    if resamples is None:
        resamples = resampled_means(differences, seed, clusters=clusters)
    limits = np.quantile(resamples, [0.025, 0.975], axis=0)
    return [Interval(*map(float, one)) for one in zip(differences.mean(0), *limits, strict=True)]


@checked(seed=0)
def paired_interval(differences: np.ndarray, seed: int = 0, clusters: np.ndarray | None = None) -> Interval:
    """Return the mean of the paired differences (N,) of one condition with its 95% interval."""
    return paired_intervals(differences[:, None], seed, clusters)[0]


def over_seeds(values: Sequence[float], sampling: Sequence[Interval]) -> Interval:
    """Return the mean over seeds with a 95% interval that covers the variance of both seeds and targets.

    Seeds are independent: they contribute S^2 / n to the variance of the mean, and t(n - 1) S / sqrt(n) to the half-width.
    All seeds share the targets, so the contribution of the targets does not shrink with n. It comes from `sampling`: one
    interval over the targets for the mean of the seeds, or one per seed, combined by their root mean square. The two
    half-widths are added in quadrature, on each side of the mean separately (MOVER). Both include the interaction of seeds and
    targets, and t(n - 1) counts seeds alone, so the interval errs on the long side. A bootstrap over three seeds would be too
    short: where only the seeds differ, it holds the truth in 74%. A single seed gets the interval over its targets.
    """
    value, count = statistics.fmean(values), len(values)
    margin = t_limit(count - 1) * statistics.stdev(values) / math.sqrt(count) if count > 1 else 0.0
    below = math.sqrt(statistics.fmean((one.value - one.low) ** 2 for one in sampling))
    above = math.sqrt(statistics.fmean((one.high - one.value) ** 2 for one in sampling))
    return Interval(value, value - math.hypot(margin, below), value + math.hypot(margin, above))


def resampled_seeds(effects: np.ndarray, seed: int, resamples: int = RESAMPLES) -> np.ndarray:
    """Return draws of the error of the mean over seeds: effects (S, C) of each seed -> (resamples, C).

    They follow a multivariate t distribution with S - 1 degrees of freedom and the covariance of that mean: the contribution of
    the seeds in `over_seeds`, jointly for all conditions. Raises ValueError for a single seed.
    """
    seeds = len(effects)
    if seeds < 2:
        raise ValueError("how seeds differ cannot be seen from one seed; give the effects of two or more")
    random = np.random.default_rng([seed, seeds])
    normal = random.standard_normal((resamples, seeds)) @ (effects - effects.mean(0)) / math.sqrt(seeds * (seeds - 1))
    return normal * np.sqrt((seeds - 1) / random.chisquare(seeds - 1, (resamples, 1)))


def last_crossing(effects: np.ndarray, threshold: float) -> np.ndarray:
    """Return the index of the first context from which all are within the threshold, or C if there is none; effects (..., C).

    The threshold applies both ways: perplexity neither that much worse than with the full context, nor that much better.
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
    """Return the smallest context from which all are within `threshold` of the baseline's perplexity, either way.

    contexts (C,) ascending; nats of the same targets: baseline (N,), conditions (N, C). More context hurts if some context
    beats the baseline by more than the threshold and its 95% interval lies below zero; the result then names the best of these.
    For the mean of several models, pass its C effects with intervals as `effects`, and those of each model as `models` (S, C).
    The interval of the effective context then covers models as well as targets. `resamples` are the `resampled_means` of the
    conditions' nats minus the baseline's, if already computed. The interval for a single target holds every context.
    """
    excess = conditions - baseline[:, None]
    if resamples is None:
        resamples = resampled_means(excess, seed, clusters=clusters)
    if models is not None:
        resamples = resamples + resampled_seeds(models, seed)
    if effects is None:
        effects = paired_intervals(excess, seed, clusters, resamples)
    better = [
        BetterContext(int(n), effect)
        for n, effect in zip(contexts, effects, strict=True)
        if effect.high < 0 and effect.value < math.log1p(-threshold)
    ]
    if better:
        return EffectiveContext(best=min(better, key=lambda one: one.effect.value))
    value = int(last_crossing(excess.mean(0), threshold))
    if len(baseline) == 1:
        return EffectiveContext(None if value == len(contexts) else int(contexts[value]), int(contexts[0]), None)
    # Percentiles of an ordered category: the limits are contexts that were tried, not averages of two.
    limits = np.quantile(last_crossing(resamples, threshold), [0.025, 0.975], method="inverted_cdf")
    # A crossing of conditions that are all close to the threshold comes out elsewhere when resampled than in the data.
    value, low, high = (
        None if i == len(contexts) else int(contexts[i])
        for i in (value, min(int(limits[0]), value), max(int(limits[1]), value))
    )
    return EffectiveContext(value, low, high)
