"""A text with counts of what followed its contexts: PPM, and Kneser-Ney that goes on counting; p of the next word.

    interpolated:  p_k(w) = (c(h_k w) - D) / Z + gamma p_(k-1)(w),   h_k the last k words, p_(-1) = 1 / V
    exclusion:     the same, but p_(k-1) is over the words that never followed h_k, normalised

Of PPM's escapes, method C (Moffat 1990) has D = 0, Z = the count of h_k plus the number of words that followed it; method D
(Howard 1993) has D = 1/2 and Z = the count of h_k. A word counts in a context only if it is new in the next longer one
(update exclusion), as in Kneser-Ney smoothing.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from backstory.readers.ngram_counts import NgramCounts
from backstory.utils.errors import UserError

Context = tuple[int, ...]


class Followers:
    """The words that followed a context with their counts, and the number of words with count 1 and 2."""

    __slots__ = ("counts", "ones", "total", "twos")

    def __init__(self, words: Sequence[int] = (), counts: Sequence[int] = ()) -> None:
        self.counts = dict(zip(words, counts, strict=True))
        self.total, self.ones, self.twos = sum(counts), list(counts).count(1), list(counts).count(2)

    def change(self, word: int, by: int) -> bool:
        """Add 1 or -1 to a word's count; return True if the word has another count than 0 without it."""
        before = self.counts.get(word, 0)
        after = before + by
        if after:
            self.counts[word] = after
        else:
            del self.counts[word]
        self.total += by
        self.ones += (after == 1) - (before == 1)
        self.twos += (after == 2) - (before == 2)
        return min(before, after) > 0


class Level(NamedTuple):
    """Tokens that followed a context in use at some position."""

    counts: dict[int, int]
    discounts: Sequence[float]
    """D by the count, 3 and more being one."""
    scale: float
    """Z"""
    left: float
    """gamma"""


@dataclass(frozen=True)
class Smoothing:
    """How counts become probabilities."""

    discounts: tuple[tuple[float, float, float, float], ...]
    """D by the count, for contexts of each length, from 0."""
    escapes: bool = False
    """Method C: an escape counts as often as the number of distinct words."""
    exclusion: bool = False

    @classmethod
    def ppm(cls, order: int, escape: str, discount: float, exclusion: bool) -> "Smoothing":
        """Return PPM's smoothing with contexts of `order` words and escapes by method `c`, or `d` with a discount."""
        taken = 0.0 if escape == "c" else discount
        return cls(((0.0, taken, taken, taken),) * (order + 1), escape == "c", exclusion)

    @classmethod
    def kneser_ney(cls, counts: NgramCounts) -> "Smoothing":
        """Return the smoothing of counted n-grams."""
        return cls(tuple(tuple(d.tolist()) for d in counts.discounts))

    def scale_and_left(self, length: int, total: int, kinds: Sequence[int]) -> tuple[float, float]:
        """Return Z and gamma of a context, from how many words have count 1, 2, and 3 or more."""
        if self.escapes:
            scale = total + sum(kinds)
            return scale, sum(kinds) / scale
        _, one, two, more = self.discounts[length]
        return total, (one * kinds[0] + two * kinds[1] + more * kinds[2]) / total


class CountedText:
    """A text with counts of the successors of its contexts, at a position that can move back and forth.

    A text is a row of codes: a word, or ~word for one that is only context and was not predicted. Everything here
    follows from the codes before the position, so any reader may use it for any text.
    """

    def __init__(self, types: int, longest: int, smoothing: Smoothing, base: NgramCounts | None = None) -> None:
        """Contexts have at most `longest` words. Counting starts from `base`, or from nothing."""
        self.types, self.longest, self.smoothing, self.base = types, longest, smoothing, base
        self.boundary = None if base is None else base.boundary
        self.unigrams = np.zeros(types, np.int64) if base is None else base.unigrams.copy()
        self._kinds = [int((self.unigrams == i).sum()) for i in (1, 2)]
        self._distinct, self._total = int((self.unigrams > 0).sum()), int(self.unigrams.sum())
        self._codes = np.empty(0, np.int32)
        self._source: np.ndarray | None = None
        self._known = 0  # codes that are known to be those that the source begins with
        self._words: list[int] = []
        self._reach: list[int] = []
        # A context with one follower of count 1, as most are, holds that word alone.
        self._followers: dict[Context, Followers | int] = {}

    def __len__(self) -> int:
        return len(self._words)

    def common(self, codes: np.ndarray) -> int:
        """Return the length of the common prefix with these codes (N,)."""
        size = min(len(self), len(codes))
        # Rows of codes are views of a longer array, whose published part never changes.
        start = min(self._known, size) if codes.base is not None and codes.base is self._source else 0
        return _first_difference(self._codes[:size], codes[:size], start)

    def move(self, codes: np.ndarray) -> None:
        """Make the text one of these codes (N,)."""
        same = self.common(codes)
        while len(self) > same:
            self._take_back()
        for code in codes[same:].tolist():
            self.append(code)
        self._source, self._known = codes.base, len(codes)

    def append(self, code: int) -> None:
        """Move on by one code."""
        if len(self._codes) == len(self):
            self._codes = np.concatenate([self._codes, np.empty(max(256, len(self)), np.int32)])
        self._codes[len(self)] = code
        word = code if code >= 0 else ~code
        if code >= 0:
            self._change(word, 1)
        begins = not self._words or word == self.boundary
        self._reach.append(min(self.longest, 1 if begins else self._reach[-1] + 1))
        self._words.append(word)

    def _take_back(self) -> None:
        """Move back by one code."""
        word = self._words.pop()
        self._reach.pop()
        self._known = min(self._known, len(self))
        if self._codes[len(self)] >= 0:
            self._change(word, -1)

    def _contexts(self) -> list[Context]:
        """Return the contexts at this position, starting with the shortest, of one word."""
        reach = self._reach[-1] if self._reach else 0
        recent = tuple(self._words[len(self) - reach :])
        return [recent[reach - length :] for length in range(1, reach + 1)]

    def _change(self, word: int, by: int) -> None:
        """Count a word after the longest context, and after shorter ones as long as it is new there; or undo that."""
        for context in reversed(self._contexts()):
            if self._change_in(context, word, by):
                return
        before = int(self.unigrams[word])
        after = self.unigrams[word] = before + by
        self._total += by
        self._distinct += (after > 0) - (before > 0)
        self._kinds = [kind + int(after == i) - int(before == i) for i, kind in enumerate(self._kinds, 1)]

    def _change_in(self, context: Context, word: int, by: int) -> bool:
        followers = self._get(context)
        if followers is None:
            self._followers[context] = word
            return False
        if isinstance(followers, int):
            if by < 0:
                del self._followers[context]
                return False
            followers = self._followers[context] = Followers([followers], [1])
        return followers.change(word, by)

    def _get(self, context: Context) -> Followers | int | None:
        followers = self._followers.get(context)
        if followers is None and self.base is not None:
            words, counts = self.base.followers(context)
            if words:
                followers = self._followers[context] = Followers(words, counts)
        return followers

    def _levels(self) -> list[Level]:
        """Return the contexts in use at this position that have successors, starting with the shortest, of one word."""
        levels = []
        for length, context in enumerate(self._contexts(), 1):
            followers = self._get(context)
            if isinstance(followers, int):
                counts, total, kinds = {followers: 1}, 1, (1, 0, 0)
            elif followers is not None and followers.total:
                counts, total = followers.counts, followers.total
                kinds = followers.ones, followers.twos, len(counts) - followers.ones - followers.twos
            else:
                break  # longer ones were not seen either
            scale, left = self.smoothing.scale_and_left(length, total, kinds)
            levels.append(Level(counts, self.smoothing.discounts[length], scale, left))
        return levels

    def probability(self, word: int) -> float:
        """Return p of a word at this place."""
        if self.smoothing.exclusion:
            return float(self._excluding()[word])
        p, count = 1 / self.types, int(self.unigrams[word])
        if self._total:
            scale, left = self._unigram_scale()
            p = (count - self.smoothing.discounts[0][min(count, 3)]) / scale + left * p
        for level in self._levels():
            count = level.counts.get(word, 0)
            p = (count - level.discounts[min(count, 3)]) / level.scale + level.left * p
        return p

    def distribution(self) -> np.ndarray:
        """Return p (V,) of every word at this place."""
        if self.smoothing.exclusion:
            return self._excluding()
        return deque(self.by_length(), 1)[0]

    def by_length(self) -> Iterator[np.ndarray]:
        """Yield p (V,) of every word with contexts up to each length, from 0, that was seen; one array, which changes."""
        if self.smoothing.exclusion:
            raise UserError(
                "PPM with exclusion has no predictions by length; give it exclusion=false, or the mixture lengths=false"
            )
        p = np.full(self.types, 1 / self.types)
        if self._total:
            scale, left = self._unigram_scale()
            p = _discounted(self.unigrams, self.smoothing.discounts[0]) / scale + left * p
        yield p
        for level in self._levels():
            words, counts = _arrays(level.counts)
            p *= level.left
            p[words] += _discounted(counts, level.discounts) / level.scale
            yield p

    def _unigram_scale(self) -> tuple[float, float]:
        kinds = (*self._kinds, self._distinct - sum(self._kinds))
        return self.smoothing.scale_and_left(0, self._total, kinds)

    def _excluding(self) -> np.ndarray:
        """Return p (V,), each context distributed over the words that no longer context has."""
        p, rest = np.zeros(self.types), np.ones(self.types, bool)
        mass = 1.0
        for length, level in reversed([(0, None), *enumerate(self._levels(), 1)]):
            words, counts = _arrays(level.counts) if level is not None else _seen(self.unigrams)
            new = rest[words]
            words, counts = words[new], counts[new]
            if not len(words):
                continue
            rest[words] = False
            kinds = [int((counts == i).sum()) for i in (1, 2)]
            kinds.append(len(counts) - sum(kinds))
            scale, left = self.smoothing.scale_and_left(length, int(counts.sum()), kinds)
            share = _discounted(counts, self.smoothing.discounts[length]) / scale
            if not rest.any():  # nothing is left to escape to
                share, left = share / (1 - left), 0.0
            p[words] = mass * share
            mass *= left
        if (remaining := int(rest.sum())) > 0:
            p[rest] = mass / remaining
        return p


def _first_difference(one: np.ndarray, other: np.ndarray, start: int) -> int:
    """Return the first difference of two rows (N,) that are equal up to `start`; N if there is none."""
    step = 256  # other texts differ early, so most comparisons are short
    while start < len(one):
        differ = one[start : start + step] != other[start : start + step]
        if differ.any():
            return start + int(differ.argmax())
        start, step = start + step, 2 * step
    return len(one)


def _arrays(counts: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    size = len(counts)
    return np.fromiter(counts.keys(), np.int64, size), np.fromiter(counts.values(), np.int64, size)


def _seen(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    words = np.flatnonzero(counts)
    return words, counts[words]


def _discounted(counts: np.ndarray, discounts: Sequence[float]) -> np.ndarray:
    return counts - np.array(discounts)[np.minimum(counts, 3)]


class CountedTexts:
    """A few texts with counts; the one that needs the fewest steps is moved to a reader's position.

    Copies of a reader share it: restarting, or restoring a snapshot, costs only the steps to that position.
    """

    def __init__(self, types: int, longest: int, smoothing: Smoothing, base: NgramCounts | None = None) -> None:
        self.types, self.longest, self.smoothing, self.base = types, longest, smoothing, base
        self.most = 3
        self._texts: list[CountedText] = []
        """The one used last is the last."""

    def __deepcopy__(self, memo: dict[int, object]) -> "CountedTexts":
        return self  # copies of a reader share it, since its answers depend on the position alone

    def at(self, codes: np.ndarray) -> CountedText:
        """Return a text at the end of these codes (N,), valid until the next call."""
        steps = [len(text) + len(codes) - 2 * text.common(codes) for text in self._texts]
        nearest = int(np.argmin(steps)) if steps else 0
        if steps and steps[nearest] <= len(codes):
            text = self._texts.pop(nearest)
        else:
            text = CountedText(self.types, self.longest, self.smoothing, self.base)
            del self._texts[: max(0, len(self._texts) + 1 - self.most)]
        text.move(codes)
        self._texts.append(text)
        return text
