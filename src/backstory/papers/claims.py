"""Test a paper's claims on the readings of a suite's runs: gain over seeds, its 95% t interval, p-value and verdict."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from backstory.config.options import ReadingOptions
from backstory.papers.paper import published_value
from backstory.papers.suite import Claim, ClaimSide, Suite
from backstory.results.reproduction_record import ClaimRecord, SideRecord
from backstory.results.seed_gain import gain_over_seeds
from backstory.results.suite_run_record import ReadingRecord, RunRecord

YES, OPPOSITE, UNDECIDED = "yes", "no, the opposite", "not decided"
ONE_SEED, MISSING = "one seed: no claim", "runs are missing: no claim"
AUDIT_FAILED = "an audit failed: no claim"
CONFOUNDED = "confounded: no verdict"


@dataclass(frozen=True)
class Judgement:
    """Outcome of a claim over the seeds. The gain is how much lower the better side is than the other, on average."""

    verdict: str
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    """Limits of the gain's 95% interval; None if a side has one seed."""
    paired: bool | None = None
    p_value: float | None = None
    """Two-sided, of no gain; None without an interval."""


def check_claims(suite: Suite, runs: Mapping[str, Sequence[RunRecord]]) -> tuple[ClaimRecord, ...]:
    """Return the outcome of the suite's claims about systems that have runs; `runs` by system."""
    claims = [c for c in suite.claims if c.better.system in runs and c.than.system in runs]
    return corrected([_check(claim, suite, runs) for claim in claims])


def corrected(claims: Sequence[ClaimRecord]) -> tuple[ClaimRecord, ...]:
    """Return the claims with p-values by Holm's method, over all claims of the suite at one scale.

    A claim without a p-value counts as one that was tested and showed nothing.
    """
    adjusted = iter(holm([c.p_value for c in claims if c.p_value is not None], len(claims)))
    return tuple(c if c.p_value is None else replace(c, holm_p_value=next(adjusted)) for c in claims)


def holm(p_values: Sequence[float], family: int | None = None) -> list[float]:
    """Return p-values that bound the chance of any false rejection among `family` tests (by default as many as are given).

    The k-th smallest is multiplied by family - k + 1, and none is below a smaller one (Holm 1979).
    """
    family = len(p_values) if family is None else family
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (family - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def readings_at(runs: Sequence[RunRecord], reading: ReadingOptions) -> dict[int, ReadingRecord]:
    """Return a reading by seed, of the runs that have it."""
    return {run.seed: record for run in runs for record in run.readings if record.place == reading.reading()}


def _check(claim: Claim, suite: Suite, runs: Mapping[str, Sequence[RunRecord]]) -> ClaimRecord:
    sides = claim.better, claim.than
    better, than = (readings_at(runs[side.system], side) for side in sides)
    if not all(_complete(runs[side.system], side) for side in sides):
        judgement = Judgement(MISSING)
    elif any(reading.audited is False for reading in (*better.values(), *than.values())):
        judgement = Judgement(AUDIT_FAILED)
    else:
        judgement = judge(_values(better), _values(than))
    if claim.confounded and judgement.verdict in (YES, OPPOSITE, UNDECIDED):
        judgement = replace(judgement, verdict=CONFOUNDED)
    return ClaimRecord(
        sentence=claim.sentence,
        better=SideRecord(system=claim.better.system, **SideRecord.values(claim.better)),
        than=SideRecord(system=claim.than.system, **SideRecord.values(claim.than)),
        published_gain=published_gain(suite, claim),
        seeds=(len(better), len(than)),
        confounded=claim.confounded,
        **vars(judgement),
    )


def published_gain(suite: Suite, claim: Claim) -> float | None:
    """Return the printed gain of a paper's claim; None unless one paper prints a value for both sides.

    Values of two papers are of two models. The claim's own paper goes first, then the one whose value stands first.
    """
    better, than = (_published(suite, side) for side in (claim.better, claim.than))
    common = sorted((name for name in better if name in than), key=claim.paper.__ne__) if claim.where else []
    return round(than[common[0]] - better[common[0]], 6) if common else None


def _published(suite: Suite, side: ClaimSide) -> dict[str, float]:
    """Return the printed values of one side of a claim by paper."""
    readings = next(system.readings for system in suite.systems if system.name == side.system)
    reference = next(reading.published for reading in readings if reading.reading() == side.reading())
    if reference is None:
        return {}
    typed = {} if reference.value is None else {"": reference.value}
    return typed | {name.partition("/")[0]: published_value(name)[0].value for name in reference.figures}


def _complete(runs: Sequence[RunRecord], side: ClaimSide) -> bool:
    """Return True if every run of a side is finished and has its reading."""
    return all(run.state == "done" for run in runs) and len(readings_at(runs, side)) == len(runs)


def _values(readings: Mapping[int, ReadingRecord]) -> dict[int, float]:
    return {seed: reading.value for seed, reading in readings.items() if reading.value is not None}


def judge(better: Mapping[int, float], than: Mapping[int, float]) -> Judgement:
    """Test that `better` scores lower than `than`, given their figures by seed.

    The claim holds (`yes`) where the 95% interval of the mean gain lies above 0, the opposite holds where it lies below,
    and nothing is decided where it holds 0. With the same seeds on both sides the interval is that of the differences
    seed by seed; otherwise it is Welch's. A side with one seed decides nothing; the gain is then that of the seeds on both
    sides, if there are any.
    """
    if not better or not than:
        return Judgement(MISSING)
    gain = gain_over_seeds(better, than)
    if gain is None:
        common = better.keys() & than.keys()
        low, high = (statistics.fmean(side[seed] for seed in common or side) for side in (better, than))
        return Judgement(ONE_SEED, high - low)
    verdict = YES if gain.low > 0 else OPPOSITE if gain.high < 0 else UNDECIDED
    p_value = _p_value(gain.value, gain.variance, gain.freedom)
    return Judgement(verdict, gain.value, gain.low, gain.high, gain.paired, p_value)


def _p_value(gain: float, variance: float, freedom: float) -> float:
    """Return the mass of Student's distribution beyond t = gain / deviation, on both sides.

    With t = sqrt(n) tan(a), the density of the angle a is proportional to cos(a)^(n-1), as in `t_limit`.
    """
    angle = math.atan2(abs(gain), math.sqrt(variance * freedom)) if gain else 0.0
    tail, whole = (np.linspace(start, math.pi / 2, 50_001) for start in (angle, 0.0))
    masses = [np.trapezoid(np.cos(angles) ** (freedom - 1), angles) for angles in (tail, whole)]
    return float(masses[0] / masses[1])
