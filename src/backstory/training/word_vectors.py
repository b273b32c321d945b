"""Word vectors from the counts of a text: positive pointwise mutual information (PPMI), factored by a truncated SVD.

Levy & Goldberg 2014, section 3, with the weights by distance and the smoothed context distribution of Levy, Goldberg & Dagan
2015. What follows a word and what precedes it are contexts apart, as it is the next word that a language model predicts.
"""

import numpy as np
import torch
from torch import Tensor

from backstory.models import WordEmbedding

WINDOW = 2
"""Distance up to which two words count as seen together; a pair at distance d counts 1 / d."""
SMOOTHING = 0.75
"""Exponent of the counts of contexts; below 1 it lowers the information of rare ones."""
CHUNK = 2**22
"""Tokens whose pairs are counted at once."""


def initialise_from_counts(embedding: WordEmbedding, ids: np.ndarray, seed: int) -> None:
    """Replace the random vectors of the words of a text, ids (N,), by `word_vectors` of the same standard deviation.

    A word that the text lacks keeps its random vector, and so do all if the text tells no word from another.
    """
    weight = embedding.weight.detach()
    types, size = weight.shape
    seen = torch.from_numpy(np.bincount(ids, minlength=types) > 0)
    vectors = word_vectors(cooccurrences(ids, types), size, seed)[seen]
    if (deviation := vectors.std()) > 0:
        weight[seen.to(weight.device)] = (vectors * (weight.std().cpu() / deviation)).to(weight)


def cooccurrences(ids: np.ndarray, types: int) -> Tensor:
    """Return the weighted counts of words (rows) and of what stands near them in ids (N,), as a sparse matrix (V, 2 V).

    Column c counts the word c after the row's word, column V + c the word c before it.
    """
    counts = _sparse(torch.zeros(2, 0, dtype=torch.long), torch.zeros(0), types)
    for start in range(0, len(ids), CHUNK):
        piece = torch.from_numpy(ids[start : start + CHUNK + WINDOW].astype(np.int64))
        for distance in range(1, WINDOW + 1):
            second = piece[distance : distance + CHUNK]
            first = piece[: len(second)]
            pairs = torch.cat([torch.stack([first, second]), torch.stack([second, types + first])], 1)
            ones = torch.full((pairs.shape[1],), 1 / distance)
            counts = (counts + _sparse(pairs, ones, types)).coalesce()
    return counts


def ppmi(counts: Tensor) -> Tensor:
    """Return max(0, log p(w, c) / (p(w) p'(c))) of sparse counts of words and contexts, with p'(c) ~ count(c)^SMOOTHING."""
    (words, contexts), values = counts.indices(), counts.values().double()
    totals, smoothed = (torch.zeros(size, dtype=torch.float64) for size in counts.shape)
    totals.index_add_(0, words, values)
    smoothed.index_add_(0, contexts, values).pow_(SMOOTHING)
    smoothed /= smoothed.sum().clamp(min=1e-300)
    information = torch.log(values / (totals[words] * smoothed[contexts])).clamp(min=0)
    return torch.sparse_coo_tensor(
        counts.indices(), information.float(), counts.shape, check_invariants=False, is_coalesced=True
    )


def word_vectors(counts: Tensor, size: int, seed: int) -> Tensor:
    """Return vectors (V, size) from counts (V, 2 V): U S of the SVD of the PPMI, centred and rotated at random.

    The rotation spreads the variance, which the SVD gathers in the first columns, over all of them.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        left, singular, _ = torch.svd_lowrank(ppmi(counts), q=min(size, len(counts)))
        rotation = torch.linalg.qr(torch.randn(size, size))[0]
    vectors = left * singular
    return (vectors - vectors.mean(0)) @ rotation[: vectors.shape[1]]


def _sparse(pairs: Tensor, values: Tensor, types: int) -> Tensor:
    """Return the matrix (V, 2 V) with these values (N,), added up, at these pairs (2, N)."""
    return torch.sparse_coo_tensor(pairs, values, (types, 2 * types), check_invariants=False)
