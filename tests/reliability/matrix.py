"""The reliability matrix: promises under killed processes, failing disks and lying files, with their trials."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import foreign_folders
import full_disks
import fuzzed_checkpoints
import fuzzed_configs
import fuzzed_corpora
import fuzzed_readings
import fuzzed_results
import hostile_checkpoints
import hostile_downloads
import hostile_tokenizers
import killed_cores
import misuses
import odd_uses
import refused_resumes
import two_ways
from broken_output import BROKEN, broken_output
from corruption import corruption
from filesystem import filesystem, size_limit
from hostile_checkpoints import HOSTILE
from kill import kill
from killed_readings import killed_readings
from killed_sessions import killed_sessions
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
    """Attack: `SIGKILL at random times, then resume`."""
    promise: str
    """Promise: `weights, optimizer, state bit-identical`."""
    count: int
    """Trials of the whole matrix."""
    bounded: int
    """Trials of `pytest --full`."""
    run: Callable[[Sequence[int], Path], Iterator[str]]
    spread: bool = False
    """True if trials of one kind follow each other: the bounded part is then drawn from all of them."""
    bounded_trials: Sequence[int] = ()
    """The bounded part, where it is neither the first trials nor drawn."""

    def part(self) -> Sequence[int]:
        """Return the trials of `pytest --full`, the same each time."""
        if not self.spread:
            return self.bounded_trials or range(self.bounded)
        return sorted(random.Random(7).sample(range(self.count), self.bounded))


ENDS = "taken, or one line and exit code 2 with nothing written; no traceback, no hang"
MATRIX: dict[str, Case] = {
    "kill": Case(
        "SIGKILL at random times, then resume, over 3 recipes",
        "weights, optimizer, average, state, random numbers, log and result as of an undisturbed run",
        200,
        12,
        kill,
    ),
    "killed-cores": Case(
        "SIGKILL in the very first save, and at random times, for every core and optimizer, with or without --init-from",
        "as for kill",
        killed_cores.COUNT,
        len(killed_cores.BOUNDED),
        killed_cores.killed_cores,
        bounded_trials=killed_cores.BOUNDED,
    ),
    "killed-readings": Case(
        "SIGKILL of an evaluation at random times, static and adaptive, then --resume or once more",
        "all figures as of an undisturbed one, the audit's too; nothing left behind, the run as it was",
        20,
        4,
        killed_readings,
        spread=True,
    ),
    "killed-sessions": Case(
        "SIGKILL of a session at random times, static and adaptive, then --resume with the lines after those it had read",
        "tokens, lines and score of the session bit for bit as of an undisturbed one",
        30,
        4,
        killed_sessions,
    ),
    "output": Case(
        "standard output and standard error that are full, closed or without a reader, while work goes on",
        "the result of an undisturbed run; exit code 2 for a full standard output, else 0; no traceback",
        len(BROKEN),
        10,  # of 27 in threes: of each three another one
        broken_output,
    ),
    "filesystem": Case(
        "every call to the file system while a run begins, saves, rotates and ends x {kill, ENOSPC, EIO, short write}",
        "the old checkpoint or the new one stands, one line and exit code 2, resumed bit for bit, nothing left behind",
        1150,
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
    "full-disks": Case(
        "every verb that writes a file or a result, with writes that the system itself cuts off at a random size",
        "one line that says where and what to do, exit code 2, nothing half written; it goes well once there is room",
        full_disks.COUNT,
        9,
        full_disks.full_disks,
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
        200,
        corruption,
    ),
    "signals": Case(
        "SIGTERM, SIGINT and SIGHUP at random points, start-up included, a second one while saving",
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
        spread=True,
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
    "results": Case(
        "fuzzed result files, settings and logs, then `report` and what shows a result in the terminal",
        "shown, or named with the reason on the page and in the terminal, the rest shown; no traceback, hang or injection",
        3000,
        50,
        fuzzed_results.run,
    ),
    "readings": Case(
        "fuzzed sessions, statistics, learned networks and tuned settings under right hashes",
        "read by, or one line; no traceback, no hang",
        1000,
        60,
        fuzzed_readings.run,
    ),
    "hostile": Case(
        "hostile checkpoints",
        "one line and exit code 2; nothing run, waited for, unfolded in memory or written through",
        len(HOSTILE),
        10,
        hostile_checkpoints.run,
        spread=True,
    ),
    "foreign-folders": Case(
        "pipes, devices, sockets, huge files and links in the place of all that a run holds",
        "one line and exit code 2, or done without it; nothing waited for, read or written outside of the run",
        len(foreign_folders.TRIALS),
        16,
        foreign_folders.run,
        spread=True,
    ),
    "refusals": Case(
        "resumes of what has changed",
        "one line and exit code 2, nothing changed; --accept goes on by name only",
        len(REFUSALS),
        len(REFUSALS),
        refused_resumes.run,
    ),
    "hostile-tokenizers": Case(
        "hostile tokenizers, as a file and in a run's vocabulary",
        "one line and exit code 2; nothing crashed, waited for or unfolded in memory",
        len(hostile_tokenizers.HOSTILE),
        10,
        hostile_tokenizers.run,
        spread=True,
    ),
    "hostile-downloads": Case(
        "downloads from a hostile server on localhost",
        "refused in one line, nothing kept, nothing outside touched; an honest download works afterwards",
        hostile_downloads.COUNT,
        hostile_downloads.COUNT,
        hostile_downloads.run,
    ),
    "odd-uses": Case(
        "command lines at the edges of what their flags say, over ten small runs",
        "they work, or one line that names what is wrong, exit code 2 and nothing written",
        len(odd_uses.USES),
        40,
        odd_uses.run,
    ),
    "two-ways": Case(
        "the same asked for in two ways: by flag, text, pipe, Python, seed, copy, and export, over every kind of model",
        "the same figures, bit for bit where the sums are the same",
        len(two_ways.TRIALS),
        len(two_ways.WAYS),
        two_ways.run,
    ),
    "misuses": Case(
        "misuses of the Python API: every argument of every public function, given what it is not for",
        "a result without NaN, or UserError, TypeError or ValueError with a sentence that names the argument",
        3000,
        400,
        misuses.run,
    ),
}
"""Every case by its name."""
