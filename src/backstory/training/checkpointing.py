"""Checkpoints of a training: all that makes resuming bit-exact as named tensors, and back, and the files that hold them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from backstory.models import State, flatten
from backstory.runs.run import check_tensors, weights
from backstory.runs.run_folder import RunFolder
from backstory.storage.checkpoint import (
    Checkpoint,
    DamagedCheckpoint,
    drop_checkpoint,
    newest_checkpoint,
    rotate_checkpoints,
    write_checkpoint,
)
from backstory.storage.documents import conforms
from backstory.storage.manifest import BEST, LAST
from backstory.training.optimizers import WeightAverage, optimizer_state, saved_state
from backstory.training.progress import Progress
from backstory.utils.errors import UserError

START_AGAIN = "start again with --overwrite"
ANOTHER_FOLDER = "train in another folder with --out"
"""Remedy where the run may be whole, so that nothing may advise to replace it."""


def pack(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: WeightAverage | None,
    rank_tensors: Sequence[dict[str, Tensor]],
) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a run by file: weights, optimizer, average, and each rank's state and random (`pack_rank`)."""
    parameters = dict(model.named_parameters())
    optimizer_tensors = {
        f"{name}/{key}": value for name, p in parameters.items() for key, value in optimizer_state(optimizer, p).items()
    }
    packed = {"weights": weights(model), "optimizer": optimizer_tensors}
    for rank, own in enumerate(rank_tensors):
        for name, tensor in own.items():
            file, entry = name.split("/", 1)
            packed.setdefault(f"{file}{rank_suffix(rank)}", {})[entry] = tensor
    if average is not None:
        packed["average"] = dict(zip(parameters, average.means, strict=True))
    return packed


def pack_rank(state: State, device: torch.device) -> dict[str, Tensor]:
    """Return the tensors of a rank: `state/...`, and its random-number generators, `random/...`."""
    return {f"state/{name}": tensor for name, tensor in flatten(state).items()} | random_states(device)


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Return the generators' states: `random/cpu`, and `random/cuda` for a run on a GPU."""
    states = {"random/cpu": torch.get_rng_state()}
    return states if device.type != "cuda" else states | {"random/cuda": torch.cuda.get_rng_state(device)}


def rank_suffix(rank: int) -> str:
    """Return the suffix of a rank's files; those of the first have none."""
    return f"-{rank}" if rank else ""


def _names(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[str]:
    """Return the names of the parameters in the optimizer's order, that of its groups."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [names[id(p)] for group in optimizer.param_groups for p in group["params"]]


def check_files(tensors: Mapping[str, Any], averaged: bool, ranks: int) -> None:
    """Raise ValueError unless the tensors are in the files that `pack` makes."""
    of_ranks = {f"{file}{rank_suffix(rank)}" for rank in range(ranks) for file in ("state", "random")}
    expected = {"weights", "optimizer"} | of_ranks | ({"average"} if averaged else set())
    if tensors.keys() != expected:
        raise ValueError(f"it holds tensors of {', '.join(sorted(tensors))}, not of {', '.join(sorted(expected))}")


def unpack_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor], steps: int, same_settings: bool
) -> None:
    """Restore the state of an optimizer over the model's parameters.

    If other settings were accepted, the saved tensors may be those of another optimizer: what this one does not use is ignored,
    and if nothing is left it starts anew. Early versions saved nothing before the first step. Raises ValueError for anything
    else that is not the state of this optimizer.
    """
    parameters = dict(model.named_parameters())
    expected = {
        f"{name}/{entry}": value for name, p in parameters.items() for entry, value in saved_state(optimizer, p).items()
    }
    if not same_settings:
        entries, saved = ({key.rpartition("/")[2] for key in names} for names in (expected, tensors))
        if missing := entries - saved:
            if tensors:
                raise ValueError(f"the saved state of the optimizer has no {', '.join(sorted(missing))}")
            return
        tensors = {key: tensor for key, tensor in tensors.items() if key in expected}
    if not tensors and not steps:
        return
    check_tensors(tensors, expected, "tensors of the optimizer")
    index = {name: i for i, name in enumerate(_names(optimizer, model))}
    state: dict[int, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        name, _, entry = key.rpartition("/")
        state.setdefault(index[name], {})[entry] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def unpack_average(model: nn.Module, tensors: dict[str, Tensor], count: int) -> WeightAverage:
    """Return a saved average of this model's weights over `count` steps. Raises ValueError if it is of others."""
    parameters = dict(model.named_parameters())
    check_tensors(tensors, parameters, "averages")
    average = WeightAverage(parameters.values())
    average.count = count
    average.means = [tensors[name].to(parameter.device) for name, parameter in parameters.items()]
    return average


def unpack_random(tensors: dict[str, Tensor], device: torch.device) -> None:
    """Restore the random-number generators. Raises ValueError for anything that is not their state, and UserError for the state
    of a training on another kind of device, which has other generators.
    """
    before, now = ("a GPU" if on_gpu else "a CPU" for on_gpu in ("cuda" in tensors, device.type == "cuda"))
    if before != now:
        raise UserError(
            f"this run was trained on {before}, whose random numbers {now} cannot continue; resume it on {before}, or begin "
            "another run with its weights (--init-from)"
        )
    expected = {name.removeprefix("random/"): state for name, state in random_states(device).items()}
    check_tensors(tensors, expected, "random numbers")
    try:
        torch.set_rng_state(tensors["cpu"])
        if device.type == "cuda":
            torch.cuda.set_rng_state(tensors["cuda"], device)
    except (RuntimeError, TypeError):
        raise ValueError("the states of the random-number generators are damaged") from None


@dataclass(frozen=True)
class SavedRun:
    """The document of a checkpoint: where a training stood, and what it was trained on and with."""

    progress: Progress
    config: dict[str, Any] | str
    """The settings; of checkpoints of early versions, their hash."""
    corpus: str
    """Fingerprint of the corpus."""
    ranks: int
    threads: int
    """Threads of each; earlier versions did not save them, and used as many as torch and torchrun would."""

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> "SavedRun":
        """Return what a checkpoint says of its run. Raises UserError."""
        saved = checkpoint.documents.get("progress")
        hints = {"progress": Any, "config": dict[str, Any] | str, "corpus": str, "ranks": int, "threads": int}
        if isinstance(saved, dict):
            saved = {"threads": torch.get_num_threads() if saved.get("ranks") == 1 else 1, **saved}
        if checkpoint.documents.keys() != {"progress"} or not isinstance(saved, dict) or saved.keys() != hints.keys():
            raise UserError(
                f"{checkpoint.path} was saved by another version of backstory; go on with that one, or {ANOTHER_FOLDER}"
            )
        if not all(conforms(saved[name], hint) for name, hint in hints.items()) or saved["threads"] < 1:
            raise UserError(
                f"{checkpoint.path} is damaged: it does not say what it was trained on and with; {START_AGAIN}"
            )
        try:
            return cls(**{**saved, "progress": Progress.read(saved["progress"])})
        except ValueError as error:
            raise UserError(
                f"{checkpoint.path} was saved by another version of backstory, or is damaged ({error}); "
                f"go on with that version, or {ANOTHER_FOLDER}"
            ) from None

    def document(self) -> dict[str, Any]:
        """Return plain values, which `read` parses."""
        return {**vars(self), "progress": vars(self.progress)}


def write_last(folder: RunFolder, tensors: dict[str, dict[str, Tensor]], saved: SavedRun) -> None:
    """Write the checkpoint to resume from after a step, and remove all but the last two."""
    folder.check_in_place()
    name, documents = f"{LAST}-{saved.progress.step}", {"progress": saved.document()}
    rotate_checkpoints(write_checkpoint(folder.checkpoints, name, tensors, documents), keep=2)


def drop_last(folder: RunFolder, step: int) -> bool:
    """Remove the checkpoint of a step if there is a whole one beside it. Return True if a whole one is left."""
    return drop_checkpoint(folder.checkpoints / f"{LAST}-{step}")


def write_best(folder: RunFolder, epoch: int, tensors: dict[str, Tensor], documents: dict[str, Any]) -> None:
    """Write the best weights, those after an epoch, with what is needed to read with them.

    The best before them stay until a checkpoint names these (`keep_best`): a run that is resumed from earlier may miss them.
    """
    folder.check_in_place()
    write_checkpoint(folder.checkpoints, f"{BEST}-{epoch}", {"weights": tensors}, documents)


def read_best(folder: RunFolder, epoch: int) -> Checkpoint:
    """Return the best weights, those after an epoch. Raises DamagedCheckpoint, also where they are missing.

    Others, even later ones, are not of this training: it was resumed from before them.
    """
    name = f"{BEST}-{epoch}"
    checkpoint = newest_checkpoint(folder.checkpoints, BEST, frozenset({"weights"}), name)
    if checkpoint is None:
        raise DamagedCheckpoint(f"{folder.checkpoints / name} is missing")
    return checkpoint


def keep_best(folder: RunFolder, epoch: int) -> None:
    """Remove all best weights but those after an epoch."""
    rotate_checkpoints(folder.checkpoints / f"{BEST}-{epoch}", keep=1)
