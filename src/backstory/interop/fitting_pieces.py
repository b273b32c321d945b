"""Pieces of a Hugging Face tokenizer as a vocabulary, which refuses a text that they cannot give back."""

import re
import unicodedata
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from backstory.data import Vocabulary
from backstory.data.tokenizers.pieces import STARTS, Pieces
from backstory.models import LanguageModel
from backstory.utils.errors import UserError


@dataclass(frozen=True)
class FittingPieces(Pieces):
    """Pieces that refuse a text whose words they do not give back: a score of `<unk>` cannot be compared.

    White space, and ways to write the same character (NFKC), may differ.
    """

    def line_end(self) -> int | None:
        """Return the id of the piece that is the end of a line, as bytes are written too; None if there is none."""
        ids = map(self.model.token_to_id, ("\n", "Ċ", "<0x0A>"))
        return next((i for i in ids if i is not None), None)

    def encode(self, text: str) -> Any:
        """Return the encoding of a text. Raises UserError if its pieces do not give it back."""
        encoding = super().encode(text)
        self._check(text, self.decode(encoding.ids))
        return encoding

    def _check(self, text: str, back: str) -> None:
        if _written(text) == _written(back):
            return
        word, other = _first_difference(text, back)
        raise UserError(
            f"the tokenizer of {self.name} does not fit this text, as it reads {word[:40]!r} as {other[:40]!r}; choose a model "
            "whose tokenizer holds all of it, or another text"
        )


def _first_difference(text: str, back: str) -> tuple[str, str]:
    """Return the first word that is read as another, and that one; with the white space after it where that is lost.

    Words may be cut differently, so the first character that differs is what counts, white space apart.
    """
    words, others = re.findall(r"\S+\s*", text), back.split()
    ours, theirs = _written(text), _written(back)
    differing = (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    same = next(differing, min(len(ours), len(theirs)))
    number, start = _word_at(words, same)
    other, other_start = _word_at(others, same)
    read_as = others[other] if other < len(others) else ""
    if number and (number == len(words) or start == same > other_start):  # what comes after the word before is lost
        number -= 1
    word = words[number] if words else ""
    return (word, read_as) if word.strip() and read_as.startswith(word.strip()) else (word.strip(), read_as)


def _word_at(words: list[str], position: int) -> tuple[int, int]:
    """Return the number of the word with the written character at a position, and where that word begins."""
    start = 0
    for number, word in enumerate(words):
        end = start + len(_written(word))
        if position < end:
            return number, start
        start = end
    return len(words), start


def _written(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).split())


def pieces_of(tokenizer: Any, name: str) -> FittingPieces:
    """Return the tokenizer from its tokenizer.json. Raises UserError for one that has none."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(
            f"the tokenizer of {name} is written in Python, so its pieces cannot be read; save it as a fast tokenizer"
        )
    if len(tokenizer.get_vocab()) <= len(tokenizer.get_added_vocab()):
        raise UserError(f"{name} has no tokenizer; save one beside it with save_pretrained")
    return FittingPieces(name, backend.to_str())


def vocabulary_of(pieces: FittingPieces, tokenizer: Any, config: Any) -> Vocabulary:
    """Return the vocabulary of a tokenizer.

    The token that begins a text is `bos`, else `eos`, else a token with such a name, else `cls`, else the end of a line.
    Warns if there is none of these.
    """
    words, _, start = pieces.vocabulary()
    decoder = config.get_text_config(decoder=True)
    starts = (getattr(owner, f"{kind}_token_id", None) for kind in ("bos", "eos") for owner in (tokenizer, decoder))
    if start or words[0] in STARTS:
        starts = (*starts, start)
    starts = (*starts, getattr(tokenizer, "cls_token_id", None), pieces.line_end())
    start = next((int(i) for i in starts if isinstance(i, int) and 0 <= i < len(words)), None)
    if start is None:
        start = 0
        warnings.warn(
            f"the tokenizer of {pieces.name} has no token that begins a text, so {words[start]!r:.60} is read before it",
            stacklevel=2,
        )
    # None is unknown: `FittingPieces` refuses a text that has pieces which stand for something else.
    return Vocabulary(words, np.zeros(len(words), np.int64), pieces, False, None, start)


def check_pieces(vocabulary: Vocabulary, model: LanguageModel, name: str) -> None:
    """Raise UserError if the tokenizer has pieces that the model does not know."""
    if len(vocabulary) > model.vocabulary_size:
        raise UserError(
            f"the tokenizer of {name} has {len(vocabulary):,} pieces, more than the {model.vocabulary_size:,} that the model "
            "knows; give the tokenizer that belongs to it"
        )
