"""What one reader gains on another, from the nats of every token: by block, by document and by place in a document."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from backstory.context.bootstrap import BLOCK, resampled_means
from backstory.data import word_nats

ENOUGH = 8
"""Documents, or blocks, from which on a gain has an interval: fewer say little of how they differ."""
FIRST = 100
"""Tokens of the first stretch of a document; the second is as long, and every further one twice as long."""


@dataclass(frozen=True)
class Scored:
    """A stretch of a text as several readers scored it."""

    nats: np.ndarray
    """(R, N): minus the log-probability of every token, by reader."""
    at: int
    """Where the stretch begins in the text, in tokens."""
    documents: np.ndarray
    """(D,): where each document of the text begins, in tokens; the first at 0."""
    titles: Sequence[str]
    log_begins: np.ndarray | None = None
    """(R, N + 1): log of the mass of the tokens that begin a word, before every token and after the last; None: left out."""

    @cached_property
    def within(self) -> np.ndarray:
        """(N,): the number of the document that each token is in."""
        places = np.arange(self.at, self.at + self.nats.shape[1])
        return np.searchsorted(self.documents, places, "right") - 1

    @cached_property
    def clusters(self) -> np.ndarray:
        """(N,): what is drawn as a whole for an interval: documents, and long blocks of a text whose documents are unknown."""
        if len(self.documents) > 1:
            return self.within
        return np.arange(self.at, self.at + self.nats.shape[1]) // BLOCK

    @cached_property
    def offsets(self) -> np.ndarray:
        """(N,): how many tokens of its document come before each token."""
        return np.arange(self.at, self.at + self.nats.shape[1]) - self.documents[self.within]

    @cached_property
    def gains(self) -> np.ndarray:
        """(C, N): what the first reader of each pair saves over the second at every token."""
        return np.stack([self.nats[there] - self.nats[here] for here, there in pairs(len(self.nats))])

    def by_word(self, starts: np.ndarray) -> np.ndarray:
        """(R, W): the nats of words that begin at these tokens, and together are the stretch."""
        known = np.zeros((len(self.nats), self.nats.shape[1] + 1)) if self.log_begins is None else self.log_begins
        return word_nats(self.nats, known, starts)


def pairs(readers: int) -> list[tuple[int, int]]:
    """Which reader is compared with which: each with the next, from the last two on, and the first with the last.

    Gains in nats add up, so that any other comparison is a sum of these.
    """
    chain = [(i, i + 1) for i in reversed(range(readers - 1))]
    return chain if readers == 2 else [*chain, (0, readers - 1)]


def comparisons(scored: Scored, names: Sequence[str], block: int) -> list[dict[str, Any]]:
    """The gain of every pair over the whole stretch and in each of its blocks, in nats per token and in perplexity."""
    starts = np.arange(0, scored.nats.shape[1], block)
    lengths = np.diff([*starts, scored.nats.shape[1]])
    nats = np.add.reduceat(scored.nats, starts, axis=1) / lengths
    whole = perplexities(scored.nats.mean(1))
    return [
        {
            "reader": names[here],
            "over": names[there],
            **interval(gain, scored.clusters),
            "perplexity_gain": float(whole[there] - whole[here]),
            "blocks": (nats[there] - nats[here]).tolist(),
            "perplexity_blocks": (perplexities(nats[there]) - perplexities(nats[here])).tolist(),
        }
        for (here, there), gain in zip(pairs(len(names)), scored.gains, strict=True)
    ]


def perplexities(nats: np.ndarray) -> np.ndarray:
    """Perplexities of mean nats, kept from overflowing."""
    return np.exp(np.minimum(nats, 700.0))


def documents(scored: Scored) -> list[dict[str, Any]]:
    """Every document of the stretch, in order, as far as it lies in it."""
    return [
        {
            "document": int(number),
            "title": scored.titles[number],
            "start": int(scored.at + start),
            "tokens": int(end - start),
            "nats": scored.nats[:, start:end].mean(1).tolist(),
            "gains": scored.gains[:, start:end].mean(1).tolist(),
        }
        for number, start, end in _runs(scored.within)
    ]


def positions(scored: Scored) -> list[dict[str, Any]]:
    """The gains by how far into its document a token is."""
    found, low, high = [], 0, FIRST
    longest = int(scored.offsets.max())
    while low <= longest:
        inside = (scored.offsets >= low) & (scored.offsets < high)
        if inside.any():
            within, clusters = scored.within[inside], scored.clusters[inside]
            found.append(
                {
                    "from": low,
                    "to": high,
                    "tokens": int(inside.sum()),
                    "documents": len(np.unique(within)),
                    "nats": scored.nats[:, inside].mean(1).tolist(),
                    "gains": [interval(gain[inside], clusters) for gain in scored.gains],
                }
            )
        low, high = high, 2 * high
    return found


def interval(gains: np.ndarray, clusters: np.ndarray, seed: int = 0) -> dict[str, float | None]:
    """The mean gain of tokens (N,) and its 95% interval: bootstrap over the documents or blocks (N,) that they are in.

    Tokens of a document gain or lose together, so documents are drawn, not tokens. None where there are too few of them.
    """
    low = high = None
    if len(np.unique(clusters)) >= ENOUGH:
        means = resampled_means(gains[:, None], seed, clusters=clusters)
        low, high = map(float, np.quantile(means, [0.025, 0.975]))
    return {"gain": float(gains.mean()), "low": low, "high": high}


def chosen(gains: np.ndarray, begins: Sequence[int], words: int) -> list[tuple[str, int]]:
    """Passages worth a look, as (why, first word): most gained, most lost, and where a document begins.

    `gains` (W,) are those of the words of a stretch, `begins` the words at which documents begin, the longest first.
    """
    length = min(words, len(gains))
    sums = np.convolve(gains, np.ones(length), "valid")
    best, worst = int(sums.argmax()), int(sums.argmin())
    found = [("the largest gain", best)]
    if sums[worst] < sums[best]:
        found.append(("the largest loss" if sums[worst] < 0 else "the smallest gain", worst))
    taken = {place for _, place in found}
    return found + [("the beginning of a document", place) for place in begins[:1] if place not in taken]


def _runs(values: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """(value, start, end) of every stretch of equal values."""
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    for start, end in pairwise(edges):
        yield int(values[start]), start, end
