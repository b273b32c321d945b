"""Checkpoints of an evaluation: it resumes where it stopped, between two blocks of one of its passes over text."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, Self, get_type_hints

import numpy as np

from backstory.evaluation.reading_loop import Observer, Position, Reading, ScoredBlock, StreamReading
from backstory.readers.base import Reader
from backstory.readers.reading_threads import resume_threads
from backstory.readers.saved_reading import (
    PREFIX,
    ReadingCheckpoint,
    check_same,
    explain_full_disk,
    open_folder,
    save_reading,
)
from backstory.runs.run import ChangedRun
from backstory.storage.atomic import sweep_temporaries
from backstory.storage.checkpoint import remove_checkpoints
from backstory.storage.documents import has_fields
from backstory.storage.run_files import RESULT
from backstory.utils.errors import UserError
from backstory.utils.terminal import ProgressCallback

SAVED = {
    "leg": str,
    "position": Any,
    "done": dict[str, Any],
    "facts": dict[str, list[dict[str, Any]]],
    "parts": dict[str, dict[str, Any]],
    "batch_size": int,
}
"""Types of what is saved besides the reader: the current pass and its position, the finished passes, the facts of their
readers, and the parts' states."""


class Stateful(Protocol):
    """A part of an evaluation that accumulates state while a text is read."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class EvaluationCheckpoint:
    """The passes over text that make up an evaluation, saved next to its result until it ends.

    A context manager: it locks the folder, resumes the parts and the number of threads if asked to, and removes the checkpoint
    at a good end. Without a folder nothing is saved.
    """

    def __init__(
        self,
        folder: Path | None,
        identity: Callable[[], Mapping[str, Any]],
        parts: Mapping[str, Stateful],
        *,
        save_every: float,
        resume: bool,
        progress: ProgressCallback | None = None,
        total: int = 0,
    ) -> None:
        """`identity` is what the figures depend on: a checkpoint with another is refused. `progress` is called with the
        tokens read and the `total`; `save_every` is in seconds, 0 for never."""
        self.folder, self.identity, self.parts = folder, identity, parts
        self.save_every, self.resume, self.progress, self.total = save_every, resume, progress, total
        self.readings: dict[str, Reading] = {}
        """The passes that are finished."""
        self.facts: dict[str, list[dict[str, Any]]] = {}
        """The facts of each finished pass: those of its readers at its end, the innermost first."""
        self._saved: ReadingCheckpoint | None = None
        self._saved_at = time.monotonic()
        self._tokens = 0
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        if self.folder is None:
            return self
        with ExitStack() as stack:
            self._saved = open_folder(stack, self.folder, "evaluation", self.resume)
            sweep_temporaries(self.folder, f"*-{RESULT}")
            if self._saved is not None:
                resume_threads(self._saved.identity.get("device"))
                self._load(self._saved)
            self._exit = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        with self._exit:
            # A checkpoint of weights that are gone is of no use.
            if self.folder is not None and (kind is None or issubclass(kind, ChangedRun)):
                remove_checkpoints(self.folder, PREFIX)
            elif self.folder is not None:
                explain_full_disk(self.folder, error)

    @property
    def is_resumed(self) -> bool:
        """Return True, before the first pass, if an evaluation goes on with the number of threads that it began with."""
        return self._saved is not None

    def read(
        self,
        name: str,
        reader: Reader,
        ids: np.ndarray,
        first: int,
        *,
        batch_size: int,
        audit: Observer | None = None,
        reset: bool = True,
    ) -> Iterator[ScoredBlock]:
        """Read a text (N,) once and yield the blocks that are left of it, each before the reader learns from it.

        Afterwards `readings[name]` is its score. A pass that was finished before the evaluation stopped yields nothing.
        """
        if name in self.readings:
            return
        position = self._restored(name, reader)
        stream = StreamReading(
            reader, ids, first, batch_size=batch_size, observer=audit, reset=reset, position=position
        )
        for block in stream.remaining():
            scored = stream.score(block)
            self._tokens += int(block.scored.sum())
            if self.progress is not None:
                self.progress(self._tokens, self.total)
            yield scored
            del scored  # free its activations before the next block is predicted
            stream.observe(block)
            self._save_if_due(name, stream)
        self.readings[name], self.facts[name] = stream.result(), [layer.facts() for layer in reader.stack()]

    def _save_if_due(self, name: str, stream: StreamReading) -> None:
        if self.folder is None or not self.save_every or time.monotonic() - self._saved_at < self.save_every:
            return
        state = {
            "leg": name,
            "position": asdict(stream.position),
            "done": {name: asdict(reading) for name, reading in self.readings.items()},
            "facts": self.facts,
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "batch_size": stream.batch_size,
        }
        number = stream.position.tokens + sum(reading.tokens for reading in self.readings.values())
        save_reading(self.folder, number, stream.reader, self.identity(), state)
        self._saved_at = time.monotonic()

    def _load(self, saved: ReadingCheckpoint) -> None:
        """Resume from a checkpoint. Raises UserError if it is of another evaluation."""
        check_same(saved, self.identity())
        state = {"facts": {}, **saved.progress}  # which earlier versions did not save
        try:
            records = [(state, SAVED), (state["position"], get_type_hints(Position))]
            records += [(reading, get_type_hints(Reading)) for reading in state["done"].values()]
            if not all(has_fields(record, types) for record, types in records):
                raise ValueError("it has other fields")
            for name, part in self.parts.items():
                part.load_state_dict(state["parts"][name])
        except (ValueError, TypeError, LookupError, AttributeError):
            raise UserError(
                f"{saved.path} is damaged: it is not a saved evaluation; leave --resume out to start again"
            ) from None
        self.readings = {name: Reading(**done) for name, done in state["done"].items()}
        self.facts = state["facts"]
        self._tokens = sum(reading.tokens for reading in self.readings.values()) + state["position"]["tokens"]

    def _restored(self, name: str, reader: Reader) -> Position | None:
        """Restore the reader of a pass that was being read; None for another pass."""
        if self._saved is None or self._saved.progress["leg"] != name:
            return None
        saved, self._saved = self._saved, None
        saved.restore(reader, saved.progress["batch_size"])
        return Position(**saved.progress["position"])
