"""Checks of the arguments of public functions against their annotations and ranges; errors name the argument."""

import collections.abc
import dataclasses
import functools
import inspect
import io
import math
import numbers
import os
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, Union, cast

from backstory.utils.errors import UserError, check_name, nearest, out_of_memory, shown
from backstory.utils.small_file import user_path

F = TypeVar("F", bound=Callable[..., Any])

LARGEST = 2**63 - 1
"""Default upper limit of whole numbers."""
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    bytes: "bytes",
    type(None): "None",
}
_TEXT = (str, bytes, bytearray)
_SEQUENCES = (collections.abc.Sequence, list, tuple)


def checked(**ranges: float | tuple[float, float]) -> Callable[[F], F]:
    """Check the arguments of a function, or of the `__init__` of a class, before it runs. For calls that are not frequent.

    `ranges` give the least value of an argument, or the least and the most. The function then raises TypeError for a value of
    another type than annotated, and UserError for a number out of range or an unknown name.
    """

    def decorate(function: F) -> F:
        if isinstance(function, type):
            decorated: Any = function
            decorated.__init__ = decorate(decorated.__init__)
            return decorated
        check = _check_of(function, ranges)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            bound = check(*args, **kwargs)
            try:
                if bound is None:
                    return function(*args, **kwargs)  # Python names the missing or unknown argument
                return function(*bound.args, **bound.kwargs)
            except (MemoryError, RuntimeError) as error:
                if (no_memory := out_of_memory(error)) is not None:
                    raise no_memory from error
                raise

        return cast(F, wrapper)

    return decorate


def diagnosed(check: Callable[..., None] | None = None) -> Callable[[F], F]:
    """Check the arguments of a function only after it has failed, at no cost otherwise. For frequent calls.

    A TypeError or ValueError that `check` raises for the same arguments replaces the error; without `check` they are compared
    with their annotations.
    """

    def decorate(function: F) -> F:
        checks = _check_of(function, {}) if check is None else check

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except (RuntimeError, LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
                try:
                    checks(*args, **kwargs)
                except (TypeError, ValueError, UserError) as better:
                    raise better from error
                raise

        return cast(F, wrapper)

    return decorate


def _check_of(
    function: Callable, ranges: dict[str, float | tuple[float, float]]
) -> Callable[..., inspect.BoundArguments | None]:
    """Return a function that checks arguments and returns them bound, with numbers of numpy as numbers of Python."""
    signature = inspect.signature(function)

    def check(*args: Any, **kwargs: Any) -> inspect.BoundArguments | None:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return None
        hints = _hints(function)
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if name in hints and kind not in (kind.VAR_KEYWORD, kind.VAR_POSITIONAL):
                check_argument(name, value, hints[name], ranges.get(name))
                bound.arguments[name] = _plain(value, list(_kinds(hints[name])))
        return bound

    return check


def _plain(value: Any, kinds: Sequence[Any]) -> Any:
    """Return a value as annotated: text for a path as a Path, a number of numpy as one of Python.

    Text that may be a path and may be a name stays text, with `~` as the home folder.
    """
    if isinstance(value, str) and Path in kinds and not _may_be_text(kinds):
        return os.path.expanduser(value) if str in kinds else user_path(value)
    if isinstance(value, numbers.Real) and type(value) not in (bool, int, float):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    sequences = [typing.get_args(kind) for kind in kinds if typing.get_origin(kind) in _SEQUENCES]
    inner = [member for of in sequences if of for member in _kinds(of[0])]
    if isinstance(value, list | tuple) and Path in inner:
        return type(value)(_plain(one, inner) for one in value)
    return value


def _may_be_text(kinds: Sequence[Any]) -> bool:
    """Return True if a string may be a text itself, not only the path of one."""
    return str in kinds and typing.BinaryIO in kinds


def check_argument(name: str, value: Any, hint: Any, bounds: float | tuple[float, float] | None = None) -> None:
    """Raise TypeError for a value of another type, and UserError for a number out of bounds or an unknown name."""
    kinds = list(_kinds(hint))
    if not any(_fits(value, kind) for kind in kinds):
        names = [known for kind in kinds if typing.get_origin(kind) is Literal for known in typing.get_args(kind)]
        message = f"{name} must be {' or '.join(dict.fromkeys(map(_called, kinds)))}, not {described(value)}"
        if names and isinstance(value, str):
            raise UserError(f"{message}{nearest(value, [n for n in names if isinstance(n, str)])}")
        raise TypeError(message)
    if typing.BinaryIO in kinds and getattr(value, "closed", False) is True:
        raise UserError(f"{name} is a closed file; open it again, and close it afterwards")
    if isinstance(value, str | os.PathLike) and Path in kinds and not (isinstance(value, str) and _may_be_text(kinds)):
        path = str(value)
        if "\0" in path or max(map(len, path.split("/"))) > 255:
            raise UserError(f"{name} must be a path, and no file can be called {shown(path)}")
    for number in value if bounds is not None and isinstance(value, list | tuple) else (value,):
        if isinstance(number, numbers.Real) and not isinstance(number, bool):
            _check_range(name, number, bounds)


def _check_range(name: str, number: Any, bounds: float | tuple[float, float] | None) -> None:
    if number != number:
        raise UserError(f"{name} must be a number, not nan")
    whole = isinstance(number, numbers.Integral)
    least, most = bounds if isinstance(bounds, tuple) else (bounds, None)
    least = (-LARGEST if whole else -math.inf) if least is None else least
    most = (LARGEST if whole else math.inf) if most is None else most
    if not least <= number <= most:
        limit = f"{shown(most)} or less" if number > most else f"{shown(least)} or more"
        raise UserError(f"{name} must be {limit}, not {shown(number)}")


@functools.cache
def _hints(function: Callable) -> dict[str, Any]:
    return typing.get_type_hints(inspect.unwrap(function))


def _kinds(hint: Any) -> Iterator[Any]:
    """Yield the members of a union, or the type itself."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        for part in typing.get_args(hint):
            yield from _kinds(part)
    else:
        yield hint


def _fits(value: Any, kind: Any) -> bool:
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin is Any or isinstance(origin, TypeVar):
        return True
    if origin is Literal:
        return any(type(value) is type(known) and value == known for known in inner)
    if origin in (int, float):
        number = numbers.Integral if origin is int else numbers.Real
        return isinstance(value, number) and not isinstance(value, bool)
    if origin is typing.BinaryIO:
        return hasattr(value, "read") and not isinstance(value, io.TextIOBase)
    if origin in (collections.abc.Callable, typing.Callable):
        return callable(value)
    if getattr(origin, "_is_protocol", False):
        return not isinstance(value, type) and all(hasattr(value, name) for name in _members(origin))
    if not isinstance(origin, type):
        return True
    if origin is Path and isinstance(value, str):
        return True
    if issubclass(origin, tuple | list | collections.abc.Sequence) and origin not in _TEXT:
        arrays = type(value).__name__ == "ndarray" and origin is collections.abc.Sequence and inner[0] in (int, float)
        if isinstance(value, _TEXT) or not (isinstance(value, tuple | list | origin) or arrays):
            return False
        each = _each(inner, len(value))
        return arrays or (
            len(each) == len(value) and all(any(_fits(v, k) for k in ks) for v, ks in zip(value, each, strict=True))
        )
    if origin is frozenset:
        return isinstance(value, set | frozenset) and all(_fits(v, kind) for v in value for kind in inner)
    if issubclass(origin, collections.abc.Iterable) and isinstance(value, _TEXT) and origin not in _TEXT:
        return False
    return isinstance(value, origin)


def _each(inner: tuple[Any, ...], count: int) -> list[list[Any]]:
    """Return the possible types of each entry of a sequence."""
    if not inner:
        return [[Any]] * count
    if len(inner) == 1 or inner[-1] is ...:
        return [list(_kinds(inner[0]))] * count
    return [list(_kinds(kind)) for kind in inner]


def _members(protocol: type) -> list[str]:
    return [name for name in vars(protocol) if not name.startswith("_")] or ["__call__"]


def described(value: Any) -> str:
    """Return a value in words, or only its type if a line cannot show it."""
    plain = isinstance(value, numbers.Number | str | bytes | list | tuple | dict | os.PathLike | type | None)
    return shown(value) if plain else with_article(type(value).__name__)


def with_article(noun: str) -> str:
    """Return `a Reader` or `an Examination`."""
    return f"an {noun}" if noun[0] in "aeioAEIO" else f"a {noun}"


def _called(kind: Any) -> str:
    """Return a type in words."""
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is typing.BinaryIO:
        return "a file that is open for bytes"
    if origin in (collections.abc.Callable, typing.Callable):
        return "a function"
    if origin in _WORDS:
        return _WORDS[origin]
    name = getattr(origin, "__name__", str(origin))
    if inner and isinstance(origin, type) and issubclass(origin, collections.abc.Sequence | frozenset):
        members = (_called(kind) for part in inner if part is not ... for kind in _kinds(part))
        parts = dict.fromkeys(member.removeprefix("a ").removeprefix("an ") for member in members)
        return f"a {name.lower()} of {' or '.join(parts)}"
    return with_article(name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a verb. A tuple of names may be given as one name, or as a list."""

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Return the options with these values, and defaults for the others.

        Raises UserError for an unknown option and a value out of range, TypeError for one of another type.
        """
        hints, known = typing.get_type_hints(cls), [field.name for field in dataclasses.fields(cls)]
        for name, value in values.items():
            check_name(name, known, "option")
            if typing.get_origin(hints[name]) is tuple and isinstance(value, str | list):
                values[name] = (value,) if isinstance(value, str) else tuple(value)
        return cls(**values).checked()

    def checked(self) -> Self:
        """Return the options with every value checked against its type and its range (`strict.between`).

        Numbers of numpy come back as those of Python, paths as `Path`. Raises TypeError, UserError for a value out of range.
        """
        hints, plain = typing.get_type_hints(type(self)), {}
        for field in dataclasses.fields(self):
            value, bounds = getattr(self, field.name), field.metadata.get("range")
            check_argument(field.name, value, hints[field.name], None if bounds is None else bounds[:2])
            if bounds is not None and bounds[2] and value == bounds[0]:
                raise UserError(f"{field.name} must be above {shown(bounds[0])}, not {shown(value)}")
            plain[field.name] = _plain(value, list(_kinds(hints[field.name])))
        return dataclasses.replace(self, **plain)
