"""What is added up while a text is read, saved and taken up again."""

from typing import Any

import numpy as np


class Sums:
    """Sums of one shape that grow, block by block."""

    sums: np.ndarray

    def saved(self) -> dict[str, Any]:
        """What was added up so far."""
        return {"sums": self.sums.tolist()}

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from there. Raises ValueError where it is of something else."""
        sums = np.array(saved["sums"], np.float64)
        if sums.shape != self.sums.shape:
            raise ValueError("it has not as many sums")
        self.sums = sums
