"""Readers that wrap and that learn, for tests; as a program, the command line with these among the readers.

python adaptive.py VERB ...
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from backstory.models import ComposedModel, Interpolation, Precision, Prediction, clone
from backstory.readers import READERS, Reader, ReaderCapabilities, ReaderKind, StaticReader


class Doubtful(Reader):
    """Wrapper that blends a reader's prediction with a flattened version of it, without state of its own."""

    name = "doubtful"
    inner: Reader

    def __init__(self, inner: Reader) -> None:
        self.inner, self.model, self.precision, self.block = inner, inner.model, inner.precision, inner.block
        self.capabilities = inner.capabilities

    def start(self, batch_size: int) -> None:
        self.inner.start(batch_size)

    def predict(self, tokens: Tensor) -> Prediction:
        prediction = self.inner.predict(tokens)
        gates = torch.zeros(*tokens.shape, 2)
        return Interpolation(prediction.activations, prediction, prediction.tempered(3.0), gates)

    def observe(self, targets: Tensor) -> None:
        self.inner.observe(targets)

    def snapshot(self) -> Any:
        return self.inner.snapshot()

    def restore(self, snapshot: Any) -> None:
        self.inner.restore(snapshot)


class Learning(StaticReader):
    """Moves a copy of the output bias towards the words it has observed."""

    name = "learning"

    def __init__(self, model: ComposedModel, rate: float = 0.3, precision: Precision | None = None) -> None:
        super().__init__(model, precision)
        self.capabilities = ReaderCapabilities(block_invariant=False, adapts_weights=True)
        self.block, self._rate = 5, rate
        self._bias: Tensor = torch.zeros(model.vocabulary_size)

    def start(self, batch_size: int) -> None:
        super().start(batch_size)
        self._bias = torch.zeros_like(self._bias)

    def predict(self, tokens: Tensor) -> Prediction:
        moved = dict(self.model.named_parameters()) | {"head.bias": self.model.head.bias + self._bias}  # type: ignore[union-attr]
        self.model.eval()
        prediction, self._next = torch.func.functional_call(self.model, moved, (tokens, self._state))
        return prediction

    def observe(self, targets: Tensor) -> None:
        super().observe(targets)
        self._bias = self._bias + self._rate * torch.bincount(targets.flatten(), minlength=len(self._bias))

    def snapshot(self) -> Any:
        return super().snapshot(), clone(self._bias)

    def restore(self, snapshot: Any) -> None:
        super().restore(snapshot[0])
        self._bias = clone(snapshot[1])


class Counted(NamedTuple):
    """Tokens waiting to be learned from, and the number learned."""

    waiting: Tensor | None
    done: int
    largest: float


class Remembering(StaticReader):
    """Static reader that also stores what it has observed, in trees of every kind."""

    name = "remembering"

    def __init__(self, model: ComposedModel) -> None:
        super().__init__(model)
        self.capabilities = ReaderCapabilities(adapts_weights=True)
        self.seen, self.counted = torch.empty(1, 0, dtype=torch.long), Counted(None, 0, -torch.inf)

    def start(self, batch_size: int) -> None:
        super().start(batch_size)
        self.seen, self.counted = torch.empty(1, 0, dtype=torch.long), Counted(None, 0, -torch.inf)

    def observe(self, targets: Tensor) -> None:
        super().observe(targets)
        self.seen = torch.cat([self.seen, targets], 1)
        done, waiting = self.counted.done, self.seen[:, self.counted.done :]
        if waiting.shape[1] >= 5:
            done, waiting = self.seen.shape[1], None
        self.counted = Counted(waiting, done, max(self.counted.largest, float(targets.max())))

    def snapshot(self) -> Any:
        waiting = None if self.counted.waiting is None else self.counted.waiting.clone()
        return {
            "state": super().snapshot(),
            "seen": [self.seen.clone()],
            "counted": self.counted._replace(waiting=waiting),
        }

    def restore(self, snapshot: Any) -> None:
        super().restore(snapshot["state"])
        self.seen, self.counted = snapshot["seen"][0].clone(), snapshot["counted"]


@dataclass(frozen=True)
class LearningSettings:
    """Size of its steps."""

    rate: float = 0.3


KINDS = {
    "learning": ReaderKind(
        "learning",
        "moves the output bias",
        lambda context, settings: Learning(context.run.model, settings.rate, context.precision),
        LearningSettings,
    ),
    "doubtful": ReaderKind(
        "doubtful",
        "blends with itself made vague",
        lambda context, settings: Doubtful(context.inner or StaticReader(context.run.model)),
        wraps=True,
    ),
}


def register() -> None:
    """Register the readers in this process."""
    READERS.update(KINDS)


if __name__ == "__main__":
    from backstory.cli.main import program

    register()
    program()
