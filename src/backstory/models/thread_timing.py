"""Number of threads inside the operations on a CPU: the fastest of 1, 2, 4, ..., by the time that a step takes with each."""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

K = TypeVar("K")
FASTER = 1.05
"""Speed-up from which doubling the threads is worth the cores."""
TURNS = 3
"""Minimum number of timed steps for each number of threads."""
_MOST_TURNS, _SECONDS = 9, 1.0
"""Maximum number, and the seconds within which more than the minimum are timed."""


def threads_are_fixed() -> bool:
    """Return True if there is nothing to choose: one core, one thread in the calling program, or OMP_NUM_THREADS."""
    return torch.get_num_threads() == 1 or "OMP_NUM_THREADS" in os.environ


def fastest_threads(step: Callable[[], object], most: int, seconds: float = _SECONDS) -> tuple[int, dict[int, float]]:
    """Return the fastest number of threads up to `most`, and the median seconds of a step by number of threads.

    The number is doubled as long as that helps. Two numbers take turns, so that other programs slow both down alike.
    `seconds` are those within which more steps than the minimum are timed.
    """
    torch.set_num_threads(1)
    step()  # allocates what the timed ones use
    best, medians = 1, {}
    while (number := min(2 * best, most)) > best:
        torch.set_num_threads(number)
        step()
        medians |= median_seconds({count: on_threads(step, count) for count in (best, number)}, within=seconds)
        if medians[best] <= FASTER * medians[number]:
            break
        best = number
    return best, medians


def on_threads(step: Callable[[], object], number: int) -> Callable[[], None]:
    """Return the step with so many threads."""

    def run() -> None:
        torch.set_num_threads(number)
        step()

    return run


def median_seconds(
    steps: Mapping[K, Callable[[], object]],
    clock: Callable[[], float] = time.perf_counter,
    within: float = _SECONDS,
) -> dict[K, float]:
    """Return the median seconds of several kinds of step by a clock; the kinds take turns, more than a few `within` seconds."""
    times: dict[K, list[float]] = {kind: [] for kind in steps}
    began = time.perf_counter()
    for turn in range(_MOST_TURNS):
        if turn >= TURNS and time.perf_counter() - began > within:
            break
        for kind, step in steps.items():
            started = clock()
            step()
            times[kind].append(clock() - started)
    return {kind: statistics.median(values) for kind, values in times.items()}
