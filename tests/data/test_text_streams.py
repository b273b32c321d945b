"""Rows, segments and rotation: every token once, in order, at random only where said."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstory.data import piece, rotations, rows, segment_bounds
from backstory.utils.errors import UserError


@settings(deadline=None)
@given(st.integers(2, 300), st.integers(1, 20))
def test_rows_are_contiguous_and_a_view(tokens: int, batch_size: int) -> None:
    ids = np.arange(tokens, dtype=np.uint16)
    length = tokens // batch_size
    if length < 2:
        with pytest.raises(UserError, match=f"batch size {batch_size}"):
            rows(ids, batch_size)
        return
    made = rows(ids, batch_size)
    assert made.shape == (batch_size, length)
    assert np.shares_memory(made, ids)  # a corpus on disk is not read into memory
    assert np.array_equal(made.ravel(), ids[: batch_size * length])


def test_rows_that_are_too_short_say_what_is_needed() -> None:
    with pytest.raises(UserError, match="7 tokens, too few for batch size 4; it needs 8"):
        rows(np.arange(7), 4)
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
def test_pieces_of_rotated_rows_are_a_rotation_of_each_row(batch: int, length: int, seed: int) -> None:
    text = np.arange(batch * length, dtype=np.uint16).reshape(batch, length)
    starts, middle = rotations(text, np.random.default_rng(seed)), length // 2
    read = np.concatenate([piece(text, 0, middle, starts), piece(text, middle, length, starts)], axis=1)
    assert read.dtype == np.int64
    for row, start, rotated in zip(text, starts, read, strict=True):
        assert np.array_equal(np.roll(row, -int(start)), rotated)
    assert np.array_equal(piece(text, middle, length), text[:, middle:])


def test_every_row_begins_at_a_uniform_place_of_its_own() -> None:
    starts = rotations(np.zeros((20_000, 10)), np.random.default_rng(3))
    assert np.abs(np.bincount(starts, minlength=10) / 20_000 - 0.1).max() < 0.01
