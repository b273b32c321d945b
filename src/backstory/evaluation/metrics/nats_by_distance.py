"""Nats by distance to what a token repeats: recency in any text, and the memory curve of one whose exact cost is known."""

import math
from typing import Any, Self

import numpy as np

from backstory.config.options import EvalOptions
from backstory.data import Truth
from backstory.evaluation.metrics.metric import SummingMetric
from backstory.evaluation.opening import EvalSetup
from backstory.evaluation.reading_loop import ScoredBlock
from backstory.readers.base import places_of
from backstory.results.evaluation_record import (
    CurveRecord,
    KindCosts,
    MemoryRange,
    MemoryRecord,
    NewTokens,
    RecencyRange,
    RecencyRecord,
)
from backstory.utils.scores import perplexity

FROM = (1, 5, 10, 20, 50, 100, 200, 500, 1000)
"""The least distance of each bin, in tokens; the last has no end."""
COLUMNS = len(FROM) + 1
"""One for tokens in which nothing comes back, then one for each bin."""


class NatsByDistance(SummingMetric):
    """Sums of nats by class of token and distance to the last occurrence of what recurs in it."""

    def __init__(self, kind: np.ndarray, kinds: int, distance: np.ndarray, block: int) -> None:
        """The class of every token of the text and its distance, 0 if nothing comes back, each (tokens,).

        `block`: tokens of each row that are read at once.
        """
        self.block, self.distance = block, distance
        self.cells = kind.astype(np.int32) * COLUMNS
        self.cells += np.searchsorted(FROM, distance, "right")
        self.sums = np.zeros(kinds * COLUMNS)

    def update(self, scored: ScoredBlock) -> None:
        block, _, log_prob = scored
        places = places_of(block, self.block)
        inside = block.scored.cpu().numpy()
        nats = -log_prob.double().cpu().numpy()[inside]
        self.sums += np.bincount(self.cells[places[inside]], nats, minlength=len(self.sums))

    def nats(self) -> np.ndarray:
        """Return the sums of nats, (kinds, COLUMNS)."""
        return self.sums.reshape(-1, COLUMNS)

    def summed(self, weights: np.ndarray | None = None) -> np.ndarray:
        """Return sums of weights (tokens,) over the text, or the number of tokens, (kinds, COLUMNS)."""
        return np.bincount(self.cells, weights, self.sums.size).reshape(-1, COLUMNS)


class Recency(NatsByDistance):
    """Nats of every token by distance to its last occurrence in its row, with new tokens apart.

    A memory of the words read so far lowers them.
    """

    name = "recency"

    def __init__(self, ids: np.ndarray, batch_size: int, block: int) -> None:
        """A text (tokens,) that is read in contiguous rows, `block` tokens of each at once."""
        super().__init__(np.zeros(len(ids), np.uint8), 1, last_seen(ids, math.ceil(len(ids) / batch_size)), block)

    @classmethod
    def for_evaluation(cls, setup: EvalSetup, options: EvalOptions) -> Self:
        return cls(setup.split.ids, options.batch_size, setup.reader.block)

    def result(self) -> RecencyRecord:
        counts, distances, nats = self.summed()[0], self.summed(self.distance)[0], self.nats()[0]
        new = int(counts[0])
        bins = [
            RecencyRange(
                **ends(column),
                distance=float(distances[column] / counts[column]),
                tokens=int(counts[column]),
                nats=float(nats[column]) / int(counts[column]),
            )
            for column in range(1, COLUMNS)
            if counts[column]
        ]
        return RecencyRecord(
            new=NewTokens(tokens=new, nats=float(nats[0]) / new if new else None),
            bins=tuple(bins),
        )


class MemoryCurve(NatsByDistance):
    """Nats above the exact cost of a text whose truth is known, by class and distance."""

    name = "memory"

    def __init__(self, truth: Truth, block: int) -> None:
        """`block`: tokens of each row that are read at once."""
        super().__init__(truth.kind, len(truth.kinds), truth.distance, block)
        self.truth = truth

    @classmethod
    def for_evaluation(cls, setup: EvalSetup, options: EvalOptions) -> Self | None:
        truth = setup.dataset.truth(setup.split.name)
        return None if truth is None else cls(truth, setup.reader.block)

    def result(self) -> MemoryRecord:
        counts, exact, distances = (self.summed(w) for w in (None, self.truth.exact, self.truth.distance))
        nats = self.nats()

        def costs(*cells: Any) -> dict[str, Any]:
            tokens = int(counts[cells].sum())
            mean, least = (float(sums[cells].sum()) / tokens for sums in (nats, exact))
            return {"tokens": tokens, "nats": mean, "exact": least, "excess": mean - least}

        def bins(kind: int) -> tuple[MemoryRange, ...]:
            return tuple(
                MemoryRange(
                    **ends(column),
                    distance=float(distances[kind, column] / counts[kind, column]),
                    **costs(kind, column),
                )
                for column in range(1, COLUMNS)
                if counts[kind, column]
            )

        whole = costs(slice(None))
        kinds = [(number, kind) for number, kind in enumerate(self.truth.kinds) if counts[number].any()]
        curves = [
            CurveRecord(kind=kind, forgotten=self.truth.forgotten[kind], bins=bins(number))
            for number, kind in kinds
            if kind in self.truth.forgotten
        ]
        return MemoryRecord(
            exact_nats_per_token=whole["exact"],
            exact_perplexity=perplexity(whole["exact"]),
            excess_nats_per_token=whole["excess"],
            kinds=tuple(KindCosts(kind=kind, **costs(number)) for number, kind in kinds),
            curves=tuple(curves),
        )


def ends(column: int) -> dict[str, Any]:
    """Return the ends of a range of distances, by its column."""
    return {"from_": FROM[column - 1], "to": FROM[column] - 1 if column < len(FROM) else None}


def last_seen(ids: np.ndarray, row: int) -> np.ndarray:
    """Return the distance (tokens,) of each token to its last occurrence in its row of `row` tokens; 0 if new."""
    distances = np.zeros(len(ids), np.int32)
    for begin in range(0, len(ids), row):
        tokens = np.asarray(ids[begin : begin + row])
        order = np.argsort(tokens, kind="stable")
        same = np.diff(tokens[order]) == 0
        distances[begin + order[1:]] = np.where(same, np.diff(order), 0)
    return distances
