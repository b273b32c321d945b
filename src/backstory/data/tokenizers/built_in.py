"""Tokenizers: text to tokens and back, whole or in blocks, so that a large corpus is never in memory."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, Protocol

from backstory.config.arguments import checked
from backstory.config.errors import UserError, nearest
from backstory.data.tokenizers import pieces

Unit = Literal["word", "character", "byte", "piece"]

END = "<eos>"
"""The token at the end of a line (words) or of a paragraph (regex)."""
UNKNOWN = "<unk>"
"""The token that stands for every word outside the vocabulary."""
BEGIN = "<bos>"
"""The token at the beginning of a line (marked-characters), or of a synthetic document."""


class Tokenizer(Protocol):
    """Rule that turns text into tokens.

    `name` is `words`, ... or the path of a tokenizer.json; `unit` says what one token is. `lossless` is True if the tokens hold
    all of the text, so that bits per character and per byte mean something.
    """

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> Unit: ...
    @property
    def lossless(self) -> bool: ...

    def split(self, text: str) -> list[str]:
        """Return the tokens of a text."""
        ...

    def stream(self, blocks: Iterable[str]) -> Iterator[list[str]]:
        """Yield the tokens of a text in blocks, cut anywhere: the same tokens as `split` of the whole."""
        ...

    def join(self, tokens: list[str]) -> str:
        """Return the text of tokens: for display, or the original text if the tokenizer is lossless."""
        ...


@dataclass(frozen=True)
class Streamed:
    """A built-in tokenizer, defined by its `stream` and `join`."""

    name: str
    unit: Unit
    lossless: bool
    _stream: Callable[[Iterable[str]], Iterator[list[str]]]
    _join: Callable[[list[str]], str]

    def split(self, text: str) -> list[str]:
        """Return the tokens of a text. Raises UserError for text that is not Unicode (lone surrogates) read as bytes."""
        return [token for tokens in self._stream([text]) for token in tokens]

    def stream(self, blocks: Iterable[str]) -> Iterator[list[str]]:
        """Yield the tokens of a text in blocks, cut anywhere: the same tokens as `split` of the whole."""
        return self._stream(blocks)

    def join(self, tokens: list[str]) -> str:
        """Return the text of tokens: for display, or the original text if the tokenizer is lossless."""
        return self._join(tokens)


# --- words: split at white space, <eos> after every line (the convention of the Penn Treebank and WikiText files) ---


def _words(blocks: Iterable[str]) -> Iterator[list[str]]:
    rest, last = "", "\n"
    for block in blocks:
        if not block:
            continue
        text, last = rest + block, block[-1]
        # A word may continue in the next block, so the last one waits until white space ends it.
        rest = "" if last.isspace() else text.rsplit(None, 1)[-1]
        yield text[: len(text) - len(rest)].replace("\n", f" {END} ").split()
    if last != "\n":
        yield [rest, END] if rest else [END]


def _join_words(tokens: list[str]) -> str:
    text = " ".join("\n" if token == END else token for token in tokens)
    return text.replace(" \n", "\n").replace("\n ", "\n")


# --- regex: free text; words, numbers and single punctuation marks, <eos> after every paragraph ---

# A break of paragraph is a blank line. A single line end inside a paragraph is white space: free text is often wrapped.
_TOKEN = re.compile(r"\n[^\S\n]*\n\s*|<unk>|\d+(?:[.,]\d+)*(?!\w)|\w+(?:['’-]\w+)*|\S")


def _regex(blocks: Iterable[str]) -> Iterator[list[str]]:
    rest, ended = "", True  # ended: True after an <eos>, so that leading and trailing blank lines add none
    for block in blocks:
        text = rest + block
        # Tokens hold no white space, so what may still grow is the last word, or the white space after it.
        filled = text.rstrip()
        if not filled:
            rest = text
            continue
        start = len(filled) - (len(filled.rsplit(None, 1)[-1]) if filled == text else 0)
        rest = text[start:]
        tokens = _paragraphs(text[:start], ended)
        ended = tokens[-1] == END if tokens else ended
        yield tokens
    tokens = _paragraphs(rest.rstrip(), ended)
    if tokens or not ended:
        yield [*tokens, END]


def _paragraphs(text: str, ended: bool) -> list[str]:
    tokens = [END if token[0] == "\n" else token for token in _TOKEN.findall(text)]
    return tokens[1:] if ended and tokens and tokens[0] == END else tokens


def _join_regex(tokens: list[str]) -> str:
    text = " ".join("\n\n" if token == END else token for token in tokens)
    text = re.sub(r" ?\n\n ?", "\n\n", text)
    return re.sub(r"([(\[{]) ", r"\1", re.sub(r" ([,.;:!?)\]}])", r"\1", text))


# --- characters and bytes ---


def _characters(blocks: Iterable[str]) -> Iterator[list[str]]:
    return (list(block) for block in blocks)


def _bytes(blocks: Iterable[str]) -> Iterator[list[str]]:
    """Write a byte as the latin-1 character of its number; bytes that are not UTF-8 are surrogate escapes (PEP 383)."""
    for block in blocks:
        try:
            yield list(block.encode("utf-8", "surrogateescape").decode("latin-1"))
        except UnicodeEncodeError:
            raise UserError("the text holds a lone surrogate, which has no bytes; remove it") from None


def _join_bytes(tokens: list[str]) -> str:
    # Bytes that are cut inside a character, or are no text, become U+FFFD.
    return "".join(tokens).encode("latin-1").decode("utf-8", "replace")


# --- marked characters: every line between two marks, a written `<unk>` as one symbol ---

_SYMBOL = re.compile(f"{UNKNOWN}|[\\s\\S]")


def _marked(blocks: Iterable[str]) -> Iterator[list[str]]:
    rest, inside = "", False
    for block in chain(blocks, [None]):
        text = rest + (block or "")
        # A possible beginning of <unk> waits for the next block.
        held = (
            max((n for n in range(1, len(UNKNOWN)) if text.endswith(UNKNOWN[:n])), default=0)
            if block is not None
            else 0
        )
        text, rest = text[: len(text) - held], text[len(text) - held :]
        tokens = []
        for symbol in _SYMBOL.findall(text):
            tokens += [symbol] if inside else [BEGIN, symbol]
            inside = symbol != "\n"
        yield [END if token == "\n" else token for token in tokens]


def _join_marked(tokens: list[str]) -> str:
    return "".join({BEGIN: "", END: "\n"}.get(token, token) for token in tokens)


BUILT_IN: dict[str, Streamed] = {
    t.name: t
    for t in (
        Streamed("words", "word", False, _words, _join_words),
        Streamed("regex", "word", False, _regex, _join_regex),
        Streamed("characters", "character", True, _characters, "".join),
        Streamed("bytes", "byte", True, _bytes, _join_bytes),
        # Their count is of symbols, as published, not of characters.
        Streamed("marked-characters", "character", False, _marked, _join_marked),
    )
}
"""Tokenizers by name."""


@checked()
def tokenizer(name: str, sample: str = "") -> Tokenizer:
    """Return the tokenizer of a name, or the Hugging Face tokenizer in a file (tokenizer.json).

    A file is tried first, also on a sample of the text. Raises UserError for an unknown name, a file that does not exist or
    holds no usable tokenizer, and if the package `tokenizers` is missing.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    path = Path(os.path.expanduser(name))
    if name and os.path.isfile(path):
        return pieces.from_file(path, sample)
    known = ", ".join(BUILT_IN)
    if path.suffix or os.sep in name:
        raise UserError(f"there is no tokenizer file {name!r}; give the path of a tokenizer.json or one of {known}")
    raise UserError(f"unknown tokenizer {name!r}{nearest(name, BUILT_IN)}; use {known} or a tokenizer.json")
