"""Units of scores, and what to know before comparing them: the share of <unk>, and text shared by two splits."""

import math
from dataclasses import dataclass
from typing import Literal

from backstory.utils.errors import plural

IN_BITS = ("character", "byte")
"""Units whose score is given in bits (BPC), not as a perplexity."""


def perplexity(nats: float) -> float:
    """Return exp of the mean nats per token, always finite."""
    return math.exp(min(nats, 700))


def nats(perplexity: float) -> float:
    """Return the mean nats per token of a perplexity of 1 or more."""
    return math.log(max(perplexity, 1.0))


def bits(nats: float) -> float:
    """Return mean bits per token (BPC if a token is a character)."""
    return nats / math.log(2)


def measure_of(unit: str | None) -> str:
    """Return the measure of a unit: `perplexity`, or `bits per character`."""
    return f"bits per {unit}" if unit in IN_BITS else "perplexity"


def format_score(nats: float, unit: str) -> str:
    """Return a score in words: `perplexity 98.12 per word`, or `1.1753 bits per character`."""
    if unit in IN_BITS:
        return f"{bits(nats):.4f} {measure_of(unit)}"
    return f"perplexity {bounded(perplexity(nats))} per {unit}"


def bounded(value: float, form: str = ".2f") -> str:
    """Return a perplexity, or a change of one, as people read it: `98.12`; that of a model that broke down is `above 10⁶`."""
    return format(value, f"z{form}") if value < 1e6 else "above 10⁶"


INCOMPARABLE = 0.05
"""Above this share of tokens outside the vocabulary a perplexity does not compare with models of another vocabulary."""
MEANINGLESS = 0.5
"""Above this share it says nothing about the text."""

Cause = Literal["script", "case", "words"]
"""Why most tokens are outside a vocabulary: letters of another script, upper or lower case, or words that it lacks."""
NOT_COMPARABLE = "does not compare with models of another vocabulary"
NOT_MEANINGFUL = "says nothing about the text"


@dataclass(frozen=True)
class UnknownShare:
    """The `<unk>` among the tokens that a figure is a mean over."""

    tokens: int
    unknown: int | None
    """All `<unk>`; None where the vocabulary has none."""
    lost: int | None = None
    """Those written out in the text but outside the vocabulary; the others are written as `<unk>`. None: not counted."""
    cause: Cause | None = None
    """Why most of those are outside."""
    ends: int = 0
    """Tokens that end a line, which every vocabulary has: a text of one word a line is half of them. 0 in results."""

    @property
    def share(self) -> float | None:
        """The share of `<unk>`."""
        return _share(self.unknown, self.tokens)

    @property
    def lost_share(self) -> float | None:
        """The share of tokens outside the vocabulary."""
        return _share(self.lost, self.tokens)

    @property
    def incomparable(self) -> bool:
        """True if a figure over these tokens does not compare with models of another vocabulary."""
        return (self.lost_share or 0) > INCOMPARABLE

    @property
    def meaningless(self) -> bool:
        """True if a figure says nothing about the text because most of it is `<unk>`, read so or written so."""
        return (self.unknown or 0) > MEANINGLESS * (self.tokens - self.ends)

    def phrase(self, tokens: str = "them") -> str:
        """Return what is said after a number of tokens: `5.8% of them written as <unk>`; empty where none is `<unk>`."""
        return ", ".join(f"{share} of {tokens} {kind}" for share, kind in self._parts(_IN_SENTENCES))

    def cell(self) -> str:
        """Return what a table says: `0.0%`, `5.8% written`, `1.2% written, 3.5% outside`; empty without an `<unk>`."""
        if self.share is None:
            return ""
        return ", ".join(f"{share} {kind}".strip() for share, kind in self._parts(_IN_TABLES)) or _percent(0)

    def _parts(self, words: tuple[str, str, str]) -> list[tuple[str, str]]:
        """Return shares above zero with the words for them, of three: written so, outside the vocabulary, not known which."""
        written, outside, either = words
        if not self.unknown or self.share is None:
            return []
        if self.lost is None:
            return [(_percent(self.share), either)]
        counts = (self.unknown - self.lost, written), (self.lost, outside)
        return [(_percent(count / self.tokens), kind) for count, kind in counts if count]

    def warning(self, tokens: str, advice: str) -> str | None:
        """Return the sentence on too many unknown tokens; `tokens` is what they are called.

        `advice` is what helps against those outside the vocabulary. It does not against those that are written as `<unk>`.
        """
        total = self.tokens - self.ends if self.meaningless else self.tokens
        if self.meaningless and 2 * (self.lost or 0) <= (self.unknown or 0):
            written = "are <unk>" if self.lost is None else "are <unk>, most of them written so in the text"
            return (
                f"{_percent((self.unknown or 0) / total)} of {tokens} {written}, so the perplexity {NOT_MEANINGFUL}; "
                "take the text as it was before its words were replaced"
            )
        if not self.incomparable and not self.meaningless:
            return None
        why = NOT_MEANINGFUL if self.meaningless else NOT_COMPARABLE
        sentence = f"{_percent((self.lost or 0) / total)} of {tokens} are outside the vocabulary (read as <unk>)"
        if self.meaningless and self.unknown != self.lost:
            sentence += f" and {_percent(((self.unknown or 0) - (self.lost or 0)) / total)} are written as <unk>"
        return f"{sentence}, so the perplexity {why}; {advice}"


_IN_SENTENCES = ("written as <unk>", "outside the vocabulary", "<unk>")
_IN_TABLES = ("written", "outside", "")


def advice(cause: Cause | None, unit: str = "word", minimum_count: int = 1, maximum_size: int | None = None) -> str:
    """Return what helps against tokens outside a vocabulary that was made with these settings."""
    if cause == "script":
        smaller = "bytes" if unit == "character" else "characters"
        return (
            "the text is in another script than the training text: train on text like it, with "
            f"--text.tokenizer {smaller} or a tokenizer.json"
        )
    if cause == "case":
        return "most of these words are known in other case: train with --text.lowercase"
    if unit == "piece":  # which no setting of the vocabulary changes
        return "the tokenizer has no pieces for them; choose another --text.tokenizer"
    cut = []
    if minimum_count > 1:
        cut.append(f"lower text.minimum_count ({minimum_count})")
    if maximum_size is not None:
        cut.append(f"raise text.maximum_size ({maximum_size})")
    if not cut:
        return "the training text does not have them; give more of it, or another tokenizer"
    # Which of them the training text has is not known.
    return f"{', or '.join(cut)} for rare words of the training text; new words need more text, or another tokenizer"


def _share(count: int | None, tokens: int) -> float | None:
    return None if count is None else count / tokens if tokens else 0.0


def _percent(share: float) -> str:
    return "less than 0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


NOTABLE = 0.01
"""Above this share an overlap is said. The corpora in use stay below: most has Penn Treebank's validation text, with 0.7%."""


@dataclass(frozen=True)
class SplitOverlap:
    """The share of one text's passages (all stretches of `window` tokens) that another text holds too."""

    split: str
    other: str
    window: int
    share: float

    def warning(self, unit: str) -> str | None:
        """Return the sentence on an overlap that matters: `12.3% of test's passages of 50 words occur in train too`."""
        if self.share <= NOTABLE:
            return None
        owner = "the text" if self.split == "text" else self.split
        return f"{self.share:.1%} of {owner}'s passages of {self.window} {plural(unit)} occur in {self.other} too"
