"""Positions of a block of B texts and T steps: listed, walked in pieces, and selected."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from backstory.models.state import check_device


def all_positions(block: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row and the time of each position of a block (B, T, ...), row after row: two of (B T,) int64."""
    rows, times = (torch.arange(size, device=block.device) for size in block.shape[:2])
    return rows.repeat_interleave(len(times)), times.repeat(len(rows))


def in_pieces(
    count: int, most: int, compute: Callable[[slice], tuple[Tensor, *tuple[Tensor, ...]]]
) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
    """Yield slices that cover `count` items in order, with the tensors computed of each.

    The first slice is one item, from which the size of the others follows: the first tensor of each has at most `most`
    elements, or is that of one item.
    """
    begin, end = 0, 1
    while begin < count:
        piece = slice(begin, min(end, count))
        tensors = compute(piece)
        yield piece, tensors
        size = piece.stop - begin
        begin, end = piece.stop, piece.stop + max(1, most * size // tensors[0].numel())


def steps_at(x: Tensor, rows: Tensor, times: Tensor) -> Tensor:
    """Return x[rows, times] (N, ...) of x (B, T, ...) as N texts of one step (N, 1, ...).

    Raises ValueError for an index on another device than x, unless that is the CPU: with one on "meta", torch would read
    memory that was never written.
    """
    for name, index in (("rows", rows), ("times", times)):
        if index.device != x.device and index.device.type != "cpu":
            check_device(name, index, x)
    return x[rows, times].unsqueeze(1)
