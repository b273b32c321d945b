"""The memory curve: what a reader pays above the exact cost of a text, by how long ago what comes back was last seen."""

import math
from typing import Any

import numpy as np
from torch import Tensor

from backstory.models import Prediction
from backstory.reading.stream import Block, perplexity
from backstory.text import Truth

FROM = (1, 5, 10, 20, 50, 100, 200, 500, 1000)
"""The least distance of each bin, in tokens; the last has no end."""


class MemoryCurve:
    """Adds up the nats of a reading of a whole text by what its tokens are and how far back they reach."""

    def __init__(self, truth: Truth, block: int) -> None:
        """`block`: how many tokens of each row are read at once."""
        self.truth, self.block = truth, block
        # A column for tokens in which nothing comes back, then one for each bin.
        self.columns = len(FROM) + 1
        bins = np.searchsorted(FROM, truth.distance, "right")
        self.cells = (truth.kind.astype(np.int64) * self.columns + bins).astype(np.int32)
        self.sums = np.zeros(len(truth.kinds) * self.columns)

    def __call__(self, block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        rows, times = block.targets.shape
        length = math.ceil(len(self.cells) / rows)
        places = np.arange(rows)[:, None] * length + block.index * self.block + np.arange(times)
        scored = block.scored.cpu().numpy()
        nats = -log_prob.double().cpu().numpy()[scored]
        self.sums += np.bincount(self.cells[places[scored]], nats, minlength=len(self.sums))

    def saved(self) -> dict[str, Any]:
        """What was added up so far."""
        return {"sums": self.sums.tolist()}

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from there. Raises ValueError where it is of something else."""
        sums = np.array(saved["sums"], np.float64)
        if sums.shape != self.sums.shape:
            raise ValueError("it has not as many sums")
        self.sums = sums

    def figures(self) -> dict[str, Any]:
        """The section `memory` of an evaluation (docs/results.md)."""
        counts, exact, distances = (self._grid(w) for w in (None, self.truth.exact, self.truth.distance))
        nats = self.sums.reshape(counts.shape)

        def costs(*where: Any) -> dict[str, Any]:
            tokens = int(counts[where].sum())
            paid, least = (float(grid[where].sum()) / tokens for grid in (nats, exact))
            return {"tokens": tokens, "nats": paid, "exact": least, "excess": paid - least}

        def bins(row: int) -> list[dict[str, Any]]:
            return [
                {
                    "from": FROM[column - 1],
                    "to": FROM[column] - 1 if column < len(FROM) else None,
                    "distance": float(distances[row, column] / counts[row, column]),
                    **costs(row, column),
                }
                for column in range(1, self.columns)
                if counts[row, column]
            ]

        whole = costs(slice(None))
        found = [(row, kind) for row, kind in enumerate(self.truth.kinds) if counts[row].any()]
        return {
            "exact_nats_per_token": whole["exact"],
            "exact_perplexity": perplexity(whole["exact"]),
            "excess_nats_per_token": whole["excess"],
            "kinds": [{"kind": kind, **costs(row)} for row, kind in found],
            "curves": [
                {"kind": kind, "forgotten": self.truth.forgotten[kind], "bins": bins(row)}
                for row, kind in found
                if kind in self.truth.forgotten
            ],
        }

    def _grid(self, weights: np.ndarray | None) -> np.ndarray:
        """Sums over the text, or counts, (kinds, columns)."""
        return np.bincount(self.cells, weights, self.sums.size).reshape(-1, self.columns)
