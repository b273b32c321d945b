"""Callbacks of a training: a user's functions that receive facts about each step and epoch, and cannot change them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from backstory.results.training_record import EpochRecord
from backstory.training.objectives import ANSWER_SHARE
from backstory.training.progress import Progress, means
from backstory.utils.arguments import described
from backstory.utils.errors import UserError, shown

METHODS = ("on_step", "on_epoch")


@dataclass(frozen=True)
class TrainingStep:
    """Facts about one step of a training."""

    step: int
    """Its number, from 1, over the whole run."""
    epoch: int
    """The epoch it is in, from 1."""
    nats: float
    """Mean negative log-likelihood per token that it trained on, with dropout; 0 if there is none."""
    learning_rate: float
    """The learning rate of this step; it is scaled with the length of the segment."""
    tokens: int
    """Tokens that it trained on: with `training.answer_loss_only` those of answers."""


class Callbacks:
    """Calls a user's callbacks: a function with each epoch, an object by its `on_step(step)` and `on_epoch(epoch)`.

    They cannot change the training: what they receive is frozen, and torch's random numbers are restored after each call. The
    first exception is kept as `error`, a UserError that names the callback, and no callback is called again.
    """

    def __init__(self, callbacks: Sequence[Any] = (), device: torch.device | None = None) -> None:
        """Raise TypeError for what is no callback. `device` is the one that the model is trained on."""
        self.error: UserError | None = None
        self._on_step = [bound for one in callbacks for bound in _bound(one, "on_step")]
        self._on_epoch = [bound for one in callbacks for bound in _bound(one, "on_epoch")]
        self._devices = [device] if device is not None and device.type == "cuda" else []

    def step(
        self, folder: Path, progress: Progress, figures: Mapping[str, float], learning_rate: float, tokens: int
    ) -> None:
        """Call `on_step` of each object that has it; `figures` are means over all `tokens` of the step."""
        if not self._on_step:
            return
        trained = round(tokens * figures.get(ANSWER_SHARE, 1.0))
        nats = means(figures, 1)["nats"]
        self._call(self._on_step, TrainingStep(progress.step, progress.epoch, nats, learning_rate, trained), folder)

    def epoch(self, folder: Path, epoch: EpochRecord) -> None:
        """Call each function, and `on_epoch` of each object that has it."""
        self._call(self._on_epoch, epoch, folder)

    def _call(self, functions: Sequence[tuple[str, Callable[[Any], object]]], fact: Any, folder: Path) -> None:
        for name, function in functions:
            if self.error is not None:
                return
            try:
                with torch.random.fork_rng(self._devices):
                    function(fact)
            except Exception as error:
                self.error = UserError(
                    f"the callback {name} failed after step {fact.step:,} ({type(error).__name__}: {shown(str(error))}); "
                    f"{folder} is stopped and saved: correct the callback, and go on with mode='resume'"
                )
                self.error.__cause__ = error


def _bound(callback: Any, method: str) -> list[tuple[str, Callable[[Any], object]]]:
    """Return the function of a callback for an event with its name; empty if it has none. Raises TypeError."""
    methods = [name for name in METHODS if callable(getattr(callback, name, None))]
    if isinstance(callback, type) or not (methods or callable(callback)):
        raise TypeError(
            f"a callback must be a function, or an object with on_step or on_epoch, not {described(callback)}"
        )
    if methods:
        return [(f"{type(callback).__qualname__}.{method}", getattr(callback, method))] if method in methods else []
    name = getattr(callback, "__qualname__", type(callback).__qualname__)
    return [(name, callback)] if method == "on_epoch" else []
