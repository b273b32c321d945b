"""Arguments checked against annotations and ranges."""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import pytest

from backstory.config.examination_options import ExamineOptions
from backstory.config.options import LoadOptions
from backstory.config.readers import DynamicSettings
from backstory.config.strict import conforming
from backstory.utils.arguments import checked, diagnosed
from backstory.utils.errors import UserError


@checked(rows=1, share=(0, 1), lengths=1)
def called(
    folder: Path | str,
    rows: int = 1,
    share: float = 0.5,
    lengths: Sequence[int] = (),
    kind: Literal["near", "far"] = "near",
    told: Callable[[int], None] | None = None,
) -> Any:
    return rows, share


@checked(keep=1)
@dataclass(frozen=True)
class Kept:
    keep: int
    names: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("given", "kind", "told"),
    [
        ({"folder": 3}, TypeError, "folder must be a Path or text, not 3"),
        ({"folder": np.zeros(3)}, TypeError, "folder must be a Path or text, not a ndarray"),
        ({"folder": "a\0b"}, UserError, "folder must be a path, and no file can be called"),
        ({"folder": "x" * 300}, UserError, "folder must be a path, and no file can be called"),
        ({"rows": 0}, UserError, "rows must be 1 or more, not 0"),
        ({"rows": 10**30}, UserError, "rows must be 9223372036854775807 or less"),
        ({"rows": True}, TypeError, "rows must be a whole number, not True"),
        ({"rows": 1.0}, TypeError, "rows must be a whole number, not 1.0"),
        ({"share": math.nan}, UserError, "share must be a number, not nan"),
        ({"share": 2}, UserError, "share must be 1 or less, not 2"),
        ({"lengths": "12"}, TypeError, "lengths must be a sequence of whole number, not '12'"),
        ({"lengths": [1, 0]}, UserError, "lengths must be 1 or more, not 0"),
        ({"kind": "nera"}, UserError, r"kind must be one of near, far, not 'nera' \(did you mean 'near'\?\)"),
        ({"told": 1}, TypeError, "told must be a function or None, not 1"),
        ({"other": 1}, TypeError, "unexpected keyword argument 'other'"),
    ],
)
def test_what_is_refused(given: dict[str, Any], kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        called(**{"folder": "run", **given})


def test_a_closed_file_is_named() -> None:
    @checked()
    def reading(text: str | Path | BinaryIO | None = None) -> None:
        assert text is not None

    file = io.BytesIO(b"a text")
    reading(file)
    file.close()
    with pytest.raises(UserError, match="text is a closed file; open it again"):
        reading(file)
    with pytest.raises(TypeError, match=r"not an object$"):
        reading(object())  # type: ignore[arg-type]


def test_what_is_taken() -> None:
    rows, share = called(Path("run"), np.int32(3), np.float32(1), lengths=np.array([1, 2]), told=print)
    assert (type(rows), type(share)) == (int, float)
    assert Kept(2, ("a",)) == Kept(keep=2, names=("a",))
    with pytest.raises(UserError, match="keep must be 1 or more, not 0"):
        Kept(0)
    with pytest.raises(TypeError, match=r"names must be a tuple of text, not \(1,\)"):
        Kept(1, (1,))  # type: ignore[arg-type]


def test_a_failure_is_diagnosed_and_one_of_another_kind_is_as_it_was() -> None:
    @diagnosed()
    def first(values: list[int], place: int) -> int:
        return values[place]

    assert first([5], 0) == 5
    with pytest.raises(TypeError, match="values must be a list of whole number, not None"):
        first(None, 0)  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        first([5], 1)


def test_an_array_is_no_value_of_a_setting() -> None:
    many = np.zeros(3, dtype=int)
    for build, name in (
        (lambda: ExamineOptions(tagger=many).checked(), "tagger"),
        (lambda: conforming(DynamicSettings(normalization=many), "settings"), "normalization"),  # type: ignore[arg-type]
    ):
        with pytest.raises((TypeError, UserError), match=name):
            build()
    assert LoadOptions.among({"window": many, "device": "auto", "stride": None, "reader": many}) == ["window"]
