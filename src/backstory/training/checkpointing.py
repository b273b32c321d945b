"""The whole of a training run as tensors and JSON, and back: everything that makes resuming bit-exact."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
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
    epoch_sums: dict[str, float] = field(default_factory=dict)
    epoch_tokens: int = 0
    epoch_seconds: float = 0.0
    window_sums: dict[str, float] = field(default_factory=dict)
    window_tokens: int = 0
    window_seconds: float = 0.0
    """Since the epoch began and since the last line of the log: the objective's figures, summed over tokens, by name."""
    seconds: float = 0.0
    """Time spent on training and validating so far."""
    averaged: int | None = None
    """Steps in the average of the weights; None while there is none."""
    log_bytes: int = 0
    """Length of metrics.jsonl when this was saved."""
    finished: bool = False

    @classmethod
    def read(cls, document: Any) -> "Progress":
        """Progress as it was saved. Raises ValueError when its fields are not those of this version."""
        if not isinstance(document, dict) or document.keys() != {f.name for f in fields(cls)}:
            raise ValueError("the saved progress is not of this version")
        return cls(**document)

    def take(self, figures: dict[str, float], tokens: int, seconds: float) -> None:
        """Count a step: its figures (means per token), its tokens and the time it took."""
        self.segment, self.step, self.seconds = self.segment + 1, self.step + 1, self.seconds + seconds
        self.epoch_tokens, self.epoch_seconds = self.epoch_tokens + tokens, self.epoch_seconds + seconds
        self.window_tokens, self.window_seconds = self.window_tokens + tokens, self.window_seconds + seconds
        for sums in (self.epoch_sums, self.window_sums):
            for name, value in figures.items():
                sums[name] = sums.get(name, 0.0) + value * tokens

    def begin_epoch(self) -> None:
        """Sum from here on."""
        self.epoch_sums, self.epoch_tokens, self.epoch_seconds = {}, 0, 0.0
        self.begin_window()

    def begin_window(self) -> None:
        """Sum for the next line of the log from here on."""
        self.window_sums, self.window_tokens, self.window_seconds = {}, 0, 0.0


def pack(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: WeightAverage | None,
    of_ranks: Sequence[dict[str, Tensor]],
) -> dict[str, dict[str, Tensor]]:
    """Tensors of a run by file: weights, optimizer, average, and of each rank (`pack_rank`) its state and random."""
    names, order = [name for name, _ in model.named_parameters()], _names(optimizer, model)
    optimizer_tensors = {}
    for index, entries in optimizer.state_dict()["state"].items():
        for key, value in entries.items():
            if value is not None:
                optimizer_tensors[f"{order[index]}/{key}"] = torch.as_tensor(value)
    packed = {"weights": weights(model), "optimizer": optimizer_tensors}
    for rank, own in enumerate(of_ranks):
        for name, tensor in own.items():
            file, entry = name.split("/", 1)
            packed.setdefault(f"{file}{rank_suffix(rank)}", {})[entry] = tensor
    if average is not None:
        packed["average"] = dict(zip(names, average.means, strict=True))
    return packed


def pack_rank(state: State, device: torch.device) -> dict[str, Tensor]:
    """What each rank has of its own: `state/...` and its random-number generators, `random/...`."""
    packed = {f"state/{name}": tensor for name, tensor in flatten(state).items()}
    packed["random/cpu"] = torch.get_rng_state()
    if device.type == "cuda":
        packed["random/cuda"] = torch.cuda.get_rng_state(device)
    return packed


def rank_suffix(rank: int) -> str:
    """What a rank's files are called by; the first one's have no suffix."""
    return f"-{rank}" if rank else ""


def _names(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[str]:
    """Names of the parameters in the optimizer's order, which its groups make."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [names[id(p)] for group in optimizer.param_groups for p in group["params"]]


def unpack_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put saved tensors back into an optimizer over the model's parameters.

    Raises ValueError when they are those of another kind of optimizer, which this one cannot go on from.
    """
    index = {name: i for i, name in enumerate(_names(optimizer, model))}
    state: dict[int, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        name, entry = key.rsplit("/", 1)
        state.setdefault(index[name], {})[entry] = tensor
    try:
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    except KeyError as error:
        raise ValueError(f"the saved state of the optimizer has no {error.args[0]}") from None


def unpack_random(tensors: dict[str, Tensor], device: torch.device) -> None:
    """Put the random-number generators back where they were."""
    torch.set_rng_state(tensors["cpu"])
    if device.type == "cuda" and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"], device)
