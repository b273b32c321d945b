"""Streams of batches for truncated backpropagation through time: contiguous rows, random segments, rotation."""

import numpy as np

from backstory.config.errors import UserError


def rows(ids: np.ndarray, batch_size: int, start: int | None = None) -> np.ndarray:
    """Cut a text (tokens,) into contiguous rows (batch_size, length) of int32; what is left over is dropped.

    With `start`, that token comes before the first one, so that the first one becomes a target too. Raises UserError if
    a row would have fewer than two tokens (one input and its target).
    """
    if batch_size < 1:
        raise UserError(f"the batch size must be at least 1, not {batch_size}")
    lead = 0 if start is None else 1
    length = (len(ids) + lead) // batch_size
    if length < 2:
        raise UserError(
            f"the text has {len(ids):,} tokens, too few for batch size {batch_size}; "
            f"it needs {2 * batch_size - lead:,}: use a smaller batch size or more text"
        )
    out = np.empty(batch_size * length, np.int32)
    out[lead:] = ids[: len(out) - lead]
    if start is not None:
        out[0] = start
    return out.reshape(batch_size, length)


def segment_bounds(
    length: int,
    mean: float,
    deviation: float,
    minimum: int,
    short_probability: float,
    rng: np.random.Generator,
) -> list[tuple[int, int]]:
    """Cut a row of `length` tokens into segments, half-open ranges of input positions; targets are one further on.

    As AWD-LSTM does: with `short_probability` the mean is halved for one segment; its length is drawn from a normal
    distribution and is at least `minimum`; the last is cut to what is left. Each of the positions 0 .. length - 2 is in
    exactly one segment. With `deviation` 0 the lengths are the mean (or half of it).
    """
    bounds, first, last = [], 0, length - 1
    while first < last:
        # Two draws a segment whatever the settings, so that one setting does not shift the random numbers of another.
        short, noise = rng.random() < short_probability, rng.standard_normal()
        drawn = int((mean / 2 if short else mean) + deviation * noise)
        size = min(max(minimum, drawn, 1), last - first)
        bounds.append((first, first + size))
        first += size
    return bounds


def rotate(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Partial shuffle: every row of (batch, length) starts at a uniformly random place of its own and wraps around."""
    out = np.empty_like(rows)
    cuts = rng.integers(0, rows.shape[1], size=len(rows))
    for row, cut, new in zip(rows, cuts, out, strict=True):
        new[: len(row) - cut], new[len(row) - cut :] = row[cut:], row[:cut]
    return out
