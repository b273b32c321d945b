"""Boundaries of words made of smaller tokens, and the score of such a word.

Where a token carries the blank before a word, the tokens of a word do not say that it ends: the next token does. The
probability of a word w after a context c, both in tokens, is then (Pimentel & Meister 2024; Oh & Schuler 2024)

    p(w | c) = prod_i p(w_i | c w_<i) * B(c w) / B(c)

with B(h) the mass of the tokens that begin a word (or end the text) after h. The plain sum of log p(w_i | ...) leaves both out:
it charges a word for its own beginning and not for its end, so that over all words it comes to more than one. Over a text the
two agree up to its ends, since B(c w) of a word is B(c) of the next.

- The blank comes first (`Ġ` of byte-level pieces, `▁` of SentencePiece; characters and bytes too): tokens that begin with white
  space begin a word.
- Pieces inside a word are marked (`##` of WordPiece): all others begin a word.
- The blank comes last (`</w>`): a word ends with its own last piece, B is one, and the plain sum is right. So it is after a
  line end, and where a text begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from backstory.data.tokenizers.pieces import Pieces

if TYPE_CHECKING:
    from backstory.data.tokenizers.vocabulary import Vocabulary

WordScore = Literal["corrected", "sum"]
"""Score of a word from its tokens: corrected for its boundaries, or the plain sum."""
TRIALS = 5
"""Tokens tried as the end of a word, until another token continues it."""


@dataclass(frozen=True, eq=False)
class Boundaries:
    """Marks of words in the V tokens of a vocabulary."""

    begins: np.ndarray
    """(V,) bool: True if this token begins the next word after an unfinished one."""
    closed: np.ndarray
    """(V,) bool: True if every token begins a word after this one."""

    @property
    def beginning(self) -> np.ndarray:
        """Return the ids of the tokens that begin a word."""
        return np.flatnonzero(self.begins)

    def uncertain(self, ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Return where B is not one, (N + 1,) bool: before each token of a text from its beginning, and after the last.

        `starts` are the tokens at which words begin. A cut before a token that continues a word is no boundary.
        """
        uncertain = np.zeros(len(ids) + 1, bool)
        uncertain[starts] = self.begins[ids[starts]]
        uncertain[len(ids)] = True
        uncertain[1:] &= ~self.closed[ids]
        uncertain[0] = False
        return uncertain


def word_nats(nats: np.ndarray, log_begins: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the negative log-probabilities (..., W) of words from those of their tokens (..., N).

    `log_begins` (..., N + 1) is log B before each token and after the last, 0 where B is one; `starts` (W,) the first tokens.
    """
    sums = np.add.reduceat(nats, starts, -1)
    ends = np.append(starts[1:], nats.shape[-1])
    with np.errstate(invalid="ignore"):  # infinite: a word that is impossible, whatever its boundaries
        return np.where(np.isinf(sums), sums, sums + log_begins[..., starts] - log_begins[..., ends])


def boundaries(vocabulary: "Vocabulary") -> Boundaries | None:
    """Find the tokens that begin words, by joining tokens to text; None if tokens are words."""
    tokenizer, words = vocabulary.tokenizer, vocabulary.words
    if tokenizer.unit == "word":
        return None
    special = _special(vocabulary)
    for end in _ends(words):
        base = tokenizer.join([end])
        added = [text[len(base) :] for text in _joined(vocabulary, [[end, token] for token in words])]
        inside = [i for i, text in enumerate(added) if text[:1].isalnum() and not special[i]]
        if not inside:
            continue
        begins = np.array([text[:1].isspace() for text in added]) | special
        follower = min(inside, key=lambda i: len(added[i]))
        texts = _joined(vocabulary, [[end, token, words[follower]] for token in words])
        rests = [text[len(base) :].removesuffix(added[follower]) for text in texts]
        return Boundaries(begins, np.array([rest[-1:].isspace() for rest in rests]) | special)
    # No token continues another: each is a word by itself.
    return Boundaries(np.ones(len(words), bool), np.ones(len(words), bool))


def _ends(words: Sequence[str]) -> list[str]:
    """Return a few short tokens that may end a word."""
    letters = [word for word in words if word.isalnum()]
    return sorted(letters, key=lambda word: (not word.isascii(), len(word)))[:TRIALS]


def _joined(vocabulary: "Vocabulary", lists: list[list[str]]) -> list[str]:
    tokenizer = vocabulary.tokenizer
    if not isinstance(tokenizer, Pieces):
        return [tokenizer.join(tokens) for tokens in lists]
    ids = [[tokenizer.model.token_to_id(token) for token in tokens] for tokens in lists]
    return tokenizer.model.decode_batch([[i for i in each if i is not None] for each in ids], skip_special_tokens=False)


def _special(vocabulary: "Vocabulary") -> np.ndarray:
    """Return the special tokens, which are part of no word, (V,) bool; the unknown piece may be part of one."""
    special = np.zeros(len(vocabulary), bool)
    if isinstance(vocabulary.tokenizer, Pieces):
        added = vocabulary.tokenizer.settings.get("added_tokens") or []
        named = {vocabulary.index[token["content"]] for token in added if token["special"]}
        special[sorted(named - {vocabulary.unknown})] = True
    return special
