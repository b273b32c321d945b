"""Metrics of an evaluation: `METRICS` lists them, `MetricSet` measures those that apply to a reading."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Self

import torch

from backstory.config.options import EvalOptions
from backstory.evaluation.metrics.answer_accuracy import AnswerAccuracy
from backstory.evaluation.metrics.gate_statistics import GateStatistics
from backstory.evaluation.metrics.metric import Metric, added, plain_result
from backstory.evaluation.metrics.nats_by_distance import MemoryCurve, Recency
from backstory.evaluation.metrics.per_token import PerToken
from backstory.evaluation.metrics.stack_likelihood import StackLikelihood
from backstory.evaluation.opening import EvalSetup
from backstory.evaluation.reading_loop import ScoredBlock

METRICS: list[type[Metric]] = [StackLikelihood, GateStatistics, MemoryCurve, AnswerAccuracy, Recency, PerToken]


class MetricSet:
    """The metrics that apply to a reading; a context manager around it."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self.metrics = list(metrics)
        self._exit = ExitStack()

    def add(self, metric: Metric) -> None:
        """Measure one more metric."""
        self.metrics.append(metric)

    @classmethod
    def for_evaluation(cls, setup: EvalSetup, options: EvalOptions) -> Self:
        """Return the metrics that apply. Raises UserError."""
        metrics = (kind.for_evaluation(setup, options) for kind in METRICS if kind.takes_lines or not options.each_line)
        return cls([metric for metric in metrics if metric is not None])

    def __iter__(self) -> Iterator[Metric]:
        return iter(self.metrics)

    @torch.no_grad()
    def update(self, scored: ScoredBlock) -> None:
        """Measure a block."""
        for metric in self.metrics:
            metric.update(scored)

    def results(self) -> dict[str, Any]:
        """Return the section of every metric that applies and has one."""
        return {metric.name: result for metric in self if (result := plain_result(metric)) is not None}

    def state_dict(self) -> dict[str, Any]:
        """Return what the metrics measured so far, in plain values."""
        return {metric.name: metric.state_dict() for metric in self}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        for metric in self:
            metric.load_state_dict(state[metric.name])

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for metric in self.metrics:
                stack.enter_context(metric)
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._exit.__exit__(*error)


__all__ = [
    "METRICS",
    "AnswerAccuracy",
    "GateStatistics",
    "Metric",
    "MetricSet",
    "added",
]
