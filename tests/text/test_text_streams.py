"""Rows, segments and rotation: every token once, in order, at random only where said."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstory.config.errors import UserError
from backstory.text import rotate, rows, segment_bounds


@settings(deadline=None)
@given(st.integers(2, 300), st.integers(1, 20), st.booleans())
def test_rows_are_contiguous(tokens: int, batch_size: int, started: bool) -> None:
    ids = np.arange(1, tokens + 1, dtype=np.uint16)
    start = 0 if started else None
    stream = np.arange(0 if started else 1, tokens + 1)
    length = len(stream) // batch_size
    if length < 2:
        with pytest.raises(UserError, match=f"batch size {batch_size}"):
            rows(ids, batch_size, start)
        return
    made = rows(ids, batch_size, start)
    assert made.shape == (batch_size, length)
    assert made.dtype == np.int32
    assert np.array_equal(made.ravel(), stream[: batch_size * length])


def test_rows_that_are_too_short_say_what_is_needed() -> None:
    with pytest.raises(UserError, match="7 tokens, too few for batch size 4; it needs 8"):
        rows(np.arange(7), 4)
    assert rows(np.arange(7), 4, start=9).tolist() == [[9, 0], [1, 2], [3, 4], [5, 6]]
    with pytest.raises(UserError, match="at least 1"):
        rows(np.arange(7), 0)


SETTINGS = (st.integers(0, 500), st.floats(1, 80), st.floats(0, 30), st.integers(1, 20), st.floats(0, 1))


@settings(deadline=None)
@given(*SETTINGS, st.integers(0, 2**32))
def test_segments_cover_every_input_once(
    length: int, mean: float, deviation: float, minimum: int, short: float, seed: int
) -> None:
    bounds = segment_bounds(length, mean, deviation, minimum, short, np.random.default_rng(seed))
    assert [i for first, last in bounds for i in range(first, last)] == list(range(max(0, length - 1)))
    assert all(last - first >= minimum for first, last in bounds[:-1])
    assert all(last > first for first, last in bounds)


def test_fixed_lengths() -> None:
    assert segment_bounds(12, 5, 0, 1, 0, np.random.default_rng(0)) == [(0, 5), (5, 10), (10, 11)]
    assert segment_bounds(9, 5, 0, 1, 1, np.random.default_rng(0)) == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_lengths_are_distributed_as_in_awd_lstm() -> None:
    bounds = segment_bounds(2_000_000, 70, 5, 5, 0.05, np.random.default_rng(1))
    sizes = np.array([last - first for first, last in bounds[:-1]])
    short = sizes < 52
    assert short.mean() == pytest.approx(0.05, abs=0.01)
    # int() rounds down, so half a token is lost on average.
    assert sizes[~short].mean() == pytest.approx(69.5, abs=0.2)
    assert sizes[short].mean() == pytest.approx(34.5, abs=0.6)
    assert sizes[~short].std() == pytest.approx(5, abs=0.2)


def test_segments_depend_on_the_generator_alone() -> None:
    first, second, other = (segment_bounds(1000, 20, 5, 5, 0.1, np.random.default_rng(s)) for s in (1, 1, 2))
    assert first == second != other


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 2**32))
def test_rotate_is_a_rotation_of_each_row(batch: int, length: int, seed: int) -> None:
    before = np.arange(batch * length, dtype=np.int32).reshape(batch, length)
    after = rotate(before, np.random.default_rng(seed))
    assert after.dtype == before.dtype
    for old, new in zip(before, after, strict=True):
        assert np.array_equal(np.roll(old, -int(new[0] - old[0])), new)


def test_rotate_cuts_every_row_at_a_uniform_place_of_its_own() -> None:
    before = np.tile(np.arange(10), (20_000, 1))
    share = np.bincount(rotate(before, np.random.default_rng(3))[:, 0], minlength=10) / 20_000
    assert np.abs(share - 0.1).max() < 0.01
    assert before[0].tolist() == list(range(10))  # the original is untouched
