"""Metrics: what an evaluation measures while a text is read; a metric joins by one class and its line in `METRICS`."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np

from backstory.config.eval_options import EvalOptions
from backstory.config.scores import perplexity
from backstory.evaluation.opening import EvalSetup
from backstory.evaluation.reading_loop import ScoredBlock


class Metric(ABC):
    """Something measured while a text is read: it sees each block once, before the reader learns from it.

    A context manager around the reading, for one that holds a file open.
    """

    name: ClassVar[str]
    """The section of the result, and the key of its state in a checkpoint."""

    @classmethod
    @abstractmethod
    def for_evaluation(cls, setup: EvalSetup, options: EvalOptions) -> Self | None:
        """Return the metric for a reading; None if it does not apply. Raises UserError, before anything is read."""

    @abstractmethod
    def update(self, scored: ScoredBlock) -> None:
        """Measure a block."""

    @abstractmethod
    def result(self) -> Any:
        """Return the section of the result, in plain values (docs/results.md); None if there is none."""

    def state_dict(self) -> dict[str, Any]:
        """Return what was measured so far, in plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state. Raises ValueError, TypeError or LookupError for one of another reading."""
        if state:
            raise ValueError(f"{self.name} has no state")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> bool | None:
        return None


class SummingMetric(Metric):
    """A metric whose state is an array of sums of a fixed shape."""

    sums: np.ndarray

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        sums = np.array(state["sums"], np.float64)
        if sums.shape != self.sums.shape:
            raise ValueError(f"its sums have the shape {sums.shape}, not {self.sums.shape}")
        self.sums = sums


class StackLikelihood(SummingMetric):
    """Mean nats of every reader of a stack, the innermost first: what each gains on those inside it."""

    name = "gains"

    def __init__(self, setup: EvalSetup) -> None:
        self.names = [layer.name for layer in setup.layers]
        self.precision = setup.reader.precision
        self.sums, self.tokens = np.zeros(len(self.names)), 0

    @classmethod
    def for_evaluation(cls, setup: EvalSetup, options: EvalOptions) -> Self:
        return cls(setup)

    def update(self, scored: ScoredBlock) -> None:
        block, prediction, log_prob = scored
        self.tokens += int(block.scored.sum())
        for layer in reversed(range(len(self.names))):
            self.sums[layer] -= log_prob.double()[block.scored].sum().item()
            if layer:
                prediction = prediction.parts()["p"]
                with self.precision.context(log_prob.device):
                    log_prob = prediction.log_prob(block.targets)

    def result(self) -> list[dict[str, Any]]:
        return [gain(name, total / self.tokens) for name, total in zip(self.names, self.sums.tolist(), strict=True)]

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"tokens": self.tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.tokens = int(state["tokens"])


def gain(name: str, nats: float) -> dict[str, Any]:
    """Return the likelihood of one reader as results have it."""
    return {"name": name, "nats_per_token": nats, "perplexity": perplexity(nats)}
