"""Counts of the n-grams of a text, and interpolated modified Kneser-Ney smoothing of them (Chen and Goodman 1998).

    p(w | h) = (c(h w) - D(c(h w))) / sum_v c(h v) + gamma(h) p(w | h'),    p(w | nothing) ends in 1 / V

h' is h without its first word; gamma(h) is what the discounts leave over. The longest n-grams count how often they occur, the
shorter ones how many different words come before them.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from backstory.utils.arguments import checked

NOTHING = -1
"""Id of a context that the text does not have."""


def estimate_discounts(counts: np.ndarray) -> np.ndarray:
    """Return D(0), D(1), D(2), D(3 and more), float64, from counts of n-grams of one length (zeros are left out).

    With n_i n-grams of count i: Y = n_1 / (n_1 + 2 n_2), D(i) = i - (i + 1) Y n_(i+1) / n_i. Without n_1 or n_2, Y is 0.5, and
    a D(i) that is undefined or not between 0 and i is that of the count before.
    """
    n = [int((counts == i).sum()) for i in range(5)]
    y = n[1] / (n[1] + 2 * n[2]) if n[1] and n[2] else 0.5
    discounts = [0.0, y, y, y]
    for i in (2, 3):
        estimate = i - (i + 1) * y * n[i + 1] / n[i] if n[1] and n[2] and n[i] else 0.0
        discounts[i] = estimate if 0 < estimate < i else discounts[i - 1]
    return np.array(discounts)


@dataclass(frozen=True, eq=False)
class GramTable:
    """N-grams of one length, sorted by context and word. G n-grams, C contexts (the n-grams that are one shorter)."""

    keys: np.ndarray
    """(G,) int64, rising: the context's id times V, plus the word. Its index is the n-gram's id."""
    counts: np.ndarray
    """(G,) int32"""
    first: np.ndarray
    """(C + 1,): the index at which each context's n-grams begin."""
    total: np.ndarray
    """(C,) float64: sum of the counts; 1 for a context that nothing follows."""
    left: np.ndarray
    """(C,) float64: gamma, the share of the shorter context; 1 where nothing follows."""
    discounts: np.ndarray
    """(4,): D by the count, 3 and more being one."""

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the ids (...) of n-grams by their keys, NOTHING for those that are not there."""
        if not len(self.keys):
            return np.full(keys.shape, NOTHING)
        index = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[index] == keys, index, NOTHING)

    def find_one(self, key: int) -> int:
        """Return the id of one n-gram, NOTHING if it is not there: `find` without its overhead."""
        index = int(self.keys.searchsorted(key))
        return index if index < len(self.keys) and self.keys[index] == key else NOTHING

    def shares(self, contexts: np.ndarray, grams: np.ndarray) -> np.ndarray:
        """Return the first term of the equation for n-grams by id (N,), in contexts (N,); 0 for NOTHING."""
        counts = np.where(grams == NOTHING, 0, self.counts[grams])
        return (counts - self.discounts[np.minimum(counts, 3)]) / self.total[contexts]


@dataclass(frozen=True, eq=False)
class NgramCounts:
    """The n-grams of a text up to some length, smoothed: a distribution over V words after any context."""

    types: int
    boundary: int | None
    """The word that contexts do not reach across, if any: they may begin with it."""
    unigrams: np.ndarray
    """(V,) int64: counts of single words, as Kneser-Ney has them."""
    unigram_discounts: np.ndarray
    base: np.ndarray
    """(V,) float64: p(w | nothing)."""
    tables: tuple[GramTable, ...]
    """Of length 2, 3, ..."""
    tokens: int
    """Tokens that were counted."""

    def __deepcopy__(self, memo: dict[int, object]) -> "NgramCounts":
        return self  # nothing changes them

    @property
    def order(self) -> int:
        """The length of the longest n-grams."""
        return len(self.tables) + 1

    @property
    def discounts(self) -> tuple[np.ndarray, ...]:
        """The discounts (4,) of every length, from 1."""
        return (self.unigram_discounts, *(table.discounts for table in self.tables))

    def contexts(self, recent: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return the id of the context of each length, from 1, at each position: (B, T, order - 1), NOTHING if it has none.

        Tokens (B, T); recent (B, order - 1): the tokens before them, NOTHING where a text begins.
        """
        text = np.concatenate([recent, tokens], 1)
        ids, steps, contexts = text, tokens.shape[1], []
        for table in self.tables:
            contexts.append(ids[:, ids.shape[1] - steps :])
            before, word = ids[:, :-1], text[:, 1:]
            known = table.find(np.where((before < 0) | (word < 0), NOTHING, before * self.types + word))
            ids = np.concatenate([np.full((len(text), 1), NOTHING), known], 1)
        return np.stack(contexts, 2) if contexts else np.empty((*tokens.shape, 0), np.int64)

    def probability(self, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Return p (N,) of the words (N,) after contexts (N, order - 1)."""
        p = self.base[words]
        for table, ids in zip(self.tables, contexts.T, strict=True):
            if not len(table.keys):  # the text is shorter
                break
            known = ids != NOTHING
            grams = table.find(np.where(known, ids * self.types + words, NOTHING))
            share, left = table.shares(ids, grams), table.left[ids]
            p = np.where(known, share + left * p, p)
        return p

    def distribution(self, contexts: np.ndarray) -> np.ndarray:
        """Return p (N, V) of every word after contexts (N, order - 1); only successors of the contexts are touched."""
        return deque(self.by_length(contexts), 1)[0]

    def by_length(self, contexts: np.ndarray) -> Iterator[np.ndarray]:
        """Yield p (N, V) with contexts (N, order - 1) up to each length, from 0; one array, which changes."""
        p = np.repeat(self.base[None], len(contexts), 0)
        yield p
        for table, ids in zip(self.tables, contexts.T, strict=True):
            rows = np.flatnonzero(ids != NOTHING)
            p[rows] *= table.left[ids[rows], None]
            begin, size = table.first[ids[rows]], table.first[ids[rows] + 1] - table.first[ids[rows]]
            # The index of every n-gram of these contexts, range after range.
            grams = np.repeat(begin - np.cumsum(size) + size, size) + np.arange(size.sum())
            p[np.repeat(rows, size), table.keys[grams] % self.types] += table.shares(np.repeat(ids[rows], size), grams)
            yield p

    def followers(self, context: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """Return the words that follow a context of one word or more, and their counts."""
        if len(context) > len(self.tables):
            return [], []
        gram = context[0]
        for table, word in zip(self.tables, context[1:], strict=False):
            gram = table.find_one(gram * self.types + word)
            if gram == NOTHING:
                return [], []
        table = self.tables[len(context) - 1]
        successors = slice(table.first[gram], table.first[gram + 1])
        return (table.keys[successors] % self.types).tolist(), table.counts[successors].tolist()


@checked(types=1, start=0, order=1)
def count_ngrams(
    ids: np.ndarray,
    types: int,
    start: int,
    order: int,
    across: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> NgramCounts:
    """Count the n-grams of a text (N,) of V `types` up to a length, `order`; the word `start` comes before it.

    Unless `across`, no n-gram has `start` anywhere but at its beginning or end: lines are counted each by itself.
    """
    text = np.concatenate([[start], ids]).astype(np.int64)
    longest = _longest(text, start, order, across)
    shorter, grams = text, []  # the id of the n-gram, one shorter, that ends at each position
    for length in range(2, order + 1):
        where = np.flatnonzero(longest >= length)
        keys, index = np.unique(shorter[where - 1] * types + text[where], return_inverse=True)
        suffixes, ends = np.empty(len(keys), np.int64), np.full(len(text), NOTHING)
        suffixes[index], ends[where] = shorter[where], index
        shorter = ends
        # Every token counts once, in the longest n-gram that ends with it.
        grams.append((keys, suffixes, np.bincount(index[longest[where] == length], minlength=len(keys))))
        if progress is not None:
            progress(length, order)
    alone = np.bincount(text[longest == 1], minlength=types)
    counts = [alone, *(tokens for _, _, tokens in grams)]
    for shorter_counts, (_, suffixes, _) in zip(counts, grams, strict=False):
        shorter_counts += np.bincount(suffixes, minlength=len(shorter_counts))
    tables, contexts = [], types
    for (keys, _, _), own in zip(grams, counts[1:], strict=True):
        tables.append(_table(keys, own, types, contexts))
        contexts = len(keys)
    discounts = estimate_discounts(counts[0])
    base = _unigrams(counts[0], discounts)
    return NgramCounts(types, None if across else start, counts[0], discounts, base, tuple(tables), len(ids))


def _longest(text: np.ndarray, start: int, order: int, across: bool) -> np.ndarray:
    """Return the length of the longest n-gram that ends at each position (N + 1,): 0 at the first, which nothing predicts."""
    index = np.arange(len(text))
    begins = np.zeros_like(index) if across else np.maximum.accumulate(np.where(text == start, index, 0))
    longest = np.zeros_like(index)
    longest[1:] = np.minimum(order, index[1:] - begins[:-1] + 1)
    return longest


def _table(keys: np.ndarray, counts: np.ndarray, types: int, contexts: int) -> GramTable:
    context, discounts = keys // types, estimate_discounts(counts)
    size = np.bincount(context, minlength=contexts)
    total = np.bincount(context, counts, contexts)
    discounted = np.bincount(context, discounts[np.minimum(counts, 3)], contexts)
    followed = size > 0
    total = np.where(followed, total, 1.0)
    left = np.where(followed, discounted / total, 1.0)
    return GramTable(keys, counts.astype(np.int32), np.concatenate([[0], np.cumsum(size)]), total, left, discounts)


def _unigrams(counts: np.ndarray, discounts: np.ndarray) -> np.ndarray:
    total, uniform = counts.sum(), np.full(len(counts), 1 / len(counts))
    if not total:
        return uniform
    taken = discounts[np.minimum(counts, 3)]
    return (counts - taken) / total + taken.sum() / total * uniform
