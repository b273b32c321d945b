"""Whether a claim holds: the 95% t interval of a difference over seeds, paired where both sides have the same ones."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from backstory.context.bootstrap import t_limit

YES, OPPOSITE, UNDECIDED = "yes", "no, the opposite", "not decided"
ONE_SEED, MISSING = "one seed: no claim", "runs are missing: no claim"
AUDIT_FAILED = "an audit failed: no claim"
CONFOUNDED = "confounded: no verdict"


@dataclass(frozen=True)
class Judgement:
    """What the seeds say about a claim. The gain is how much lower the better side is than the other, on average."""

    verdict: str
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    """Limits of the gain's 95% interval; none where a side has one seed."""
    paired: bool | None = None


def judge(better: Mapping[int, float], than: Mapping[int, float]) -> Judgement:
    """Judge that `better` scores lower than `than`, figures by seed.

    The claim holds (`yes`) where the 95% interval of the mean gain lies above 0, the opposite holds where it lies below,
    and nothing is decided where it holds 0. With the same seeds on both sides the interval is that of the differences
    seed by seed; otherwise it is Welch's. A side with one seed decides nothing.
    """
    if not better or not than:
        return Judgement(MISSING)
    gain = statistics.fmean(than.values()) - statistics.fmean(better.values())
    if min(len(better), len(than)) < 2:
        return Judgement(ONE_SEED, gain)
    paired = better.keys() == than.keys()
    if paired:
        variance, freedom = _paired([than[seed] - better[seed] for seed in better])
    else:
        variance, freedom = _welch(list(better.values()), list(than.values()))
    margin = t_limit(freedom) * math.sqrt(variance)
    low, high = gain - margin, gain + margin
    verdict = YES if low > 0 else OPPOSITE if high < 0 else UNDECIDED
    return Judgement(verdict, gain, low, high, paired)


def _paired(differences: list[float]) -> tuple[float, float]:
    """Variance of the mean difference and its degrees of freedom."""
    return statistics.variance(differences) / len(differences), len(differences) - 1


def _welch(a: list[float], b: list[float]) -> tuple[float, float]:
    """Variance of the difference of two means and its degrees of freedom (Welch and Satterthwaite)."""
    parts = [(statistics.variance(side) / len(side), len(side) - 1) for side in (a, b)]
    variance = sum(v for v, _ in parts)
    below = sum(v * v / n for v, n in parts)
    return variance, variance * variance / below if below else sum(n for _, n in parts)
