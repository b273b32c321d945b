"""Gains of readers over each other on a stretch of text: of all of it, by block, by document, by place in a document.

The figure of "A language model with dynamic weights": gain per block along a sequence of articles.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from backstory.context.bootstrap import BLOCK, resampled_means
from backstory.data import Boundaries, Vocabulary, word_nats
from backstory.results.explanation_record import DocumentRecord, GainRecord, PairRecord, PositionRecord

ENOUGH = 8
"""Minimum number of documents, or blocks, for an interval of a gain; fewer say little about how documents differ."""
FIRST = 100
"""Length in tokens of a document's first two stretches; each further one is twice as long."""


@dataclass(frozen=True)
class ScoredText:
    """A stretch of a text as several readers scored it."""

    nats: np.ndarray
    """(R, N): minus the log-probability of every token, by reader."""
    at: int
    """Start of the stretch in the text, in tokens."""
    documents: np.ndarray
    """(D,): where each document of the text begins, in tokens; the first at 0."""
    titles: Sequence[str]
    log_begins: np.ndarray | None = None
    """(R, N + 1): log of the mass of the tokens that begin a word, before every token and after the last; None: left out."""

    def boundaries(self, vocabulary: Vocabulary) -> Boundaries | None:
        """Return the tokens that begin words, if the scores of words are corrected."""
        return None if self.log_begins is None else vocabulary.boundaries

    @cached_property
    def within(self) -> np.ndarray:
        """Number of the document that each token is in (N,)."""
        places = np.arange(self.at, self.at + self.nats.shape[1])
        return np.searchsorted(self.documents, places, "right") - 1

    @cached_property
    def clusters(self) -> np.ndarray:
        """Cluster (N,) of each token for an interval: its document, or its block in a text whose documents are unknown."""
        if len(self.documents) > 1:
            return self.within
        return np.arange(self.at, self.at + self.nats.shape[1]) // BLOCK

    @cached_property
    def offsets(self) -> np.ndarray:
        """Number of tokens of its document before each token (N,)."""
        return np.arange(self.at, self.at + self.nats.shape[1]) - self.documents[self.within]

    @cached_property
    def gains(self) -> np.ndarray:
        """Nats that the first reader of each pair saves over the second at every token (C, N)."""
        return np.stack([self.nats[there] - self.nats[here] for here, there in pairs(len(self.nats))])

    def by_word(self, starts: np.ndarray) -> np.ndarray:
        """Return the nats (R, W) of words that begin at these tokens, and together are the stretch."""
        known = np.zeros((len(self.nats), self.nats.shape[1] + 1)) if self.log_begins is None else self.log_begins
        return word_nats(self.nats, known, starts)


def pairs(readers: int) -> list[tuple[int, int]]:
    """Return the pairs of readers that are compared: each with the next, from the last two on, and the first with the last.

    Gains in nats add up, so that any other comparison is a sum of these.
    """
    chain = [(i, i + 1) for i in reversed(range(readers - 1))]
    return chain if readers == 2 else [*chain, (0, readers - 1)]


def comparisons(scored: ScoredText, names: Sequence[str], block: int) -> tuple[PairRecord, ...]:
    """Return the gain of every pair over the whole stretch and in each of its blocks, in nats per token and in perplexity."""
    starts = np.arange(0, scored.nats.shape[1], block)
    lengths = np.diff([*starts, scored.nats.shape[1]])
    nats = np.add.reduceat(scored.nats, starts, axis=1) / lengths
    whole = perplexities(scored.nats.mean(1))
    return tuple(
        PairRecord(
            reader=names[here],
            over=names[there],
            **vars(interval(gain, scored.clusters)),
            perplexity_gain=float(whole[there] - whole[here]),
            blocks=tuple((nats[there] - nats[here]).tolist()),
            perplexity_blocks=tuple((perplexities(nats[there]) - perplexities(nats[here])).tolist()),
        )
        for (here, there), gain in zip(pairs(len(names)), scored.gains, strict=True)
    )


def perplexities(nats: np.ndarray) -> np.ndarray:
    """Return the perplexities of mean nats, bounded so that they do not overflow."""
    return np.exp(np.minimum(nats, 700.0))


def documents(scored: ScoredText) -> tuple[DocumentRecord, ...]:
    """Return the documents of the stretch in order, each with its tokens inside the stretch."""
    return tuple(
        DocumentRecord(
            document=int(number),
            title=scored.titles[number],
            start=int(scored.at + start),
            tokens=int(end - start),
            nats=tuple(scored.nats[:, start:end].mean(1).tolist()),
            gains=tuple(scored.gains[:, start:end].mean(1).tolist()),
        )
        for number, start, end in _runs(scored.within)
    )


def positions(scored: ScoredText) -> tuple[PositionRecord, ...]:
    """Return the gains by distance from the document's start."""
    records, low, high = [], 0, FIRST
    longest = int(scored.offsets.max())
    while low <= longest:
        inside = (scored.offsets >= low) & (scored.offsets < high)
        if inside.any():
            within, clusters = scored.within[inside], scored.clusters[inside]
            records.append(
                PositionRecord(
                    from_=low,
                    to=high,
                    tokens=int(inside.sum()),
                    documents=len(np.unique(within)),
                    nats=tuple(scored.nats[:, inside].mean(1).tolist()),
                    gains=tuple(interval(gain[inside], clusters) for gain in scored.gains),
                )
            )
        low, high = high, 2 * high
    return tuple(records)


def interval(gains: np.ndarray, clusters: np.ndarray, seed: int = 0) -> GainRecord:
    """Return the mean gain of tokens (N,) with its 95% interval, by bootstrap over their documents or blocks (N,).

    Tokens of a document gain or lose together, so documents are resampled, not tokens. With too few documents the limits are
    None.
    """
    low = high = None
    if len(np.unique(clusters)) >= ENOUGH:
        means = resampled_means(gains[:, None], seed, clusters=clusters)
        low, high = map(float, np.quantile(means, [0.025, 0.975]))
    return GainRecord(gain=float(gains.mean()), low=low, high=high)


def _runs(values: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield (value, start, end) of every stretch of equal values."""
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    for start, end in pairwise(edges):
        yield int(values[start]), start, end
