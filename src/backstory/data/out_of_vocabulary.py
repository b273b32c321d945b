"""Tokens that a text writes out and a vocabulary lacks: how many there are, and why."""

import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from backstory.config.unknown_share import Cause
from backstory.data.vocabulary import Vocabulary

SCRIPT_SHARE = 0.01
"""The least share of the letters of the training text that makes a script one of the vocabulary's."""


@dataclass(frozen=True)
class OutOfVocabulary:
    """Tokens outside a vocabulary, by cause; a token that the text itself writes as `<unk>` is none of them."""

    script: int = 0
    """Letters of scripts that the vocabulary does not use."""
    case: int = 0
    """Words that the vocabulary has in other case."""
    words: int = 0
    """All others."""

    @property
    def tokens(self) -> int:
        """How many there are."""
        return self.script + self.case + self.words

    @property
    def cause(self) -> Cause | None:
        """The cause of most of them; None where there are none."""
        causes: tuple[Cause, ...] = ("script", "case", "words")
        return max(causes, key=lambda cause: getattr(self, cause)) if self.tokens else None


def classify(lost: Mapping[str, int], vocabulary: Vocabulary) -> OutOfVocabulary:
    """Count tokens outside a vocabulary, given with how often each occurs, by cause."""
    if not lost:
        return OutOfVocabulary()
    own, folded = scripts_of(vocabulary), {word.casefold() for word in vocabulary.words}
    counts: Counter[Cause] = Counter()
    for token, count in lost.items():
        letters = [script for character in token if (script := _script(character))]
        foreign = sum(script not in own for script in letters)
        cause: Cause = "script" if 2 * foreign > len(letters) else "case" if token.casefold() in folded else "words"
        counts[cause] += count
    return OutOfVocabulary(counts["script"], counts["case"], counts["words"])


def scripts_of(vocabulary: Vocabulary) -> set[str]:
    """Return the scripts that the words of a vocabulary are written in, but for those of a few quoted words."""
    letters: Counter[str] = Counter()
    for word, count in zip(vocabulary.words, vocabulary.counts.tolist(), strict=True):
        for character in word:
            if script := _script(character):
                letters[script] += count + 1
    return {script for script, count in letters.items() if count >= SCRIPT_SHARE * letters.total()}


@cache
def _script(character: str) -> str:
    """The script of a letter as Unicode names it (`LATIN`, `CJK`); empty for anything else."""
    plain = unicodedata.normalize("NFKC", character)[
        :1
    ]  # a full-width or mathematical letter is a letter of its script
    return unicodedata.name(plain, "").split(" ")[0] if plain.isalpha() else ""
