"""Tokens as words to show: which tokens make up a word, and the white space before it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from backstory.data import Vocabulary, word_parts
from backstory.data.tokenizers.built_in import END
from backstory.reports.passage import Word

MARK = "¶"
"""How the token at the end of a line or paragraph is shown."""
BLANK = "␣"
"""How a word or a token of white space alone is shown."""
LONGEST = 32
"""Characters after which a word made of smaller tokens ends in any case: not every script puts spaces between words."""


@dataclass(frozen=True)
class Span:
    """A word of the text: tokens from `start` up to `end` of the ids it was made from."""

    word: Word
    start: int
    end: int


def shown(token: str) -> str:
    """A token as it is shown: one that ends a line, or is white space alone, as a sign that can be seen."""
    if token in (END, "\n"):
        return MARK
    return BLANK if token.isspace() else token


def spans(vocabulary: Vocabulary, ids: np.ndarray, most: int) -> list[Span]:
    """The first `most` words of the ids (N,): a token each, or, of smaller units, a word as `word_parts` numbers them.

    Every token belongs to a word, and the words follow each other without a gap.
    """
    made = _whole(vocabulary, ids[:most]) if vocabulary.tokenizer.unit == "word" else _folded(vocabulary, ids)
    return list(islice(made, most))


def led_by(vocabulary: Vocabulary, before: np.ndarray, first: int, passage: Sequence[Span]) -> list[Span]:
    """The words of the ids (N,) before a passage, whose first id is `first`, and then those of the passage.

    Places count from the passage, so they are below zero before it.
    """
    lead = [
        Span(span.word, span.start - len(before), span.end - len(before))
        for span in spans(vocabulary, before, len(before))
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
    """A word without the white space around it; of white space alone, a mark."""
    inside = text.strip()
    return Word(inside or BLANK, text[: len(text) - len(text.lstrip())])
