"""A run: a trained model with its settings, vocabulary and corpus, and the hash of its weights, loaded from its folder."""

import hashlib
import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from backstory.config import RunConfig, TextConfig, from_dict, from_saved, to_dict
from backstory.config.options import LoadOptions
from backstory.config.plugin_files import of_plugin, plugin_flags
from backstory.config.recipes import CONFIG, merged, nested
from backstory.config.strict import UnknownKind, changes
from backstory.data import Dataset, prepare
from backstory.data.corpora.catalogue import CORPORA
from backstory.data.tokenizers.vocabulary import Vocabulary
from backstory.models.composed import ComposedModel, build_model, outline
from backstory.models.contract import LanguageModel
from backstory.models.devices import Precision, available, choose_device, choose_precision
from backstory.models.state import flatten
from backstory.storage.atomic import within
from backstory.storage.checkpoint import Checkpoint, DamagedCheckpoint, newest_checkpoint
from backstory.storage.documents import conforms, has_fields
from backstory.storage.manifest import BEST, WEIGHTS_FILE, best_file, still_holds
from backstory.storage.run_files import CHECKPOINTS, RESULT, check_run_exists, run_name
from backstory.utils.errors import UserError, out_of_memory, pasted
from backstory.utils.free_memory import shown_bytes
from backstory.utils.small_file import resolved

ELSEWHERE = {"hf": "backstory.interop.hugging_face"}
"""Modules with a `load(name, options)` and a `files_digest(name)` for models that are no run folders, by the prefix of their
names."""
DESCRIBED = {"config", "corpus", "places"}
"""Parts of the document that is saved beside a model's weights and vocabulary."""
CORPUS = {"name": str, "fingerprint": str, "types": int, "provenance": str}
"""Types of what is saved of the training corpus."""


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return what is saved of a model, by name: its parameters, shared ones once, and its persistent buffers."""
    persistent = model.state_dict().keys()  # no built-in part has such buffers, but a plug-in may
    buffers = ((name, buffer) for name, buffer in model.named_buffers() if name in persistent)
    return {name: tensor.detach() for name, tensor in (*model.named_parameters(), *buffers)}


def weights_hash(model: nn.Module) -> str:
    """Return the SHA-256 (hex) of a model's weights with their names; a loaded run computes it once."""
    return tensors_hash(weights(model))


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 (hex) of tensors with their names, shapes and dtypes, in the order of the model's weights."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str) -> None:
    """Raise ValueError unless names, shapes and dtypes are the expected ones; nothing is cast or broadcast to fit."""
    if tensors.keys() != expected.keys():
        sides = (("without", expected.keys() - tensors.keys()), ("with", tensors.keys() - expected.keys()))
        differences = [f"{word} {', '.join(sorted(names)[:3])}" for word, names in sides if names]
        raise ValueError(f"the saved {what} are not those of this model: {' and '.join(differences)}")
    for name, tensor in expected.items():
        saved, wanted = (f"{tuple(t.shape)} of {str(t.dtype).removeprefix('torch.')}" for t in (tensors[name], tensor))
        if saved != wanted:
            raise ValueError(f"among the saved {what} {name} has shape {saved}, not {wanted}")


def check_state(outlined: LanguageModel, device: torch.device, name: str) -> None:
    """Raise UserError if the state of a model, its windows and memory, would not fit on the device for one text.

    Allocates nothing: the model's parameters are on the device `meta`.
    """
    # Before a block and after it.
    needed, free = 2 * sum(tensor.nbytes for tensor in flatten(outlined.start(1)).values()), available(device)
    if free is not None and needed > free:
        raise UserError(
            f"the state of {name} takes {shown_bytes(needed)} for one text, and {shown_bytes(free)} are free; "
            "read it on a larger machine"
        )


def saved_dtype(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """Return the dtype of saved weights, whatever torch's default is now."""
    return next((t.dtype for t in tensors.values() if t.is_floating_point()), torch.get_default_dtype())


@torch.no_grad()
def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy saved weights into the model. Raises ValueError when names, shapes or dtypes differ."""
    own = weights(model)
    check_tensors(tensors, own, "weights")
    for name, tensor in own.items():
        tensor.copy_(tensors[name])


class ChangedRun(UserError):
    """Raised when a run no longer has the weights that were loaded."""


@dataclass(frozen=True)
class Run:
    """A trained model with what it was trained with; the hash of its weights is computed once."""

    folder: Path
    model: ComposedModel
    vocabulary: Vocabulary
    config: RunConfig
    corpus: dict[str, Any]
    """Name, fingerprint, types and provenance of the training corpus."""
    places: dict[str, str]
    """Paths that the corpus was read from: `data_dir` if one was given, `corpus` if it is a path."""
    as_trained: bool = field(default=True, kw_only=True)
    """True if no setting of the model differs from training; what readers have learned of the run is for that model."""
    weights_file: str | None = field(default=None, kw_only=True)
    """SHA-256 (hex) of the file that the weights were read from; None for a model that is no run."""

    @property
    def name(self) -> str:
        """The name of the run in results."""
        return run_name(self.folder)

    @property
    def argument(self) -> str:
        """The run as a command takes it."""
        return str(self.folder)

    @property
    def in_memory(self) -> bool:
        """True if no command can open it."""
        return False

    @property
    def results(self) -> Path | None:
        """The folder of results by default; None for a model from elsewhere."""
        return self.folder

    @property
    def device(self) -> torch.device:
        """The device of the model's first weights."""
        return next(self.model.parameters()).device

    def precision(self, name: str) -> Precision:
        """Return the precision of this name on the model's device; that of its weights if these are not in float32.

        Raises UserError for another name.
        """
        dtype = next(self.model.parameters()).dtype
        own = dtype.is_floating_point and dtype != torch.float32
        native = Precision(dtype, "the weights are of this type", native=True)
        if own and name == native.name:  # as the header of a code has it
            return native
        resolved = choose_precision(name, self.device)
        return native if own else resolved

    @cached_property
    def weights_hash(self) -> str:
        """SHA-256 (hex) of the weights: what is learned for a model is filed under it."""
        return weights_hash(self.model)

    def settings(self) -> dict[str, Any]:
        """Return the settings that results record."""
        return to_dict(self.config)

    def identity(self) -> dict[str, str]:
        """Return the hashes of the weights that results record."""
        file = {} if self.weights_file is None else {"weights_file": self.weights_file}
        return {"weights": self.weights_hash, **file}

    def check_unchanged(self, destination: Path | None) -> None:
        """Raise ChangedRun if the run has other weights now than those loaded and `destination` is in its folder.

        Warns if it is elsewhere: such a result is still true of the weights that it names.
        """
        if self.weights_file is None or still_holds(self.folder, self.weights_file):
            return
        changed = f"{self.folder} was trained on or replaced while it was read"
        if destination is not None and destination.resolve().is_relative_to(self.folder.resolve()):
            raise ChangedRun(f"{changed}, so the result is of weights it no longer has; run the same command again")
        warnings.warn(f"{changed}; this result is of the weights it had before", stacklevel=3)

    def overridden(self, changes: Mapping[str, str]) -> "Run":
        """Return a run of the same weights with other settings of its model, as `core.addressing`; this one stays as it is.

        Raises UserError for a setting that the model does not declare (`inference_overrides`), or cannot have.
        """
        if not changes:
            return self
        model = self.model.overridden(changes)
        as_trained = self.as_trained and model.inference_overrides() == self.model.inference_overrides()
        return replace(self.with_settings(nested(changes)), model=model, as_trained=as_trained)

    def with_settings(self, changes: dict[str, Any]) -> "Run":
        """Return this run with nested changes to the model's settings that results record."""
        config = from_dict(RunConfig, merged(to_dict(self.config), {"model": changes}), "settings after training")
        return replace(self, config=config)

    def check_as_trained(self, what: str) -> None:
        """Raise UserError if a setting of the model differs from training; `what` belongs to the model as trained."""
        if not self.as_trained:
            raise UserError(
                f"{what} for {self.folder} as it was trained; leave --set and --addressing out, "
                "or use readers that need no preparation"
            )

    def dataset(self, corpus: str | None, data_dir: Path | None, field: str | None = None) -> Dataset:
        """Return the corpus that it was trained on, in the pieces of its own tokenizer.

        Raises UserError if it has changed, or if `corpus` or `field` name another.
        """
        if corpus is not None or field not in (None, self.config.text.field):
            flag = "--text.field" if corpus is None else "--corpus"
            raise UserError(
                f"{self.folder} is read with the corpus it was trained on; leave {flag} out; "
                "for a text of your own: `backstory evaluate RUN FILE`, or examine and explain with --text FILE"
            )
        # A tokenizer from a file, or trained on the corpus, is saved within the run.
        tokenizer = self.vocabulary.tokenizer
        pieces = tokenizer if tokenizer.unit == "piece" else None
        dataset = prepare(*self.text_source(data_dir), tokenizer=pieces)
        if dataset.fingerprint != self.corpus["fingerprint"]:
            raise UserError(
                f"the corpus {dataset.corpus} is not the text that {self.folder} was trained on; give that text, or train again"
            )
        return dataset

    def other_dataset(self, corpus: str | None, data_dir: Path | None, field: str | None = None) -> Dataset:
        """Return a corpus by its name or path, in the run's vocabulary; by default its own. Raises UserError."""
        if corpus is None:
            return self.dataset(None, data_dir, field)
        text = TextConfig(corpus=corpus, field=field or self.config.text.field)
        return prepare(text, data_dir, vocabulary=self.vocabulary)

    def training_text(self) -> tuple[np.ndarray, int, int]:
        """Return the ids (N,) of the training split, the number of types, and the token before the first.

        Raises UserError if the corpus is not there, or the model brings none.
        """
        dataset = self.dataset(None, None)
        return dataset.splits["train"].ids, len(dataset.vocabulary), dataset.vocabulary.start

    def text_source(self, data_dir: Path | None) -> tuple[TextConfig, Path | None]:
        """Return the text settings and data folder that prepare the training corpus again, from any working folder."""
        text, recorded = self.config.text, {k: Path(v) for k, v in self.places.items()}
        if "corpus" in recorded and recorded["corpus"].exists():
            text = replace(text, corpus=str(recorded["corpus"]))
        if data_dir is None and "data_dir" in recorded and recorded["data_dir"].is_dir():
            data_dir = recorded["data_dir"]
        return text, data_dir


def corpus_places(text: TextConfig, data_dir: Path | None) -> dict[str, str]:
    """Return the absolute paths of a run's corpus, to read it again. A known corpus has a name and no path."""
    places = {} if data_dir is None else {"data_dir": str(resolved(data_dir))}
    if text.corpus not in CORPORA and Path(text.corpus).exists():
        places["corpus"] = str(resolved(text.corpus))
    return places


def open_run(name: "Path | str | Run", options: LoadOptions) -> Run:
    """Load a run by its folder, or a model from elsewhere by a name such as `hf:gpt2`; a run that is open is returned.

    Raises UserError.
    """
    if isinstance(name, Run):
        return name
    if is_elsewhere(name):
        return importlib.import_module(ELSEWHERE[str(name).partition(":")[0]]).load(str(name), options)
    if foreign := [name for name in changes(options.load_options()) if name != "device"]:
        raise UserError(
            f"--{foreign[0].replace('_', '-')} is for models from elsewhere (hf:...); remove it to read {name}"
        )
    check_run_exists(Path(name))
    return load_run(Path(name), choose_device(options.device))


def is_elsewhere(name: Path | str) -> bool:
    """Return True if a name is that of a model from elsewhere, which has no corpus of its own."""
    source, colon, _ = str(name).partition(":")
    return bool(colon) and source in ELSEWHERE and not Path(name).is_dir()


def files_digest(name: str) -> str | None:
    """Return a digest (hex) of the files of a model's weights, which are not loaded; None if there are none."""
    if is_elsewhere(name):
        return importlib.import_module(ELSEWHERE[name.partition(":")[0]]).files_digest(name)
    return best_file(Path(name))


def best_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the checkpoint of a run's best weights; None if its training has made none yet.

    Raises UserError if it is damaged, or if a finished run has lost it.
    """
    finished, again = (folder / RESULT).exists(), f"`backstory train {pasted(folder)} --overwrite{plugin_flags()}`"
    try:
        checkpoint = newest_checkpoint(within(folder, CHECKPOINTS), BEST)
    except DamagedCheckpoint as error:
        lost = "has lost its best weights" if finished else "has no other checkpoint to read with"
        raise error.as_user_error(f"{folder} {lost}; train it again: {again}") from None
    if checkpoint is None and finished:
        raise UserError(f"{folder} is finished, but has lost its best weights; train it again: {again}")
    return checkpoint


def _not_a_run(folder: Path) -> UserError:
    if (folder.parent / CONFIG).is_file():
        return UserError(f"{folder} is a folder inside the run {folder.parent}; name the run")
    if inside := sorted(path.parent for path in folder.glob(f"*/{CONFIG}")):
        return UserError(f"{folder} is a folder of runs; name one of them, such as {inside[0]}")
    return UserError(f"{folder} is not a run folder; train one with `backstory train RECIPE --out FOLDER`")


def load_run(folder: Path, device: torch.device | None = None) -> Run:
    """Load the best weights of a run, in evaluation mode, on a device (the CPU by default).

    Raises UserError if the folder is no run, or holds no whole checkpoint of this version.
    """
    check_run_exists(folder, trained_here=True)
    if not (folder / CONFIG).is_file():
        raise _not_a_run(folder)
    checkpoint = best_checkpoint(folder)
    if checkpoint is None:
        raise UserError(
            f"{folder} has no checkpoint to read with; continue its training: "
            f"`backstory train {pasted(folder)} --resume{plugin_flags()}`"
        )
    config, vocabulary, described = _described(checkpoint)
    saved = checkpoint.tensors["weights"]
    dtype = saved_dtype(saved)
    try:
        # What the settings ask for may be more memory than there is.
        if (outlined := outline(config.model, len(vocabulary))) is not None:
            check_tensors(saved, weights(outlined.to(dtype)), "weights")
            check_state(outlined, device or torch.device("cpu"), str(folder))
        model = build_model(config.model, len(vocabulary)).to(dtype)
        load_weights(model, saved)
    except (ValueError, RuntimeError, TypeError, OverflowError) as error:  # the last: sizes that no tensor can have
        if line := out_of_memory(error) or of_plugin(error):
            raise line from None
        raise UserError(f"{checkpoint.path} does not fit its own settings: {error}") from None
    return Run(
        folder,
        model.to(device or "cpu").eval(),
        vocabulary,
        config,
        described["corpus"],
        described["places"],
        weights_file=checkpoint.hashes[WEIGHTS_FILE],
    )


def _described(checkpoint: Checkpoint) -> tuple[RunConfig, Vocabulary, dict[str, Any]]:
    """Return the settings, the vocabulary and the whole document of a checkpoint's model. Raises UserError."""
    files, path = [*checkpoint.tensors, *sorted(checkpoint.documents)], checkpoint.path
    model, vocabulary = (checkpoint.documents.get(name) for name in ("model", "vocabulary"))
    if files != ["weights", "model", "vocabulary"] or not isinstance(model, dict) or model.keys() != DESCRIBED:
        raise UserError(f"{path} was saved by another version of backstory; read it with that one, or train it again")
    valid = {
        "config": conforms(model["config"], dict[str, Any]),
        "corpus": has_fields(model["corpus"], CORPUS),
        "places": conforms(model["places"], dict[str, str]),
    }
    damaged = [name for name in valid if not valid[name]]
    if damaged or not isinstance(vocabulary, dict):
        raise UserError(
            f"{path} is damaged: its {(damaged or ['vocabulary'])[0]} has wrong fields or types; train it again"
        )
    try:
        return from_saved(RunConfig, model["config"], str(path)), Vocabulary.from_json(vocabulary), model
    except UnknownKind:
        raise
    except UserError as error:
        raise UserError(f"{path} is damaged: {error}") from None
