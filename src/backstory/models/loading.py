"""A trained model from its run folder: the best weights, with the settings and vocabulary saved and hashed beside them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from backstory.config import RunConfig, TextConfig, UserError, from_dict
from backstory.models.composed import ComposedModel, build_model
from backstory.storage.checkpoint import newest_checkpoint
from backstory.text.vocabulary import Vocabulary

CONFIG = "config.yaml"
"""File of a run that holds its settings, and that makes a folder a run."""
CHECKPOINTS = "checkpoints"
"""Folder of a run that holds `last-STEP` (to resume from) and `best-EPOCH` (to read with)."""


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters by name, tied ones once."""
    return {name: p.detach() for name, p in model.named_parameters()}


@torch.no_grad()
def load_weights(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy saved parameters into the model. Raises ValueError when names or shapes differ."""
    parameters = dict(model.named_parameters())
    if parameters.keys() != tensors.keys():
        raise ValueError("the saved weights are not those of this model")
    for name, parameter in parameters.items():
        if parameter.shape != tensors[name].shape:
            raise ValueError(
                f"saved weight {name} has shape {tuple(tensors[name].shape)}, not {tuple(parameter.shape)}"
            )
        parameter.copy_(tensors[name])


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

    def text_source(self, data_dir: Path | None) -> tuple[TextConfig, Path | None]:
        """The text settings and data folder to prepare the training corpus with again, from whatever folder one works in."""
        text, recorded = self.config.text, {k: Path(v) for k, v in self.places.items()}
        if "corpus" in recorded and recorded["corpus"].exists():
            text = replace(text, corpus=str(recorded["corpus"]))
        if data_dir is None and "data_dir" in recorded and recorded["data_dir"].is_dir():
            data_dir = recorded["data_dir"]
        return text, data_dir


def corpus_places(text: TextConfig, data_dir: Path | None) -> dict[str, str]:
    """What a run remembers of where its corpus was found: absolute paths."""
    places = {} if data_dir is None else {"data_dir": str(data_dir.resolve())}
    return {**places, "corpus": str(Path(text.corpus).resolve())} if Path(text.corpus).exists() else places


def load_run(folder: Path, device: torch.device | None = None) -> LoadedRun:
    """Load the best weights of a run, in evaluation mode.

    Raises UserError when the folder is not a run, holds no whole checkpoint, or one of another version.
    """
    if not folder.is_dir():
        raise UserError(f"there is no run folder {folder}; train one with `backstory train RECIPE --out {folder}`")
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} is no run folder; train one with `backstory train RECIPE --out FOLDER`")
    checkpoint = newest_checkpoint(folder / CHECKPOINTS, "best")
    if checkpoint is None:
        raise UserError(
            f"{folder} has no checkpoint to read with; train it on with the command that began it and --resume"
        )
    described = checkpoint.documents["model"]
    config = from_dict(RunConfig, described["config"], str(checkpoint.path))
    vocabulary = Vocabulary.from_json(checkpoint.documents["vocabulary"])
    model = build_model(config.model, len(vocabulary))
    try:
        load_weights(model, checkpoint.tensors["weights"])
    except ValueError as error:
        raise UserError(f"{checkpoint.path} does not fit its own settings: {error}") from None
    return LoadedRun(
        folder, model.to(device or "cpu").eval(), vocabulary, config, described["corpus"], described.get("places", {})
    )
