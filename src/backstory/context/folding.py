"""Sub-word pieces folded into words: a text as words of pieces, and a scorer whose targets and contexts are such words.

A word's score is the sum over its pieces, each after the context and the pieces before it. Together the pieces of the words are
the text's own, so a context that nothing was done to is read exactly as it stands.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from backstory.context.scorer import Scorer
from backstory.text import Split, Vocabulary, lossless, word_numbers


@dataclass(frozen=True, eq=False)
class Folded:
    """A text of pieces as words."""

    ids: np.ndarray
    """(W,) which word each is."""
    starts: np.ndarray
    """(W,) the token that each begins with."""
    places: np.ndarray
    """(W,) the number of each in the text in words, as `word_numbers` counts; several empty lines that are one piece are one
    word here."""
    pieces: list[np.ndarray]
    """The pieces of each kind of word, by its id."""
    documents: np.ndarray
    """(documents,) the word that each begins with."""
    start: int
    """The word that is read before the first of a text: the token that is, by itself."""
    tokens: int
    """N, of the text."""

    def sums(self, values: np.ndarray) -> np.ndarray:
        """A figure of every token (..., N), summed over the pieces of every word (..., W)."""
        return np.add.reduceat(values, self.starts, -1)

    def longer(self, first: np.ndarray, positions: np.ndarray, limit: int | None) -> int:
        """How many of the words at these positions are read after more than `limit` pieces, from the words at `first` on."""
        if limit is None:
            return 0
        ends = np.append(self.starts, self.tokens)[positions + 1]
        return int((ends - 1 - self.starts[first] > limit).sum())


def fold(vocabulary: Vocabulary, split: Split, known: dict[tuple[int, ...], int] | None = None) -> Folded | None:
    """The words of a split, as `word_numbers` counts them; None where its tokens are no pieces, or do not hold all of the text.

    `known` holds the ids of words by their pieces from one split to the next, and is added to.
    Words are the same where their pieces are, with the space before them; several empty lines that are one piece are one word.
    """
    if vocabulary.tokenizer.unit != "piece" or not lossless(vocabulary, split):
        return None
    numbers = np.fromiter((n or 0 for n in word_numbers(vocabulary, split)), np.int64, len(split.ids))
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    known = {} if known is None else known
    cut = np.split(np.asarray(split.ids, np.int64), starts[1:])
    ids = np.array([known.setdefault(tuple(word.tolist()), len(known)) for word in cut], np.int64)
    start = known.setdefault((vocabulary.start,), len(known))
    documents = np.searchsorted(starts, split.documents)
    return Folded(
        ids, starts, numbers[starts], [np.array(word, np.int64) for word in known], documents, start, len(split.ids)
    )


class WordScorer:
    """Scores words of pieces with a scorer of pieces."""

    def __init__(self, scorer: Scorer, pieces: Sequence[np.ndarray], maximum_length: int | None = None) -> None:
        """`pieces` of each word by its id; of contexts longer than `maximum_length` pieces the nearest are read."""
        self.scorer, self.pieces, self.maximum_length = scorer, pieces, maximum_length

    def score(
        self, contexts: Sequence[np.ndarray], targets: np.ndarray, progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        before, wanted, owner = [], [], []
        for i, (context, target) in enumerate(zip(contexts, targets, strict=True)):
            word = self.pieces[int(target)]
            read = np.concatenate([*(self.pieces[int(w)] for w in context), word[:-1]])
            first, limit = len(read) - len(word) + 1, self.maximum_length or len(read)
            for place, piece in enumerate(word):
                end = first + place
                before.append(read[max(0, end - limit) : end])
                wanted.append(piece)
                owner.append(i)
        advance = None if progress is None else self._in_words(before, contexts, progress)
        scores = self.scorer.score(before, np.array(wanted, np.int64), advance)
        return np.bincount(np.array(owner, np.int64), scores, len(contexts))

    @staticmethod
    def _in_words(
        before: Sequence[np.ndarray], contexts: Sequence[np.ndarray], progress: Callable[[int], None]
    ) -> Callable[[int], None]:
        """Takes progress in pieces and tells of it in words of the contexts, which the caller counts."""
        total, words, done = sum(map(len, before)), sum(map(len, contexts)), 0

        def advance(pieces: int) -> None:
            nonlocal done
            told, done = done * words // total, done + pieces
            progress(done * words // total - told)

        return advance
