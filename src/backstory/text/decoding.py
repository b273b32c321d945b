"""Ids to text one at a time, as a stream that is being made is shown, and the words that small tokens are part of."""

import codecs
import re
from collections.abc import Iterable, Iterator

import numpy as np

from backstory.text.dataset import Split, lossless
from backstory.text.pieces import Pieces
from backstory.text.tokenizers import END
from backstory.text.vocabulary import Vocabulary

STRETCH = 1 << 16
"""Ids that are fetched from disk at once."""


def decode_stream(vocabulary: Vocabulary, ids: Iterable[int]) -> Iterator[str]:
    """The text that each id adds, and last what was held back: one string more than there are ids, some of them empty.

    Together they are `vocabulary.decode` of all ids. An id is taken only when its text is asked for. Bytes and pieces that
    end inside a character are held back until it is whole; at the end, what is left of one is U+FFFD.
    """
    tokenizer = vocabulary.tokenizer
    tokens = (vocabulary.words[i] for i in ids)
    if isinstance(tokenizer, Pieces):
        return _pieces(tokens, tokenizer)
    if tokenizer.unit == "byte":
        return _bytes(tokens)
    if tokenizer.unit == "character":
        return _characters(tokens)
    return _words(tokens) if tokenizer.name == "words" else _regex(tokens)


def _words(tokens: Iterable[str]) -> Iterator[str]:
    before = "\n"
    for token in tokens:
        text = "\n" if token == END else token
        yield text if "\n" in (before, text) else f" {text}"
        before = text
    yield ""


def _regex(tokens: Iterable[str]) -> Iterator[str]:
    before = "\n\n"
    for token in tokens:
        text = "\n\n" if token == END else token
        joined = "\n\n" in (before, text) or text[0] in ",.;:!?)]}" or before[-1] in "([{"
        yield text if joined else f" {text}"
        before = text
    yield ""


def _characters(tokens: Iterable[str]) -> Iterator[str]:
    yield from tokens
    yield ""


def _bytes(tokens: Iterable[str]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        yield decoder.decode(token.encode("latin-1"))
    yield decoder.decode(b"", final=True)


_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""The piece that stands for a byte; a run of them is decoded as a whole or, if it is no UTF-8, not at all."""


def _pieces(tokens: Iterable[str], tokenizer: Pieces) -> Iterator[str]:
    # How a piece is written may depend on the one before it (a space, a part of a character), so it is decoded after the
    # pieces that were shown last, whose text is then taken off.
    shown: list[str] = []
    waiting: list[str] = []
    known = ""
    for token in tokens:
        waiting.append(token)
        whole = tokenizer.join(shown + waiting)
        if len(whole) <= len(known) or whole.endswith("\ufffd") or _BYTE.fullmatch(token):
            yield ""
            continue
        yield whole[len(known) :]
        shown, waiting = waiting, []
        known = tokenizer.join(shown)
    yield tokenizer.join(shown + waiting)[len(known) :]


def word_numbers(vocabulary: Vocabulary, split: Split) -> Iterator[int | None]:
    """The number, from 0, of the word that each token of a split is part of; None where tokens do not hold all of a text.

    Words are those of the tokenizer `words`: what stands between white space, and the end of every line (so `Split.words` of
    them, but that the end of a last line without a line break is no token's). A token belongs to the word of its
    first character that is a line break or no white space; a space belongs to the word after it.
    """
    if not lossless(vocabulary, split):
        known = vocabulary.tokenizer.name == "words"
        yield from (i if known else None for i in range(len(split.ids)))
        return
    first = 0
    ends = [*split.documents[1:].tolist(), len(split.ids)]
    for start, end in zip(split.documents.tolist(), ends, strict=True):
        numbers = _numbers(decode_stream(vocabulary, _each(split.ids, start, end)), end - start)
        last = first - 1
        for number in numbers:
            last = first + number
            yield last
        first = last + 1


def _each(ids: np.ndarray, start: int, end: int) -> Iterator[int]:
    """Ids that may lie on disk, a stretch at a time."""
    for first in range(start, end, STRETCH):
        yield from ids[first : min(first + STRETCH, end)].tolist()


def _numbers(texts: Iterator[str], count: int) -> Iterator[int]:
    """The word of each of `count` tokens of a document, given the text that each adds."""
    begun, inside, waiting = 0, False, 0
    for index, text in enumerate(texts):
        waiting += index < count
        for character in text:
            if character != "\n" and character.isspace():
                inside = False
                continue
            begun += not (inside and character != "\n")
            inside = character != "\n"
            yield from [begun - 1] * waiting
            waiting = 0
    yield from [begun] * waiting
