"""Strict parsing of JSON documents, their hash, and checks of their values against type hints."""

import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

MOST = 2_000_000
"""Largest number of lists and mappings in a document: each takes a hundred times its bytes in memory."""
DEEPEST = 100
"""Most levels of lists and mappings in each other: Python walks, copies and writes a document by recursion."""


def parse(data: bytes) -> Any:
    """Parse a JSON document in UTF-8.

    Raises ValueError for anything else: also for a key that occurs twice, numbers that are not finite or that no float can
    hold, and lists that are too deep or too many.
    """
    if data.count(b"[") + data.count(b"{") > MOST:
        raise ValueError("it holds too many lists")
    try:
        value = json.loads(
            data.decode(), object_pairs_hook=_mapping, parse_constant=_number, parse_float=_number, parse_int=_whole
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(value)
    return value


_TOO_DEEP = "its lists are too deep"


def _check_depth(value: Any) -> None:
    """Raise ValueError for more than `DEEPEST` levels."""
    level = [value]
    for _ in range(DEEPEST + 1):
        inner = (v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list))
        level = [v for values in inner for v in values if isinstance(v, dict | list)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def json_digest(values: Any) -> str:
    """Return the SHA-256 (hex) of plain values written as JSON."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key occurs twice")
    return mapping


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def _whole(text: str) -> int:
    if len(text) > 300:
        raise ValueError("a number of hundreds of digits")
    return int(text)


def has_fields(value: Any, hints: Mapping[str, Any]) -> bool:
    """Return True if a parsed value is a mapping with exactly these keys, each value of its type."""
    return (
        isinstance(value, dict)
        and value.keys() == hints.keys()
        and all(conforms(value[key], hint) for key, hint in hints.items())
    )


def conforms(value: Any, hint: Any) -> bool:
    """Return True if a parsed value has a type: bool, int, float, str, None, Any, or unions, lists and dictionaries of these.

    An int is no float and a bool is no number, since the document was written with them apart. Text must be valid UTF-8.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(conforms(value, h) for h in arguments)
    if origin is list:
        return isinstance(value, list) and all(conforms(v, arguments[0]) for v in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            conforms(v, h) for item in value.items() for v, h in zip(item, arguments, strict=True)
        )
    if hint is str and isinstance(value, str):
        return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)
    return hint is Any or type(value) is (type(None) if hint is None else hint)
