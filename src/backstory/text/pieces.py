"""Hugging Face tokenizers: the subword pieces of a tokenizer.json, with its own ids; needs the package `tokenizers`."""

import json as json_format
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from backstory.config.errors import UserError

if TYPE_CHECKING:
    import tokenizers

_STARTS = ("<|begin_of_text|>", "<bos>", "<s>", "[BOS]", "<|endoftext|>", "<|end_of_text|>", "<eos>", "</s>", "[EOS]")
"""What tokenizers call the token at the start of a text, or else the one at its end, in the order of preference."""
_LONGEST = 1_000_000
"""Characters encoded at once; part of the definition, since how a piece is cut may depend on its neighbours."""


@dataclass(frozen=True)
class Pieces:
    """A Hugging Face tokenizer: the path it came from, and the text of its tokenizer.json.

    Special tokens are not added around a text, but those written out in it are recognised. A text longer than a million
    characters is encoded in parts that end at the last line end (else the last space) of every million.
    """

    name: str
    json: str = field(repr=False)
    unit: Literal["piece"] = "piece"

    @cached_property
    def model(self) -> "tokenizers.Tokenizer":
        """The tokenizer itself. Raises UserError if it cannot be read or the package `tokenizers` is missing."""
        try:
            import tokenizers
        except ImportError:
            raise UserError(f"{self.name} needs the package tokenizers; pip install 'backstory[hf]'") from None
        try:
            model = tokenizers.Tokenizer.from_str(self.json)
        except Exception as error:  # the package raises plain Exception for a file that is no tokenizer
            reason = str(error).splitlines()[0] if str(error) else "unknown format"
            raise UserError(f"{self.name} is not a tokenizer.json ({reason}); give one saved by Hugging Face") from None
        model.no_truncation()
        model.no_padding()
        return model

    @property
    def lossless(self) -> bool:
        """Whether pieces hold all of a text: any byte has a piece, and the normaliser loses nothing.

        Marking spaces (`▁`), putting one in front and composing accents (NFC) count as losing nothing.
        """
        data = json_format.loads(self.json)
        byte_level = any(s["type"] == "ByteLevel" for s in _steps(data.get("pre_tokenizer")))
        harmless = [s["type"] in ("NFC", "Prepend") or s.get("content") == "▁" for s in _steps(data.get("normalizer"))]
        return (byte_level or bool(data["model"].get("byte_fallback"))) and all(harmless)

    def split(self, text: str) -> list[str]:
        """The pieces of a text."""
        return [piece for pieces in self.stream([text]) for piece in pieces]

    def stream(self, blocks: Iterable[str]) -> Iterator[list[str]]:
        """The pieces of a text that comes in blocks cut anywhere: the same pieces as `split` of the whole."""
        for part in parts(blocks):
            yield self.model.encode(part, add_special_tokens=False).tokens

    def join(self, tokens: list[str]) -> str:
        """Pieces as text."""
        ids = [self.model.token_to_id(token) for token in tokens]
        return self.model.decode([i for i in ids if i is not None], skip_special_tokens=False)

    def vocabulary(self) -> tuple[list[str], int | None, int]:
        """Its pieces by id (an id it skips is called `<unused N>`), and the ids of its unknown and its start token."""
        ids: dict[str, int] = self.model.get_vocab(with_added_tokens=True)
        words = [f"<unused {i}>" for i in range(max(ids.values(), default=-1) + 1)]
        for piece, i in ids.items():
            words[i] = piece
        if not words:
            raise UserError(f"the tokenizer {self.name} has no vocabulary; give one that was trained")
        return words, self._unknown(ids), next((ids[s] for s in _STARTS if s in ids), 0)

    def _unknown(self, ids: dict[str, int]) -> int | None:
        data: dict[str, Any] = json_format.loads(self.json).get("model", {})
        if data.get("unk_id") is not None:
            return int(data["unk_id"])
        return ids.get(str(data.get("unk_token")))


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a normaliser or pre-tokenizer, which may be none, one or a sequence."""
    if part is None:
        return []
    return [s for p in part.get("normalizers", part.get("pretokenizers", [])) for s in _steps(p)] or [part]


def parts(blocks: Iterable[str]) -> Iterator[str]:
    """The parts that a text is encoded in, which comes in blocks cut anywhere."""
    rest = ""
    for block in blocks:
        rest += block
        while len(rest) > _LONGEST:
            cut = next((c for c in (rest.rfind(s, 0, _LONGEST) + 1 for s in ("\n", " ")) if c), _LONGEST)
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest


def from_file(path: Path) -> Pieces:
    """The tokenizer in a file. Raises UserError if it cannot be read, is no tokenizer, or `tokenizers` is missing."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"cannot read the tokenizer {path}: {reason}; give the path of a tokenizer.json") from None
    pieces = Pieces(str(path), text)
    _ = pieces.model  # an unusable file is reported here, not in the middle of a corpus
    return pieces
