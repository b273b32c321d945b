"""A small reader that learns, for tests: the output bias follows the words that come, and may be pulled back."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backstory.models import LanguageModel, Precision, Prediction, clone
from backstory.readers import ReaderCapabilities, ReaderKind, StaticReader, evaluating


@dataclass(frozen=True)
class BiasSettings:
    """How it learns."""

    rate: float = 0.2
    """Of every step."""
    forget: float = 0.0
    """The share of what was learned that every step takes back."""


class BiasReader(StaticReader):
    """Dynamic evaluation of the output bias alone: a step down the gradient after every block."""

    name = "bias"

    def __init__(self, model: LanguageModel, precision: Precision | None, settings: BiasSettings) -> None:
        super().__init__(model, precision)
        self.capabilities, self.block, self.settings = ReaderCapabilities(False, True), 20, settings
        self._moved = torch.zeros(model.vocabulary_size)

    def start(self, batch_size: int) -> None:
        super().start(batch_size)
        self._moved = torch.zeros_like(self._moved)

    def predict(self, tokens: Tensor) -> Prediction:
        moved = dict(self.model.named_parameters())
        moved["head.bias"] = moved["head.bias"] + self._moved
        with evaluating(self.model):
            prediction, self._next = torch.func.functional_call(self.model, moved, (tokens, self._state))
            self._expected = prediction.log_probs()[0].exp().sum(0)
        return prediction

    def observe(self, targets: Tensor) -> None:
        super().observe(targets)
        step = torch.bincount(targets.flatten(), minlength=len(self._moved)) - self._expected
        self._moved = (1 - self.settings.forget) * self._moved + self.settings.rate * step

    def snapshot(self) -> Any:
        return super().snapshot(), clone(self._moved)

    def restore(self, snapshot: Any) -> None:
        super().restore(snapshot[0])
        self._moved = clone(snapshot[1])


KIND = ReaderKind(
    "bias",
    "the output bias follows the text",
    lambda ground, settings: BiasReader(ground.run.model, ground.precision, settings),
    BiasSettings,
)
