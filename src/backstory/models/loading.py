"""A trained model from its run folder: the best weights, with the settings and vocabulary saved and hashed beside them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from backstory.config import RunConfig, UserError, from_dict
from backstory.models.composed import ComposedModel, build_model
from backstory.storage import newest_checkpoint
from backstory.text.vocabulary import Vocabulary

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
    data_dir: Path | None
    """The folder that the corpus was found in, if one was given."""


def load_run(folder: Path, device: torch.device | None = None) -> LoadedRun:
    """Load the best weights of a run, in evaluation mode.

    Raises UserError when the folder is not a run, holds no whole checkpoint, or one of another version.
    """
    if not folder.is_dir():
        raise UserError(f"there is no run folder {folder}; train one with `backstory train RECIPE --out {folder}`")
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is no run folder; train one with `backstory train RECIPE --out FOLDER`")
    checkpoint = newest_checkpoint(folder / CHECKPOINTS, "best")
    if checkpoint is None:
        raise UserError(
            f"{folder} has no checkpoint to read with; train it on with `backstory train RECIPE --out {folder} --resume`"
        )
    described = checkpoint.documents["model"]
    config = from_dict(RunConfig, described["config"], str(checkpoint.path))
    where = Path(described["data_dir"]) if described.get("data_dir") else None
    vocabulary = Vocabulary.from_json(checkpoint.documents["vocabulary"])
    model = build_model(config.model, len(vocabulary))
    try:
        load_weights(model, checkpoint.tensors["weights"])
    except ValueError as error:
        raise UserError(f"{checkpoint.path} does not fit its own settings: {error}") from None
    return LoadedRun(folder, model.to(device or "cpu").eval(), vocabulary, config, described["corpus"], where)
