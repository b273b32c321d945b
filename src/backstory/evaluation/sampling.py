"""Draw a token from a distribution: temperature, then the k likeliest types, then the likeliest of mass p."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from backstory.config import NonFiniteError, UserError
from backstory.config.arguments import checked


@checked()
@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Raises UserError for settings out of range."""

    temperature: float = 1.0
    """Probabilities are taken to the power 1 / temperature; 0 takes the likeliest token always."""
    top_k: int | None = None
    """Only the k likeliest types; types as likely as the last of them stay too."""
    top_p: float = 1.0
    """Only the fewest likeliest types whose probabilities sum to p or more, of what top_k has left."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UserError(f"the temperature must be 0 or above and finite, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k must be at least 1, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1, not {self.top_p}")


def filtered(log_probs: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities (V,) -> (V,) float64 that are drawn from: tempered, cut to top_k, then to top_p (nucleus sampling,
    Holtzman et al. 2020), each normalised again; minus infinity for what is left out.

    Of types equally likely at the edge of top_p, those with the lower ids stay. At temperature 0 the likeliest type alone
    is left, the one with the lowest id where several are.
    """
    scores = log_probs.double()
    if sampling.temperature == 0:
        return torch.full_like(scores, -torch.inf).index_fill_(0, scores.argmax(), 0.0)
    # The largest is taken off first, so that no temperature, however small, turns all of them into minus infinity.
    scores = torch.log_softmax((scores - scores.max()) / sampling.temperature, 0)
    if sampling.top_k is not None and sampling.top_k < len(scores):
        last = scores.topk(sampling.top_k).values[-1]
        scores = torch.log_softmax(scores.masked_fill(scores < last, -torch.inf), 0)
    if sampling.top_p < 1:
        ranked, order = scores.sort(descending=True, stable=True)
        mass = ranked.exp()
        left_out = mass.cumsum(0) - mass >= sampling.top_p  # the likelier types are enough without it
        scores = torch.log_softmax(
            scores.masked_fill(torch.zeros_like(left_out).scatter_(0, order, left_out), -torch.inf), 0
        )
    return scores


def draw(log_probs: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """A type drawn from log-probabilities (V,), on the CPU. Raises NonFiniteError where they are not numbers."""
    if not math.isfinite(log_probs.max()):
        raise NonFiniteError(
            "the distribution holds no probability that is a number: the weights or the reader broke down"
        )
    return int(torch.multinomial(filtered(log_probs, sampling).exp(), 1, generator=generator))
