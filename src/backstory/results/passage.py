"""A passage whose words carry layers of figures, for text views, and its JSON (docs/reports.md)."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from backstory.results.validation import Count, JsonObject, Number, Record
from backstory.utils.formats import decimal, signed

MOST_SHOWN = 5000
"""Maximum number of words in a passage, including earlier ones that it looks back at."""
MOST_DIGITS = 12
STEPS = 8
"""Number of steps on a scale of colours. Step 0 is no colour."""


@dataclass(frozen=True)
class Word(Record):
    """A displayed word, and the white space before it."""

    text: str
    before: str = " "


@dataclass(frozen=True)
class Numbers(Record):
    """A number per word (None where there is none); `low` and `high` are the ends of its scale of colours.

    sequential: from nothing at `low` to full at `high`; diverging: signed, nothing at 0, full at -`high` and `high`;
    plain: shown as a number without colour.
    """

    kind: Literal["sequential", "diverging", "plain"]
    name: str
    values: tuple[Number | None, ...]
    unit: str = ""
    low: Number = 0.0
    high: Number = 1.0
    digits: Count = 2
    note: str = ""
    """Meaning of the numbers, in a sentence."""

    def text(self, index: int) -> str:
        """Return the number of a word with its unit; empty if there is none."""
        value = self.values[index]
        return "" if value is None else self.written(value)

    def written(self, value: float) -> str:
        """Format a number, with its sign in a signed layer."""
        number = (signed if self.kind == "diverging" else decimal)(value, min(self.digits, MOST_DIGITS))
        return f"{number}{'' if self.unit in ('', '%') else ' '}{self.unit}"


@dataclass(frozen=True)
class Weights(Record):
    """For each word, weights on words before it as (index, weight); full colour at `high`."""

    name: str
    links: tuple[tuple[tuple[Count, Number], ...], ...]
    high: Number = 1.0
    note: str = ""
    kind: Literal["weights"] = "weights"

    def of(self, index: int) -> tuple[float | None, ...]:
        """Return the weight of one word on every word; None if there is none."""
        weights = dict(self.links[index])
        return tuple(weights.get(i) for i in range(len(self.links)))


@dataclass(frozen=True)
class Candidates(Record):
    """For each word, the candidates of each part (model, buffer, ...) as (token, probability)."""

    name: str
    lists: tuple[Mapping[str, tuple[tuple[str, Number], ...]], ...]
    note: str = ""
    kind: Literal["candidates"] = "candidates"


Layer = Numbers | Weights | Candidates


@dataclass(frozen=True)
class Passage(Record):
    """Words, and layers of figures on them. Raises ValueError if they do not fit each other."""

    words: tuple[Word, ...]
    layers: tuple[Layer, ...]
    title: str
    note: str = ""
    chosen: Count | None = None
    """The word that is described until the reader points at another."""

    def faults(self) -> Iterator[tuple[str, str]]:
        if not 0 < len(self.words) <= MOST_SHOWN:
            yield "words", f"1 to {MOST_SHOWN:,} words, not {len(self.words):,}"
        if self.chosen is not None and not 0 <= self.chosen < len(self.words):
            yield "chosen", f"the number of one of {len(self.words):,} words"
        for i, layer in enumerate(self.layers):
            if (entries := len(_entries(layer))) != len(self.words):
                yield f"layers[{i}]", f"a layer with an entry for each word, not {entries:,}"
            if not all(math.isfinite(number) for number in _numbers(layer)):
                yield f"layers[{i}]", "a layer of finite numbers"
            if isinstance(layer, Weights) and any(not 0 <= j < k for k, w in enumerate(layer.links) for j, _ in w):
                yield f"layers[{i}].links", "weights on words that come before"

    @property
    def shades(self) -> tuple[Numbers | Weights, ...]:
        """The layers that words can be coloured by, in order."""
        return tuple(
            layer
            for layer in self.layers
            if isinstance(layer, Weights) or (isinstance(layer, Numbers) and layer.kind != "plain")
        )

    @property
    def numbers(self) -> tuple[Numbers, ...]:
        """The layers with a number per word."""
        return tuple(layer for layer in self.layers if isinstance(layer, Numbers))

    def frame_rows(self) -> list[JsonObject]:
        """Return a row per word: its text, and its number in each layer that has one; percentages are named as such."""
        columns = {layer.name + " (%)" * (layer.unit == "%"): layer.values for layer in self.numbers}
        return [
            {"word": word.text, **{name: values[i] for name, values in columns.items()}}
            for i, word in enumerate(self.words)
        ]

    @cached_property
    def lead(self) -> int:
        """Number of words at the start without an entry in any layer, shown as context for later words."""
        indices = range(len(self.words))
        described = (i for i in indices if any(_entries(layer)[i] not in (None, (), {}) for layer in self.layers))
        return next(described, 0)

    def described(self, index: int) -> str:
        """Return the numbers of a word on one line: `surprisal 5.21 nats; rank 13`."""
        pairs = [(layer.name, layer.text(index)) for layer in self.numbers]
        return "; ".join(f"{name} {text}" for name, text in pairs if text)


def _entries(layer: Layer) -> tuple[Any, ...]:
    """Return the entry of every word."""
    if isinstance(layer, Numbers):
        return layer.values
    return layer.links if isinstance(layer, Weights) else layer.lists


def _numbers(layer: Layer) -> list[float]:
    """Return every number of a layer."""
    if isinstance(layer, Numbers):
        return [layer.low, layer.high, *(value for value in layer.values if value is not None)]
    if isinstance(layer, Weights):
        return [layer.high, *(weight for links in layer.links for _, weight in links)]
    return [p for lists in layer.lists for tokens in lists.values() for _, p in tokens]
