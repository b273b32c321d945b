"""The number of processes that train a run, and of the threads of each."""

import warnings
from pathlib import Path

from backstory.jobs.workers import MOST_WORKERS, started_ranks
from backstory.runs.run_folder import RunFolder
from backstory.storage.checkpoint import DamagedCheckpoint, newest_checkpoint
from backstory.storage.manifest import LAST
from backstory.utils.errors import UserError


def processes(workers: int | None, threads: int | None, out: Path, resumed: bool) -> tuple[int, int | None]:
    """Return the processes to train with, and the threads of each, None for a number still to be chosen.

    These are the requested ones, or those of the run that is resumed, or one process; several have a thread each. Raises
    UserError where torchrun has started another number of processes.
    """
    ranks = started_ranks(workers)
    if ranks > 1:
        return ranks, threads
    recorded = _recorded(out) if resumed else (1, 1)
    count = workers or recorded[0]
    return count, threads if count == 1 else threads or recorded[1]


def _recorded(out: Path) -> tuple[int, int]:
    """Return the processes of the run's newest checkpoint and the threads of each; 1 where it does not say."""
    try:
        with warnings.catch_warnings(action="ignore"):  # resuming reads it again and reports the fault
            newest = newest_checkpoint(RunFolder(out).checkpoints, LAST, frozenset({"progress"}))
        saved = {} if newest is None else newest.documents["progress"]
        numbers = [saved.get(key, 1) for key in ("ranks", "threads")]
    except (DamagedCheckpoint, KeyError, AttributeError):
        return 1, 1
    count, threads = (n if type(n) is int and 1 <= n <= MOST_WORKERS else 1 for n in numbers)
    return count, threads


def check_batch(batch_size: int, ranks: int) -> None:
    """Raise UserError unless the batch can be divided equally among the ranks."""
    if batch_size % ranks:
        raise UserError(
            f"{ranks} ranks cannot share {batch_size} rows equally; make training.batch_size a multiple of {ranks}"
        )
