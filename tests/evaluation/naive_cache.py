"""The neural cache as its equation has it, a token at a time in float64: the reference of the fast one."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from backstory.config.readers import CacheSettings


def cache_table(pairs: Sequence[tuple[Tensor, int]], query: Tensor, theta: float, types: int) -> Tensor:
    """P_cache (V,) of pairs (h_i, w_i) for a state h_t (D,)."""
    table = torch.zeros(types, dtype=torch.double)
    if not pairs:
        return table
    largest = max(theta * float(h @ query) for h, _ in pairs)
    for h, word in pairs:
        table[word] += math.exp(theta * float(h @ query) - largest)
    return table / table.sum()


def cached_tables(
    states: Tensor, inner: Tensor, words: Sequence[int], settings: CacheSettings
) -> tuple[Tensor, Tensor]:
    """The mixture (N, V) and the cache alone (N, V) along one text.

    States (N, D) and the inner probabilities (N, V) at each position; words (N,): the word after each.
    """
    pairs: list[tuple[Tensor, int]] = []
    mixtures, caches = [], []
    for state, p, word in zip(states.double(), inner.double(), words, strict=True):
        seen = pairs[-settings.window :]
        q = cache_table(seen, state, settings.theta, len(p))
        mass = [math.exp(settings.theta * float(h @ state)) for h, _ in seen]
        confident = bool(seen) and max(mass) / sum(mass) >= settings.confidence
        weight = settings.weight if confident else 0.0
        mixtures.append((1 - weight) * p + weight * q)
        caches.append(q)
        pairs.append((state, word))
    return torch.stack(mixtures), torch.stack(caches)
