"""The storage of a sweep's trials: an Optuna study in a journal that survives kills, or behind any URL of a database."""

import json
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from backstory.config import UserError
from backstory.config.small_file import open_regular
from backstory.storage.lock import in_turn
from backstory.tuning.sweep_folder import Sweep, SweepFolder

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage

NEEDED = "a sweep needs the package optuna: pip install 'backstory[tune]'"


def check_installed() -> None:
    """Raise UserError without Optuna; with it, have it say nothing of its own accord."""
    try:
        import optuna
    except ImportError:
        raise UserError(NEEDED) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def hidden(url: str) -> str:
    """The URL of a storage without its password."""
    return re.sub(r"(password=)[^&\s]*", r"\1***", re.sub(r"(//[^/@\s]*?:)[^/\s]*@", r"\1***@", url))


class JournalLock:
    """The lock of a journal, as Optuna takes and frees it: the system's, so that a killed process leaves none behind.

    What such a process has left unfinished at the journal's end was never confirmed, and is cut off.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._held = ExitStack()

    def acquire(self) -> bool:
        self._held.enter_context(in_turn(self._journal.with_name(f"{self._journal.name}.lock")))
        _mend(self._journal)
        return True

    def release(self) -> None:
        self._held.close()


def _mend(journal: Path) -> None:
    """Cut off what is no entry at a journal's end: what it may have told is not known, and its trial is tried again.

    A file that holds no entry at all is left as it is, unless it is a torn one.
    """
    with open(journal, "r+b") as file:
        size = end = file.seek(0, os.SEEK_END)
        garbage = False  # more than a line that was torn
        while size:
            start, line = _last_line(file, size)
            if _is_entry(line):
                break
            garbage, size = garbage or line.endswith(b"\n"), start
        if size == end or (garbage and not size):
            return
        file.truncate(size)
    if garbage:
        warnings.warn(f"{journal} had {end - size:,} damaged bytes at its end, which were cut off", stacklevel=2)


def _last_line(file: BinaryIO, size: int) -> tuple[int, bytes]:
    """Where the last line of the first `size` bytes begins, and the line."""
    start = size
    while start:
        start = max(0, start - 4096)
        file.seek(start)
        tail = file.read(size - start)
        if (before := tail.rfind(b"\n", 0, -1)) >= 0:
            return start + before + 1, tail[before + 1 :]
    return 0, tail


def _is_entry(line: bytes) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:
        return False
    return line.endswith(b"\n") and isinstance(entry, dict) and isinstance(entry.get("op_code"), int)


def open_storage(folder: SweepFolder, url: str | None, make: bool = False) -> "BaseStorage":
    """The storage behind a URL, or the folder's journal, if `make` made or mended. Raises UserError where there is none."""
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    try:
        if url is not None:
            return RDBStorage(url)
        # Without the system's locks the one that Optuna has for such systems.
        if os.path.lexists(folder.journal):
            open_regular(folder.journal, folder.path).close()
        own: Any = JournalLock(folder.journal)
        lock = own if os.name == "posix" else JournalFileOpenLock(str(folder.journal))
        if make and folder.journal.is_file():
            lock.acquire()  # which mends it
            lock.release()
        return JournalStorage(JournalFileBackend(str(folder.journal), lock_obj=lock))
    except Exception as error:  # of databases, their drivers and addresses, and whatever a damaged journal sets off
        what = f"the storage {hidden(url)}" if url is not None else str(folder.journal)
        remedy = "see to it, or give another with --storage" if url is not None else "put it back as it was"
        raise UserError(f"cannot open {what}: {_reason(error)}; {remedy}") from None


def open_study(storage: "BaseStorage", folder: SweepFolder, sweep: Sweep, make: bool) -> "Study":
    """The sweep's study in its storage, made if `make` and there is none. Raises UserError where it is not there."""
    import optuna

    known = sweep.study in optuna.get_all_study_names(storage)
    if not known and (not make or any((folder.path / "trials").glob("*"))):
        where = sweep.storage or str(folder.journal)
        raise UserError(f"{where} does not hold the trials of {folder.path}; put it back, or give the right --storage")
    return optuna.create_study(storage=storage, study_name=sweep.study, direction="minimize", load_if_exists=True)


def set_pruner(study: "Study", begin: int | None) -> None:
    """Prune a trial whose best validation is worse than the median after as many epochs, `begin` or more; None: no trial."""
    from optuna.pruners import MedianPruner, NopPruner

    keep = NopPruner()
    study.pruner = keep if begin is None else MedianPruner(n_startup_trials=BEFORE_PRUNING, n_warmup_steps=begin)


def set_sampler(study: "Study", seed: int) -> None:
    """Draw the next trial by a sampler with a seed of its own: processes side by side must not draw alike."""
    from optuna.samplers import TPESampler

    study.sampler = TPESampler(seed=seed, n_startup_trials=STARTUP)


STARTUP = 10
"""Trials that are drawn at random before the sampler learns from them."""
BEFORE_PRUNING = 5
"""Trials that end before one is pruned."""


@contextmanager
def failing_storage(folder: SweepFolder, sweep: Sweep) -> Iterator[None]:
    """Tell what goes wrong with the storage in the block in one line."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except OSError as error:  # of the journal, where it names no other file
        error.filename = error.filename or str(folder.journal)
        raise
    except (optuna.exceptions.OptunaError, SQLAlchemyError, json.JSONDecodeError) as error:
        where = sweep.storage or str(folder.journal)
        raise UserError(f"{where} fails: {_reason(error)}; see to it, and go on with the same command") from None


def _reason(error: BaseException) -> str:
    """The first line of an error, or of what led to it, without its kind."""
    told = str(error.__cause__ or error) or type(error).__name__
    return hidden(told.strip().splitlines()[0]).rstrip(".") if told.strip() else type(error).__name__
