"""The base classes of the metrics of an evaluation, and the plain form of their results.

To add a metric, write a class and list it in `METRICS`.
"""

import json
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from backstory.config.options import EvalOptions
from backstory.evaluation.opening import EvalSetup
from backstory.evaluation.reading_loop import ScoredBlock
from backstory.results.validation import json_values
from backstory.utils.errors import UserError


class Metric(ABC):
    """Something measured while a text is read: it sees each block once, before the reader learns from it.

    A context manager around the reading, for one that holds a file open.
    """

    name: ClassVar[str]
    """The section of the result, and the key of its state in a checkpoint."""
    takes_lines: ClassVar[bool] = False
    """True if it does not depend on the position of a block, so that it also applies to separately read lines."""

    @classmethod
    @abstractmethod
    def for_evaluation(cls, setup: EvalSetup, options: EvalOptions) -> Self | None:
        """Return the metric for a reading; None if it does not apply. Raises UserError, before anything is read."""

    @abstractmethod
    def update(self, scored: ScoredBlock) -> None:
        """Measure a block."""

    @abstractmethod
    def result(self) -> Any:
        """Return the section of the result: a record, or plain values (docs/results.md); None if there is none."""

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


def plain_result(metric: Metric) -> Any:
    """Return a metric's section with plain values: numbers of numpy as those of Python, and null, with a warning, for one that
    is not finite. Raises UserError for what JSON cannot hold.
    """
    infinite = []

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic | np.ndarray):
            value = value.tolist()
        if isinstance(value, Mapping):
            return {str(name): plain(inner) for name, inner in value.items()}
        if isinstance(value, float) and not math.isfinite(value):
            infinite.append(value)
            return None
        if isinstance(value, tuple | list) and type(value) in (tuple, list):  # a named tuple stays one
            return type(value)(map(plain, value))
        return value

    result = plain(metric.result())
    try:
        json.dumps(json_values(result), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"the metric {metric.name} has a result that JSON cannot hold ({error})") from None
    if infinite:
        warnings.warn(
            f"the metric {metric.name} has {infinite[0]}, which is not a number; the result holds null", stacklevel=2
        )
    return result


def added(states: Sequence[Any]) -> Any:
    """Return the sum of states of metrics, or of other plain values alike, in their order; a key that one lacks counts 0."""
    first = states[0]
    if isinstance(first, dict):
        names = dict.fromkeys(name for state in states for name in state)
        return {name: added([state[name] for state in states if name in state]) for name in names}
    if isinstance(first, list):
        return [added(values) for values in zip(*states, strict=True)]
    return sum(states[1:], first)


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
