"""Batches for truncated backpropagation through time: contiguous streams, random segments, rotation."""

import numpy as np

from backstory.config.arguments import checked
from backstory.config.errors import UserError


@checked()
def rows(ids: np.ndarray, batch_size: int) -> np.ndarray:
    """Cut a text (tokens,) into `batch_size` contiguous rows (batch_size, length); the rest is dropped.

    Returns a view: ids on disk stay there. Raises UserError if a row would have fewer than two tokens (an input and a target).
    """
    if batch_size < 1:
        raise UserError(f"the batch size must be at least 1, not {batch_size}")
    length = len(ids) // batch_size
    if length < 2:
        raise UserError(
            f"the text has {len(ids):,} tokens, too few for batch size {batch_size}; "
            f"it needs {2 * batch_size:,}: use a smaller batch size or more text"
        )
    return ids[: batch_size * length].reshape(batch_size, length)


def segment_bounds(
    length: int,
    mean: float,
    deviation: float,
    minimum: int,
    short_probability: float,
    rng: np.random.Generator,
) -> list[tuple[int, int]]:
    """Cut a row of `length` tokens into segments: half-open ranges of input positions, with targets one position later.

    As in AWD-LSTM, the mean is halved with `short_probability` for a segment, whose length is normally distributed and at least
    `minimum`; the last segment ends with the row. Each of the positions 0 .. length - 2 is in exactly one segment. With
    `deviation` 0 the lengths are the mean, or half of it.
    """
    bounds, first, last = [], 0, length - 1
    while first < last:
        # Two random numbers a segment, whatever the settings, so that no setting shifts the numbers of another.
        short, noise = rng.random() < short_probability, rng.standard_normal()
        drawn = int((mean / 2 if short else mean) + deviation * noise)
        size = min(max(minimum, drawn, 1), last - first)
        bounds.append((first, first + size))
        first += size
    return bounds


def rotations(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return where each row of (batch, length) begins in a partial shuffle: (batch,), uniform and independent."""
    return rng.integers(0, rows.shape[1], size=len(rows))


def piece(rows: np.ndarray, first: int, last: int, starts: np.ndarray | None = None) -> np.ndarray:
    """Return columns `first` to `last` (exclusive) as int64, of rows that begin at `starts` and wrap around."""
    if starts is None:
        return rows[:, first:last].astype(np.int64)
    columns = (starts[:, None] + np.arange(first, last)) % rows.shape[1]
    return rows[np.arange(len(rows))[:, None], columns].astype(np.int64)
