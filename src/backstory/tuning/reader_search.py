"""Searches for a reader's settings on a text that it may learn from: one reading, a grid, steps, one setting at a time."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from backstory.config import to_dict, validate
from backstory.evaluation.reading_loop import StreamReading
from backstory.readers.base import Reader
from backstory.readers.kind import BuildContext, GridScorer
from backstory.readers.registry import READERS, ConfiguredLayer
from backstory.utils.errors import NonFiniteError, UserError
from backstory.utils.terminal import ProgressCallback

MARKS = (1 / 8, 1 / 4, 1 / 2)
"""Shares of the text at which a point is compared with the best so far, and abandoned if clearly worse."""
MARGIN = 0.01
"""Nats per token by which it must be worse to be abandoned."""
BROKEN_DOWN = 100.0
"""Mean nats per token above which a reading counts as diverged, even if its sum is still finite."""
MOST_TRIALS = 100
"""Trials that are recorded of a grid that one reading scores."""


@dataclass(frozen=True)
class Trial:
    """Settings that were tried."""

    settings: dict[str, Any]
    nats: float | None
    """Per token, of the tokens read; None if the reading broke down."""
    tokens: int
    """Fewer than the text has if it was given up."""


@dataclass(frozen=True)
class Tuned:
    """The outcome of a search."""

    best: Any
    """The settings, as the reader's dataclass; of a coordinate search all readers of the stack with theirs."""
    nats: float
    tokens: int
    trials: tuple[Trial, ...]
    """In the order they were tried; of a large grid that one reading scores, the best hundred."""
    tried: int
    """All settings that were tried, recorded or not."""
    at_edge: dict[str, str] = field(default_factory=dict)
    """The settings of a grid whose best value is the `smallest` or `largest` of those tried; the best may lie beyond it."""


def at_edge(best: Any, points: Sequence[Any]) -> dict[str, str]:
    """Return the numbers of `best` that are the `smallest` or `largest` of all points, unless none is allowed beyond."""
    edges: dict[str, str] = {}
    for number in dataclasses.fields(best):
        low, high, _ = number.metadata.get("range", (None, None, None))
        value, tried = getattr(best, number.name), {getattr(point, number.name) for point in points}
        if low is None or None in tried or len(tried) < 2:
            continue
        if value == min(tried) and value > low:
            edges[number.name] = "smallest"
        elif value == max(tried) and value < high:
            edges[number.name] = "largest"
    return edges


class EarlyStoppedSearch:
    """Reads the same text once with each of many settings, and abandons those that fall behind the best."""

    def __init__(
        self,
        build: Callable[[Any], Reader],
        ids: np.ndarray,
        first: int,
        record: Callable[[Any], dict[str, Any]] = to_dict,
    ) -> None:
        """`build` makes a reader with some settings; `record` turns these into plain values."""
        self.build, self.ids, self.first, self.record = build, ids, first, record
        self.marks = [max(1, round(len(ids) * share)) for share in MARKS]
        self.best: list[float] = [math.inf] * len(self.marks)
        """Mean nats of the best settings at each mark."""
        self.nats = math.inf
        self.trials: dict[Any, Trial] = {}

    def run(self, settings: Any) -> float:
        """Return the nats per token with these settings, infinite if they were given up. Each is read with once."""
        if settings not in self.trials:
            self.trials[settings] = self._read(settings)
        trial = self.trials[settings]
        return math.inf if trial.nats is None or trial.tokens < len(self.ids) else trial.nats

    def _read(self, settings: Any) -> Trial:
        stream = StreamReading(self.build(settings), self.ids, self.first)
        at_marks: list[float] = []
        try:
            for block in stream.remaining():
                stream.score(block)
                mean = stream.nats / stream.tokens
                while len(at_marks) < len(self.marks) and stream.tokens >= self.marks[len(at_marks)]:
                    at_marks.append(mean)
                    if mean > self.best[len(at_marks) - 1] + MARGIN:
                        return Trial(self.record(settings), mean, stream.tokens)
                stream.observe(block)
        except NonFiniteError:
            return Trial(self.record(settings), None, stream.position.tokens)
        mean = stream.nats / stream.tokens
        if mean > BROKEN_DOWN:
            return Trial(self.record(settings), None, stream.tokens)
        if mean < self.nats:
            self.nats, self.best = mean, at_marks
        return Trial(self.record(settings), mean, stream.tokens)

    def tuned(self) -> Tuned:
        """Return the best of all. Raises UserError if every reading broke down."""
        whole = {s: t.nats for s, t in self.trials.items() if t.tokens == len(self.ids) and t.nats is not None}
        if not whole:
            raise UserError("the reading diverged with all settings that were tried; try smaller rates")
        best = min(whole, key=whole.__getitem__)
        return Tuned(best, whole[best], len(self.ids), tuple(self.trials.values()), len(self.trials))


def search_one_reading(
    scorer: GridScorer, inner: Reader, ids: np.ndarray, first: int, progress: ProgressCallback | None = None
) -> Tuned:
    """Score a whole grid from one reading of the text (N,) with the inner reader."""
    points = score_grid(scorer, inner, ids, first, progress)
    best, nats = min(points, key=lambda point: point[1])
    recorded = points if len(points) <= MOST_TRIALS else sorted(points, key=lambda point: point[1])[:MOST_TRIALS]
    trials = (Trial(to_dict(settings), value, len(ids)) for settings, value in recorded)
    return Tuned(best, nats, len(ids), tuple(trials), len(points), at_edge(best, [settings for settings, _ in points]))


@torch.no_grad()
def score_grid(
    scorer: GridScorer, inner: Reader, ids: np.ndarray, first: int, progress: ProgressCallback | None = None
) -> Sequence[tuple[Any, float]]:
    """Read the text (N,) once with the inner reader and return all settings of a grid with their nats per token."""
    stream = StreamReading(inner, ids, first)
    for block in stream.remaining():
        scorer.update(*stream.score(block))
        stream.observe(block)
        if progress is not None:
            progress(min(len(ids), (block.index + 1) * stream.block), len(ids))
    return scorer.scores()


def search_grid(
    search: EarlyStoppedSearch, start: Any, grid: Mapping[str, Sequence[Any]], progress: ProgressCallback
) -> Tuned:
    """Try every combination of the listed values; the other settings are those of `start`. Raises UserError."""
    points = [
        dataclasses.replace(start, **dict(zip(grid, values, strict=True)))
        for values in itertools.product(*grid.values())
    ]
    for point in points:
        validate(point, "grid")
    for done, point in enumerate(points):
        search.run(point)
        progress(done + 1, len(points))
    tuned = search.tuned()
    return dataclasses.replace(tuned, at_edge=at_edge(tuned.best, points))


def search_steps(
    search: EarlyStoppedSearch, start: Any, factors: Mapping[str, float], progress: ProgressCallback
) -> Tuned:
    """Multiply and divide each setting by its factor as long as that helps, then by the square root of the factor.

    Unlike a grid it has no edge at which the best may lie, and it tries a fraction of the points.
    """
    here, nats, tried = start, search.run(start), 1
    powers = (1.0, 0.5)
    progress(tried, tried + 2 * len(factors) * len(powers))
    for level, power in enumerate(powers, 1):
        steps = [(name, f ** (sign * power)) for name, f in factors.items() for sign in (1, -1)]
        left = list(steps)
        while left:
            name, factor = left.pop(0)
            point = _stepped(here, name, factor)
            point_nats = math.inf if point is None else search.run(point)
            tried += 1
            if point is not None and point_nats < nats:
                here, nats = point, point_nats
                # Continue in the same direction, then try all others again.
                left = [(name, factor), *(s for s in steps if s[0] != name)]
            progress(tried, tried + len(left) + len(steps) * (len(powers) - level))
    return search.tuned()


def _stepped(settings: Any, name: str, factor: float) -> Any | None:
    """Return the settings with one of them multiplied, to three digits; None outside its range."""
    value = float(f"{getattr(settings, name) * factor:.3g}")
    point = dataclasses.replace(settings, **{name: value})
    try:
        validate(point, "search")
    except UserError:
        return None
    return point


# --- coordinate search: the settings of all readers of a stack, one after the other ---

COORDINATES: dict[str, tuple[Any, ...]] = {
    "segment": (5, 7, 10, 14, 20, 28, 40, 56, 70),
    "temperature": tuple(n / 50 for n in range(45, 66)),
    "clip": (0.0, 0.1, 0.25, 0.5, 0.75, 1.0),
    "beta1": (0.0, 0.9),
}
"""Values of each setting, in the order in which they are settled: that of the search after training in "The importance of the
current input in sequence modeling" (the tokens of a segment, the softmax temperature, the norm at which gradients are clipped,
and NAdam without and with a mean of gradients)."""

Point = tuple[ConfiguredLayer, ...]
"""The readers of a stack, the innermost first, with their settings."""


def owner(point: Point, name: str) -> int | None:
    """Return the place of the reader of a stack that has a setting; None if none has it, or it has no effect there."""
    for i, layer in enumerate(point):
        if any(field.name == name for field in dataclasses.fields(layer.settings)):
            return None if name in READERS[layer.name].ignored(layer.settings) else i
    return None


def with_setting(point: Point, name: str, value: Any) -> Point:
    """Return the same readers with one setting changed."""
    position = owner(point, name)
    assert position is not None
    settings = dataclasses.replace(point[position].settings, **{name: value})
    return (*point[:position], dataclasses.replace(point[position], settings=settings), *point[position + 1 :])


def settings_of(point: Point) -> dict[str, Any]:
    """Return all settings of a stack's readers in one dictionary."""
    return {name: value for layer in point for name, value in to_dict(layer.settings).items()}


@torch.no_grad()
def search_coordinates(
    build: Callable[[Sequence[ConfiguredLayer]], Reader],
    context: BuildContext,
    start: Point,
    coordinates: Mapping[str, Sequence[Any]],
    ids: np.ndarray,
    first: int,
    progress: ProgressCallback | None = None,
) -> Tuned:
    """Settle one setting after the other on the text (N,), from `start`; the best holds all readers with their settings.

    `build` makes the reader of a stack, from the `context`. The values of the outermost reader come from one reading, if its
    kind can score them so. Raises UserError.
    """
    search = EarlyStoppedSearch(build, ids, first, settings_of)
    here, nats, done, total = start, search.run(start), 1, 1 + sum(map(len, coordinates.values()))
    for name, values in coordinates.items():
        points = [with_setting(here, name, value) for value in values]
        scorer = READERS[here[-1].name].grid_scorer
        if scorer is not None and owner(here, name) == len(here) - 1:
            grid = {key: [value] for key, value in to_dict(here[-1].settings).items()} | {name: values}
            inner = build(here[:-1])
            known = dict(
                score_grid(scorer(dataclasses.replace(context, inner=inner), grid, len(ids)), inner, ids, first)
            )
            for point in points:
                if (value := known.get(point[-1].settings)) is not None:
                    search.trials.setdefault(point, Trial(settings_of(point), value, len(ids)))
        for point in points:
            point_nats = search.run(point)
            if point_nats < nats:
                here, nats = point, point_nats
            done += 1
            if progress is not None:
                progress(done, total)
    return search.tuned()
