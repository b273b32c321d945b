"""An evaluation that survives being killed: the readings it is made of, saved as they go on, and taken up again."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, get_type_hints

import numpy as np

from backstory.config import UserError
from backstory.evaluation.reading_loop import Position, Reading, read
from backstory.evaluation.saved_reader import PREFIX, Saved, check_same, load, save, sweep
from backstory.readers.base import Reader
from backstory.runs.run import ChangedRun
from backstory.storage.atomic import sweep_temporaries
from backstory.storage.checkpoint import remove_checkpoints
from backstory.storage.documents import has_fields
from backstory.storage.lock import locked
from backstory.storage.provenance import RESULT

SAVE_EVERY = 60.0
"""Seconds between two savings of a reading."""


AT = {"leg": str, "position": Any, "done": dict[str, Any], "parts": dict[str, dict[str, Any]], "batch_size": int}
"""What is saved of an evaluation beside its reader."""


class Part(Protocol):
    """What looks on while a text is read, and adds something up."""

    def saved(self) -> dict[str, Any]:
        """What it has found so far, as plain values."""
        ...

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from there."""
        ...


class Legs:
    """The readings of an evaluation, one after the other, each by a name of its own."""

    def __init__(self, folder: Path | None = None, by: Callable[[], dict[str, Any]] = dict, every: float = 0.0) -> None:
        """`by` is what the figures depend on, asked for when it is saved; without a folder, or with 0 s, nothing is saved."""
        self._folder, self._by, self._every = folder, by, every
        self._done: dict[str, dict[str, Any]] = {}
        self._parts: dict[str, Part] = {}
        self._found: Saved | None = None
        self._saved_at = time.monotonic()

    def take_up(self) -> None:
        """Go on with what is saved in the folder, if anything is. Raises UserError where it is of another evaluation."""
        assert self._folder is not None
        self._found = load(self._folder)
        if self._found is None:
            return
        check_same(self._found, self._by())
        at = self._found.at
        if not has_fields(at, AT) or not has_fields(at["position"], get_type_hints(Position)):
            raise self._damaged()
        if not all(has_fields(done, get_type_hints(Reading)) for done in at["done"].values()):
            raise self._damaged()
        self._done = at["done"]

    def _damaged(self) -> UserError:
        assert self._found is not None
        return UserError(f"{self._found.path} is damaged: it is no saved evaluation; leave --resume out to start again")

    def part(self, name: str, part: Part) -> None:
        """Save what this has found with each reading from now on, and go on from what it had found."""
        self._parts[name] = part
        # Saved before there were any, in another leg; or with all of them, unless by a version that measured less.
        if self._found is not None and self._found.at["parts"]:
            try:
                part.load(self._found.at["parts"][name])
            except (ValueError, TypeError, LookupError):
                raise self._damaged() from None

    def read(
        self, leg: str, reader: Reader, ids: np.ndarray, first: int, *, batch_size: int, **options: Any
    ) -> Reading:
        """`read`, from where it stood if this leg was being read, and not at all if it was finished."""
        if leg in self._done:
            return Reading(**self._done[leg])
        at, batch_size = None, min(batch_size, len(ids))
        if self._found is not None and self._found.at["leg"] == leg:
            self._found.restore(reader, self._found.at["batch_size"])
            at, self._found = Position(**self._found.at["position"]), None

        def passed(position: Position) -> None:
            if self._folder is None or not self._every or time.monotonic() - self._saved_at < self._every:
                return
            parts = {name: part.saved() for name, part in self._parts.items()}
            here = {
                "leg": leg,
                "position": asdict(position),
                "done": self._done,
                "parts": parts,
                "batch_size": batch_size,
            }
            number = position.tokens + sum(done["tokens"] for done in self._done.values())
            save(self._folder, number, reader, self._by(), here)
            self._saved_at = time.monotonic()

        reading = read(reader, ids, first, batch_size=batch_size, at=at, passed=passed, **options)
        self._done[leg] = asdict(reading)
        return reading

    def tokens(self) -> int:
        """How many tokens had been read when what is taken up was saved."""
        done = sum(leg["tokens"] for leg in self._done.values())
        return done + (self._found.at["position"]["tokens"] if self._found is not None else 0)


@contextmanager
def legs(folder: Path | None, by: Callable[[], Mapping[str, Any]], every: float, resume: bool) -> Iterator[Legs]:
    """The readings whose result goes into the folder, which is held for the block; once that has ended well, nothing is left
    of what was saved. With `resume` they go on from there, else they begin anew.
    """
    if folder is None:
        yield Legs()
        return
    with locked(folder, "evaluation", "--out"):
        sweep(folder)
        sweep_temporaries(folder, f"*-{RESULT}")
        made = Legs(folder, lambda: dict(by()), every)
        if resume:
            made.take_up()
        else:
            remove_checkpoints(folder, PREFIX)
        try:
            yield made
        except ChangedRun:  # what was read is of weights that are gone, and nothing can go on from it
            remove_checkpoints(folder, PREFIX)
            raise
        remove_checkpoints(folder, PREFIX)
