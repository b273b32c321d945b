"""Records as dataclasses, whose type hints define valid JSON, check it on reading and writing, and document it.

As for settings (`config.strict`), but for files that another version or another person wrote: a field with a default
may be missing, and the first fault is reported with its path. Keys that a record does not name are ignored, unless it
declares a field for them (`other_keys`). A field's key is its name without the underscore of Python's keywords
(`from_`); its meaning is the docstring below it.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, Self, Union

from backstory.results.display import Displayable
from backstory.utils.errors import UserError

AGAIN = "run again the command that wrote it (a training with --resume)"
"""The remedy for a damaged result."""
LARGEST_NUMBER = 1e306
"""The largest valid number. It stays finite times 100, and every perplexity that can be written is smaller."""
LARGEST_COUNT = 2**53
LONGEST_NAME = 1000
"""Maximum length of a name (for headings, cells and labels) in characters."""


class Absent(Enum):
    """Type of a field that older files lack where null has a meaning of its own."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return self.name


ABSENT = Absent.ABSENT


_LEFT_OUT, _OTHER_KEYS = "left out", "other keys"


def left_out(default: Any = None) -> Any:
    """Return the default of a field that is written only if it has another value."""
    return dataclasses.field(default=default, metadata={_LEFT_OUT: True})


def other_keys() -> Any:
    """Return the default of the field for values that the record does not name: those of plugins and later versions.

    In the file, they stand next to the record's own values.
    """
    return dataclasses.field(default_factory=dict, metadata={_OTHER_KEYS: True})


def holds_other_keys(field: dataclasses.Field) -> bool:
    """Return True for the field of a record that has no key of its own."""
    return bool(field.metadata.get(_OTHER_KEYS))


class WrongValue(ValueError):
    """A value that is not what its field must hold; `path` leads to it."""

    def __init__(self, path: str, expected: str) -> None:
        super().__init__(f"{path} must be {expected}")
        self.path, self.expected = path, expected


@dataclass(frozen=True)
class Constraint:
    """Annotation of a type: what its values must be, in words, and a function that tests one."""

    expected: str
    fits: Callable[[Any], bool]


def is_number(value: Any) -> bool:
    """Return True for a finite number that is not too large; to Python, true and false are numbers too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST_NUMBER <= value <= LARGEST_NUMBER


def in_range(low: float, high: float, expected: str) -> Constraint:
    """Constrain a number to a range, both ends included."""
    return Constraint(expected, lambda v: is_number(v) and low <= v <= high)


def _whole(low: int) -> Constraint:
    expected = f"a number that is whole, {low} or more"
    return Constraint(expected, lambda v: is_number(v) and low <= v <= LARGEST_COUNT and v == int(v))


NOT_EMPTY = Constraint("a list that is not empty", lambda v: isinstance(v, list | tuple) and len(v) > 0)
_NAME = Constraint("text", lambda v: isinstance(v, str) and len(v) <= LONGEST_NAME)
Number = Annotated[float, Constraint("a number", is_number)]
Positive = Annotated[float, in_range(1e-9, LARGEST_NUMBER, "a number above 0")]
Amount = Annotated[float, in_range(0, LARGEST_COUNT, "a number of 0 or more")]
Weight = Annotated[float, in_range(0, LARGEST_NUMBER, "a number of 0 or more")]
# Rounding may take a mean of shares slightly out of range.
Share = Annotated[float, in_range(-1e-3, 1 + 1e-3, "a number from 0 to 1")]
Count = Annotated[int, _whole(0)]
CountFrom1 = Annotated[int, _whole(1)]
Name = Annotated[str, _NAME]
Json = Mapping[str, Any]
"""An object with any keys."""
JsonObject = dict[str, Any]
"""The same while it is being built."""


@dataclass(frozen=True, kw_only=True)
class Record(Displayable):
    """Base of the records in result files. Raises WrongValue if values contradict each other."""

    def __post_init__(self) -> None:
        for path, expected in self.faults():
            raise WrongValue(path, expected)

    @classmethod
    def read(cls, data: Any, source: str, path: str = "") -> Self:
        """Build the record from parsed JSON. Raises UserError, which names `source` and the first field that is wrong."""
        try:
            return convert(cls, data, path)
        except WrongValue as wrong:
            raise UserError(f"{source} is damaged: {wrong.path} must be {wrong.expected}; {AGAIN}") from None

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield contradictions: a path in the record, and a description of valid values there."""
        return iter(())

    def present(self) -> Self:
        """Convert an older version's record to the present definitions."""
        return self

    @classmethod
    def variant(cls, data: Mapping[str, Any]) -> "type[Record]":
        """Return the record type of these values, which may have more fields."""
        return cls

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the record with the values of these keys; those that it does not name go to its field for `other_keys`."""
        named = _named(cls)
        own = {named[key].name: value for key, value in values.items() if key in named}
        return cls(**own, **_others(cls, values))

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values, without the fields that are ABSENT."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if holds_other_keys(field):
                values |= value
            elif value is not ABSENT and not (field.metadata.get(_LEFT_OUT) and value == field.default):
                values[key_of(field)] = value
        return {key: json_values(value) for key, value in values.items()}


def key_of(field: dataclasses.Field) -> str:
    """Return the key of a record's field."""
    return field.name.removesuffix("_")


@cache
def _named(kind: type[Record]) -> dict[str, dataclasses.Field]:
    """Return the fields of a record by their keys, without the one for other keys."""
    return {key_of(field): field for field in dataclasses.fields(kind) if not holds_other_keys(field)}


def _others(kind: type[Record], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record's argument for the values that it does not name; empty if it has no field for them."""
    field = next((field for field in dataclasses.fields(kind) if holds_other_keys(field)), None)
    return {} if field is None else {field.name: {k: v for k, v in values.items() if k not in _named(kind)}}


def json_values(value: Any) -> Any:
    """Convert a record, or a container of records, to JSON values."""
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {name: json_values(inner) for name, inner in value.items()}
    return [json_values(inner) for inner in value] if isinstance(value, tuple | list) else value


_WORDS: dict[Any, str] = {bool: "true or false", str: "text", Mapping: "an object", list: "a list", tuple: "a list"}


@cache
def _field_types(record: Any, arguments: tuple[Any, ...] = ()) -> dict[str, Any]:
    """Return the type of each field of a record; `arguments` replace the type variables of a generic one.

    Where it names those of a generic base itself, these do.
    """
    hints = typing.get_type_hints(record, include_extras=True)
    for base in getattr(record, "__orig_bases__", ()):  # as in `class TruncationGroup(GroupRecord[TruncationEffect])`
        arguments = arguments or typing.get_args(base)
    return {name: h[arguments] if arguments and getattr(h, "__parameters__", ()) else h for name, h in hints.items()}


def convert(kind: Any, value: Any, path: str) -> Any:
    """Return a parsed JSON value as the type that a hint names. Raises WrongValue."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _one_of(arguments, value, path)
    if origin is Annotated:
        _check(arguments[1], value, path)
        return convert(arguments[0], value, path)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise WrongValue(path, " or ".join(arguments))
        return value
    if dataclasses.is_dataclass(origin or kind):
        return _record(origin or kind, arguments, value, path)
    if origin is tuple and arguments[-1:] == (...,):
        _expect(isinstance(value, list | tuple), path, "a list")
        if _is_number(arguments[0]):  # fast path for long lists
            number, constraint = typing.get_args(arguments[0])
            if all(map(constraint.fits, value)):
                return tuple(map(number, value))
        return tuple(convert(arguments[0], one, f"{path}[{i}]") for i, one in enumerate(value))
    if origin is tuple:
        expected = f"a list of {len(arguments)}"
        _expect(isinstance(value, list | tuple) and len(value) == len(arguments), path, expected)
        return tuple(convert(one, v, f"{path}[{i}]") for i, (one, v) in enumerate(zip(arguments, value, strict=True)))
    if origin is Mapping or (origin and issubclass(origin, Mapping)):
        _expect(isinstance(value, dict), path, "an object")
        return {name: convert(arguments[1], one, f"{path}.{name}") for name, one in value.items()}
    if kind in (int, float):
        return kind(value)  # checked by its constraint
    _expect(isinstance(value, kind), path, _WORDS[kind])
    return value


def _is_number(kind: Any) -> bool:
    return typing.get_origin(kind) is Annotated and typing.get_args(kind)[0] in (int, float)


def _expect(fits: bool, path: str, expected: str) -> None:
    if not fits:
        raise WrongValue(path, expected)


def _check(constraint: Constraint, value: Any, path: str) -> None:
    if not constraint.fits(value):
        long = constraint is _NAME and isinstance(value, str)
        raise WrongValue(path, f"text of at most {LONGEST_NAME:,} characters" if long else constraint.expected)


def _one_of(kinds: tuple[Any, ...], value: Any, path: str) -> Any:
    """Convert to `X | None`, or to one of several records that their field `kind` tells apart."""
    rest = [one for one in kinds if one not in (type(None), Absent)]
    if value is None and type(None) in kinds:
        return None
    if len(rest) == 1:
        try:
            return convert(rest[0], value, path)
        except WrongValue as wrong:
            if type(None) not in kinds or wrong.path != path:
                raise
            expected = "true, false or null" if wrong.expected == _WORDS[bool] else f"{wrong.expected} or null"
            raise WrongValue(path, expected) from None
    if not isinstance(value, dict):
        raise WrongValue(path, "an object")
    named = {name: one for one in rest for name in typing.get_args(_field_types(one)["kind"])}
    if value.get("kind") not in list(named):  # a list, as the value may be unhashable
        raise WrongValue(f"{path}.kind", " or ".join(named))
    return convert(named[value["kind"]], value, path)


def _record(kind: type[Record], arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    _expect(isinstance(value, dict), path, "an object")
    kind = kind.variant(value)
    field_types = _field_types(kind, arguments)
    values = _others(kind, value)
    for name, field in _named(kind).items():
        child_path = f"{path}.{name}" if path else name
        if name in value:
            values[field.name] = convert(field_types[field.name], value[name], child_path)
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise WrongValue(child_path, _expected(field_types[field.name]))
    try:
        return kind(**values).present()
    except WrongValue as wrong:
        joined = f"{path}.{wrong.path}" if path and wrong.path else path or wrong.path
        raise WrongValue(joined, wrong.expected) from None


def _expected(kind: Any) -> str:
    """Describe a value that is missing."""
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)
    try:
        # An object that is not JSON fails every check; for `X | None` the description says that null is valid.
        convert(kind, object(), "")
    except WrongValue as wrong:
        return wrong.expected
    return "a value" if len(kinds) == 1 else "a value or null"
