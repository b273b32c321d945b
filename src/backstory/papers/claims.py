"""Test a paper's claims on the readings of a suite's runs: gain over seeds, its 95% t interval, verdict."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from backstory.config.eval_options import ReadingOptions
from backstory.context.bootstrap import t_limit
from backstory.papers.plan import published_figure
from backstory.papers.suite import Claim, ClaimSide, Suite
from backstory.results.reproduction_record import ClaimRecord, ReadingRecord, RunRecord, SideRecord

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
    """Limits of the gain's 95% interval; None if a side has one seed."""
    paired: bool | None = None


def check_claims(suite: Suite, runs: Mapping[str, Sequence[RunRecord]]) -> tuple[ClaimRecord, ...]:
    """Return the outcome of the suite's claims about systems that have runs; `runs` by system."""
    return tuple(
        _check(claim, suite, runs)
        for claim in suite.claims
        if claim.better.system in runs and claim.than.system in runs
    )


def readings_at(runs: Sequence[RunRecord], reading: ReadingOptions) -> dict[int, ReadingRecord]:
    """Return a reading by seed, of the runs that have it."""
    return {run.seed: record for run in runs for record in run.readings if record.place == reading.reading()}


def _check(claim: Claim, suite: Suite, runs: Mapping[str, Sequence[RunRecord]]) -> ClaimRecord:
    sides = claim.better, claim.than
    better, than = (readings_at(runs[side.system], side) for side in sides)
    published_better, published_than = (_published(suite, side) for side in sides)
    complete = all(_complete(runs[side.system], side) for side in sides)
    if not complete:
        judgement = Judgement(MISSING)
    elif any(reading.audited is False for reading in (*better.values(), *than.values())):
        judgement = Judgement(AUDIT_FAILED)
    else:
        judgement = judge(_values(better), _values(than))
    if claim.confounded and judgement.verdict in (YES, OPPOSITE, UNDECIDED):
        judgement = replace(judgement, verdict=CONFOUNDED)
    gain = None if published_better is None or published_than is None else round(published_than - published_better, 6)
    return ClaimRecord(
        sentence=claim.sentence,
        better=_side_record(claim.better),
        than=_side_record(claim.than),
        published_gain=gain,
        seeds=(len(better), len(than)),
        confounded=claim.confounded,
        **vars(judgement),
    )


def _side_record(side: ClaimSide) -> SideRecord:
    return SideRecord(system=side.system, **vars(side.reading()))


def _complete(runs: Sequence[RunRecord], side: ClaimSide) -> bool:
    """Return True if every run of a side is finished and has its reading."""
    return all(run.state == "done" for run in runs) and len(readings_at(runs, side)) == len(runs)


def _values(readings: Mapping[int, ReadingRecord]) -> dict[int, float]:
    return {seed: reading.value for seed, reading in readings.items() if reading.value is not None}


def _published(suite: Suite, side: ClaimSide) -> float | None:
    """Return the printed value of a claim's side."""
    readings = next(system.readings for system in suite.systems if system.name == side.system)
    reference = next(reading.published for reading in readings if reading.reading() == side.reading())
    return published_figure(reference)[0] if reference else None


def judge(better: Mapping[int, float], than: Mapping[int, float]) -> Judgement:
    """Test that `better` scores lower than `than`, given their figures by seed.

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
    """Return the variance of the mean difference and its degrees of freedom."""
    return statistics.variance(differences) / len(differences), len(differences) - 1


def _welch(a: list[float], b: list[float]) -> tuple[float, float]:
    """Return the variance of the difference of two means and its degrees of freedom (Welch and Satterthwaite)."""
    parts = [(statistics.variance(side) / len(side), len(side) - 1) for side in (a, b)]
    variance = sum(v for v, _ in parts)
    below = sum(v * v / n for v, n in parts)
    return variance, variance * variance / below if below else sum(n for _, n in parts)
