"""Saved readings: a session, an evaluation or a code that was stopped resumes with the same run, readers and settings only.

The reader is saved by its snapshot, which the audit knows to be all that reading changes. Its structure comes from the file,
since what a reader remembers may have grown.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backstory.config import from_dict
from backstory.config.options import LoadOptions
from backstory.config.plugin_files import plugin_hashes
from backstory.config.readers import completed
from backstory.config.renamed import current_reader
from backstory.readers.base import Reader
from backstory.readers.registry import READERS, ConfiguredLayer, build, open_reader, saved_in
from backstory.runs.model_in_memory import ModelElsewhere
from backstory.runs.run import Run, open_run
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
from backstory.storage.manifest import numbered
from backstory.storage.run_files import SAVED as READERS_FOLDER
from backstory.utils.errors import NoDisk, UserError, refused

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
    more: dict[str, Tensor] = field(default_factory=dict)
    """Tensors that a kind of reading adds."""

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
    capabilities = run.model.capabilities
    return {
        "model": run.weights_hash,
        **({"window": f"{capabilities.maximum_length} ({capabilities.keeps} kept)"} if capabilities.slides else {}),
        **{name.removeprefix("core."): value for name, value in run.model.inference_overrides().items()},
        **({"architecture": run.architecture()} if isinstance(run, ModelElsewhere) else {}),
        "vocabulary": run.corpus["fingerprint"],
        "readers": [{k: v for k, v in layer.as_dict().items() if k != "origin"} for layer in layers],
        "prepared": _prepared_hash(run) if reader.capabilities.adapts_weights else "",
        "precision": reader.precision.name,
        **({"other models": others} if (others := reader.other_models()) else {}),
        **({"plugins": plugins} if (plugins := plugin_hashes()) else {}),
    }


def _prepared_hash(run: Run) -> str:
    """Return the SHA-256 (hex) of the statistics and meta-learners of a run, which no reader's settings name."""
    names = sorted(path.parent.name for path in saved_in(run).glob(f"*/{MANIFEST}"))
    lines = (f"{name} {sha256(within(run.folder, READERS_FOLDER, name, MANIFEST))}\n" for name in names)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def save_reading(
    folder: Path,
    number: int,
    reader: Reader,
    identity: Mapping[str, Any],
    progress: Mapping[str, Any],
    more: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write `reading-NUMBER` into the folder and remove older ones. Raises OSError."""
    tree, tensors = pack(reader.snapshot(), next(reader.model.parameters()).device)
    document = {"format": FORMAT, "by": identity, "at": progress, "tree": tree}
    folder.mkdir(parents=True, exist_ok=True)  # it may have been removed since
    groups = {"reader": tensors} | ({} if more is None else {"more": more})
    path = write_checkpoint(folder, f"{PREFIX}-{number}", groups, {"reading": document})
    rotate_checkpoints(path, 1)
    return path


def load_reading(folder: Path) -> ReadingCheckpoint | None:
    """Return the reading that is saved in a folder, if any. Raises UserError if it is damaged or of another version."""
    try:
        checkpoint = newest_checkpoint(folder, PREFIX)
    except DamagedCheckpoint as error:
        raise error.as_user_error(f"what was read is lost: remove {folder} and start again") from None
    if checkpoint is None:
        return None
    path, tensors, document = checkpoint.path, checkpoint.tensors, checkpoint.documents.get("reading")
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UserError(f"{path} was saved by another version of backstory; go on with that one, or start again")
    if not has_fields(document, DOCUMENT) or not {"reader"} <= tensors.keys() <= {"reader", "more"}:
        raise UserError(f"{path} is damaged: it is not a saved reading; remove it and start again")
    identity = document["by"]
    if conforms(layers := identity.get("readers"), list[dict[str, Any]]):
        identity = identity | {"readers": [_completed(layer) for layer in layers]}
    saved = tensors["reader"], tensors.get("more", {})
    return ReadingCheckpoint(path, identity, document["at"], document["tree"], *saved)


def _completed(layer: dict[str, Any]) -> dict[str, Any]:
    """Return a saved reader by its present name, with the settings that were added since; a damaged one stays as it is."""
    if not has_fields(layer, LAYER) or (name := current_reader(layer["name"])) not in READERS:
        return layer
    return layer | {"name": name, "settings": completed(READERS[name].settings, layer["settings"])}


def open_folder(stack: ExitStack, folder: Path, work: str, resume: bool) -> ReadingCheckpoint | None:
    """Lock a folder until the stack closes; return the reading that it holds, if that is to be resumed, or remove it.

    `work` is what reads ("evaluation"). Raises UserError if the folder is in use, or its reading is damaged.
    """
    stack.enter_context(locked(folder, work, "--out"))
    sweep(folder)
    if resume:
        return load_reading(folder)
    remove_checkpoints(folder, PREFIX)
    return None


def explain_full_disk(folder: Path, error: BaseException | None) -> None:
    """Raise NoDisk, which names `--resume`, if the error is of the disk and the folder holds a reading to resume."""
    refusal = refused(error) if isinstance(error, OSError) else error
    if isinstance(refusal, NoDisk) and numbered(folder, PREFIX):
        raise NoDisk(refusal.problem, "go on with the same command and --resume") from None


def sweep(folder: Path) -> None:
    """Remove the unfinished files of a killed process; the folder must be locked."""
    sweep_temporaries(folder, f"*-{PREFIX}-*")


def check_same(
    saved: ReadingCheckpoint, identity: Mapping[str, Any], otherwise: str = "start again in another folder"
) -> None:
    """Raise UserError, with the first difference, if a reading was saved with another identity."""
    keys = (*identity, *saved.identity)
    key = next((key for key in keys if identity.get(key) != saved.identity.get(key)), None)
    if key is None:
        return
    if key == "prepared":
        raise UserError(
            f"{saved.path} was saved with other statistics or meta-learners than {READERS_FOLDER}/ of the run holds now; "
            f"{otherwise}"
        )
    if key == "other models":
        theirs, ours = (dict(values.get(key) or {}) for values in (saved.identity, identity))
        changed = next(name for name in (*ours, *theirs) if ours.get(name) != theirs.get(name))
        raise UserError(f"{saved.path} was saved with another {changed} than there is now; {otherwise}")
    if key in ("model", "architecture", "vocabulary", "text"):
        what = "model" if key == "architecture" else key
        raise UserError(f"{saved.path} was saved with another {what}; give that one, or {otherwise}")
    theirs, ours = (_described(values.get(key)) for values in (saved.identity, identity))
    what = "reader" if key == "readers" else key.replace("_", " ")
    raise UserError(f"{saved.path} was saved with the {what} {theirs}, not {ours}; give the same, or {otherwise}")


def _described(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    return "+".join(
        ":".join(filter(None, [v["name"], ",".join(f"{k}={s}" for k, s in v["settings"].items())])) for v in value
    )


def open_saved(
    model: Path | str,
    saved: ReadingCheckpoint,
    reader: str | Sequence[str] | None,
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
                f"{saved.path} was saved with the reader {name}, which is unknown here; give --plugin FILE, if it came from "
                "a plugin, or start again in a new folder"
            )
        settings = from_dict(READERS[name].settings, reader["settings"], str(saved.path))
        if READERS[name].wraps != bool(layers):  # the first reads with the model, each other wraps the one before
            raise UserError(f"{saved.path} is damaged: its readers do not fit together; remove it and start again")
        layers.append(ConfiguredLayer(name, settings, "saved"))
    return tuple(layers)
