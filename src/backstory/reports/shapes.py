"""A small language for what JSON must hold: leaves, lists, objects with named keys, and what may be null or absent."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MOST = 1e306
"""The largest number: a hundred times it is still finite, and every perplexity that can be written is smaller."""
MOST_COUNTED = 2**53
LONGEST_NAME = 1000
"""Characters of a name: what stands in headings, cells and labels."""


@dataclass(frozen=True)
class Leaf:
    """A value with nothing inside: how it is told, and whether one fits."""

    told: str
    fits: Callable[[Any], bool]


@dataclass(frozen=True)
class Null:
    """What may be null."""

    shape: "Shape"


@dataclass(frozen=True)
class Absent:
    """What an object need not have."""

    shape: "Shape"


@dataclass(frozen=True)
class Some:
    """A list, which may be empty."""

    shape: "Shape"


@dataclass(frozen=True)
class Each:
    """An object of any keys, whose values are alike."""

    shape: "Shape"


Shape = Leaf | Null | Absent | Some | Each | list[Any] | dict[str, Any]
"""A list of one shape is a list that is not empty; an object may hold more than its shape names."""


def older(shape: Any) -> Absent:
    """What older results lack, or have as null."""
    return Absent(Null(shape))


def _number(value: Any) -> bool:
    # To Python, true and false are numbers.
    return isinstance(value, int | float) and not isinstance(value, bool) and -MOST <= value <= MOST


def between(low: float, high: float, told: str = "a number") -> Leaf:
    """A number in a range, both ends included."""
    return Leaf(told, lambda v: _number(v) and low <= v <= high)


def whole(low: int) -> Leaf:
    """A whole number that a float holds exactly, of `low` or more."""
    return Leaf(
        f"a number that is whole, {low} or more", lambda v: _number(v) and low <= v <= MOST_COUNTED and v == int(v)
    )


def one_of(*choices: str) -> Leaf:
    """One of these texts."""
    return Leaf(" or ".join(choices), lambda v: isinstance(v, str) and v in choices)


NUMBER = Leaf("a number", _number)
POSITIVE = between(1e-9, MOST, "a number above 0")
AMOUNT = between(0, MOST_COUNTED, "a number of 0 or more")
COUNT, SOME = whole(0), whole(1)
# Means of shares may come out a little beyond what they are means of.
SHARE = between(-1e-3, 1 + 1e-3, "a number from 0 to 1")
TEXT = Leaf("text", lambda v: isinstance(v, str))
NAME = Leaf("text", lambda v: isinstance(v, str) and len(v) <= LONGEST_NAME)
BOOLEAN = Leaf("true or false", lambda v: isinstance(v, bool))
OBJECT = Leaf("an object", lambda v: isinstance(v, dict))
LIST = Leaf("a list", lambda v: isinstance(v, list))
Wrong = tuple[str, str]
"""Where something is wrong, and what must be there."""


def wrong(shape: Shape, value: Any, path: str) -> Iterator[Wrong]:
    """Where a value is not of its shape, in order; `path` names the value."""
    if isinstance(shape, Null | Absent):
        if value is not None or isinstance(shape, Absent):
            for place, told in wrong(shape.shape, value, path):
                yield place, _or_null(told) if isinstance(shape, Null) and place == path else told
    elif isinstance(shape, Leaf):
        if not shape.fits(value):
            long = shape is NAME and isinstance(value, str)
            yield path, f"text of at most {LONGEST_NAME:,} characters" if long else shape.told
    elif isinstance(shape, list | Some):
        if not isinstance(value, list) or not (value or isinstance(shape, Some)):
            yield path, "a list" if isinstance(shape, Some) else "a list that is not empty"
            return
        inner = shape.shape if isinstance(shape, Some) else shape[0]
        for index, item in enumerate(value):
            yield from wrong(inner, item, f"{path}[{index}]")
    elif not isinstance(value, dict):
        yield path, OBJECT.told
    else:
        inside: Mapping[str, Shape] = dict.fromkeys(value, shape.shape) if isinstance(shape, Each) else shape
        for key, one in inside.items():
            if key in value or not isinstance(one, Absent):
                yield from _field(one, value, key, f"{path}.{key}" if path else key)


def _field(shape: Shape, value: Mapping[str, Any], key: str, path: str) -> Iterator[Wrong]:
    if key in value or not isinstance(shape, Null):
        yield from wrong(shape, value.get(key), path)
    else:  # null must be written
        yield from ((p, _or_null(told)) for p, told in wrong(shape.shape, None, path))


def _or_null(told: str) -> str:
    return "true, false or null" if told == BOOLEAN.told else f"{told} or null"
