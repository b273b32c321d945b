"""Sums of a reading's nats by a class of its tokens and by how many tokens ago what comes back in each was last seen."""

import numpy as np
from torch import Tensor

from backstory.evaluation.sums import Sums
from backstory.models import Prediction
from backstory.readers.blocks import Block, places_of

FROM = (1, 5, 10, 20, 50, 100, 200, 500, 1000)
"""The least distance of each bin, in tokens; the last has no end."""
COLUMNS = len(FROM) + 1
"""One for tokens in which nothing comes back, then one for each bin."""


class NatsByDistance(Sums):
    """Adds up, block by block, the nats of a reading of a whole text."""

    def __init__(self, kind: np.ndarray, kinds: int, distance: np.ndarray, block: int) -> None:
        """The class of every token of the text and its distance, 0 where nothing comes back, each (tokens,).

        `block`: how many tokens of each row are read at once.
        """
        self.block, self.distance = block, distance
        self.cells = kind.astype(np.int32) * COLUMNS
        self.cells += np.searchsorted(FROM, distance, "right")
        self.sums = np.zeros(kinds * COLUMNS)

    def __call__(self, block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        places = places_of(block, len(self.cells), self.block)
        scored = block.scored.cpu().numpy()
        nats = -log_prob.double().cpu().numpy()[scored]
        self.sums += np.bincount(self.cells[places[scored]], nats, minlength=len(self.sums))

    def nats(self) -> np.ndarray:
        """What was paid in all, (kinds, COLUMNS)."""
        return self.sums.reshape(-1, COLUMNS)

    def summed(self, weights: np.ndarray | None = None) -> np.ndarray:
        """Weights (tokens,) summed over the text, or how many tokens there are, (kinds, COLUMNS)."""
        return np.bincount(self.cells, weights, self.sums.size).reshape(-1, COLUMNS)


def ends(column: int) -> dict[str, int | None]:
    """The least and the largest distance of a bin, by its column."""
    return {"from": FROM[column - 1], "to": FROM[column] - 1 if column < len(FROM) else None}
