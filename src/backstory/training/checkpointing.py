"""The whole of a training run as tensors and JSON, and back: everything that makes resuming bit-exact."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from backstory.models import State, flatten
from backstory.runs.run import check_tensors, weights
from backstory.training.optimizers import WeightAverage, optimizer_state, saved_state


def pack(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: WeightAverage | None,
    of_ranks: Sequence[dict[str, Tensor]],
) -> dict[str, dict[str, Tensor]]:
    """Tensors of a run by file: weights, optimizer, average, and of each rank (`pack_rank`) its state and random."""
    parameters = dict(model.named_parameters())
    optimizer_tensors = {
        f"{name}/{key}": value for name, p in parameters.items() for key, value in optimizer_state(optimizer, p).items()
    }
    packed = {"weights": weights(model), "optimizer": optimizer_tensors}
    for rank, own in enumerate(of_ranks):
        for name, tensor in own.items():
            file, entry = name.split("/", 1)
            packed.setdefault(f"{file}{rank_suffix(rank)}", {})[entry] = tensor
    if average is not None:
        packed["average"] = dict(zip(parameters, average.means, strict=True))
    return packed


def pack_rank(state: State, device: torch.device) -> dict[str, Tensor]:
    """What each rank has of its own: `state/...` and its random-number generators, `random/...`."""
    return {f"state/{name}": tensor for name, tensor in flatten(state).items()} | random_states(device)


def random_states(device: torch.device) -> dict[str, Tensor]:
    """`random/cpu`, and `random/cuda` for a run on a GPU."""
    states = {"random/cpu": torch.get_rng_state()}
    return states if device.type != "cuda" else states | {"random/cuda": torch.cuda.get_rng_state(device)}


def rank_suffix(rank: int) -> str:
    """What a rank's files are called by; the first one's have no suffix."""
    return f"-{rank}" if rank else ""


def _names(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[str]:
    """Names of the parameters in the optimizer's order, which its groups make."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [names[id(p)] for group in optimizer.param_groups for p in group["params"]]


def check_files(tensors: Mapping[str, Any], averaged: bool, ranks: int) -> None:
    """Raise ValueError unless the tensors are in the files that `pack` makes."""
    of_ranks = {f"{file}{rank_suffix(rank)}" for rank in range(ranks) for file in ("state", "random")}
    expected = {"weights", "optimizer"} | of_ranks | ({"average"} if averaged else set())
    if tensors.keys() != expected:
        raise ValueError(f"it holds tensors of {', '.join(sorted(tensors))}, not of {', '.join(sorted(expected))}")


def unpack_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor], steps: int, settings_kept: bool
) -> None:
    """Put saved tensors back into an optimizer over the model's parameters.

    Where other settings were accepted, an optimizer may find nothing of its own, and leaves what it does not need. Nor was
    there anything in a checkpoint that an earlier version wrote before the first step. Raises ValueError for anything else that
    is not the state of this optimizer.
    """
    parameters = dict(model.named_parameters())
    expected = {
        f"{name}/{entry}": value for name, p in parameters.items() for entry, value in saved_state(optimizer, p).items()
    }
    if not settings_kept:
        if lost := {key.rpartition("/")[2] for key in expected} - {key.rpartition("/")[2] for key in tensors}:
            if tensors:
                raise ValueError(f"the saved state of the optimizer has no {', '.join(sorted(lost))}")
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


def unpack_average(average: WeightAverage, model: nn.Module, tensors: dict[str, Tensor], count: int) -> None:
    """Put a saved average back. Raises ValueError when it is not of this model's weights."""
    parameters = dict(model.named_parameters())
    check_tensors(tensors, parameters, "averages")
    average.count = count
    average.means = [tensors[name].to(parameter.device) for name, parameter in parameters.items()]


def unpack_random(tensors: dict[str, Tensor], device: torch.device) -> None:
    """Put the random-number generators back where they were. Raises ValueError for what is no state of theirs."""
    expected = {name.removeprefix("random/"): state for name, state in random_states(device).items()}
    check_tensors(tensors, expected, "random numbers")
    try:
        torch.set_rng_state(tensors["cpu"])
        if device.type == "cuda":
            torch.cuda.set_rng_state(tensors["cuda"], device)
    except (RuntimeError, TypeError):
        raise ValueError("the states of the random-number generators are damaged") from None
