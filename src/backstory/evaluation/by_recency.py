"""What a reader pays for a word by how long ago the text had it last: where a memory of the words read so far would show."""

import math
from typing import Any

import numpy as np

from backstory.evaluation.by_distance import COLUMNS, NatsByDistance, ends


class Recency(NatsByDistance):
    """Nats of every token by how many tokens ago the same one came last, in its own row; apart from those that are new."""

    def __init__(self, ids: np.ndarray, batch_size: int, block: int) -> None:
        """Of a text (tokens,) that is read in so many contiguous rows, so many tokens of each at once."""
        super().__init__(np.zeros(len(ids), np.uint8), 1, last_seen(ids, math.ceil(len(ids) / batch_size)), block)

    def figures(self) -> dict[str, Any]:
        """The section `recency` of an evaluation (docs/results.md)."""
        counts, distances, nats = self.summed()[0], self.summed(self.distance)[0], self.nats()[0]

        def costs(column: int) -> dict[str, Any]:
            tokens = int(counts[column])
            return {"tokens": tokens, "nats": float(nats[column]) / tokens if tokens else None}

        return {
            "new": costs(0),
            "bins": [
                {**ends(column), "distance": float(distances[column] / counts[column]), **costs(column)}
                for column in range(1, COLUMNS)
                if counts[column]
            ],
        }


def last_seen(ids: np.ndarray, row: int) -> np.ndarray:
    """How many tokens ago each token (tokens,) came last in the same row of so many; 0 where it is new there."""
    found = np.zeros(len(ids), np.int32)
    for begin in range(0, len(ids), row):
        of_row = np.asarray(ids[begin : begin + row])
        order = np.argsort(of_row, kind="stable")
        same = np.diff(of_row[order]) == 0
        found[begin + order[1:]] = np.where(same, np.diff(order), 0)
    return found
