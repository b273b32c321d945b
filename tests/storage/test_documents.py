"""Documents: foreign JSON is refused, and types are restored as written."""

from typing import Any

import pytest

from backstory.storage import documents
from backstory.storage.documents import conforms, parse


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[1,]",
        b"NaN",
        b"[-Infinity]",
        b"1e999",
        b'{"a": 1, "a": 1}',
        b"\xff",
        b"\xef\xbb\xbf1",
        b"9" * 5000,
        b"9" * 301,
        b"[" * 100_000,
        b"[" * 102 + b"]" * 102,
        b'{"a":' * 600 + b"1" + b"}" * 600,
        '{"a": 1}'.encode("utf-16"),
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse(data)


def test_documents_are_read() -> None:
    assert parse('{"a": [1, 0.5, null, true, "é\\u2028"]}'.encode()) == {"a": [1, 0.5, None, True, "é\u2028"]}
    assert parse(b"-1e300") == -1e300
    assert parse(b"[" * 100 + b"]" * 100)


def test_many_lists_are_refused_unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MOST", 5)
    assert parse(b"[[], [], {}, []]") == [[], [], {}, []]
    with pytest.raises(ValueError, match="too many lists"):
        parse(b"[[], [], {}, [], []]")


@pytest.mark.parametrize(
    ("value", "hint", "holds"),
    [
        (1, int, True),
        (True, int, False),
        (1, bool, False),
        (1.0, int, False),
        (1, float, False),
        (1.0, float, True),
        (None, None, True),
        (None, int | None, True),
        (0.5, int | None, False),
        ([1, 2], list[int], True),
        ([1, None], list[int], False),
        ({"a": 0.5}, dict[str, float], True),
        ({"a": 1}, dict[str, float], False),
        ([], dict[str, float], False),
        ("é", str, True),
        ("\ud800", str, False),
        ({"\ud800": 1}, dict[str, int], False),
        (object(), Any, True),
    ],
)
def test_types_are_kept_apart(value: object, hint: Any, holds: bool) -> None:
    assert conforms(value, hint) is holds
