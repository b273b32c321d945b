"""Ids to text: a stream one id at a time, the words that small tokens are part of, and a split in words."""

import codecs
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, repeat, takewhile

import numpy as np

from backstory.data.dataset import Dataset, Split, lossless
from backstory.data.tokenizers.built_in import BUILT_IN, END, Tokenizer, tokenizer
from backstory.data.tokenizers.pieces import Pieces
from backstory.data.tokenizers.vocabulary import Vocabulary, build

STRETCH = 1 << 16
"""Ids that are read from disk at once."""


Part = tuple[str, int]
"""A text and the number of ids that make it, more than one for the bytes of a character."""


def decode_stream(vocabulary: Vocabulary, ids: Iterable[int]) -> Iterator[str]:
    """Yield the text that each id adds, and last what was held back: one string more than there are ids, some empty.

    Together they are `vocabulary.decode` of all ids. An id is taken only when its text is asked for. Bytes and pieces that
    end inside a character are held back until it is whole; at the end, what is left of one is U+FFFD.
    """
    return ("".join(text for text, _ in parts) for parts in _parts(vocabulary, ids))


def _parts(vocabulary: Vocabulary, ids: Iterable[int]) -> Iterator[Iterable[Part]]:
    """Yield the parts that are complete after each id, and last those of ids that were held back."""
    tokenizer = vocabulary.tokenizer
    tokens = (vocabulary.words[i] for i in ids)
    if isinstance(tokenizer, Pieces):
        return _pieces(tokens, tokenizer)
    if tokenizer.unit == "byte":
        return _bytes(tokens)
    return chain((((text, 1),) for text in BUILT_IN[tokenizer.name].texts(tokens)), [()])


def _bytes(tokens: Iterable[str]) -> Iterator[Iterable[Part]]:
    decoder, waiting = codecs.getincrementaldecoder("utf-8")("replace"), 0
    for token in tokens:
        waiting += 1
        text = decoder.decode(token.encode("latin-1"))
        if not text:
            yield ()
            continue
        held = len(decoder.getstate()[0])
        yield ((text, waiting - held),)
        waiting = held
    yield ((decoder.decode(b"", final=True), waiting),) if waiting else ()


_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""The piece that stands for a byte; a run of them is decoded as a whole or, if it is no UTF-8, not at all."""


def _pieces(tokens: Iterable[str], tokenizer: Pieces) -> Iterator[Iterable[Part]]:
    # How a piece is written may depend on the one before it (a space, a part of a character), so it is decoded after the
    # pieces that were shown last, whose text is then taken off.
    shown: list[str] = []
    waiting: list[str] = []
    known = ""
    for token in tokens:
        run: list[Part] = []
        if _BYTE.fullmatch(token):
            waiting.append(token)
            yield run
            continue
        if waiting and _BYTE.fullmatch(waiting[-1]):  # the run has ended: its text is its own, not this piece's
            run = _run(tokenizer.join(shown + waiting)[len(known) :], waiting)
            shown, waiting = waiting, []
            known = tokenizer.join(shown)
        waiting.append(token)
        whole = tokenizer.join(shown + waiting)
        if len(whole) <= len(known) or whole.endswith("\ufffd"):
            yield run
            continue
        yield [*run, (whole[len(known) :], len(waiting))]
        shown, waiting = waiting, []
        known = tokenizer.join(shown)
    yield _run(tokenizer.join(shown + waiting)[len(known) :], waiting) if waiting else ()


def _run(text: str, tokens: list[str]) -> list[Part]:
    """Return the text of tokens that end in a run of bytes, one character of these at a time."""
    run = bytes(int(token[3:5], 16) for token in reversed([*takewhile(_BYTE.fullmatch, reversed(tokens))]))
    try:
        characters = [(character, len(character.encode())) for character in run.decode()]
    except UnicodeDecodeError:
        characters = [("\ufffd", 1)] * len(run)
    written = "".join(character for character, _ in characters)
    if not text.endswith(written):  # a tokenizer that writes its bytes in some other way
        return [(text, len(tokens))]
    before = [(text.removesuffix(written), len(tokens) - len(run))] if len(tokens) > len(run) else []
    return before + characters


def word_parts(vocabulary: Vocabulary, ids: Iterable[int]) -> Iterator[tuple[str, int, int]]:
    """Yield the text of the ids of one document in parts, each with its number of ids and the number of its word.

    Together the texts are `vocabulary.decode` of all ids. Words are numbered from 0, as `word_numbers` says; white space is
    in one part with what comes after it.
    """
    begun, inside = 0, False
    blank, waiting = "", 0
    for text, count in chain.from_iterable(_parts(vocabulary, ids)):
        number = None
        for character in text:
            if character != "\n" and character.isspace():
                inside = False
                continue
            begun += not (inside and character != "\n")
            inside = character != "\n"
            number = begun - 1 if number is None else number
        if number is None:
            blank, waiting = blank + text, waiting + count
            continue
        yield blank + text, waiting + count, number
        blank, waiting = "", 0
    if waiting:
        yield blank, waiting, begun


def word_numbers(vocabulary: Vocabulary, split: Split) -> Iterator[int | None]:
    """Yield the number, from 0, of the word that each token of a split is part of; None if tokens do not hold all of the text.

    Words are those of the tokenizer `words`: what stands between white space, and the end of every line (so `Split.words` of
    them, but that the end of a last line without a line break is no token's). A token belongs to the word of its
    first character that is a line break or no white space; a space belongs to the word after it.
    """
    if not lossless(vocabulary, split):
        known = vocabulary.tokenizer.name == "words"
        yield from (i if known else None for i in range(len(split.ids)))
        return
    first = 0
    for start, end in split.spans():
        ending, number = "", -1
        for text, count, number in word_parts(vocabulary, _each(split.ids, start, end)):
            yield from repeat(first + number, count)
            ending = text
        # The last token may hold more words than the one it belongs to: several line ends.
        first += number + max(1, len(ending.replace("\n", f" {END} ").split()))


def _each(ids: np.ndarray, start: int, end: int) -> Iterator[int]:
    """Yield ids that may be on disk, a block at a time."""
    for first in range(start, end, STRETCH):
        yield from ids[first : min(first + STRETCH, end)].tolist()


def in_words(dataset: Dataset, split: str) -> Dataset:
    """Return one split of a corpus in words, numbered as by `word_numbers`, with the words of it and of the training text.

    The counts of its vocabulary are those of the training text, and 0 where there is none. The tokens must hold all of the
    text (`Dataset.lossless`).
    """
    words, known = tokenizer("words"), dataset.vocabulary
    parts = list(_documents(known, dataset.splits[split], words))
    counts: Counter[str] = Counter()
    if "train" in dataset.splits:
        for part in parts if split == "train" else _documents(known, dataset.splits["train"], words):
            counts.update(part)
    counts.update(dict.fromkeys((word for part in parts for word in part), 0))
    vocabulary = build(counts, words, known.lowercase, minimum_count=0)
    ids = np.array([vocabulary.index[word] for part in parts for word in part], np.int32)
    begins = np.cumsum([0, *map(len, parts[:-1])])
    inwards = replace(dataset.splits[split], ids=ids, documents=begins, words=len(ids))
    fingerprint = hashlib.sha256(f"{dataset.fingerprint} in words".encode()).hexdigest()
    return Dataset(dataset.corpus, vocabulary, {split: inwards}, fingerprint, dataset.provenance)


def _documents(vocabulary: Vocabulary, split: Split, words: Tokenizer) -> Iterator[list[str]]:
    """Yield the words of each document."""
    for start, end in split.spans():
        text = vocabulary.decode(split.ids[start:end])
        tokens = words.split(text)
        # The end of a last line without a line break is no token's, unless white space is left over after its last word.
        yield tokens if text[-1:].isspace() else tokens[:-1]
