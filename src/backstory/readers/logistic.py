"""Logistic mixing of predictions (Mattern 2012): a weighted product, with weights that follow the code length.

    P(w) = exp(sum_i a_i log E_i(w)) / Z,    a_i' = a_i + step (log E_i(w_t) - sum_w P(w) log E_i(w))

Z sums over the whole vocabulary, and the step goes down the gradient of -log P(w_t). E_0 is the linear mixture, which begins
with a = 1. The others are (1 - l) P_1 + l P_k with the own share l of a reader, and begin with 0: a cache gives most words
nothing, and a product would rule them out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from backstory.models import Prediction
from backstory.models.kernels.linear_log_prob import CHUNK
from backstory.models.positions import all_positions, in_pieces, steps_at
from backstory.readers.adaptive_counts import ByLength

LEAST = 1e-30
"""Lower bound of a probability in a product."""
EDGES = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
"""Entropies of the linear mixture, in nats, that divide the positions among sets of weights."""
LENGTHS = 12
"""Longer contexts share a set."""
SETS = {"none": 1, "entropy": len(EDGES) + 1, "length": LENGTHS + 1}


@dataclass(frozen=True, eq=False)
class TablePrediction(Prediction):
    """Log-probabilities of all words."""

    table: Tensor
    """(B, T, V), normalised."""
    inner: Prediction
    """Prediction of the first reader itself."""

    def log_prob(self, targets: Tensor) -> Tensor:
        return self.table.gather(2, targets[..., None])[..., 0]

    def log_probs(self) -> Tensor:
        return self.table

    def select(self, rows: Tensor, times: Tensor) -> "TablePrediction":
        table, inner = steps_at(self.table, rows, times), self.inner.select(rows, times)
        return TablePrediction(self._selected(rows, times), table, inner)

    def parts(self) -> dict[str, Prediction]:
        """Return the first reader's prediction, `p`."""
        return {"p": self.inner}


Weigh = Callable[[slice, Sequence[Tensor]], Tensor]
"""Return the weights v (R, t, K) of the linear mixture at the next t steps, from the K predictions' probabilities (B, t, V)
there. R is B, or any number of mixtures of one text."""


@dataclass(frozen=True)
class Factors:
    """The E factors of the product: the linear mixture of K predictions, and each of these interpolated with the first."""

    predictions: Sequence[Prediction]
    """Of shape (B, T) over V words."""
    shares: Tensor
    """(B, T, K): l of every prediction; 1: it stands alone."""
    by_length: bool = False
    """A prediction from counts gives a factor for every length of its contexts."""
    context: str = "none"
    """Choice of the set of weights: by `none`, `entropy` or `length`."""

    def pieces(self, weigh: Weigh) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
        """Yield some steps at a time, in order, with log E (t, R, E, V) there and the number of the set (t, R)."""
        return in_pieces(self.shares.shape[1], CHUNK, partial(self._at, weigh))

    def _at(self, weigh: Weigh, steps: slice) -> tuple[Tensor, Tensor]:
        tables, lengths = self._tables(steps)
        first, shares = tables[0][-1], self.shares[:, steps, :, None]
        v = weigh(steps, [of_prediction[-1] for of_prediction in tables])[..., None]
        linear = torch.zeros((), device=first.device)
        for k, of_prediction in enumerate(tables):
            linear = linear + v[:, :, k] * of_prediction[-1]
        for k in range(1, len(tables)):
            share = shares[:, :, k].to(first.dtype)
            tables[k] = [torch.lerp(first, table, share) for table in tables[k]]
        factors = [table.expand_as(linear) for of_prediction in tables for table in of_prediction]
        logs = torch.stack([linear, *factors], 2).clamp_min_(LEAST).log_()
        return logs.transpose(0, 1), self._sets(logs[:, :, 0], lengths).t()

    def _tables(self, steps: slice) -> tuple[list[Sequence[Tensor]], Tensor | None]:
        """Return the probabilities (B, t, V) of each prediction, several by the lengths of its contexts, and the longest known.

        The longest lengths (B, t) are those of the last prediction that has any.
        """
        shares = self.shares[:, steps]
        rows, times = all_positions(shares)
        tables, lengths, dtype = [], None, None
        for prediction in self.predictions:
            if shares.shape != self.shares.shape:
                prediction = prediction.select(rows, times + steps.start)
            if (self.by_length or self.context == "length") and isinstance(prediction, ByLength):
                log_probs, known = prediction.log_probs_by_length()
                lengths = known.view(shares.shape[:2])
                of_prediction = [*(log_probs if self.by_length else log_probs[-1:]).exp()]
            else:
                of_prediction = [prediction.log_probs().exp()]
            dtype = dtype or of_prediction[-1].dtype
            tables.append([table.view(*shares.shape[:2], -1).to(dtype) for table in of_prediction])
        return tables, lengths

    def _sets(self, linear: Tensor, lengths: Tensor | None) -> Tensor:
        if self.context == "entropy":
            entropy = -(linear.exp() * linear).sum(2)
            return torch.bucketize(entropy, torch.tensor(EDGES, device=linear.device))
        if self.context == "length" and lengths is not None:
            return lengths.clamp_max(LENGTHS).expand(linear.shape[:2])
        return torch.zeros(linear.shape[:2], dtype=torch.long, device=linear.device)


@dataclass(frozen=True)
class Mixed:
    """A block that was mixed; what follows its last position may not have been known."""

    table: Tensor
    """(R, T, V): log P."""
    weights: Tensor
    """(R, S, E): a after the block, of every set."""
    last: tuple[Tensor, ...]
    """Values at the last position: log E (R, E, V), the set (R,), and a and its gradient's second term, each (R, E)."""

    def relearned(self, targets: Tensor, step: Tensor | float) -> Tensor:
        """Return the weights (R, S, E) after the block if these targets (R,) follow it."""
        logs, sets, before, expected = self.last
        weights = self.weights.clone()
        rows = torch.arange(len(weights), device=weights.device)
        weights[rows, sets] = before + step * (_at(logs, rows, targets) - expected)
        return weights


@torch.no_grad()
def mix(factors: Factors, weigh: Weigh, targets: Tensor, weights: Tensor | None, step: Tensor | float) -> Mixed:
    """Mix a block, and learn after each position from its target; targets (R, T); `step` may be (R, 1).

    The weights (R, S, E) are those before it, None at the beginning of a text. `weigh` sets those of the linear mixture.
    """
    tables, last = [], ()
    # Once, and on the device: an index on the CPU would be copied there at every token.
    rows = torch.arange(len(targets), device=targets.device)
    for steps, (logs, sets) in factors.pieces(weigh):
        if weights is None:
            weights = logs.new_zeros(len(targets), SETS[factors.context], logs.shape[2])
            weights[..., 0] = 1
        elif not steps.start:
            weights = weights.clone()
        gold = targets[:, steps].t()
        with torch.autocast(logs.device.type, enabled=False):  # a model's precision is not that of its probabilities
            for log, each, target in zip(logs, sets, gold, strict=True):
                a = weights[rows, each]
                scores = torch.log_softmax((a[:, None] @ log)[:, 0], 1)
                expected = (log @ scores.exp()[..., None])[..., 0]
                weights[rows, each] = a + step * (_at(log, rows, target) - expected)
                tables.append(scores)
                last = log, each, a, expected
    assert weights is not None
    return Mixed(torch.stack(tables, 1), weights, last)


def _at(logs: Tensor, rows: Tensor, targets: Tensor) -> Tensor:
    """Return log E (R, E) of the targets (R,) in the rows 0 to R - 1."""
    return logs[rows, :, targets]
