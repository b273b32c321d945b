"""A reader interpolated with another source of predictions by a constant weight, and the tuning of the weight.

P(w) = (1 - lambda) P_inner(w) + lambda P_source(w)
"""

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from backstory.config.strict import conforming
from backstory.models import Interpolation, Prediction
from backstory.readers.base import Block, Reader, WrappingReader
from backstory.readers.kind import joined

WEIGHTS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.0)
"""Weights to try."""


class PredictionSource(Protocol):
    """Source of predictions for B texts. `copy.copy` gives another in the same state."""

    def start(self, batch_size: int) -> None:
        """Begin `batch_size` texts."""

    def predict(self, tokens: Tensor) -> Prediction:
        """Return the prediction at each position of the block tokens (B, T)."""
        ...

    def observe(self, targets: Tensor) -> None:
        """Take the targets (B, T) of the block as read."""

    def snapshot(self) -> Any:
        """Return a copy of everything that reading has changed."""

    def restore(self, snapshot: Any) -> None:
        """Restore a snapshot, which stays usable."""


class InterpolatingReader(WrappingReader):
    """Any reader with the predictions of a source mixed in."""

    interpolates = True

    def __init__(
        self, inner: Reader, kind: str, source: PredictionSource, weight: float, facts: Mapping[str, Any] | None = None
    ) -> None:
        """`weight` is lambda; `facts` are what results record of the source."""
        super().__init__(inner, kind)
        self.source, self.weight, self._facts = source, weight, dict(facts or {})

    def start(self, batch_size: int) -> None:
        super().start(batch_size)
        self.source.start(batch_size)

    def predict(self, tokens: Tensor) -> Interpolation:
        p = self.inner.predict(tokens)
        q = replace(self.source.predict(tokens), activations=p.activations)
        return interpolated(p, q, self.weight, tokens)

    def observe(self, targets: Tensor) -> None:
        super().observe(targets)
        self.source.observe(targets)

    def snapshot(self) -> Any:
        return super().snapshot(), self.source.snapshot()

    def restore(self, snapshot: Any) -> None:
        super().restore(snapshot[0])
        self.source.restore(snapshot[1])

    def fork(self) -> Self:
        other = copy.copy(self)
        other.inner, other.source = self.inner.fork(), copy.copy(self.source)
        return other

    def facts(self) -> dict[str, Any]:
        return self._facts


def interpolated(p: Prediction, q: Prediction, weight: float, tokens: Tensor) -> Interpolation:
    """Return (1 - weight) p + weight q at each position of the block tokens (B, T)."""
    gates = torch.tensor([weight, 1 - weight], dtype=torch.float32, device=tokens.device).log()
    return Interpolation(p.activations, p, q, gates.repeat(*tokens.shape, 1))


class WeightScorer:
    """Scores every weight, for sources of several settings, from one reading with the reader inside."""

    def __init__(
        self, values: Mapping[str, Sequence[Any]], kind: type, make: Callable[[Any], PredictionSource]
    ) -> None:
        """`values` to try of each setting (of the weight, WEIGHTS by default); `make` makes the source of some settings.

        Raises UserError for values out of range.
        """
        self.weights = values.get("weight", WEIGHTS)
        rest = {name: tried for name, tried in values.items() if name != "weight"}
        for weight in self.weights:
            conforming(kind(weight=weight), "the grid")
        points = (kind(**dict(zip(rest, point, strict=True))) for point in itertools.product(*rest.values()))
        self.points = [conforming(point, "the grid") for point in points]
        self.sources = [make(point) for point in self.points]
        for source in self.sources:
            source.start(1)
        self._inner: list[Tensor] = []
        self._scores: list[list[Tensor]] = [[] for _ in self.points]

    def update(self, block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        self._inner.append(log_prob[0])
        for source, scores in zip(self.sources, self._scores, strict=True):
            scores.append(source.predict(block.tokens).log_prob(block.targets)[0])
            source.observe(block.targets)

    def scores(self) -> list[tuple[Any, float]]:
        inner, tried = joined(self._inner), []
        for point, scores in zip(self.points, self._scores, strict=True):
            own = joined(scores)
            for weight in self.weights:
                log_q, log_p = torch.tensor([weight, 1 - weight], dtype=torch.float64).log()
                tried.append(
                    (replace(point, weight=weight), -torch.logaddexp(inner + log_p, own + log_q).mean().item())
                )
        return tried
