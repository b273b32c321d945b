"""Threads inside the operations of a training on a CPU: the requested number, the recorded one, or the fastest."""

from collections.abc import Callable

import torch

from backstory.models.thread_timing import TURNS, fastest_threads, threads_are_fixed
from backstory.training.loop import Trainer
from backstory.utils.errors import plural
from backstory.utils.terminal import ProgressCallback, progress_bar

MOST_THREADS = 1024
FEWEST_STEPS = 100
"""Length of a training in steps from which timing some of them pays."""


def set_threads(trainer: Trainer, requested: int | None) -> str | None:
    """Set the number of threads that the trainer computes with; return a line on a choice that is not the usual one.

    That is the requested number, or OMP_NUM_THREADS, or that of the run that is resumed, or else the fastest of 1, 2, 4, ...
    up to as many as torch would use.
    """
    usual, recorded = torch.get_num_threads(), trainer.threads
    if trainer.device.type != "cpu":
        return None
    fixed = threads_are_fixed() or trainer.ranks.world > 1
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


def _counted(step: Callable[[], object], progress: ProgressCallback) -> Callable[[], None]:
    """Return the step with its progress; the total is that of two numbers of threads, and grows with more."""
    done = 0

    def counted() -> None:
        nonlocal done
        step()
        done += 1
        progress(done, max(done + 1, 2 + 2 * TURNS))

    return counted


def describe(best: int, seconds: dict[int, float]) -> str:
    """Return the line that says which number of threads was chosen and why."""
    others = ", ".join(f"with {_threads(n)} {time_:.3g} s" for n, time_ in seconds.items() if n != best)
    return f"{_threads(best)}: a step takes {seconds[best]:.3g} s, {others} (--threads sets the number)"


def _threads(number: int) -> str:
    return f"{number} {plural('thread', number)}"
