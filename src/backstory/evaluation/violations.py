"""Violations that a referee sees: for each condition the first place where it fails, with its evidence, and how often."""

import math
from collections import Counter
from dataclasses import replace

from torch import Tensor

from backstory.evaluation.audit import AuditReport
from backstory.readers.base import Block, places_of
from backstory.results.referee_record import ViolationRecord


class Violations:
    """The conditions that failed, as they are seen; a failure is noted in the audit's report too."""

    def __init__(self, report: AuditReport, block: int) -> None:
        """`block` is the number of tokens of a row that are predicted at once."""
        self._report, self._block = report, block
        self._first: dict[str, ViolationRecord] = {}
        self._times: Counter[str] = Counter()

    def compare(self, condition: str, why: str, block: Block, wrong: Tensor, actual: Tensor, expected: Tensor) -> None:
        """Record where two log-probabilities (R, T) of one target differ that should be equal."""
        if wrong.any():
            ours, theirs = (t[earliest(wrong)].item() for t in (actual, expected))
            evidence = f"{why}: log-probability {ours:.6g} and {theirs:.6g}"
            self.add(condition, evidence, block, wrong, ours, theirs)

    def add(
        self,
        condition: str,
        evidence: str,
        block: Block | None = None,
        wrong: Tensor | None = None,
        actual: float | None = None,
        expected: float | None = None,
    ) -> None:
        """Record that a condition fails at positions (R, T) of a block, keeping the first with its evidence."""
        self._report.checks[condition] = False
        self._times[condition] += 1 if wrong is None else int(wrong.sum())
        if condition in self._first:
            return
        token = None
        if block is not None and wrong is not None:
            places = places_of(block, self._block)
            token = int(places[earliest(wrong)])
        numbers = [None if n is None or not math.isfinite(n) else n for n in (actual, expected)]
        self._first[condition] = ViolationRecord(
            condition=condition, token=token, evidence=evidence, found=numbers[0], expected=numbers[1], times=1
        )

    def records(self) -> tuple[ViolationRecord, ...]:
        """Return them as results record them, in the order in which they were seen first."""
        return tuple(replace(one, times=self._times[one.condition]) for one in self._first.values())


def earliest(wrong: Tensor) -> tuple[int, int]:
    """Return the row and time of the first position (R, T) that is True, by time."""
    time, row = wrong.T.nonzero()[0].tolist()
    return row, time
