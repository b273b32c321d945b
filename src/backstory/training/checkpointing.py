"""The whole of a training run as tensors and JSON, and back: everything that makes resuming bit-exact."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from backstory.config.errors import shown
from backstory.models import State, flatten
from backstory.runs.loaded_run import check_tensors, weights
from backstory.storage.documents import conforms
from backstory.training.optimizers import WeightAverage, optimizer_state, saved_state


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
        """Progress as it was saved. Raises ValueError for anything that no run of this version can have saved."""
        hints = get_type_hints(cls)
        if not isinstance(document, dict) or document.keys() != hints.keys():
            raise ValueError("the saved progress is not of this version")
        for name, hint in hints.items():
            if not conforms(document[name], hint):
                raise ValueError(f"the saved {name} is {shown(document[name])}")
        read = cls(**document)
        read._check()
        return read

    def _check(self) -> None:
        """Raise ValueError for numbers that cannot be those of one run."""
        numbers = {name: value for name, value in vars(self).items() if isinstance(value, int | float)}
        listed = {
            "history": self.history,
            "epoch_sums": self.epoch_sums.values(),
            "window_sums": self.window_sums.values(),
        }
        wrong = [n for n, value in numbers.items() if not (0 if type(value) is int else -(2**53)) <= value < 2**53]
        wrong += [name for name, values in listed.items() if any(abs(value) >= 2**53 for value in values)]
        validated = self.epoch - 1  # epochs, of which fine-tuning remembers only its own
        possible = {
            "epoch": self.epoch >= 1,
            "segment": self.segment <= self.step,
            "rate_factor": 0 <= self.rate_factor <= 1,
            "best_nats": (self.best_nats is None) == (validated == 0),
            "best_epoch": (self.best_epoch >= 1) == (validated > 0) and self.best_epoch <= validated,
            "waited": self.waited <= validated,
            "history": len(self.history) < validated if self.finetuning else len(self.history) == validated,
            "averaged": self.averaged is not None or not self.finetuning,
            "epoch_tokens": not self.segment or (self.epoch_tokens > 0 and self.epoch_seconds > 0),
            "window_tokens": self.window_tokens <= self.epoch_tokens,
            "window_sums": self.window_sums.keys() <= self.epoch_sums.keys(),
            "seconds": min(self.seconds, self.epoch_seconds, self.window_seconds) >= 0,
        }
        if wrong := wrong + [name for name, holds in possible.items() if not holds]:
            raise ValueError(f"the saved {wrong[0]} is {shown(getattr(self, wrong[0]))}")

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
