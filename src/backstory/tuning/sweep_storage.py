"""Storage of a sweep: its folder, and the Optuna study of its trials in a journal there or in a database."""

import json
import math
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import yaml

from backstory.config import RunConfig, to_dict, to_yaml
from backstory.config.strict import from_file
from backstory.runs.run import CHECKPOINTS, CONFIG
from backstory.runs.run_folder import differences
from backstory.storage.atomic import TEMPORARY, sweep_temporaries, within, write_atomically
from backstory.storage.lock import LOCK, held, in_turn
from backstory.storage.provenance import check_place
from backstory.storage.run_files import SWEEP
from backstory.tuning.space import Space
from backstory.utils.errors import UserError, install_hint
from backstory.utils.small_file import open_regular

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage

BEST = "best.yaml"
"""The recipe of the best trial."""
JOURNAL = "journal.log"
_CLAIMS = ".claims"


@dataclass(frozen=True)
class Sweep:
    """The definition of a sweep: what it searches, and where its trials are stored."""

    study: str
    """Its name in the storage."""
    storage: str | None
    """URL of the storage without its password; None for the journal in the folder."""
    recipe_name: str
    space_name: str
    space: Space
    recipe: RunConfig
    """The recipe, changed by flags."""
    command: str | None = None
    """The command that began it."""


@dataclass(frozen=True)
class SweepFolder:
    """The folder of a sweep: its definition, and of each trial a run folder, a recipe and a log."""

    path: Path

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL

    @property
    def best(self) -> Path:
        return self.path / BEST

    def run(self, first: int) -> Path:
        """Return the run folder of a trial, by the number of its first try: a trial that is tried again resumes there."""
        return within(self.path, "trials", f"{first:04d}")

    def recipe(self, first: int) -> Path:
        return within(self.path, "recipes", f"{first:04d}.yaml")

    def log(self, first: int) -> Path:
        """Return the file of what its training printed."""
        return within(self.path, "logs", f"{first:04d}.log")

    def worker(self, name: str) -> Path:
        """Return the folder that a process locks while it works on trials here."""
        return within(self.path, "workers", name)

    def alive(self, worker: object, first: int) -> bool:
        """Return True if the process of a trial, or the training it started, still runs."""
        return (isinstance(worker, str) and held(self.worker(worker))) or held(self.run(first))

    @contextmanager
    def claims(self) -> Iterator[None]:
        """Hold the right to claim or end trials, one process at a time."""
        with in_turn(self.path / _CLAIMS):
            yield

    def read(self) -> Sweep:
        """Return what is searched here. Raises UserError if it is no sweep."""
        if not (self.path / SWEEP).is_file():
            problem = (
                "holds no sweep" if self.path.is_dir() else "is not there" if not self.path.exists() else "is a file"
            )
            raise UserError(f"{self.path} {problem}; `backstory sweep run RECIPE --space SPACE --out FOLDER` makes one")
        return from_file(Sweep, self.path / SWEEP, self.path)

    def check(self, sweep: Sweep) -> Sweep | None:
        """Return the sweep that is here already, if any. Raises UserError unless this one can begin or resume here."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file; choose another folder with --out")
        check_place(self.path, "search")
        if not (self.path / SWEEP).is_file():
            ours = (LOCK, _CLAIMS, "workers")
            others = [p for p in self.path.glob("*") if p.name not in ours and not p.name.startswith(TEMPORARY)]
            if others:
                raise UserError(f"{self.path} holds something other than a sweep; choose another folder with --out")
            return None
        existing = self.read()
        remedy = "give what it was begun with, or choose another folder with --out"
        if existing.space.settings != sweep.space.settings:
            difference = _first_difference(existing.space.settings, sweep.space.settings)
            raise UserError(f"{self.path} searches another space ({difference}); {remedy}")
        if different := differences(to_dict(existing.recipe), to_dict(sweep.recipe)):
            raise UserError(f"{self.path} searches with other settings ({', '.join(different)}); {remedy}")
        if sweep.storage is not None and existing.storage != sweep.storage:
            raise UserError(f"{self.path} keeps its trials in {existing.storage or 'its own journal'}; {remedy}")
        return existing

    def open(self, sweep: Sweep) -> Sweep:
        """Make or open the folder and return its sweep. Raises UserError as `check` does."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.claims():
            existing = self.check(sweep)  # again, as another process may have begun here meanwhile
            if existing is None:
                write_atomically(self.path / SWEEP, to_yaml(sweep))
            for name in ("trials", "recipes", "logs"):
                within(self.path, name).mkdir(exist_ok=True)
            for path in (self.path, self.path / "recipes"):
                sweep_temporaries(path)
            return existing or sweep

    def begun(self, first: int) -> bool:
        """Return True if a trial's training has written its settings, so that it can be resumed."""
        return (self.run(first) / CONFIG).is_file()

    def drop_checkpoints(self, first: int) -> None:
        """Remove the weights of a trial; its settings, curve and result stay."""
        shutil.rmtree(self.run(first) / CHECKPOINTS, ignore_errors=True)

    def drop_worker(self, name: str) -> None:
        """Remove the folder of a lost process."""
        shutil.rmtree(self.worker(name), ignore_errors=True)


def new_study() -> str:
    """Return a name that no other sweep has: several may share a storage."""
    return f"backstory-{uuid.uuid4().hex[:12]}"


def _first_difference(saved: Mapping, new: Mapping) -> str:
    name = next((n for n in [*saved, *new] if saved.get(n) != new.get(n)), None)
    if name is None:
        return "the same settings in another order"
    there, here = (_inline_yaml(settings[name]) if name in settings else "none" for settings in (saved, new))
    return f"{name}: {there} there, {here} here"


def _inline_yaml(entry: Any) -> str:
    """Return an entry as it is written in a space: `{range: [0.05, 10], log: true}`."""
    return yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=math.inf).strip()


# --- the study ---


def check_installed() -> None:
    """Raise UserError if Optuna is not installed; else silence its messages."""
    try:
        import optuna
    except ImportError:
        raise UserError(f"a sweep needs the package optuna; {install_hint('tune')}") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def hidden(url: str) -> str:
    """Return the URL of a storage without its password."""
    url = re.sub(r"(//[^/@\s]*?:)[^/\s]*@", r"\1***@", url)
    return re.sub(r"((?:password|passwd|pwd)=)[^&\s]*", r"\1***", url, flags=re.IGNORECASE)


class JournalLock:
    """Lock of a journal with Optuna's interface: a lock of the system, which dies with its process.

    An entry that a killed process left unfinished was never confirmed, and is cut off.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._held = ExitStack()

    def acquire(self) -> bool:
        self._held.enter_context(in_turn(self._journal.with_name(f"{self._journal.name}.lock")))
        _cut_damaged_end(self._journal)
        return True

    def release(self) -> None:
        self._held.close()


def _cut_damaged_end(journal: Path) -> None:
    """Cut off bytes at a journal's end that are no entry; the trial that they were about is tried again.

    A file without any entry stays as it is, unless it is one torn line.
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
    """Return where the last line of the first `size` bytes begins, and the line."""
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
    """Open the storage behind a URL, or the folder's journal; `make` makes or repairs that one. Raises UserError."""
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    try:
        if url is not None:
            return RDBStorage(url)
        if os.path.lexists(folder.journal):
            open_regular(folder.journal, folder.path).close()
        # JournalLock needs locks of the system; elsewhere Optuna's own does.
        lock: Any = JournalLock(folder.journal) if os.name == "posix" else JournalFileOpenLock(str(folder.journal))
        if make and folder.journal.is_file():
            lock.acquire()  # which repairs it
            lock.release()
        return JournalStorage(JournalFileBackend(str(folder.journal), lock_obj=lock))
    except Exception as error:  # databases, drivers, addresses, and damaged journals raise errors of any class
        storage = f"the storage {hidden(url)}" if url is not None else str(folder.journal)
        remedy = "check that it is running and the URL is right" if url is not None else "put it back as it was"
        raise UserError(f"cannot open {storage}: {_reason(error)}; {remedy}") from None


def open_study(storage: "BaseStorage", folder: SweepFolder, sweep: Sweep, make: bool) -> "Study":
    """Open the sweep's study in its storage; `make` makes one if there is none. Raises UserError if there is none."""
    import optuna

    if sweep.study in optuna.get_all_study_names(storage):
        return optuna.load_study(study_name=sweep.study, storage=storage)  # which writes nothing
    if not make or any((folder.path / "trials").glob("*")):
        where = sweep.storage or str(folder.journal)
        raise UserError(f"{where} does not hold the trials of {folder.path}; put it back, or give the right --storage")
    return optuna.create_study(storage=storage, study_name=sweep.study, direction="minimize", load_if_exists=True)


def set_pruner(study: "Study", first: int | None) -> None:
    """Prune a trial whose best validation is worse than the median after as many epochs, at least `first`; None: no trial."""
    from optuna.pruners import MedianPruner, NopPruner

    warm = MedianPruner(n_startup_trials=BEFORE_PRUNING, n_warmup_steps=first or 0)
    study.pruner = NopPruner() if first is None else warm


def set_sampler(study: "Study", seed: int) -> None:
    """Sample the next trial with its own seed: parallel processes must not sample the same settings."""
    from optuna.samplers import TPESampler

    study.sampler = TPESampler(seed=seed, n_startup_trials=STARTUP)


STARTUP = 10
"""Trials that are sampled at random before the sampler learns from them."""
BEFORE_PRUNING = 5
"""Trials that must be complete before one is pruned."""


@contextmanager
def failing_storage(folder: SweepFolder, sweep: Sweep) -> Iterator[None]:
    """Turn errors of the storage in the block into a UserError."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except OSError as error:  # of the journal, unless it names another file
        error.filename = error.filename or str(folder.journal)
        raise
    except (optuna.exceptions.OptunaError, SQLAlchemyError, json.JSONDecodeError) as error:
        where = sweep.storage or str(folder.journal)
        raise UserError(f"{where} fails: {_reason(error)}; repair it, and run the same command again") from None


def _reason(error: BaseException) -> str:
    """Return the first line of an error, or of its cause."""
    lines = str(error.__cause__ or error).strip().splitlines()
    return hidden(lines[0]).rstrip(".") if lines else type(error).__name__
