"""Trees on disk: any reader's state is restored bit for bit, and foreign content is refused."""

import json
import math
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from backstory.storage.checkpoint import pack, unpack

CPU = torch.device("cpu")


class Pair(NamedTuple):
    first: Any
    second: Any


class Impostor(NamedTuple):
    first: Any


DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool])
TENSORS = st.builds(
    lambda size, dtype: torch.arange(math.prod(size)).view(size).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    DTYPES,
)
LEAVES = TENSORS | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
KEYS = st.text(max_size=3) | st.integers()
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Return True if two trees are equal, types and bits included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(v, w) for v, w in zip(a.values(), b.values(), strict=True))
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def test_a_state_of_an_earlier_version_has_the_present_classes_and_fields() -> None:
    class GatedState(NamedTuple):
        core: Any
        auxiliary: Any

    class FixedState(NamedTuple):
        spans: Any
        tail: Any
        read: Any

    old = {"named": "GridState", "fields": {"spans": 1, "tail": 2, "read": 3}}
    document = {"named": "GatedState", "fields": {"core": 7, "second": old}}
    back = unpack(document, {}, GatedState(0, FixedState(0, 0, 0)), CPU)
    assert back == GatedState(7, FixedState(1, 2, 3))


@given(TREES)
def test_a_tree_comes_back_from_json_and_tensors(tree: Any) -> None:
    document, tensors = pack(tree, CPU)
    back = unpack(json.loads(json.dumps(document, allow_nan=False)), tensors, Pair(None, None), CPU)
    assert same(back, tree)


@pytest.mark.parametrize("strange", [object(), {1, 2}, {(1, 2): 3}, range(3), 1j])
def test_what_is_no_tree_is_not_saved(strange: Any) -> None:
    with pytest.raises(TypeError, match="a tree holds tensors"):
        pack((torch.zeros(1), [strange]), CPU)


def test_what_grew_comes_back_as_large_as_it_was() -> None:
    tree = Pair(torch.zeros(2, 70), [torch.zeros(3)] * 4)
    assert same(unpack(*pack(tree, CPU), Pair(torch.zeros(2, 0), []), CPU), tree)


@pytest.mark.parametrize(
    ("tree", "like", "says"),
    [
        (torch.zeros(3), torch.zeros(3, 1), r"a tensor is \(3,\) of float32, not \(3, 1\) of float32"),
        (torch.zeros(2, 3), torch.zeros(2, 4), r"a tensor is \(2, 3\)"),
        ([torch.zeros(2, 3)], [torch.zeros(1, 0)], r"a tensor is \(2, 3\)"),
        (torch.zeros(3), torch.zeros(3, dtype=torch.long), "not .* of int64"),
        (Pair(1, 2), (1, 2), "not of this reader"),
        (Impostor(1), Pair(1, 2), "not of this reader"),
    ],
)
def test_a_tree_of_something_else_is_refused(tree: Any, like: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        unpack(*pack(tree, CPU), like, CPU)


@pytest.mark.parametrize(
    "document",
    [
        {"tensor": "1", "home": True},
        {"tensor": "0"},
        {"set": []},
        {},
        {"named": "Pair", "fields": {}},
        {"named": "Pair"},
        {"float": "x"},
        {"dict": [1]},
        {"tuple": 1},
        None,
    ],
)
def test_a_document_that_is_wrong_is_refused(document: Any) -> None:
    with pytest.raises(ValueError):
        unpack(document, {"0": torch.zeros(1)}, Pair(1, 2), CPU)


@pytest.mark.parametrize("value", ["3", [3], None, 10**20, True, 0.5, {"tensor": "0", "home": True}])
def test_a_plain_value_of_another_type_or_out_of_range_is_refused(value: Any) -> None:
    document = {"dict": [["steps", value]]}
    if value is None:
        assert unpack(document, {}, {"steps": 3}, CPU) == {"steps": None}
        return
    if isinstance(value, list):
        document = {"dict": [["steps", {"list": value}]]}
    with pytest.raises(ValueError, match=r"there is|out of range"):
        unpack(document, {"0": torch.zeros(1)}, {"steps": 3}, CPU)
