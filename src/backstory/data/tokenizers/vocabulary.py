"""Vocabularies: words with their counts in the training text, text to ids and back, and tokens outside a vocabulary."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from operator import index
from typing import Any, get_args

import numpy as np

from backstory.data.tokenizers.boundaries import Boundaries, boundaries
from backstory.data.tokenizers.built_in import BUILT_IN, END, UNKNOWN, Tokenizer
from backstory.data.tokenizers.pieces import LARGEST, Pieces
from backstory.storage.documents import has_fields
from backstory.utils.arguments import checked, described, diagnosed
from backstory.utils.errors import UserError
from backstory.utils.scores import Cause

_STORED = {
    "words": list[str],
    "counts": list[int],
    "tokenizer": dict[str, str],
    "lowercase": bool,
    "unknown": int | None,
    "start": int,
}


def _check_ids(vocabulary: "Vocabulary", ids: Any = None) -> None:
    """Raise TypeError or ValueError unless these are ids of the vocabulary's words."""
    try:
        ids = [index(i) for i in ids]
    except (TypeError, RuntimeError):
        raise TypeError(f"ids must be whole numbers, one for each token, not {described(ids)}") from None
    if wrong := [i for i in ids if not 0 <= i < len(vocabulary)]:
        raise ValueError(f"ids must be from 0 to {len(vocabulary) - 1}, not {int(wrong[0])}")


@dataclass(frozen=True, eq=False, repr=False)
class Vocabulary:
    """Words by id: `words[id]`, with `counts[id]` (int64) of the training split, most frequent first.

    `unknown` is the id of `<unk>`, None if nothing can be unknown. `start` is fed before the first token of a stream, so that
    the first one is scored too. Text is split by `tokenizer`, after it is lower-cased if `lowercase`.
    """

    words: list[str]
    counts: np.ndarray
    tokenizer: Tokenizer
    lowercase: bool
    unknown: int | None
    start: int

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        unknown = "nothing is unknown" if self.unknown is None else f"others are {self.words[self.unknown]}"
        case = ", lower case" if self.lowercase else ""
        return f"Vocabulary({len(self):,} types of {self.tokenizer.name!r}{case}, {unknown})"

    @cached_property
    def index(self) -> dict[str, int]:
        """Return the id of each word."""
        return {word: i for i, word in enumerate(self.words)}

    @cached_property
    def boundaries(self) -> Boundaries | None:
        """Return which tokens begin words; None if tokens are words."""
        return boundaries(self)

    @property
    def lossless(self) -> bool:
        """Return True if ids hold all of a text of known words, so that bits per character and byte mean something."""
        return self.tokenizer.lossless and not self.lowercase

    @checked()
    def encode(self, text: str) -> np.ndarray:
        """Return the ids (int32) of a text. Raises UserError for an unknown word if there is no `<unk>`."""
        return np.concatenate([np.empty(0, np.int32), *self.encode_stream([text])])

    def encode_stream(self, blocks: Iterable[str]) -> Iterator[np.ndarray]:
        """Yield the ids (int32) of a text in blocks, cut anywhere. Raises UserError as `encode` does."""
        return (ids for ids, _ in self.encode_marked(blocks))

    def encode_marked(self, blocks: Iterable[str]) -> Iterator[tuple[np.ndarray, dict[int, str]]]:
        """Yield ids as `encode_stream` does, with the tokens outside the vocabulary by their position in the ids.

        An `<unk>` that is written in the text is not one of these.
        """
        index, unknown = self.index, self.unknown
        for tokens, texts in self._tokenized(blocks):
            try:
                ids = map(index.__getitem__, tokens) if unknown is None else (index.get(t, unknown) for t in tokens)
                encoded = np.fromiter(ids, np.int32, len(tokens))
            except KeyError as error:
                raise UserError(
                    f"{error.args[0]!r} is not in the vocabulary, which has no {UNKNOWN}; remove it from the text"
                ) from None
            positions = [] if unknown is None else np.flatnonzero(encoded == unknown).tolist()
            yield encoded, {i: texts[i] for i in positions if texts[i] != self.words[unknown or 0]}

    def _tokenized(self, blocks: Iterable[str]) -> Iterator[tuple[list[str], list[str]]]:
        """Yield the tokens of a text and the text of each; they differ for pieces that stand for other text."""
        if isinstance(self.tokenizer, Pieces) and self.unknown is not None:
            return self.tokenizer.stream_with_text(lowered(blocks, self.lowercase))
        return ((tokens, tokens) for tokens in tokenize(blocks, self.tokenizer, self.lowercase))

    @diagnosed(_check_ids)
    def tokens(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        """Return the words of ids. Raises TypeError and ValueError for invalid ids."""
        words, beyond = self.words, len(self.words)
        return [words[i if i >= 0 else beyond] for i in ids]  # below 0 a list counts from its end

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """Return the text of ids: for display, or the original text if the vocabulary is lossless."""
        return self.tokenizer.join(self.tokens(ids))

    def to_json(self) -> dict[str, Any]:
        """Return the vocabulary as JSON values, with a Hugging Face tokenizer included."""
        pieces = {"json": self.tokenizer.json} if isinstance(self.tokenizer, Pieces) else {}
        return {
            "words": self.words,
            "counts": self.counts.tolist(),
            "tokenizer": {"name": self.tokenizer.name, **pieces},
            "lowercase": self.lowercase,
            "unknown": self.unknown,
            "start": self.start,
        }

    def gives_the_ids_of(self, other: "Vocabulary") -> bool:
        """Return True if any text has the same ids in both; the counts, of two corpora, may differ."""
        tokenizers = [
            one.settings if isinstance(one, Pieces) else one.name for one in (self.tokenizer, other.tokenizer)
        ]
        return (
            tokenizers[0] == tokenizers[1]
            and self.words == other.words
            and (self.lowercase, self.unknown, self.start) == (other.lowercase, other.unknown, other.start)
        )

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Vocabulary":
        """Restore a vocabulary from `to_json`. Raises UserError for anything else."""
        damaged = UserError("the stored vocabulary is damaged; make it again from the corpus")
        if not has_fields(data, _STORED):
            raise damaged
        named, words, counts = data["tokenizer"], data["words"], data["counts"]
        if named.keys() not in ({"name"}, {"name", "json"}) or ("json" not in named and named["name"] not in BUILT_IN):
            raise damaged
        tokenizer = Pieces(**named) if "json" in named else BUILT_IN[named["name"]]
        ids = {data["start"], data["unknown"]} - {None}
        if not len(counts) == len(words) == len(set(words)) or not ids <= set(range(len(words))):
            raise damaged
        if not all(0 <= count < 2**63 for count in counts):
            raise damaged
        vocabulary = Vocabulary(**{**data, "counts": np.array(counts, np.int64), "tokenizer": tokenizer})
        if is_fixed(tokenizer):
            fixed = _fixed({}, tokenizer, vocabulary.lowercase)
            if fixed.unknown is None and vocabulary.unknown == vocabulary.index.get("None"):
                # Older versions stored the piece `None` as the unknown token of a tokenizer without one.
                vocabulary = replace(vocabulary, unknown=None)
            if (fixed.words, fixed.unknown, fixed.start) != (words, vocabulary.unknown, vocabulary.start):
                raise damaged
        return vocabulary


@checked(minimum_count=0, maximum_size=1)
def build(
    counts: Mapping[str, int],
    tokenizer: Tokenizer,
    lowercase: bool = False,
    minimum_count: int = 1,
    maximum_size: int | None = None,
    closed: bool = False,
) -> Vocabulary:
    """Build the vocabulary of a training text from the counts of its tokens, most frequent first, ties in their order.

    Words seen fewer than `minimum_count` times and, beyond `maximum_size` types (special ones included), the rarest are
    counted as `<unk>`; `<eos>` and `<unk>` are never cut. Words and characters always get an `<unk>` (the text's own if
    it has one), since other text may hold more of them, unless the text is of an alphabet that is `closed` and cut to no
    `maximum_size`: then `<unk>`, if it is there, is a type like others. Bytes and Hugging Face pieces have a vocabulary of
    their own, on which `minimum_count` has no effect. Raises UserError for another size of those, for rare types of a closed
    alphabet that are to go, and for more than 2,000,000 types.
    """
    if is_fixed(tokenizer):
        if maximum_size is not None:
            raise UserError(f"the vocabulary of the tokenizer {tokenizer.name} is fixed; set text.maximum_size to null")
        return _fixed(counts, tokenizer, lowercase)
    if closed and minimum_count > 1:
        raise UserError("the alphabet of this corpus is closed, its rare symbols too; set text.minimum_count to 1")
    closed = closed and maximum_size is None
    special = [*([] if closed else [UNKNOWN]), *([END] if END in counts else [])]
    ranked = sorted((w for w in counts if w not in special), key=lambda w: -counts[w])
    frequent = [w for w in ranked if counts[w] >= minimum_count]
    if maximum_size is not None:
        frequent = frequent[: max(0, maximum_size - len(special))]
    if len(frequent) + len(special) > LARGEST:
        raise UserError(
            f"the vocabulary would hold {len(frequent) + len(special):,} types, more than {LARGEST:,}; "
            "set text.maximum_size or text.minimum_count, or use the tokenizer characters or bytes"
        )
    frequency = {w: counts[w] for w in frequent} | {w: counts.get(w, 0) for w in special}
    if not closed:
        frequency[UNKNOWN] += sum(counts.values()) - sum(frequency.values())
    words = sorted(frequency, key=lambda w: -frequency[w])
    start = next((words.index(w) for w in (END, "\n") if w in frequency), 0)
    numbers = np.array([frequency[w] for w in words], np.int64)
    return Vocabulary(words, numbers, tokenizer, lowercase, None if closed else words.index(UNKNOWN), start)


def is_fixed(tokenizer: Tokenizer) -> bool:
    """Return True if the tokenizer has a vocabulary of its own."""
    return isinstance(tokenizer, Pieces) or tokenizer.unit == "byte"


def _fixed(counts: Mapping[str, int], tokenizer: Tokenizer, lowercase: bool) -> Vocabulary:
    """Return the vocabulary of the 256 bytes, or of the pieces of a Hugging Face tokenizer with their own ids."""
    if isinstance(tokenizer, Pieces):
        words, unknown, start = tokenizer.vocabulary()
    else:
        words, unknown, start = [chr(i) for i in range(256)], None, ord("\n")
    numbers = np.array([counts.get(w, 0) for w in words], np.int64)
    if unknown is not None:
        numbers[unknown] += sum(counts.values()) - int(numbers.sum())
    return Vocabulary(words, numbers, tokenizer, lowercase, unknown, start)


def tokenize(blocks: Iterable[str], tokenizer: Tokenizer, lowercase: bool) -> Iterator[list[str]]:
    """Yield the tokens of a text in blocks, cut anywhere, after lower-casing it if `lowercase`."""
    return tokenizer.stream(lowered(blocks, lowercase))


def lowered(blocks: Iterable[str], lowercase: bool) -> Iterable[str]:
    """Return the blocks of a text, in lower case if `lowercase`."""
    return map(_lower, blocks) if lowercase else blocks


def _lower(text: str) -> str:
    # A capital sigma is the one letter whose lower case depends on its neighbours, which a block may cut off.
    return text.replace("Σ", "σ").lower()


SCRIPT_SHARE = 0.01
"""Minimum share of a script among the training text's letters to count as one of the vocabulary's."""


@dataclass(frozen=True)
class OutOfVocabulary:
    """Counts of tokens outside a vocabulary by cause, without any `<unk>` written in the text."""

    script: int = 0
    """Letters of scripts that the vocabulary does not use."""
    case: int = 0
    """Words that the vocabulary contains in another case."""
    words: int = 0
    """All others."""

    @property
    def tokens(self) -> int:
        """Return the number of tokens outside the vocabulary."""
        return self.script + self.case + self.words

    @property
    def cause(self) -> Cause | None:
        """Return the commonest cause; None if there are no such tokens."""
        return max(get_args(Cause), key=lambda cause: getattr(self, cause)) if self.tokens else None


def classify(unknown: Mapping[str, int], vocabulary: Vocabulary) -> OutOfVocabulary:
    """Count tokens outside a vocabulary, given with their frequencies, by cause."""
    if not unknown:
        return OutOfVocabulary()
    own, folded = scripts_of(vocabulary), {word.casefold() for word in vocabulary.words}
    counts: Counter[str] = Counter()
    for token, count in unknown.items():
        scripts = [script for character in token if (script := _script(character))]
        foreign = sum(script not in own for script in scripts)
        cause = "script" if 2 * foreign > len(scripts) else "case" if token.casefold() in folded else "words"
        counts[cause] += count
    return OutOfVocabulary(**counts)


def scripts_of(vocabulary: Vocabulary) -> set[str]:
    """Return the scripts of the words of a vocabulary, without those of a few quoted words."""
    letters: Counter[str] = Counter()
    for word, count in zip(vocabulary.words, vocabulary.counts.tolist(), strict=True):
        for character in word:
            if script := _script(character):
                letters[script] += count + 1
    return {script for script, count in letters.items() if count >= SCRIPT_SHARE * letters.total()}


@cache
def _script(character: str) -> str:
    """Return the script of a letter as Unicode names it (`LATIN`, `CJK`); empty for other characters."""
    # A full-width or mathematical letter is a letter of its script.
    plain = unicodedata.normalize("NFKC", character)[:1]
    return unicodedata.name(plain, "").split(" ")[0] if plain.isalpha() else ""
