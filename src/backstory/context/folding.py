"""Sub-word pieces folded into words: a text as words of pieces, and a scorer whose targets and contexts are such words.

A word's score is the sum over its pieces, each after the context and the pieces before it, corrected for where it begins and
ends (`backstory.data.tokenizers.boundaries`). Together the pieces of the words are the text's own, so a context that nothing
was done to is read exactly as it stands.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from backstory.config import UserError
from backstory.config.arguments import checked
from backstory.context.scorer import NOTHING, Prefixes, PrefixScorer, Scorer
from backstory.data import Boundaries, Split, Vocabulary, WordScore, lossless, word_numbers


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
    boundaries: Boundaries | None = None
    """Which pieces begin words; None for words whose score is the plain sum over their pieces."""

    @property
    def word_score(self) -> WordScore:
        """Name of the words' score in results."""
        return "sum" if self.boundaries is None else "corrected"

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return values (..., N) of tokens summed over the pieces of every word (..., W)."""
        return np.add.reduceat(values, self.starts, -1)

    def longer(self, first: np.ndarray, positions: np.ndarray, limit: int | None) -> int:
        """Return how many words at these positions are read after more than `limit` pieces, from the words at `first`."""
        if limit is None:
            return 0
        ends = np.append(self.starts, self.tokens)[positions + 1]
        return int((ends - 1 - self.starts[first] > limit).sum())


@checked()
def fold(
    vocabulary: Vocabulary,
    split: Split,
    known: dict[tuple[int, ...], int] | None = None,
    word_score: WordScore = "corrected",
) -> Folded | None:
    """Return the words of a split, as `word_numbers` counts them; None if its tokens are no pieces or lose some text.

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
    pieces = [np.array(word, np.int64) for word in known]
    scored = vocabulary.boundaries if word_score == "corrected" else None
    return Folded(ids, starts, numbers[starts], pieces, documents, start, len(split.ids), scored)


class WordScorer:
    """Scores words of pieces with a scorer of pieces.

    A word of k pieces costs one reading of its context and itself, k lines of logits and, corrected, two whole distributions:
    before its first piece and after its last.
    """

    def __init__(
        self,
        scorer: Scorer,
        pieces: Sequence[np.ndarray],
        maximum_length: int | None = None,
        boundaries: Boundaries | None = None,
    ) -> None:
        """`pieces` of each word by its id; of contexts longer than `maximum_length` pieces the nearest are read.

        With `boundaries` scores are corrected, else they are plain sums. Raises UserError for a scorer that cannot do that.
        """
        if boundaries is not None and not isinstance(scorer, PrefixScorer):
            raise UserError(
                f"a {type(scorer).__name__} gives no mass of the pieces that begin a word; give it `score_prefixes`, or take "
                "the word score sum"
            )
        self.scorer, self.pieces, self.maximum_length = scorer, pieces, maximum_length
        self.boundaries = boundaries

    def score(
        self, contexts: Sequence[np.ndarray], targets: np.ndarray, progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        texts: list[np.ndarray] = []
        rows: list[tuple[int, int, int, int, int]] = []
        for i, (context, target) in enumerate(zip(contexts, targets, strict=True)):
            read = np.concatenate([*(self.pieces[int(w)] for w in context), self.pieces[int(target)]])
            first, limit, last_begin = len(read) - len(self.pieces[int(target)]), self.maximum_length or len(read), -1
            signs = self._signs(read, first)
            for end in range(first, len(read) + (len(read) in signs)):
                begin = max(0, end - limit)
                if begin != last_begin:  # where the window has moved on, the text is another
                    texts.append(read[:0])
                    last_begin = begin
                texts[-1] = read[begin:end]
                piece = int(read[end]) if end < len(read) else NOTHING
                rows.append((len(texts) - 1, end - begin, piece, i, signs.get(end, 0)))
        of, lengths, wanted, owner, sign = np.array(rows, np.int64).reshape(-1, 5).T
        members = np.empty(0, np.int64) if self.boundaries is None else self.boundaries.beginning
        prefixes = Prefixes(texts, of, lengths, wanted, sign != 0, members)
        advance = None if progress is None else self._in_words(prefixes, contexts, progress)
        if isinstance(self.scorer, PrefixScorer):
            scores, masses = self.scorer.score_prefixes(prefixes, advance)
            scores = np.where(np.isinf(scores), scores, scores + sign * masses)
        else:
            scores = self.scorer.score([texts[t][:n] for t, n in zip(of, lengths, strict=True)], wanted, advance)
        return np.bincount(owner, scores, len(contexts))

    def _signs(self, read: np.ndarray, first: int) -> dict[int, int]:
        """Return where the mass of the pieces that begin a word is taken off or added: before and after the word."""
        if self.boundaries is None:
            return {}
        uncertain = self.boundaries.uncertain(read, np.array([first]))
        return {place: sign for place, sign in ((first, -1), (len(read), 1)) if uncertain[place]}

    def _in_words(
        self, prefixes: Prefixes, contexts: Sequence[np.ndarray], progress: Callable[[int], None]
    ) -> Callable[[int], None]:
        """Return a function that takes progress in pieces and passes it on in words of the contexts."""
        once = isinstance(self.scorer, PrefixScorer)
        total = sum(map(len, prefixes.texts)) if once else int(prefixes.lengths.sum())
        words, done = sum(map(len, contexts)), 0

        def advance(pieces: int) -> None:
            nonlocal done
            before, done = done * words // total, done + pieces
            progress(done * words // total - before)

        return advance
