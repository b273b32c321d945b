"""A passage of a text whose words carry layers of figures: what a text view shows, and its JSON (docs/reports.md)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from backstory.config import UserError
from backstory.reports.shapes import MOST, MOST_COUNTED

AGAIN = "run again the command that wrote it (a training with --resume)"
"""What helps a result that is damaged."""

MOST_WORDS = 2000
"""The most words of a passage that anybody may ask for."""
MOST_SHOWN = 5000
"""The most words of a passage together with those before it that are shown for what it looks back at."""


@dataclass(frozen=True)
class Word:
    """A word as it is shown, and the white space before it."""

    text: str
    before: str = " "


@dataclass(frozen=True)
class Numbers:
    """A number per word (None where there is none); `low` and `high` are the ends of its scale of colours.

    sequential: from nothing at `low` to full at `high`; diverging: signed, nothing at 0, full at -`high` and `high`;
    plain: told, and given no colour.
    """

    kind: Literal["sequential", "diverging", "plain"]
    name: str
    values: tuple[float | None, ...]
    unit: str = ""
    low: float = 0.0
    high: float = 1.0
    digits: int = 2
    note: str = ""
    """What the numbers mean, in a sentence."""

    def text(self, place: int) -> str:
        """The number of a word with its unit; empty where there is none."""
        value = self.values[place]
        return "" if value is None else self.written(value)

    def written(self, value: float) -> str:
        """A number as people read it: a signed layer's with its sign."""
        sign = "+" if self.kind == "diverging" else ""
        rounded = round(value, self.digits) or 0.0  # no -0.00
        return f"{rounded:{sign},.{self.digits}f}{'' if self.unit in ('', '%') else ' '}{self.unit}"


@dataclass(frozen=True)
class Weights:
    """For each word, weights on words before it as (index, weight); full colour at `high`."""

    name: str
    links: tuple[tuple[tuple[int, float], ...], ...]
    high: float = 1.0
    note: str = ""
    kind: Literal["weights"] = "weights"

    def of(self, place: int) -> tuple[float | None, ...]:
        """The weight of one word on every word; None where there is none."""
        found = dict(self.links[place])
        return tuple(found.get(i) for i in range(len(self.links)))


@dataclass(frozen=True)
class Candidates:
    """For each word, by the name of a part (model, buffer, ...), what it expected there: (token, probability)."""

    name: str
    lists: tuple[Mapping[str, tuple[tuple[str, float], ...]], ...]
    note: str = ""
    kind: Literal["candidates"] = "candidates"


Layer = Numbers | Weights | Candidates


@dataclass(frozen=True)
class Passage:
    """Words, and layers that say something of each. Raises ValueError where they do not fit each other."""

    words: tuple[Word, ...]
    layers: tuple[Layer, ...]
    title: str
    note: str = ""
    chosen: int | None = None
    """The word that is told of until another one is pointed at."""

    def __post_init__(self) -> None:
        if not 0 < len(self.words) <= MOST_SHOWN:
            raise ValueError(f"{len(self.words):,} words, where a passage has 1 to {MOST_SHOWN:,}")
        if self.chosen is not None and not 0 <= self.chosen < len(self.words):
            raise ValueError(f"word {self.chosen} is chosen, and there are {len(self.words):,}")
        for layer in self.layers:
            if len(_entries(layer)) != len(self.words):
                raise ValueError(f"layer '{layer.name}' has {len(_entries(layer)):,} entries, not one per word")
            if not all(math.isfinite(number) for number in _numbers(layer)):
                raise ValueError(f"layer '{layer.name}' holds a number that is not finite")
            if isinstance(layer, Weights) and any(not 0 <= j < i for i, w in enumerate(layer.links) for j, _ in w):
                raise ValueError(f"layer '{layer.name}' points at a word that does not come before")

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

    @cached_property
    def lead(self) -> int:
        """How many words at the beginning have no entry in any layer: they are there to be looked back at."""
        told = (
            i for i in range(len(self.words)) if any(_entries(layer)[i] not in (None, (), {}) for layer in self.layers)
        )
        return next(told, 0)

    def told(self, place: int) -> str:
        """The numbers of a word in a line: `surprisal 5.21 nats; rank 13`."""
        pairs = [(layer.name, layer.text(place)) for layer in self.numbers]
        return "; ".join(f"{name} {text}" for name, text in pairs if text)


def to_json(passage: Passage) -> dict[str, Any]:
    """A passage as JSON values."""
    return {
        "title": passage.title,
        "note": passage.note,
        **({} if passage.chosen is None else {"chosen": passage.chosen}),
        "words": [{"text": word.text, "before": word.before} for word in passage.words],
        "layers": [_json(vars(layer)) for layer in passage.layers],
    }


def _json(value: Any) -> Any:
    """A value with lists for tuples, as JSON has it."""
    if isinstance(value, Mapping):
        return {key: _json(inner) for key, inner in value.items()}
    return [_json(inner) for inner in value] if isinstance(value, tuple) else value


def from_json(data: Mapping[str, Any], source: str) -> Passage:
    """The passage that `to_json` described; `source` names the file in messages. Raises UserError for anything else."""
    try:
        words = tuple(Word(_text(w["text"]), _text(w.get("before", " "))) for w in data["words"])
        layers = tuple(_layer(layer) for layer in data["layers"])
        chosen = None if data.get("chosen") is None else _whole(data["chosen"])
        return Passage(words, layers, _text(data["title"]), _text(data.get("note", "")), chosen)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{source} is damaged: its passage cannot be read ({reason}); {AGAIN}") from None


def _entries(layer: Layer) -> tuple[Any, ...]:
    return layer.values if isinstance(layer, Numbers) else layer.links if isinstance(layer, Weights) else layer.lists


def _numbers(layer: Layer) -> list[float]:
    """Every number of a layer."""
    if isinstance(layer, Numbers):
        return [layer.low, layer.high, *(value for value in layer.values if value is not None)]
    if isinstance(layer, Weights):
        return [layer.high, *(weight for links in layer.links for _, weight in links)]
    return [p for lists in layer.lists for tokens in lists.values() for _, p in tokens]


def _layer(data: Mapping[str, Any]) -> Layer:
    kind, name, note = data["kind"], _text(data["name"]), _text(data.get("note", ""))
    if kind == "weights":
        links = tuple(tuple((_whole(j), _number(weight)) for j, weight in word) for word in data["links"])
        return Weights(name, links, _number(data.get("high", 1.0)), note)
    if kind == "candidates":
        lists = tuple(
            {_text(part): tuple((_text(token), _number(p)) for token, p in tokens) for part, tokens in word.items()}
            for word in data["lists"]
        )
        return Candidates(name, lists, note)
    if kind not in ("sequential", "diverging", "plain"):
        raise ValueError(f"no layer is of kind {kind!r}")
    values = tuple(None if value is None else _number(value) for value in data["values"])
    unit, digits = _text(data.get("unit", "")), min(_whole(data.get("digits", 2)), 12)
    low, high = _number(data.get("low", 0.0)), _number(data.get("high", 1.0))
    return Numbers(kind, name, values, unit, low, high, digits, note)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not text")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is not a number")
    if MOST < abs(value) < math.inf:
        raise ValueError("a number is too large")
    return float(value)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_COUNTED:
        raise TypeError(f"{value!r:.40} is not a whole number")
    return value
