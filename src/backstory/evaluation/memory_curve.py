"""The memory curve: what a reader pays above the exact cost of a text, by how long ago what comes back was last seen."""

from typing import Any

from backstory.config.units import perplexity
from backstory.data import Truth
from backstory.evaluation.by_distance import COLUMNS, NatsByDistance, ends


class MemoryCurve(NatsByDistance):
    """Adds up the nats of a reading of a whole text by what its tokens are and how far back they reach."""

    def __init__(self, truth: Truth, block: int) -> None:
        """`block`: how many tokens of each row are read at once."""
        super().__init__(truth.kind, len(truth.kinds), truth.distance, block)
        self.truth = truth

    def figures(self) -> dict[str, Any]:
        """The section `memory` of an evaluation (docs/results.md)."""
        counts, exact, distances = (self.summed(w) for w in (None, self.truth.exact, self.truth.distance))
        nats = self.nats()

        def costs(*where: Any) -> dict[str, Any]:
            tokens = int(counts[where].sum())
            paid, least = (float(grid[where].sum()) / tokens for grid in (nats, exact))
            return {"tokens": tokens, "nats": paid, "exact": least, "excess": paid - least}

        def bins(row: int) -> list[dict[str, Any]]:
            return [
                {
                    **ends(column),
                    "distance": float(distances[row, column] / counts[row, column]),
                    **costs(row, column),
                }
                for column in range(1, COLUMNS)
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
