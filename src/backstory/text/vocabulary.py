"""The vocabulary: which words there are, how often the training text holds them, and text to ids and back."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from backstory.config.errors import UserError
from backstory.storage.documents import conforms, has_fields
from backstory.text.pieces import Pieces
from backstory.text.tokenizers import BUILT_IN, END, UNKNOWN, Tokenizer

LARGEST = 2_000_000
"""More types than this are refused: an embedding of them fits no machine, and the corpus is most likely not text."""
_STORED = {"words": list[str], "counts": list[int], "lowercase": bool, "unknown": int | None, "start": int}
_DAMAGED = "the stored vocabulary is damaged; make it again from the corpus"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Words by id: `words[id]`, with `counts[id]` (int64) of the training split, most frequent first.

    `unknown` is the id of `<unk>`, None where nothing can be unknown. `start` is fed before the first token of
    a stream, so that the first one is scored too. Text is split by `tokenizer`, lower-cased before if `lowercase`.
    """

    words: list[str]
    counts: np.ndarray
    tokenizer: Tokenizer
    lowercase: bool
    unknown: int | None
    start: int

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def index(self) -> dict[str, int]:
        """The id of each word."""
        return {word: i for i, word in enumerate(self.words)}

    @property
    def lossless(self) -> bool:
        """Whether ids hold all of a text of known words, so that bits per character and byte mean something."""
        return self.tokenizer.lossless and not self.lowercase

    def encode(self, text: str) -> np.ndarray:
        """The ids (int32, one per token) of a text. Raises UserError for an unknown word where there is no `<unk>`."""
        return np.concatenate([np.empty(0, np.int32), *self.encode_stream([text])])

    def encode_stream(self, blocks: Iterable[str]) -> Iterator[np.ndarray]:
        """The ids (int32) of a text that comes in blocks cut anywhere. Raises UserError as `encode` does."""
        index, unknown = self.index, self.unknown
        for tokens in tokenize(blocks, self.tokenizer, self.lowercase):
            try:
                ids = map(index.__getitem__, tokens) if unknown is None else (index.get(t, unknown) for t in tokens)
                yield np.fromiter(ids, np.int32, len(tokens))
            except KeyError as error:
                raise UserError(
                    f"{error.args[0]!r} is not in the vocabulary, which has no {UNKNOWN}; remove it from the text"
                ) from None

    def tokens(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        """The words of the ids."""
        return [self.words[i] for i in ids]

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """The ids as text to show; of a lossless vocabulary, the text that was encoded."""
        return self.tokenizer.join(self.tokens(ids))

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values that JSON can hold; a Hugging Face tokenizer is embedded."""
        pieces = {"json": self.tokenizer.json} if isinstance(self.tokenizer, Pieces) else {}
        return {
            "words": self.words,
            "counts": self.counts.tolist(),
            "tokenizer": {"name": self.tokenizer.name, **pieces},
            "lowercase": self.lowercase,
            "unknown": self.unknown,
            "start": self.start,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Vocabulary":
        """The vocabulary that `to_json` described. Raises UserError for anything else."""
        named: Any = data.get("tokenizer")
        told = {k: v for k, v in data.items() if k != "tokenizer"}
        if not has_fields(told, _STORED):
            raise UserError(_DAMAGED)
        if not conforms(named, dict[str, str]) or not {"name"} <= named.keys() <= {"name", "json"}:
            raise UserError(_DAMAGED)
        if "json" not in named and named["name"] not in BUILT_IN:
            raise UserError(_DAMAGED)
        tokenizer = Pieces(named["name"], named["json"]) if "json" in named else BUILT_IN[named["name"]]
        counts, size = told.pop("counts"), len(told["words"])
        ids = {told["start"], told["unknown"]} - {None}
        if len(counts) != size or len(set(told["words"])) != size or not ids <= set(range(size)):
            raise UserError(_DAMAGED)
        if not all(0 <= count < 2**63 for count in counts):
            raise UserError(_DAMAGED)
        vocabulary = Vocabulary(counts=np.array(counts, np.int64), tokenizer=tokenizer, **told)
        if isinstance(tokenizer, Pieces) or tokenizer.unit == "byte":  # those whose ids are given
            fixed = _fixed({}, tokenizer, vocabulary.lowercase)
            if (fixed.words, fixed.unknown, fixed.start) != (told["words"], told["unknown"], told["start"]):
                raise UserError(_DAMAGED)
        return vocabulary


def build(
    counts: Mapping[str, int],
    tokenizer: Tokenizer,
    lowercase: bool = False,
    minimum_count: int = 1,
    maximum_size: int | None = None,
    closed: bool = False,
) -> Vocabulary:
    """The vocabulary of a training text whose tokens were counted, most frequent first, ties in the order of `counts`.

    Words seen fewer than `minimum_count` times and, beyond `maximum_size` types (special ones included), the rarest are
    counted as `<unk>`; `<eos>` and `<unk>` are never cut. Words and characters always get an `<unk>` (the text's own if
    it has one), since other text may hold more of them, unless the text is of an alphabet that is `closed` and cut to no
    `maximum_size`: then `<unk>`, if it is there, is a type like others. Bytes and Hugging Face pieces have a vocabulary of
    their own, which no setting changes. Raises UserError for a cut of those, for rare types of a closed alphabet that are to
    go, and for more than 2,000,000 types.
    """
    if isinstance(tokenizer, Pieces) or tokenizer.unit == "byte":
        if minimum_count > 1 or maximum_size is not None:
            setting = "text.minimum_count to 1" if minimum_count > 1 else "text.maximum_size to null"
            raise UserError(f"the vocabulary of the tokenizer {tokenizer.name} is fixed; set {setting}")
        return _fixed(counts, tokenizer, lowercase)
    if closed and minimum_count > 1:
        raise UserError("the alphabet of this corpus is closed, its rare symbols too; set text.minimum_count to 1")
    closed = closed and maximum_size is None
    special = [*([] if closed else [UNKNOWN]), *([END] if END in counts else [])]
    ranked = sorted((w for w in counts if w not in special), key=lambda w: -counts[w])
    kept = [w for w in ranked if counts[w] >= minimum_count]
    if maximum_size is not None:
        kept = kept[: max(0, maximum_size - len(special))]
    if len(kept) + len(special) > LARGEST:
        raise UserError(
            f"the vocabulary would hold {len(kept) + len(special):,} types, more than {LARGEST:,}; "
            "set text.maximum_size or text.minimum_count, or use the tokenizer characters or bytes"
        )
    frequency = {w: counts[w] for w in kept} | {w: counts.get(w, 0) for w in special}
    if not closed:
        frequency[UNKNOWN] += sum(counts.values()) - sum(frequency.values())
    words = sorted(frequency, key=lambda w: -frequency[w])
    start = next((words.index(w) for w in (END, "\n") if w in frequency), 0)
    numbers = np.array([frequency[w] for w in words], np.int64)
    return Vocabulary(words, numbers, tokenizer, lowercase, None if closed else words.index(UNKNOWN), start)


def _fixed(counts: Mapping[str, int], tokenizer: Tokenizer, lowercase: bool) -> Vocabulary:
    """The 256 bytes, or the pieces of a Hugging Face tokenizer by its own ids."""
    if isinstance(tokenizer, Pieces):
        words, unknown, start = tokenizer.vocabulary()
    else:
        words, unknown, start = [chr(i) for i in range(256)], None, ord("\n")
    numbers = np.array([counts.get(w, 0) for w in words], np.int64)
    if unknown is not None:
        numbers[unknown] += sum(counts.values()) - int(numbers.sum())
    return Vocabulary(words, numbers, tokenizer, lowercase, unknown, start)


def tokenize(blocks: Iterable[str], tokenizer: Tokenizer, lowercase: bool) -> Iterator[list[str]]:
    """The tokens of a text that comes in blocks cut anywhere, lower-cased first if asked."""
    return tokenizer.stream(map(_lower, blocks) if lowercase else blocks)


def _lower(text: str) -> str:
    # A capital sigma is the one letter whose lower case depends on its neighbours, which a block may cut off.
    return text.replace("Σ", "σ").lower()
