"""Passages to explain: the tokens to read, their words as they are shown, and what an explanation is made of."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from backstory.data import Boundaries, Vocabulary, word_parts
from backstory.data.tokenizers.built_in import END
from backstory.readers import Reader
from backstory.results.passage import Layer, Word

Progress = Callable[[int, int], None]
MARK = "¶"
"""Sign for the token at the end of a line or paragraph."""
BLANK = "␣"
"""Sign for a word or a token of white space alone."""
LONGEST = 32
"""Characters of a word made of smaller tokens at most: not every script puts spaces between words."""


@dataclass(frozen=True)
class Span:
    """Word of a text: tokens from `start` up to `end`."""

    word: Word
    start: int
    end: int


@dataclass(frozen=True)
class PassageTask:
    """Input of an explanation: a reader, the tokens to read, and the words among them that are shown."""

    reader: Reader
    vocabulary: Vocabulary
    ids: np.ndarray
    """(N,) tokens of the context and of the passage after it."""
    start: int
    """Position in `ids` at which the passage begins."""
    spans: Sequence[Span]
    """Words of the passage; their positions count from `start`."""
    top: int
    """The most candidates of a word."""
    against: Reader | None = None
    """Another reader over the same vocabulary."""
    against_name: str = ""
    chosen: int | None = None
    """Number of the word that is shown first; None leaves it to the explanation."""
    boundaries: Boundaries | None = None
    """Which tokens begin words; None where a word is a token, or its score the plain sum over its tokens."""

    @property
    def starts(self) -> np.ndarray:
        """Return the first token of each word of the passage (words,)."""
        return np.array([span.start for span in self.spans])

    @property
    def tokens(self) -> int:
        """Number of tokens of the passage."""
        return len(self.ids) - self.start

    @cached_property
    def uncertain(self) -> np.ndarray:
        """Return where a word's score depends on the probability that a word begins (tokens + 1,), bool."""
        if self.boundaries is None:
            return np.zeros(self.tokens + 1, bool)
        return self.boundaries.uncertain(np.asarray(self.ids), self.start + self.starts)[self.start :]


@dataclass(frozen=True)
class Explanation:
    """Figures of an explanation, layers of its passage, and a note on them."""

    figures: dict[str, Any]
    layers: tuple[Layer, ...]
    note: str = ""
    words: tuple[Word, ...] = ()
    """Words that the layers are of, if words before the passage are shown too."""
    chosen: int | None = None
    """Number of the word that is shown first."""


def shown(token: str) -> str:
    """Return a token as it is shown: one that ends a line, or is white space alone, as a visible sign."""
    if token in (END, "\n"):
        return MARK
    return BLANK if token.isspace() else token


def words_of(vocabulary: Vocabulary, ids: np.ndarray, most: int) -> list[Span]:
    """Return the first `most` words of the ids (N,): a token each, or, of smaller units, a word as `word_parts` numbers them.

    Every token belongs to a word, and the words follow each other without a gap.
    """
    made = _whole(vocabulary, ids[:most]) if vocabulary.tokenizer.unit == "word" else _folded(vocabulary, ids)
    return list(islice(made, most))


def led_by(vocabulary: Vocabulary, before: np.ndarray, first: int, passage: Sequence[Span]) -> list[Span]:
    """Return the words of the ids (N,) before a passage, whose first id is `first`, and then those of the passage.

    Positions count from the passage, so they are below zero before it.
    """
    lead = [
        Span(span.word, span.start - len(before), span.end - len(before))
        for span in words_of(vocabulary, before, len(before))
    ]
    if not lead:
        return list(passage)
    if vocabulary.tokenizer.unit != "word":
        if lead[-1].word.text != BLANK:
            return [*lead, *passage]
        # White space that was cut off from the word it comes before.
        cut, word = lead.pop().word.before, passage[0].word
        return [*lead, replace(passage[0], word=Word(word.text, cut + word.before)), *passage[1:]]
    # White space is no part of these tokens: what comes before the first of the passage depends on the last before it.
    _, met = _whole(vocabulary, np.array([before[-1], first]))
    return [*lead, replace(passage[0], word=met.word), *passage[1:]]


def _whole(vocabulary: Vocabulary, ids: np.ndarray) -> Iterator[Span]:
    tokens = vocabulary.tokens(ids)
    text, place = vocabulary.tokenizer.join(tokens), 0
    for i, token in enumerate(tokens):
        if token == END:  # in the text only white space stands for it, which comes before the next word
            yield Span(Word(MARK), i, i + 1)
            continue
        start = text.index(token, place)
        yield Span(Word(token, text[place:start]), i, i + 1)
        place = start + len(token)


def _folded(vocabulary: Vocabulary, ids: np.ndarray) -> Iterator[Span]:
    text, start, end, last = "", 0, 0, None
    for piece, tokens, number in word_parts(vocabulary, ids.tolist()):
        # A line end is a word there, and here the white space before the next.
        word = len(text.strip())
        if word and (number != last or word >= LONGEST):
            yield Span(_word(text), start, end)
            text, start = "", end
        text, end, last = text + piece, end + tokens, number
    if end:
        yield Span(_word(text), start, end)


def _word(text: str) -> Word:
    """Return a word without the white space around it; of white space alone, a sign."""
    inside = text.strip()
    return Word(inside or BLANK, text[: len(text) - len(text.lstrip())])
