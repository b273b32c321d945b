"""Options of explanations and comparisons: one declaration for the command line, Python and results."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from tyro.conf import FlagCreatePairsOff, UseAppendAction

from backstory.config.options import ModelOptions, Precision, changed_parts
from backstory.config.strict import between
from backstory.utils.errors import UserError

LONGEST_PASSAGE = 2000
"""The most words of a passage."""
WORDS = 200
"""Words of an explained passage, unless options say otherwise."""
TOKENS = 20_000
"""Tokens of a compared stretch of text, unless options say otherwise."""


@dataclass(frozen=True, kw_only=True)
class ExplanationOptions(ModelOptions):
    """Options that every explanation has: the text, how it is read, and where the result goes."""

    split: str | None = None
    """train, valid or test (else test)."""
    at: int = between(0, 0)
    """The token where the passage begins; the text before it is read too."""
    context: int | None = between(None, 0)
    """Number of tokens before it that are read (else all)."""
    reader: UseAppendAction[tuple[str, ...]] = ()
    """The reader (`backstory ls readers`; else static); may be given more than once: readers wrap each other."""
    word_score: Literal["corrected", "sum"] = "corrected"
    """Score of a word from its pieces: corrected for where the word begins and ends, or their plain sum."""
    precision: Precision = "float32"
    """Precision of matrix products."""
    out: Path | None = None
    """Folder of result.json (else one in the run, named after the explanation and these options)."""
    allow_unknown: FlagCreatePairsOff[bool] = False
    """Read a text even if most of it is outside the vocabulary."""


EXPLANATION_SUMMARIES = {
    "surprisal": "how surprising each word is, what was expected instead, and which reader predicts it better",
    "reading": "where one reader gains or loses against others along a sequence of articles",
    "buffer": "which earlier words a model's span buffer attends to, what it predicts, and whether it helps",
    "memory": "which words the heads of an external memory read at each word, and how they find their slots",
    "cache": "which earlier words a neural cache puts its mass on, what it predicts, and whether it helps",
}
"""The subject of each explanation, by its name."""


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(ExplanationOptions):
    """Options of an explanation of a passage."""

    words: int | None = between(None, 1)
    """Words of the passage, 2000 at most (else 200; with --find as many as the cache can hold)."""
    find: Literal["success", "failure"] | None = None
    """With `cache`: show its most peaked success or its flattest failure from --at on, and the words before it."""
    against: str | None = None
    """A reader, or another run's folder: show what is gained over it."""
    top: int = between(5, 0, 100)
    """Largest number of candidates shown for a word."""
    layer: str | None = None
    """The layer that colours the words at first: surprisal, entropy, ..."""

    @property
    def most_words(self) -> int:
        """The most words of the passage."""
        return WORDS if self.words is None else self.words

    def checked(self) -> Self:
        """Return the options with every value checked. Raises UserError, and TypeError for a value of another type."""
        options = super().checked()
        check_words(options.most_words)
        return options

    def name_parts(self, text: str, reader: str, precision: str, against: str | None) -> list[str]:
        """Return the parts of the name of the result's folder: the options that are not the default.

        The text, the reader, its precision and what it is compared with are given by unambiguous names.
        """
        return changed_parts(
            (text, "test"),
            (f"at{self.at}", "at0"),
            (f"words{self.most_words}", f"words{WORDS}"),
            (f"context{self.context}", "contextNone"),
            (reader, "static"),
            (precision, "float32"),
            (f"against-{against}", "against-None"),
            (f"top{self.top}", "top5"),
            (f"layer-{self.layer}", "layer-None"),
            (f"find-{self.find}", "find-None"),
            (f"word-score-{self.word_score}", "word-score-corrected"),
        )


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ExplanationOptions):
    """Options of a comparison of readers along a stretch of text."""

    tokens: int = between(TOKENS, 1)
    """Tokens of the stretch."""
    against: UseAppendAction[tuple[str, ...]] = ()
    """A reader, or another run's folder, to compare with (else static); may be given more than once, best first."""
    block: int = between(100, 1)
    """Tokens of a block."""
    smooth: int = between(10, 0)
    """Blocks of the moving average in the picture; 0 for none."""
    passage: UseAppendAction[tuple[int, ...]] = ()
    """Show the passage that begins at this token; may be given more than once (else passages are chosen)."""
    words: int = between(100, 1)
    """Words of a passage, 2000 at most."""

    def checked(self) -> Self:
        """Return the options with every value checked. Raises UserError, and TypeError for a value of another type."""
        options = super().checked()
        check_words(options.words)
        return options

    def name_parts(self, text: str, reader: str, precision: str, against: Sequence[str]) -> list[str]:
        """Return the parts of the name of the result's folder, as `ExplainOptions.name_parts`, and always the reader."""
        return changed_parts(
            (text, "test"),
            (f"at{self.at}", "at0"),
            (f"tokens{self.tokens}", f"tokens{TOKENS}"),
            (f"context{self.context}", "contextNone"),
            (f"block{self.block}", "block100"),
            (f"smooth{self.smooth}", "smooth10"),
            (f"words{self.words}", "words100"),
            (f"passage{'-'.join(map(str, self.passage))}", "passage"),
            (precision, "float32"),
            (f"word-score-{self.word_score}", "word-score-corrected"),
            (reader, ""),
            (f"against-{'-'.join(against)}", "against-static"),
        )


def check_words(words: int) -> None:
    """Raise UserError for a passage of too many words."""
    if words > LONGEST_PASSAGE:
        raise UserError(f"a passage has 1 to {LONGEST_PASSAGE:,} words, not {words:,}; choose fewer with --words")
