"""Tokenizers: text to tokens and back, whole or in blocks, so that a large corpus is never in memory."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from backstory.data.tokenizers import pieces
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError, nearest
from backstory.utils.small_file import user_path

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

    def stream(self, blocks: Iterable[str], /) -> Iterator[list[str]]:
        """Yield the tokens of a text in blocks, cut anywhere: the same tokens as `split` of the whole."""
        ...

    def join(self, tokens: list[str]) -> str:
        """Return the text of tokens: for display, or the original text if the tokenizer is lossless."""
        ...


@dataclass(frozen=True)
class BuiltIn:
    """A tokenizer of this module, defined by two functions: text in blocks to tokens, and tokens to the text that each adds."""

    name: str
    unit: Unit
    lossless: bool
    stream: Callable[[Iterable[str]], Iterator[list[str]]]
    texts: Callable[[Iterable[str]], Iterable[str]]

    def split(self, text: str) -> list[str]:
        """Return the tokens of a text. Raises UserError for text that is not Unicode (lone surrogates) read as bytes."""
        return [token for tokens in self.stream([text]) for token in tokens]

    def join(self, tokens: list[str]) -> str:
        """Return the text of tokens: for display, or the original text if the tokenizer is lossless."""
        return "".join(self.texts(tokens))


def _complete(blocks: Iterable[str], unfinished: Callable[[str], int]) -> Iterator[str]:
    """Yield a text in blocks that end between tokens: `unfinished` counts the last characters, which may belong to more."""
    rest = ""
    for block in blocks:
        text = rest + block
        end = len(text) - unfinished(text)
        rest = text[end:]
        if end:
            yield text[:end]
    if rest:
        yield rest


# --- words: split at white space, <eos> after every line (the convention of the Penn Treebank and WikiText files) ---


def _words(blocks: Iterable[str]) -> Iterator[list[str]]:
    last = "\n"
    for text in _complete(blocks, _last_word):
        last = text[-1]
        yield text.replace("\n", f" {END} ").split()
    if last != "\n":
        yield [END]


def _last_word(text: str) -> int:
    return 0 if not text or text[-1].isspace() else len(text.rsplit(None, 1)[-1])


def _word_texts(tokens: Iterable[str]) -> Iterator[str]:
    before = "\n"
    for token in tokens:
        text = "\n" if token == END else token
        yield text if "\n" in (before, text) else f" {text}"
        before = text


# --- regex: free text; words, numbers and single punctuation marks, <eos> after every paragraph ---

# A break of paragraph is a blank line. A single line end inside a paragraph is white space: free text is often wrapped.
_TOKEN = re.compile(r"\n[^\S\n]*\n\s*|<unk>|\d+(?:[.,]\d+)*(?!\w)|\w+(?:['’-]\w+)*|\S")


def _regex(blocks: Iterable[str]) -> Iterator[list[str]]:
    ended = True  # True after an <eos>, so that leading and trailing blank lines add none
    for text in _complete(blocks, _last_word_or_space):
        tokens = [END if token[0] == "\n" else token for token in _TOKEN.findall(text)]
        if ended and tokens and tokens[0] == END:
            del tokens[0]
        ended = tokens[-1] == END if tokens else ended
        yield tokens
    if not ended:
        yield [END]


def _last_word_or_space(text: str) -> int:
    return len(text) - len(text.rstrip()) or _last_word(text)


def _regex_texts(tokens: Iterable[str]) -> Iterator[str]:
    before = "\n\n"
    for token in tokens:
        text = "\n\n" if token == END else token
        joined = "\n\n" in (before, text) or text[0] in ",.;:!?)]}" or before[-1] in "([{"
        yield text if joined else f" {text}"
        before = text


# --- bytes ---


def _bytes(blocks: Iterable[str]) -> Iterator[list[str]]:
    """Write a byte as the latin-1 character of its number; bytes that are not UTF-8 are surrogate escapes (PEP 383)."""
    for block in blocks:
        try:
            yield list(block.encode("utf-8", "surrogateescape").decode("latin-1"))
        except UnicodeEncodeError:
            raise UserError("the text holds a lone surrogate, which UTF-8 cannot encode; remove it") from None


def _byte_texts(tokens: Iterable[str]) -> Iterator[str]:
    # Bytes that are cut inside a character, or are no text, become U+FFFD.
    yield "".join(tokens).encode("latin-1").decode("utf-8", "replace")


# --- marked characters: every line between two marks, a written `<unk>` as one symbol ---

_SYMBOL = re.compile(f"{UNKNOWN}|[\\s\\S]")


def _marked(blocks: Iterable[str]) -> Iterator[list[str]]:
    inside = False
    for text in _complete(blocks, _part_of_unknown):
        tokens = []
        for symbol in _SYMBOL.findall(text):
            tokens += [symbol] if inside else [BEGIN, symbol]
            inside = symbol != "\n"
        yield [END if token == "\n" else token for token in tokens]


def _part_of_unknown(text: str) -> int:
    return max((n for n in range(1, len(UNKNOWN)) if text.endswith(UNKNOWN[:n])), default=0)


def _marked_texts(tokens: Iterable[str]) -> Iterator[str]:
    return ({BEGIN: "", END: "\n"}.get(token, token) for token in tokens)


BUILT_IN: dict[str, BuiltIn] = {
    t.name: t
    for t in (
        BuiltIn("words", "word", False, _words, _word_texts),
        BuiltIn("regex", "word", False, _regex, _regex_texts),
        BuiltIn("characters", "character", True, lambda blocks: map(list, blocks), iter),
        BuiltIn("bytes", "byte", True, _bytes, _byte_texts),
        # Their count is of symbols, as published, not of characters.
        BuiltIn("marked-characters", "character", False, _marked, _marked_texts),
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
    path = user_path(name)
    if name and os.path.isfile(path):
        return pieces.from_file(path, sample)
    known = ", ".join(("auto", *BUILT_IN, "bpe:8000", "unigram:8000"))
    if path.suffix or os.sep in name:
        raise UserError(f"there is no tokenizer file {name!r}; give the path of a tokenizer.json or one of {known}")
    raise UserError(f"unknown tokenizer {name!r}{nearest(name, BUILT_IN)}; use {known} or a tokenizer.json")
