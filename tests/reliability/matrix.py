"""The reliability matrix: what must hold when processes are killed, disks fail and files lie, and how often it is tried."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import fuzzed_checkpoints
import fuzzed_configs
import fuzzed_corpora
import hostile_checkpoints
import hostile_downloads
import refused_resumes
from corruption import corruption
from filesystem import filesystem, size_limit
from hostile_checkpoints import HOSTILE
from kill import kill
from killed_readings import killed_readings
from nonfinite import nonfinite
from refused_resumes import REFUSALS
from signals import signals
from torture import torture


@dataclass(frozen=True)
class Case:
    """One row of the matrix.

    `run` is given the numbers of the trials to make, each of which fixes all that is random in its trial, and an empty
    folder to work in; it yields one line for every trial that did not hold.
    """

    what: str
    """What is done: `SIGKILL at random times, then resume`."""
    promise: str
    """What must hold: `weights, optimizer, state bit-identical`."""
    count: int
    """Trials of the whole matrix."""
    bounded: int
    """Trials of `pytest --full`."""
    run: Callable[[range, Path], Iterator[str]]


ENDS = "taken, or one line and exit code 2 with nothing written; no traceback, no hang"
MATRIX: dict[str, Case] = {
    "kill": Case(
        "SIGKILL at random times, then resume, over 3 recipes",
        "weights, optimizer, average, state, random numbers, log and result as of an undisturbed run",
        200,
        12,
        kill,
    ),
    "killed-readings": Case(
        "SIGKILL of an evaluation at random times, static and adaptive, then --resume or once more",
        "all figures as of an undisturbed one, the audit's too; nothing left behind, the run as it was",
        20,
        4,
        killed_readings,
    ),
    "filesystem": Case(
        "every call to the file system while a run begins, saves, rotates and ends x {kill, ENOSPC, EIO, short write}",
        "the old checkpoint or the new one stands, one line and exit code 2, resumed bit for bit, nothing left behind",
        1100,
        25,
        filesystem,
    ),
    "size-limit": Case(
        "writes that the system itself cuts off at a random size",
        "as for filesystem",
        40,
        4,
        size_limit,
    ),
    "torture": Case(
        "SIGKILL of a loop of saving and rotating, TMPDIR on the same and on another file system",
        "a whole checkpoint loads, none older than the last that was finished",
        300,
        24,
        torture,
    ),
    "corruption": Case(
        "bit flips, zeroed pages, truncations and appended bytes in every file of a checkpoint",
        "noticed, and passed over for the one before with one line of warning",
        1000,
        300,
        corruption,
    ),
    "signals": Case(
        "SIGTERM and SIGINT at random points, start-up included, a second one while saving",
        "exit code 128 + n and one line, a whole checkpoint, resumed bit for bit",
        60,
        6,
        signals,
    ),
    "nonfinite": Case(
        "NaN and Inf in loss, gradient, weights and validation, and absurd rates of learning",
        "exit code 3 before the update, only finite weights saved, trained on at a smaller rate",
        12,
        6,
        nonfinite,
    ),
    "configs": Case(
        "fuzzed settings and command lines",
        f"{ENDS}; what is taken comes back from its YAML",
        5000,
        150,
        fuzzed_configs.run,
    ),
    "corpora": Case(
        "fuzzed corpora, by every tokenizer",
        "a dataset whose invariants hold, or one line and nothing kept",
        5000,
        300,
        fuzzed_corpora.run,
    ),
    "checkpoints": Case(
        "fuzzed checkpoints under right hashes",
        f"{ENDS}; nothing wrong is loaded silently",
        5000,
        100,
        fuzzed_checkpoints.run,
    ),
    "hostile": Case(
        "hostile checkpoints",
        "one line and exit code 2; nothing run, waited for, unfolded in memory or written through",
        len(HOSTILE),
        8,
        hostile_checkpoints.run,
    ),
    "refusals": Case(
        "resumes of what has changed",
        "one line and exit code 2, nothing changed; --accept goes on by name only",
        len(REFUSALS),
        len(REFUSALS),
        refused_resumes.run,
    ),
    "hostile-downloads": Case(
        "downloads from a hostile server on localhost",
        "refused in one line, nothing kept, nothing outside touched; an honest download works afterwards",
        hostile_downloads.COUNT,
        hostile_downloads.COUNT,
        hostile_downloads.run,
    ),
}
"""Every case by its name."""
