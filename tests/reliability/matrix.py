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
from hostile_checkpoints import HOSTILE
from refused_resumes import REFUSALS


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
