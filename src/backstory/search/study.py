"""The storage of a sweep's trials: an Optuna study in a journal that survives kills, or behind any URL of a database."""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backstory.config import UserError
from backstory.search.folder import Folder, Sweep
from backstory.storage.lock import in_turn

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
    """Cut a journal back to its last whole line."""
    with open(journal, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        back = 1
        while size:
            start = max(0, size - 4096 * back)
            file.seek(start)
            tail = file.read(size - start)
            if start == 0 or b"\n" in tail:
                whole = start + tail.rfind(b"\n") + 1
                if whole < size:
                    file.truncate(whole)
                return
            back *= 2


def open_storage(folder: Folder, url: str | None) -> "BaseStorage":
    """The storage behind a URL, or the folder's journal, which is made if need be. Raises UserError where there is none."""
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    try:
        if url is not None:
            return RDBStorage(url)
        # Without the system's locks the one that Optuna has for such systems.
        own: Any = JournalLock(folder.journal)
        lock = own if os.name == "posix" else JournalFileOpenLock(str(folder.journal))
        return JournalStorage(JournalFileBackend(str(folder.journal), lock_obj=lock))
    except Exception as error:  # of databases, their drivers and addresses, and whatever a damaged journal sets off
        what = f"the storage {hidden(url)}" if url is not None else str(folder.journal)
        remedy = "see to it, or give another with --storage" if url is not None else "put it back as it was"
        raise UserError(f"cannot open {what}: {_reason(error)}; {remedy}") from None


def open_study(storage: "BaseStorage", folder: Folder, sweep: Sweep, make: bool) -> "Study":
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
def failing_storage(folder: Folder, sweep: Sweep) -> Iterator[None]:
    """Tell what goes wrong with the storage in the block in one line."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (optuna.exceptions.OptunaError, SQLAlchemyError) as error:
        where = sweep.storage or str(folder.journal)
        raise UserError(f"{where} fails: {_reason(error)}; see to it, and go on with the same command") from None


def _reason(error: BaseException) -> str:
    """The first line of an error, or of what led to it, without its kind."""
    told = str(error.__cause__ or error) or type(error).__name__
    return hidden(told.strip().splitlines()[0]).rstrip(".") if told.strip() else type(error).__name__
