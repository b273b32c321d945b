"""A trained model from its run folder: the best weights, with the settings and vocabulary saved and hashed beside them."""

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from backstory.config import RunConfig, TextConfig, UserError, from_dict, pasted, to_dict
from backstory.config.machine import out_of_memory
from backstory.config.recipes import CONFIG
from backstory.data import Dataset, prepare
from backstory.data.corpora import CORPORA
from backstory.data.vocabulary import Vocabulary
from backstory.models.composed import ComposedModel, build_model
from backstory.models.contract import LanguageModel
from backstory.models.cores.external_memory import addressing_of, readdressed
from backstory.models.devices import available, shown_bytes
from backstory.models.state import flatten
from backstory.storage.atomic import within
from backstory.storage.checkpoint import Checkpoint, DamagedCheckpoint, newest_checkpoint
from backstory.storage.documents import conforms
from backstory.storage.run_weights import BEST, CHECKPOINTS, WEIGHTS_FILE, still_holds

DESCRIBED = {"config": dict[str, Any], "corpus": dict[str, str | int], "places": dict[str, str]}
CORPUS = {"name": str, "fingerprint": str, "types": int, "provenance": str}
"""What is saved of a model beside its weights and vocabulary, and what of the corpus."""


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters by name, tied ones once."""
    return {name: p.detach() for name, p in model.named_parameters()}


def weights_hash(model: nn.Module) -> str:
    """The SHA-256 (hex) of a model's parameters with their names: what was learned for a model is filed under it.

    It is computed once for a model, and again when an operation has changed a parameter (not through `.data`).
    """
    found = weights(model)
    versions = tuple((p.data_ptr(), p._version) for p in found.values())
    known = _HASHES.get(model)
    if known is None or known[0] != versions:
        known = _HASHES[model] = versions, tensors_hash(found)
    return known[1]


_HASHES: WeakKeyDictionary[nn.Module, tuple[tuple[tuple[int, int], ...], str]] = WeakKeyDictionary()


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """The same of tensors by name, in the order of the model's parameters."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str) -> None:
    """Raise ValueError unless names, shapes and dtypes are the expected ones; nothing is cast or broadcast to fit."""
    if tensors.keys() != expected.keys():
        lost, more = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
        told = [f"{word} {', '.join(names[:3])}" for word, names in (("without", lost), ("with", more)) if names]
        raise ValueError(f"the saved {what} are not those of this model: {' and '.join(told)}")
    for name, tensor in expected.items():
        found = [(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in (tensors[name], tensor)]
        if found[0] != found[1]:
            (shape, dtype), (wanted, kind) = found
            raise ValueError(f"among the saved {what} {name} has shape {shape} of {dtype}, not {wanted} of {kind}")


def check_state(outlined: LanguageModel, device: torch.device, name: str) -> None:
    """Raise UserError where the state of a model, its windows and memory, would not fit on the device for a single text.

    Nothing is allocated: the model's parameters are on the device `meta`.
    """
    # Before a block and after it.
    needed, free = 2 * sum(tensor.nbytes for tensor in flatten(outlined.start(1)).values()), available(device)
    if free is not None and needed > free:
        raise UserError(
            f"{name} remembers {shown_bytes(needed)} of a text, and {shown_bytes(free)} are free; read it on a larger machine"
        )


def saved_dtype(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """Return the dtype of saved weights, whatever torch's default is now."""
    return next((t.dtype for t in tensors.values() if t.is_floating_point()), torch.get_default_dtype())


@torch.no_grad()
def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy saved parameters into the model. Raises ValueError when names, shapes or dtypes differ."""
    parameters = dict(model.named_parameters())
    check_tensors(tensors, parameters, "weights")
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])


class ChangedRun(UserError):
    """The weights of a run are no longer those that a result is of."""


@dataclass(frozen=True)
class LoadedRun:
    """A trained model and what it was trained with."""

    folder: Path
    model: ComposedModel
    vocabulary: Vocabulary
    config: RunConfig
    corpus: dict[str, Any]
    """Name, fingerprint, types and provenance of the training corpus."""
    places: dict[str, str]
    """Where the corpus was found: `data_dir` if one was given, `corpus` if it is a path."""
    as_trained: bool = field(default=True, kw_only=True)
    """Whether an external memory is addressed as in training: what was prepared for readers of the run is for that."""
    weights_file: str | None = field(default=None, kw_only=True)
    """SHA-256 (hex) of the file that the weights were read from; None for a model that is no run."""

    @property
    def name(self) -> str:
        """What results call it."""
        return self.folder.name

    @property
    def results(self) -> Path | None:
        """The folder that results go to where nobody says; None for a model that has none."""
        return self.folder

    def settings(self) -> dict[str, Any]:
        """What results record of how it was made."""
        return to_dict(self.config)

    def identity(self) -> dict[str, str]:
        """Return the hashes by which results tell of which weights they are."""
        file = {} if self.weights_file is None else {"weights_file": self.weights_file}
        return {"weights": weights_hash(self.model), **file}

    def check_unchanged(self, destination: Path | None) -> None:
        """Raise UserError if the run has other weights by now than those loaded and `destination` lies in its folder.

        A result that goes elsewhere is still true of the weights that it names; a warning says so.
        """
        if self.weights_file is None or still_holds(self.folder, self.weights_file):
            return
        changed = f"{self.folder} was trained on or replaced while it was read"
        if destination is not None and destination.resolve().is_relative_to(self.folder.resolve()):
            raise ChangedRun(f"{changed}, so the result is of weights it no longer has; run the same command again")
        warnings.warn(f"{changed}; this result is of the weights it had before", stacklevel=3)

    def readdressed(self, addressing: str) -> "LoadedRun":
        """The same weights with another addressing of the external memory; this run stays as it is. Raises UserError."""
        model = readdressed(self.model, addressing)
        as_trained = self.as_trained and addressing_of(model) == addressing_of(self.model)
        return replace(self._recorded(addressing), model=model, as_trained=as_trained)

    def _recorded(self, addressing: str) -> "LoadedRun":
        """This run with another addressing in the settings that results record."""
        core = replace(self.config.model.core, addressing=addressing)  # type: ignore[call-arg]
        return replace(self, config=replace(self.config, model=replace(self.config.model, core=core)))

    def check_as_trained(self, what: str) -> None:
        """Raise UserError where the memory is addressed otherwise; `what` is prepared for a run as it was trained."""
        if not self.as_trained:
            raise UserError(
                f"{what} for the addressing that {self.folder} was trained with; leave --addressing out, "
                "or read with readers that need none of it"
            )

    def dataset(self, corpus: str | None, data_dir: Path | None) -> Dataset:
        """The corpus that it was trained on. Raises UserError, also when that is not what it was, or another is asked for."""
        if corpus is not None:
            raise UserError(
                f"{self.folder} is read with the corpus it was trained on; leave --corpus out, or give a text"
            )
        dataset = prepare(*self.text_source(data_dir))
        if dataset.fingerprint != self.corpus["fingerprint"]:
            raise UserError(
                f"the corpus {dataset.corpus} is not the text that {self.folder} was trained on; give that text, or train again"
            )
        return dataset

    def text_source(self, data_dir: Path | None) -> tuple[TextConfig, Path | None]:
        """The text settings and data folder to prepare the training corpus with again, from whatever folder one works in."""
        text, recorded = self.config.text, {k: Path(v) for k, v in self.places.items()}
        if "corpus" in recorded and recorded["corpus"].exists():
            text = replace(text, corpus=str(recorded["corpus"]))
        if data_dir is None and "data_dir" in recorded and recorded["data_dir"].is_dir():
            data_dir = recorded["data_dir"]
        return text, data_dir


def corpus_places(text: TextConfig, data_dir: Path | None) -> dict[str, str]:
    """What a run remembers of where its corpus was found: absolute paths. A corpus known by name is no file of that name."""
    places = {} if data_dir is None else {"data_dir": str(data_dir.resolve())}
    found = text.corpus not in CORPORA and Path(text.corpus).exists()
    return {**places, "corpus": str(Path(text.corpus).resolve())} if found else places


def load_run(folder: Path, device: torch.device | None = None) -> LoadedRun:
    """Load the best weights of a run, in evaluation mode.

    Raises UserError when the folder is not a run, holds no whole checkpoint, or one of another version.
    """
    if not folder.is_dir():
        raise UserError(
            f"there is no run folder {folder}; train one with `backstory train RECIPE --out {pasted(folder)}`"
        )
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} is no run folder; train one with `backstory train RECIPE --out FOLDER`")
    try:
        checkpoint = newest_checkpoint(within(folder, CHECKPOINTS), BEST)
    except DamagedCheckpoint as error:
        raise UserError(f"{error}; {folder} has no other checkpoint to read with: train it again") from None
    if checkpoint is None:
        raise UserError(
            f"{folder} has no checkpoint to read with; train it on with the command that began it and --resume"
        )
    config, vocabulary, described = _described(checkpoint)
    saved = checkpoint.tensors["weights"]
    dtype = saved_dtype(saved)
    try:
        with torch.device("meta"):  # takes no memory: what the settings ask for may be more than there is
            outlined = build_model(config.model, len(vocabulary)).to(dtype)
            check_tensors(saved, weights(outlined), "weights")
            check_state(outlined, device or torch.device("cpu"), str(folder))
        model = build_model(config.model, len(vocabulary)).to(dtype)
        load_weights(model, saved)
    except (ValueError, RuntimeError, TypeError) as error:  # the last two: sizes that no tensor can have
        if lacking := out_of_memory(error):
            raise lacking from None
        raise UserError(f"{checkpoint.path} does not fit its own settings: {error}") from None
    return LoadedRun(
        folder,
        model.to(device or "cpu").eval(),
        vocabulary,
        config,
        described["corpus"],
        described["places"],
        weights_file=checkpoint.hashes[WEIGHTS_FILE],
    )


def _described(checkpoint: Checkpoint) -> tuple[RunConfig, Vocabulary, dict[str, Any]]:
    """Settings, vocabulary and the rest of what a checkpoint says of its model. Raises UserError."""
    files, path = [*checkpoint.tensors, *sorted(checkpoint.documents)], checkpoint.path
    model, vocabulary = (checkpoint.documents.get(name) for name in ("model", "vocabulary"))
    if files != ["weights", "model", "vocabulary"] or not isinstance(model, dict) or model.keys() != DESCRIBED.keys():
        raise UserError(f"{path} was saved by another version of backstory; read it with that one, or train it again")
    wrong = [name for name, hint in DESCRIBED.items() if not conforms(model[name], hint)]
    if not wrong and model["corpus"].keys() == CORPUS.keys():
        wrong = [f"corpus.{name}" for name, hint in CORPUS.items() if not conforms(model["corpus"][name], hint)]
    elif not wrong:
        wrong = ["corpus"]
    if wrong or not isinstance(vocabulary, dict):
        raise UserError(f"{path} is damaged: its {wrong[0] if wrong else 'vocabulary'} is none; train it again")
    try:
        return from_dict(RunConfig, model["config"], str(path)), Vocabulary.from_json(vocabulary), model
    except UserError as error:
        raise UserError(f"{path} is damaged: {error}") from None
