"""The folder of a sweep: its space and recipe, the journal, and a run folder, a recipe and a log for each trial."""

import math
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from backstory.config import RunConfig, UserError, to_dict, to_yaml
from backstory.config.strict import from_file
from backstory.runs.run import CHECKPOINTS, CONFIG
from backstory.runs.run_folder import differences
from backstory.storage.atomic import TEMPORARY, sweep_temporaries, within, write_atomically
from backstory.storage.lock import LOCK, held, in_turn
from backstory.storage.provenance import check_place
from backstory.tuning.space import Space

SWEEP = "sweep.yaml"
"""What is searched; it makes a folder that of a sweep."""
BEST = "best.yaml"
"""The recipe of the best trial."""
JOURNAL = "journal.log"
_CLAIMS = ".claims"


@dataclass(frozen=True)
class Sweep:
    """What a sweep searches, and where its trials are kept."""

    study: str
    """Its name in the storage."""
    storage: str | None
    """The storage's URL without its password; none: the journal in the folder."""
    recipe_name: str
    space_name: str
    space: Space
    recipe: RunConfig
    """With the settings that were given beside it."""
    command: str | None = None
    """What it was begun with."""


@dataclass(frozen=True)
class SweepFolder:
    """Paths of a sweep."""

    path: Path

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL

    @property
    def best(self) -> Path:
        return self.path / BEST

    def run(self, first: int) -> Path:
        """The run of a trial, by the number of its first try: a trial that is tried again goes on in it."""
        return within(self.path, "trials", f"{first:04d}")

    def recipe(self, first: int) -> Path:
        return within(self.path, "recipes", f"{first:04d}.yaml")

    def log(self, first: int) -> Path:
        """What its training printed."""
        return within(self.path, "logs", f"{first:04d}.log")

    def worker(self, name: str) -> Path:
        """The folder whose lock a process holds as long as it works on trials here."""
        return within(self.path, "workers", name)

    def alive(self, worker: object, first: int) -> bool:
        """Whether a trial's process, or the training that it started, is still there."""
        return (isinstance(worker, str) and held(self.worker(worker))) or held(self.run(first))

    @contextmanager
    def claims(self) -> Iterator[None]:
        """One process at a time takes a trial or ends one."""
        with in_turn(self.path / _CLAIMS):
            yield

    def read(self) -> Sweep:
        """What is searched here. Raises UserError where it is no sweep."""
        if not (self.path / SWEEP).is_file():
            problem = (
                "holds no sweep" if self.path.is_dir() else "is not there" if not self.path.exists() else "is a file"
            )
            raise UserError(f"{self.path} {problem}; `backstory sweep run RECIPE --space SPACE --out FOLDER` makes one")
        return from_file(Sweep, self.path / SWEEP, self.path)

    def check(self, sweep: Sweep) -> Sweep | None:
        """The sweep that is there already, if there is one. Raises UserError unless this one can begin or go on here."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file; choose another folder with --out")
        check_place(self.path, "search")
        if not (self.path / SWEEP).is_file():
            ours = (LOCK, _CLAIMS, "workers")
            others = [p for p in self.path.glob("*") if p.name not in ours and not p.name.startswith(TEMPORARY)]
            if others:
                raise UserError(f"{self.path} holds something other than a sweep; choose another folder with --out")
            return None
        there = self.read()
        choose = "give what it was begun with, or choose another folder with --out"
        if there.space.settings != sweep.space.settings:
            other = _first_difference(there.space.settings, sweep.space.settings)
            raise UserError(f"{self.path} searches another space ({other}); {choose}")
        if different := differences(to_dict(there.recipe), to_dict(sweep.recipe)):
            raise UserError(f"{self.path} searches with other settings ({', '.join(different)}); {choose}")
        if sweep.storage is not None and there.storage != sweep.storage:
            raise UserError(f"{self.path} keeps its trials in {there.storage or 'its own journal'}; {choose}")
        return there

    def open(self, sweep: Sweep) -> Sweep:
        """Make the folder, or take it, and return the sweep that it is now known for. Raises UserError as `check` does."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.claims():
            there = self.check(sweep)  # again, as another process may have begun here before this one's turn came
            if there is None:
                write_atomically(self.path / SWEEP, to_yaml(sweep))
            for place in ("trials", "recipes", "logs"):
                within(self.path, place).mkdir(exist_ok=True)
            for place in (self.path, self.path / "recipes"):
                sweep_temporaries(place)
            return there or sweep

    def begun(self, first: int) -> bool:
        """Whether a trial's training has settings in its folder, so that it can be resumed."""
        return (self.run(first) / CONFIG).is_file()

    def drop_checkpoints(self, first: int) -> None:
        """Remove the weights of a trial; its settings, curve and result stay."""
        shutil.rmtree(self.run(first) / CHECKPOINTS, ignore_errors=True)

    def drop_worker(self, name: str) -> None:
        """Remove what a process that is gone has left."""
        shutil.rmtree(self.worker(name), ignore_errors=True)


def new_study() -> str:
    """A name that no other sweep has: several may share a storage."""
    return f"backstory-{uuid.uuid4().hex[:12]}"


def _first_difference(there: Mapping, here: Mapping) -> str:
    name = next((n for n in [*there, *here] if there.get(n) != here.get(n)), None)
    if name is None:
        return "the same settings in another order"
    told = [_in_line(shown[name]) if name in shown else "none" for shown in (there, here)]
    return f"{name}: {told[0]} there, {told[1]} here"


def _in_line(entry: Any) -> str:
    """An entry as it may be written in a space: `{range: [0.05, 10], log: true}`."""
    return yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=math.inf).strip()
