"""Spelling: the bytes of a file that its tokens leave open (blanks, case, words outside the vocabulary).

A file is cut into units, one for each token: the blanks before it and its own bytes. What follows from the token alone costs
nothing. The rest is coded after the token, by models that learn as they go. A word outside the vocabulary is `<unk>`, spelled
out; where there is no `<unk>`, a flag before every token says whether a unit has a type or is spelled out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from backstory.codec.byte_model import ByteModel
from backstory.codec.range_coder import AdaptiveBits, Coder
from backstory.data import Vocabulary
from backstory.data.tokenizers.built_in import BEGIN, END, Tokenizer
from backstory.data.tokenizers.pieces import Pieces, bytes_of, parts
from backstory.data.tokenizers.vocabulary import lowered
from backstory.utils.errors import UserError

ESCAPED = -1
"""In the place of an id: no type stands for this unit, which is spelled out."""
_BLANKS = re.compile(r"\s*")
_LINES_AND_WORDS = re.compile(r".*\n?"), re.compile(r"\S+\s*|\s+")
"""Units of retry for a text that its tokens do not restore as a whole."""
_GAP, _TEXT = 0, 1
"""Kinds of strings for the byte model."""
_RANKS = 6
"""Maximum number of blanks per context with a code of their own; others are spelled out."""


class Unit(NamedTuple):
    """A token of a file with its bytes."""

    id: int
    """A type, or ESCAPED."""
    gap: bytes
    """The blanks before it."""
    text: bytes


@dataclass(frozen=True)
class Spelling:
    """The written form of a vocabulary's tokens."""

    vocabulary: Vocabulary
    texts: list[bytes] = field(repr=False)
    """The bytes that each type stands for."""
    gaps: bool
    """True if blanks between tokens are no part of these."""
    escapes: bool
    """True if a unit may have no type."""
    varies: bool
    """True if any type may be written in another way, as in capitals; else only the end of a line may."""

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> "Spelling":
        """Return the spelling of a vocabulary."""
        tokenizer, lowercase = vocabulary.tokenizer, vocabulary.lowercase
        if isinstance(tokenizer, Pieces):
            whole = tokenizer.lossless and not lowercase
            texts = _whole_pieces(vocabulary, tokenizer) if whole else [_plain_piece(word) for word in vocabulary.words]
            return cls(vocabulary, texts, gaps=not whole, escapes=True, varies=True)
        if tokenizer.unit == "byte":
            return cls(vocabulary, [bytes([i]) for i in range(256)], gaps=False, escapes=False, varies=False)
        texts = [_bytes(_written(word, tokenizer)) for word in vocabulary.words]
        return cls(vocabulary, texts, tokenizer.unit == "word", vocabulary.unknown is None, lowercase)

    def cut(self, data: bytes) -> tuple[list[Unit], bytes]:
        """Return the units of a file, and the bytes after the last."""
        tokenizer, vocabulary = self.vocabulary.tokenizer, self.vocabulary
        if tokenizer.unit == "byte":
            return [Unit(byte, b"", self.texts[byte]) for byte in data], b""
        text = data.decode("utf-8", "surrogateescape")
        if isinstance(tokenizer, Pieces):
            return [unit for part in parts([text]) for unit in self._pieces(part, tokenizer)], b""
        unknown = ESCAPED if vocabulary.unknown is None else vocabulary.unknown
        units, position = [], 0
        for token in tokenizer.split(text):
            start, end = self._next(text, position, token)
            lower = "".join(lowered([token], vocabulary.lowercase))
            id = vocabulary.index.get(lower, unknown)
            units.append(Unit(id, _bytes(text[position:start]), _bytes(text[start:end])))
            position = end
        return units, _bytes(text[position:])

    def _next(self, text: str, position: int, token: str) -> tuple[int, int]:
        """Return where the next token of a text begins, after blanks, and where it ends."""
        tokenizer = self.vocabulary.tokenizer
        if not self.gaps:
            return position, position + len(_written(token, tokenizer))
        match = _BLANKS.match(text, position)
        start = position if match is None else match.end()
        line_end = text.find("\n", position, start)
        if token != END or (line_end < 0 and text.startswith(END, start)):
            return start, start + len(token)
        # The end of a line, or of a paragraph, is in the blanks.
        end = line_end + 1 if tokenizer.name == "words" and line_end >= 0 else start
        return end, end

    def _pieces(self, text: str, tokenizer: Pieces, depth: int = 0) -> Iterator[Unit]:
        """Yield the units of a text; of what does not come back from its pieces, the lines, then words, then its bytes."""
        units = self._units(text, tokenizer)
        if units is not None:
            yield from units
        elif depth < len(_LINES_AND_WORDS):
            for part in _LINES_AND_WORDS[depth].findall(text):
                if part:
                    yield from self._pieces(part, tokenizer, depth + 1)
        else:
            yield Unit(ESCAPED, b"", _bytes(text))

    def _units(self, text: str, tokenizer: Pieces) -> list[Unit] | None:
        """Return the units of a text; None if it does not come back from its pieces."""
        lower = "".join(lowered([text], self.vocabulary.lowercase))
        if len(lower) != len(text) or any("\ud800" <= character <= "\udfff" for character in text):
            return None
        try:
            encoded = tokenizer.encode(lower)
        except UserError:
            return None
        data = text.encode()
        if not self.gaps:
            units = [Unit(id, b"", self.texts[id]) for id in encoded.ids]
            joined = b"".join(unit.text for unit in units)
            if joined == b" " + data:  # a tokenizer that puts a space in front
                units[0] = units[0]._replace(text=units[0].text[1:])
                return units
            return units if joined == data else None
        units, position = [], 0
        for id, (start, end) in zip(encoded.ids, encoded.offsets, strict=True):
            if not position <= start <= end:
                return None
            units.append(Unit(id, text[position:start].encode(), text[start:end].encode()))
            position = end
        return units + ([Unit(ESCAPED, b"", text[position:].encode())] if position < len(text) else [])


class Speller:
    """Adaptive coder of the written form of a file's units."""

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling
        self._unknown, self._end = spelling.vocabulary.unknown, spelling.vocabulary.index.get(END)
        self._bits, self._strings = AdaptiveBits(), ByteModel()
        self._gaps: dict[tuple[int, int], dict[bytes, int]] = {}
        """Counts of the gaps in each context, the commonest first."""

    def is_escaped(self, coder: Coder, unit: Unit) -> bool:
        """Code whether a unit has no type, before its token."""
        return self.spelling.escapes and self._bits.code(coder, "escaped", unit.id == ESCAPED)

    def code(self, coder: Coder, id: int, unit: Unit, before: int) -> tuple[bytes, bytes]:
        """Code the gap and the text of a unit whose id is known, after a byte `before`; return both."""
        text = b"" if id == ESCAPED else self.spelling.texts[id]
        gap = self._gap(coder, unit.gap, (before, _kind(text[0]) if text else id)) if self.spelling.gaps else b""
        if id == ESCAPED:
            return gap, self._strings.code(coder, unit.text, _TEXT)
        if id == self._unknown:
            written = self._bits.code(coder, "unknown", unit.text == text)
            return gap, text if written else self._strings.code(coder, unit.text, _TEXT)
        if not self.spelling.varies and not (self.spelling.gaps and id == self._end):
            return gap, text
        word = text.decode("utf-8", "surrogateescape")
        for case, variant in enumerate((word, word[:1].upper() + word[1:], word.upper())):
            if self._bits.code(coder, ("case", case, before), unit.text == _bytes(variant)):
                return gap, _bytes(variant)
        return gap, self._strings.code(coder, unit.text, _TEXT)

    def rest(self, coder: Coder, text: bytes) -> bytes:
        """Code the bytes after the last unit."""
        return self._strings.code(coder, text, _GAP)

    def _gap(self, coder: Coder, gap: bytes, context: tuple[int, int]) -> bytes:
        known = self._gaps.setdefault(context, {})
        for one in list(known)[:_RANKS]:
            if self._bits.code(coder, (context, one), gap == one):
                break
        else:
            one = self._strings.code(coder, gap, _GAP)
        known[one] = known.get(one, 0) + 1
        if len(known) > 1:
            self._gaps[context] = dict(sorted(known.items(), key=lambda item: -item[1])[: 2 * _RANKS])
        return one


def kind_of_last(text: bytes, before: int) -> int:
    """Return the kind of a text's last byte; `before` if it is empty."""
    return _kind(text[-1]) if text else before


def _kind(byte: int) -> int:
    """Return a byte as a context: all letters are one, and all digits."""
    return -2 if byte >= 128 or chr(byte).isalpha() else -3 if chr(byte).isdigit() else byte - 1000


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _written(token: str, tokenizer: Tokenizer) -> str:
    """Return the characters that a token of a built-in tokenizer stands for, beside the blanks before it."""
    if token == END and tokenizer.unit == "word":
        return ""
    if tokenizer.name == "marked-characters":
        return {BEGIN: "", END: "\n"}.get(token, token)
    return token


def _plain_piece(piece: str) -> bytes:
    """Return the text of a piece without the marks of a beginning or of a continuation."""
    return _bytes(piece.removeprefix("##").replace("▁", ""))


def _whole_pieces(vocabulary: Vocabulary, tokenizer: Pieces) -> list[bytes]:
    """Return the bytes of every piece of a tokenizer that loses nothing."""
    if tokenizer.settings["model"].get("byte_fallback"):
        single = re.compile("<0x([0-9A-F]{2})>")
        matches = [single.fullmatch(word) for word in vocabulary.words]
        return [
            bytes([int(match[1], 16)]) if match else _bytes(word.replace("▁", " "))
            for word, match in zip(vocabulary.words, matches, strict=True)
        ]
    spelled = ((word, bytes_of(word)) for word in vocabulary.words)
    return [_bytes(word) if own is None else own for word, own in spelled]
