"""Checkpoints of a reading: a session or an evaluation that was stopped resumes with the same run, readers and settings only.

The reader is saved by its snapshot, which the audit knows to be all that reading changes. Its structure comes from the file,
since what a reader remembers may have grown.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self, get_type_hints

import numpy as np
import torch
from torch import Tensor

from backstory.config import UserError, from_dict
from backstory.config.options import LoadOptions
from backstory.config.readers import completed
from backstory.config.renamed import current_reader
from backstory.evaluation.opening import Readers, open_reader
from backstory.evaluation.reading_loop import Observer, Position, Reading, ScoredBlock, StreamReading
from backstory.readers.base import Reader
from backstory.readers.registry import READERS, ConfiguredLayer, build, saved_in
from backstory.runs.run import ChangedRun, Run, open_run
from backstory.runs.run_folder import SAVED as READERS_FOLDER
from backstory.storage.atomic import sha256, sweep_temporaries, within
from backstory.storage.checkpoint import (
    MANIFEST,
    DamagedCheckpoint,
    newest_checkpoint,
    pack,
    remove_checkpoints,
    rotate_checkpoints,
    unpack,
    write_checkpoint,
)
from backstory.storage.documents import conforms, has_fields
from backstory.storage.lock import locked
from backstory.storage.provenance import RESULT

FORMAT = 2
"""Raised when the content of a checkpoint changes."""
PREFIX = "reading"
"""A checkpoint of a reading is the folder `reading-TOKENS`."""
DOCUMENT = {"format": int, "by": dict[str, Any], "at": dict[str, Any], "tree": Any}
LAYER = {"name": str, "settings": dict[str, Any]}


@dataclass(frozen=True)
class ReadingCheckpoint:
    """A saved reading."""

    path: Path
    identity: dict[str, Any]
    """Everything that its scores depend on: `reader_identity`, and what a kind of reading adds to it."""
    progress: dict[str, Any]
    """Plain values."""
    tree: Any
    tensors: dict[str, Tensor]

    def restore(self, reader: Reader, batch_size: int = 1) -> None:
        """Restore a reader of the same kind. Raises UserError if the checkpoint does not fit it."""
        device = next(reader.model.parameters()).device
        reader.start(batch_size)
        try:
            snapshot = unpack(self.tree, self.tensors, reader.snapshot(), device)
            reader.restore(snapshot)
            with torch.no_grad():  # shapes that do not match fail here
                reader.predict(torch.zeros(batch_size, 1, dtype=torch.long, device=device)).log_probs()
        except (ValueError, RuntimeError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise UserError(f"{self.path} does not fit its own reader ({error}); remove it and start again") from None
        reader.restore(snapshot)


def reader_identity(run: Run, layers: Sequence[ConfiguredLayer], reader: Reader) -> dict[str, Any]:
    """Return what the scores of a reader depend on beside the text: weights, vocabulary, readers with settings, precision."""
    return {
        "model": run.weights_hash,
        **{name.removeprefix("core."): value for name, value in run.model.inference_overrides().items()},
        "vocabulary": run.corpus["fingerprint"],
        "readers": [{k: v for k, v in layer.as_dict().items() if k != "origin"} for layer in layers],
        "prepared": _prepared_hash(run) if reader.capabilities.adapts_weights else "",
        "precision": reader.precision.name,
    }


def _prepared_hash(run: Run) -> str:
    """Return the SHA-256 (hex) of the statistics and meta-learners of a run, which no reader's settings name."""
    names = sorted(path.parent.name for path in saved_in(run).glob(f"*/{MANIFEST}"))
    lines = (f"{name} {sha256(within(run.folder, READERS_FOLDER, name, MANIFEST))}\n" for name in names)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def save_reading(
    folder: Path, number: int, reader: Reader, identity: Mapping[str, Any], progress: Mapping[str, Any]
) -> Path:
    """Write `reading-NUMBER` into the folder and remove older ones. Raises OSError."""
    tree, tensors = pack(reader.snapshot(), next(reader.model.parameters()).device)
    document = {"format": FORMAT, "by": identity, "at": progress, "tree": tree}
    folder.mkdir(parents=True, exist_ok=True)  # it may have been removed since
    path = write_checkpoint(folder, f"{PREFIX}-{number}", {"reader": tensors}, {"reading": document})
    rotate_checkpoints(path, 1)
    return path


def load_reading(folder: Path) -> ReadingCheckpoint | None:
    """Return the reading that is saved in a folder, if any. Raises UserError if it is damaged or of another version."""
    try:
        checkpoint = newest_checkpoint(folder, PREFIX)
    except DamagedCheckpoint as error:
        raise UserError(f"{error}; what was read is lost: remove {folder} and start again") from None
    if checkpoint is None:
        return None
    path, document = checkpoint.path, checkpoint.documents.get("reading")
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UserError(f"{path} was saved by another version of backstory; go on with that one, or start again")
    if not has_fields(document, DOCUMENT) or checkpoint.tensors.keys() != {"reader"}:
        raise UserError(f"{path} is damaged: it is not a saved reading; remove it and start again")
    identity = document["by"]
    if conforms(layers := identity.get("readers"), list[dict[str, Any]]):
        identity = identity | {"readers": [_completed(layer) for layer in layers]}
    return ReadingCheckpoint(path, identity, document["at"], document["tree"], checkpoint.tensors["reader"])


def _completed(layer: dict[str, Any]) -> dict[str, Any]:
    """Return a saved reader by its present name, with the settings that were added since; a damaged one stays as it is."""
    if not has_fields(layer, LAYER) or (name := current_reader(layer["name"])) not in READERS:
        return layer
    return layer | {"name": name, "settings": completed(READERS[name].settings, layer["settings"])}


def sweep(folder: Path) -> None:
    """Remove the unfinished files of a killed process; the folder must be locked."""
    sweep_temporaries(folder, f"*-{PREFIX}-*")


def check_same(saved: ReadingCheckpoint, identity: Mapping[str, Any]) -> None:
    """Raise UserError, with the first difference, if a reading was saved with another identity."""
    keys = (*identity, *saved.identity)
    key = next((key for key in keys if identity.get(key) != saved.identity.get(key)), None)
    if key is None:
        return
    if key == "prepared":
        raise UserError(
            f"{saved.path} was saved with other statistics or meta-learners than {READERS_FOLDER}/ of the run holds now; "
            "start again in another folder"
        )
    if key in ("model", "vocabulary", "text"):
        raise UserError(f"{saved.path} was saved with another {key}; give that one, or start again in another folder")
    theirs, ours = (_described(values.get(key)) for values in (saved.identity, identity))
    what = "reader" if key == "readers" else key.replace("_", " ")
    raise UserError(
        f"{saved.path} was saved with the {what} {theirs}, not {ours}; give the same, or start again in another folder"
    )


def _described(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    return "+".join(
        ":".join(filter(None, [v["name"], ",".join(f"{k}={s}" for k, s in v["settings"].items())])) for v in value
    )


def open_saved(
    model: Path | str,
    saved: ReadingCheckpoint,
    reader: Readers | None,
    precision: str = "float32",
    options: LoadOptions | None = None,
) -> tuple[Run, Reader, tuple[ConfiguredLayer, ...]]:
    """Load a run and restore a saved reader over it; a `reader` that is given must be the same. Raises UserError."""
    if reader is not None:
        run, restored, layers = open_reader(model, reader, precision, options)
    else:
        run, layers = open_run(model, options or LoadOptions()), _layers(saved)
        restored = build(layers, run, run.precision(precision))
    check_same(saved, reader_identity(run, layers, restored))
    saved.restore(restored)
    return run, restored, layers


def _layers(saved: ReadingCheckpoint) -> tuple[ConfiguredLayer, ...]:
    """Return the readers of a checkpoint with their settings. Raises UserError."""
    readers, layers = saved.identity.get("readers"), []
    if not conforms(readers, list[dict[str, Any]]) or not readers or not all(has_fields(r, LAYER) for r in readers):
        raise UserError(f"{saved.path} is damaged: it names no readers; remove it and start again")
    for reader in readers:
        if (name := reader["name"]) not in READERS:
            raise UserError(
                f"{saved.path} was saved with the reader {name}, which is not there; give --plugin FILE, if it came from "
                "a plugin, or start again in a new folder"
            )
        settings = from_dict(READERS[name].settings, reader["settings"], str(saved.path))
        if READERS[name].wraps != bool(layers):  # the first reads with the model, each other wraps the one before
            raise UserError(f"{saved.path} is damaged: its readers do not fit together; remove it and start again")
        layers.append(ConfiguredLayer(name, settings, "saved"))
    return tuple(layers)


SAVED = {"leg": str, "position": Any, "done": dict[str, Any], "parts": dict[str, dict[str, Any]], "batch_size": int}
"""Types of what is saved beside the reader: the pass being read, its position, the finished passes, the parts' states."""


class Stateful(Protocol):
    """A part of an evaluation that accumulates something while a text is read."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class EvaluationCheckpoint:
    """The passes over text that an evaluation consists of, saved beside its result while they last.

    A context manager: it locks the folder, resumes the parts if asked to, and removes the checkpoint at a good end. Without a
    folder nothing is saved.
    """

    def __init__(
        self,
        folder: Path | None,
        identity: Callable[[], Mapping[str, Any]],
        parts: Mapping[str, Stateful],
        *,
        save_every: float,
        resume: bool,
        progress: Callable[[int, int], None] | None = None,
        total: int = 0,
    ) -> None:
        """`identity` is what the figures depend on: a checkpoint with another is refused. `progress` is called with the
        tokens read and the `total`; `save_every` is in seconds, 0 for never."""
        self.folder, self.identity, self.parts = folder, identity, parts
        self.save_every, self.resume, self.progress, self.total = save_every, resume, progress, total
        self.readings: dict[str, Reading] = {}
        """The passes that are finished."""
        self._saved: ReadingCheckpoint | None = None
        self._saved_at = time.monotonic()
        self._tokens = 0
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        if self.folder is None:
            return self
        self._exit.enter_context(locked(self.folder, "evaluation", "--out"))
        try:
            sweep(self.folder)
            sweep_temporaries(self.folder, f"*-{RESULT}")
            if self.resume:
                self._load(self.folder)
            else:
                remove_checkpoints(self.folder, PREFIX)
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._exit:
            # A checkpoint of weights that are gone is of no use.
            if self.folder is not None and (kind is None or issubclass(kind, ChangedRun)):
                remove_checkpoints(self.folder, PREFIX)

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
            stream.observe(block)
            self._save_if_due(name, stream)
        self.readings[name] = stream.result()

    def _save_if_due(self, name: str, stream: StreamReading) -> None:
        if self.folder is None or not self.save_every or time.monotonic() - self._saved_at < self.save_every:
            return
        state = {
            "leg": name,
            "position": asdict(stream.position),
            "done": {name: asdict(reading) for name, reading in self.readings.items()},
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "batch_size": stream.batch_size,
        }
        number = stream.position.tokens + sum(reading.tokens for reading in self.readings.values())
        save_reading(self.folder, number, stream.reader, self.identity(), state)
        self._saved_at = time.monotonic()

    def _load(self, folder: Path) -> None:
        """Resume from the checkpoint in the folder, if there is one. Raises UserError if it is of another evaluation."""
        self._saved = load_reading(folder)
        if self._saved is None:
            return
        check_same(self._saved, self.identity())
        state = self._saved.progress
        try:
            records = [(state, SAVED), (state["position"], get_type_hints(Position))]
            records += [(reading, get_type_hints(Reading)) for reading in state["done"].values()]
            if not all(has_fields(record, types) for record, types in records):
                raise ValueError("it has other fields")
            for name, part in self.parts.items():
                part.load_state_dict(state["parts"][name])
        except (ValueError, TypeError, LookupError, AttributeError):
            raise UserError(
                f"{self._saved.path} is damaged: it is no saved evaluation; leave --resume out to start again"
            ) from None
        self.readings = {name: Reading(**done) for name, done in state["done"].items()}
        self._tokens = sum(reading.tokens for reading in self.readings.values()) + state["position"]["tokens"]

    def _restored(self, name: str, reader: Reader) -> Position | None:
        """Restore the reader of a pass that was being read; None for another pass."""
        if self._saved is None or self._saved.progress["leg"] != name:
            return None
        saved, self._saved = self._saved, None
        saved.restore(reader, saved.progress["batch_size"])
        return Position(**saved.progress["position"])
