"""Settings of a reader chosen on a text it may learn from: every point of a grid, or steps up and down from where it stands."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backstory.config import NonFiniteError, UserError, to_dict, validate
from backstory.evaluation.reading_loop import read
from backstory.models import Prediction
from backstory.readers.base import Reader
from backstory.readers.blocks import Block

MARKS = (1 / 8, 1 / 4, 1 / 2)
"""Shares of the text at which a point is compared with the best so far, and given up where it is clearly worse."""
MARGIN = 0.01
"""Nats per token by which it must be worse."""
BROKEN_DOWN = 100.0
"""Mean nats per token above which a reading broke down, also where the processor's arithmetic keeps the sum finite."""


@dataclass(frozen=True)
class Trial:
    """Settings that were tried."""

    settings: dict[str, Any]
    nats: float | None
    """Per token, of the tokens read; None where the reading broke down."""
    tokens: int
    """Fewer than the text has where it was given up."""


@dataclass(frozen=True)
class Tuned:
    """What came of a search."""

    best: Any
    """The settings, as the reader's dataclass."""
    nats: float
    tokens: int
    trials: tuple[Trial, ...]
    """In the order they were tried; of a large grid that one reading scores, the best hundred."""
    tried: int
    """Settings, told or not."""


class _Behind(Exception):
    """The point is clearly worse than the best."""


class Race:
    """Reads the same text again and again with other settings, and gives up those that fall behind."""

    def __init__(
        self,
        make: Callable[[Any], Reader],
        ids: np.ndarray,
        first: int,
        told: Callable[[Any], dict[str, Any]] = to_dict,
    ) -> None:
        """`make` gives a reader with settings, and `told` tells of these in plain values."""
        self.make, self.ids, self.first, self.told = make, ids, first, told
        self.marks = [max(1, round(len(ids) * share)) for share in MARKS]
        self.best: list[float] = [math.inf] * len(self.marks)
        self.nats = math.inf
        self.trials: dict[Any, Trial] = {}

    def run(self, settings: Any) -> float:
        """Nats per token with these settings; infinite if they were given up. Each is read with once."""
        if settings in self.trials:
            trial = self.trials[settings]
            return math.inf if trial.nats is None or trial.tokens < len(self.ids) else trial.nats
        total, tokens, passed = 0.0, 0, []

        def each(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
            nonlocal total, tokens
            total -= log_prob.double().sum().item()
            tokens += block.tokens.numel()
            while len(passed) < len(self.marks) and tokens >= self.marks[len(passed)]:
                passed.append(total / tokens)
                if passed[-1] > self.best[len(passed) - 1] + MARGIN:
                    raise _Behind

        try:
            nats = read(self.make(settings), self.ids, self.first, each=each).nats
            if nats > BROKEN_DOWN:
                raise NonFiniteError(f"{nats:g} nats per token")
        except _Behind:
            self.trials[settings] = Trial(self.told(settings), total / tokens, tokens)
            return math.inf
        except NonFiniteError:
            self.trials[settings] = Trial(self.told(settings), None, tokens)
            return math.inf
        self.trials[settings] = Trial(self.told(settings), nats, tokens)
        if nats < self.nats:
            self.nats, self.best = nats, passed
        return nats

    def tuned(self) -> Tuned:
        """The best of all. Raises UserError when every reading broke down."""
        whole = {s: t.nats for s, t in self.trials.items() if t.tokens == len(self.ids) and t.nats is not None}
        if not whole:
            raise UserError("the reading broke down with all settings that were tried; try smaller rates")
        best = min(whole, key=whole.__getitem__)
        return Tuned(best, whole[best], len(self.ids), tuple(self.trials.values()), len(self.trials))


def search_grid(
    race: Race, start: Any, grid: Mapping[str, Sequence[Any]], progress: Callable[[int, int], None]
) -> Tuned:
    """Try every combination of the listed values; the other settings are those of `start`. Raises UserError."""
    points = [
        dataclasses.replace(start, **dict(zip(grid, values, strict=True)))
        for values in itertools.product(*grid.values())
    ]
    for point in points:
        validate(point, "grid")
    for done, point in enumerate(points):
        race.run(point)
        progress(done + 1, len(points))
    return race.tuned()


def search_steps(
    race: Race, start: Any, factors: Mapping[str, float], progress: Callable[[int, int], None], refine: int = 1
) -> Tuned:
    """Multiply and divide each setting by its factor as long as that helps, then by the root of it, `refine` times.

    Unlike a grid it has no edge at which the best may lie, and it tries a fraction of the points.
    """
    here, nats, tried = start, race.run(start), 1
    progress(tried, tried + 2 * len(factors) * (1 + refine))
    for level in range(1 + refine):
        steps = [(name, f ** (sign / 2**level)) for name, f in factors.items() for sign in (1, -1)]
        left = list(steps)
        while left:
            name, factor = left.pop(0)
            point = _stepped(here, name, factor)
            found = math.inf if point is None else race.run(point)
            tried += 1
            if point is not None and found < nats:
                here, nats = point, found
                # On in the same direction, then all the others anew.
                left = [(name, factor), *(s for s in steps if s[0] != name)]
            progress(tried, tried + len(left) + len(steps) * (refine - level))
    return race.tuned()


def _stepped(settings: Any, name: str, factor: float) -> Any | None:
    """The settings with one of them multiplied, to three digits; None outside its range."""
    value = float(f"{getattr(settings, name) * factor:.3g}")
    point = dataclasses.replace(settings, **{name: value})
    try:
        validate(point, "search")
    except UserError:
        return None
    return point


@torch.no_grad()
def tune(
    make: Callable[[Any], Reader],
    start: Any,
    ids: np.ndarray,
    first: int,
    *,
    factors: Mapping[str, float],
    grid: Mapping[str, Sequence[Any]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tuned:
    """Search the settings with which a reader scores the text (N,) best, from `start`.

    `make` gives a reader with settings; a `grid` is tried whole, else `factors` says by how much each setting steps.
    Raises UserError.
    """
    race, told = Race(make, ids, first), progress or (lambda done, total: None)
    return search_grid(race, start, grid, told) if grid else search_steps(race, start, factors, told)
