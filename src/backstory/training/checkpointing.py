"""The whole of a training run as tensors and JSON, and back: everything that makes resuming bit-exact."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from backstory.models import State, flatten
from backstory.models.loading import weights
from backstory.training.optimizers import WeightAverage


@dataclass
class Progress:
    """Where a run stands, and every plain number that it needs to go on."""

    finetuning: bool = False
    epoch: int = 1
    """The epoch being trained, counted from 1 through fine-tuning."""
    segment: int = 0
    """Segments of the epoch done."""
    step: int = 0
    """Steps of the optimizer done."""
    rate_factor: float = 1.0
    """What the schedule has made of the learning rate."""
    best_nats: float | None = None
    best_epoch: int = 0
    waited: int = 0
    """Epochs since validation improved or the rate decayed."""
    history: list[float] = field(default_factory=list)
    """Validation nats after each epoch of this stage (the averaging trigger's memory)."""
    epoch_nats: float = 0.0
    epoch_tokens: int = 0
    epoch_seconds: float = 0.0
    window_nats: float = 0.0
    window_tokens: int = 0
    window_seconds: float = 0.0
    """Sums since the epoch began and since the last line of the log."""
    seconds: float = 0.0
    """Time spent on training and validating so far."""
    averaged: int | None = None
    """Steps in the average of the weights; None while there is none."""
    log_bytes: int = 0
    """Length of metrics.jsonl when this was saved."""
    finished: bool = False


def pack(
    model: nn.Module, optimizer: torch.optim.Optimizer, average: WeightAverage | None, state: State
) -> dict[str, dict[str, Tensor]]:
    """Tensors of a run by file: weights, optimizer, average, state, random."""
    names = [name for name, _ in model.named_parameters()]
    optimizer_tensors = {}
    for index, entries in optimizer.state_dict()["state"].items():
        for key, value in entries.items():
            if value is not None:
                optimizer_tensors[f"{names[index]}/{key}"] = torch.as_tensor(value)
    random = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        random |= {f"cuda{i}": s for i, s in enumerate(torch.cuda.get_rng_state_all())}
    packed = {
        "weights": weights(model),
        "optimizer": optimizer_tensors,
        "state": flatten(state),
        "random": random,
    }
    if average is not None:
        packed["average"] = dict(zip(names, average.means, strict=True))
    return packed


def unpack_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put saved tensors back into an optimizer over the model's parameters."""
    index = {name: i for i, (name, _) in enumerate(model.named_parameters())}
    state: dict[int, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        name, entry = key.rsplit("/", 1)
        state.setdefault(index[name], {})[entry] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def unpack_random(tensors: dict[str, Tensor]) -> None:
    """Put the random-number generators back where they were."""
    torch.set_rng_state(tensors["cpu"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state_all([t for name, t in sorted(tensors.items()) if name.startswith("cuda")])
