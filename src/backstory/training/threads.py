"""Threads inside the operations of a training on a CPU: the requested number, the recorded one, or the fastest."""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from backstory.config import plural
from backstory.config.terminal import ProgressCallback, progress_bar
from backstory.training.loop import Trainer

K = TypeVar("K")
MOST_THREADS = 1024
FASTER = 1.05
"""Speed-up from which doubling the threads is worth the cores."""
FEWEST_STEPS = 100
"""Length of a training in steps from which timing some of them pays."""
_TURNS, _MOST_TURNS, _SECONDS = 3, 9, 1.0
"""Minimum number of timed steps for each number of threads, and the seconds within which more are timed."""


def set_threads(trainer: Trainer, requested: int | None) -> str | None:
    """Set the number of threads that the trainer computes with; return a line on a choice that is not the usual one.

    That is the requested number, or OMP_NUM_THREADS, or that of the run that is resumed, or else the fastest of 1, 2, 4, ...
    up to as many as torch would use.
    """
    usual, recorded = torch.get_num_threads(), trainer.threads
    if trainer.device.type != "cpu":
        return None
    fixed = usual == 1 or "OMP_NUM_THREADS" in os.environ or trainer.ranks.world > 1
    number, line = requested or (usual if fixed else recorded), None
    # The number of steps that fit into a given time is known only later; it is minutes.
    if number is None and (trainer.is_unplanned or trainer.expected_steps() >= FEWEST_STEPS):
        with progress_bar(f"timing steps with 1 to {usual} threads", "steps") as progress:
            number, seconds = fastest_threads(_counted(trainer.trial_step, progress), usual)
        line = describe(number, seconds)
    torch.set_num_threads(number or usual)
    if recorded is not None and recorded != number:
        line = (
            f"{trainer.folder.path} was trained with {_threads(recorded)}, and goes on with {number}: "
            f"the rest may differ in the last bits; --threads {recorded} repeats it"
        )
    return line


def fastest_threads(step: Callable[[], object], most: int) -> tuple[int, dict[int, float]]:
    """Return the fastest number of threads up to `most`, and the median seconds of a step by number of threads.

    The number is doubled as long as that helps. Two numbers take turns, so that other programs slow both down alike.
    """
    torch.set_num_threads(1)
    step()  # allocates what the timed ones use
    best, seconds = 1, {}
    while (number := min(2 * best, most)) > best:
        torch.set_num_threads(number)
        step()
        seconds |= median_seconds({count: on_threads(step, count) for count in (best, number)})
        if seconds[best] <= FASTER * seconds[number]:
            break
        best = number
    return best, seconds


def _counted(step: Callable[[], object], progress: ProgressCallback) -> Callable[[], None]:
    """Return the step with its progress; the total is that of two numbers of threads, and grows with more."""
    done = 0

    def counted() -> None:
        nonlocal done
        step()
        done += 1
        progress(done, max(done + 1, 2 + 2 * _TURNS))

    return counted


def describe(best: int, seconds: dict[int, float]) -> str:
    """Return the line that says which number of threads was chosen and why."""
    others = ", ".join(f"with {_threads(n)} {time_:.3g} s" for n, time_ in seconds.items() if n != best)
    return f"{_threads(best)}: a step takes {seconds[best]:.3g} s, {others} (--threads sets the number)"


def on_threads(step: Callable[[], object], number: int) -> Callable[[], None]:
    """Return the step with so many threads."""

    def run() -> None:
        torch.set_num_threads(number)
        step()

    return run


def median_seconds(
    steps: Mapping[K, Callable[[], object]], clock: Callable[[], float] = time.perf_counter
) -> dict[K, float]:
    """Return the median seconds of several kinds of step by a clock; the kinds take turns."""
    times: dict[K, list[float]] = {kind: [] for kind in steps}
    began = time.perf_counter()
    for turn in range(_MOST_TURNS):
        if turn >= _TURNS and time.perf_counter() - began > _SECONDS:
            break
        for kind, step in steps.items():
            started = clock()
            step()
            times[kind].append(clock() - started)
    return {kind: statistics.median(values) for kind, values in times.items()}


def _threads(number: int) -> str:
    return f"{number} {plural('thread', number)}"
