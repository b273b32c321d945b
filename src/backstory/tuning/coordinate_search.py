"""The search after training: settings of the readers of a stack one after the other, each over its range on the best so far.

The order and the ranges are those of "The importance of the current input in sequence modeling": the tokens of a segment, the
softmax temperature, the norm at which gradients are clipped, and NAdam without and with a mean of gradients.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from backstory.config import to_dict
from backstory.config.readers import DynamicSettings
from backstory.readers.base import Reader
from backstory.readers.registry import Chosen
from backstory.tuning.reader_search import Race, Trial, Tuned
from backstory.tuning.temperature_search import TEMPERATURES, nats_by_temperature

Point = tuple[Chosen, ...]
"""The readers of a stack, the innermost first, with their settings."""
TURNS: dict[str, tuple[Any, ...]] = {
    "segment": (5, 7, 10, 14, 20, 28, 40, 56, 70),
    "temperature": TEMPERATURES,
    "clip": (0.0, 0.1, 0.25, 0.5, 0.75, 1.0),
    "beta1": (0.0, 0.9),
}
"""The values that are tried of each setting, in the order in which they are settled."""


def owner(point: Point, name: str) -> int | None:
    """Which reader of a stack has a setting; None where none has it or needs it."""
    for place, layer in enumerate(point):
        if any(field.name == name for field in fields(layer.settings)):
            idle = name == "beta1" and isinstance(layer.settings, DynamicSettings) and layer.settings.rule != "nadam"
            return None if idle else place
    return None


def changed(point: Point, name: str, value: Any) -> Point:
    """The same readers with one setting changed."""
    place = owner(point, name)
    assert place is not None
    layer = replace(point[place], settings=replace(point[place].settings, **{name: value}))
    return (*point[:place], layer, *point[place + 1 :])


def settings_of(point: Point) -> dict[str, Any]:
    """All settings of a stack's readers in one."""
    return {name: value for layer in point for name, value in to_dict(layer.settings).items()}


@torch.no_grad()
def search_turns(
    make: Callable[[Sequence[Chosen]], Reader],
    start: Point,
    turns: Mapping[str, Sequence[Any]],
    ids: np.ndarray,
    first: int,
    progress: Callable[[int, int], None] | None = None,
) -> Tuned:
    """Settle one setting after the other on the text (N,), from `start`; the best holds all readers with their settings.

    `make` gives the reader of a stack. All temperatures of the outermost reader come from one reading. Raises UserError.
    """
    race = Race(make, ids, first, settings_of)
    here, nats, done, total = start, race.run(start), 1, 1 + sum(map(len, turns.values()))
    for name, values in turns.items():
        points = [changed(here, name, value) for value in values]
        if name == "temperature" and owner(here, name) == len(here) - 1:
            found = nats_by_temperature(make(here[:-1]), ids, first, values)
            for point, known in zip(points, found, strict=True):
                race.trials.setdefault(point, Trial(settings_of(point), known, len(ids)))
        for point in points:
            found = race.run(point)
            if found < nats:
                here, nats = point, found
            done += 1
            if progress is not None:
                progress(done, total)
    return race.tuned()
