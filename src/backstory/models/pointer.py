"""A pointer: a word's probability is the weight of the earlier places where it was (pointer networks, Vinyals et al. 2015)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from backstory.models.prediction import Prediction


@dataclass(frozen=True)
class Pointer(Prediction):
    """The weights of earlier places, summed by the word of each; log 0 for every other word."""

    weights: Tensor
    """(B, T, N): they add up to one; or all are 0 where there is no place to point to."""
    words: Tensor
    """(B, T, N) int64: the word of each place."""
    types: int
    """V"""

    def log_prob(self, targets: Tensor) -> Tensor:
        return _log((self.weights * (self.words == targets[..., None])).sum(2))

    def log_probs(self) -> Tensor:
        rows, steps, _ = self.words.shape
        place = torch.arange(rows * steps, device=self.words.device).view(rows, steps, 1) * self.types + self.words
        return _log(_sums(place.flatten(), self.weights.flatten(), rows * steps * self.types)).view(rows, steps, -1)

    def select(self, rows: Tensor, times: Tensor) -> "Pointer":
        chosen = {name: getattr(self, name)[rows, times].unsqueeze(1) for name in ("weights", "words")}
        return replace(self, activations=self._selected(rows, times), **chosen)

    def confidence(self) -> Tensor:
        """(B, T): the weight of the likeliest place."""
        return self.weights.amax(2)


def _log(mass: Tensor) -> Tensor:
    """log, with no gradient where there is no mass, or less than what has an inverse."""
    none = mass < torch.finfo(mass.dtype).tiny
    return mass.masked_fill(none, 1.0).log().masked_fill(none, -torch.inf)


def _sums(places: Tensor, values: Tensor, size: int) -> Tensor:
    """Values (K,) added up at places (K,) of a table (size,); the same bits come out each time."""
    table = values.new_zeros(size)
    if table.is_cuda:  # scatter_add adds in any order there; this one sorts first
        return table.index_put((places,), values, accumulate=True)
    return table.scatter_add(0, places, values)
