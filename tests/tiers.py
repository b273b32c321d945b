"""The two tiers of tests: some cases, seeds and examples in every run, and all of them with `--full`."""

import zlib
from collections.abc import Iterable
from typing import Any

import pytest

FULL = False
"""True with `--full`; set before test modules are imported."""


def fast_then_full(cases: Iterable[Any], fast: Iterable[Any]) -> list[Any]:
    """Return all cases, those outside `fast` marked full; raise ValueError if `fast` names a case that is missing."""
    cases, fast = list(cases), list(fast)
    missing = [case for case in fast if case not in cases]
    if missing:
        raise ValueError(f"no such case: {missing}")
    return [case if case in fast else marked_full(case) for case in cases]


def marked_full(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.full)


def several(fast: int, full: int) -> int:
    """Return the number of seeds or examples for this run."""
    return full if FULL else fast


def part_of(name: str) -> int:
    """Return the third of the long tests, 1 to 3, to which the test of this name always belongs."""
    return zlib.crc32(name.encode()) % 3 + 1
