"""Options of `backstory explain`: one declaration for the command line, Python and the names of results' folders."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from tyro.conf import FlagCreatePairsOff, UseAppendAction

from backstory.config.errors import UserError
from backstory.config.options import Options
from backstory.config.strict import between

LONGEST_PASSAGE = 2000
"""Words of a passage at most."""
WORDS = 200
"""Words of an explained passage, unless options say otherwise."""
TOKENS = 20_000
"""Tokens of a stretch, likewise."""


@dataclass(frozen=True, kw_only=True)
class ExplanationOptions(Options):
    """Options that every explanation has: the text, how it is read, and where the result goes."""

    split: str | None = None
    """train, valid or test (else test)."""
    at: int = between(0, 0)
    """The token at which it begins; what comes before it is read too."""
    context: int | None = between(None, 0)
    """The most tokens before it that are read (else all)."""
    reader: UseAppendAction[tuple[str, ...]] = ()
    """How it is read: `backstory ls readers`; given more than once, readers go around each other."""
    word_score: Literal["corrected", "sum"] = "corrected"
    """How smaller tokens become a word's score: corrected for where it begins and ends, or their plain sum."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """Precision of matrix products."""
    device: str = "auto"
    """auto, cpu or cuda."""
    data_dir: Path | None = None
    """Folder that holds the corpora (else BACKSTORY_DATA)."""
    corpus: str | None = None
    """For hf:... alone: the corpus, by its name or the path of a file or folder."""
    out: Path | None = None
    """Where result.json goes (else a folder of the run that is named by the explanation and these options)."""
    allow_unknown: FlagCreatePairsOff[bool] = False
    """Read a text even where most of it is outside the vocabulary."""


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(ExplanationOptions):
    """Options of an explanation of a passage."""

    words: int | None = between(None, 1)
    """Words of the passage, 2000 at most (else 200; with --find as many as the cache can hold)."""
    find: Literal["success", "failure"] | None = None
    """Of `cache`: look for its most peaked success or its flattest failure from --at on, and show what led up to it."""
    against: str | None = None
    """A reader, or another run's folder: show what is gained over it."""
    top: int = between(5, 0, 100)
    """The most candidates of a word."""
    layer: str | None = None
    """What colours the words at first: surprisal, entropy, ..."""

    @property
    def most_words(self) -> int:
        """Words of the passage at most."""
        return WORDS if self.words is None else self.words

    def checked(self) -> Self:
        """Return the options with every value checked. Raises UserError, and TypeError for a value of another type."""
        options = super().checked()
        check_words(options.most_words)
        return options

    def name_parts(self, text: str, reader: str, precision: str, against: str | None) -> list[str]:
        """Return the parts of the result's folder that are not usual, so that no result takes another's place.

        The text, the reader, its precision and what it is compared with come by names that tell them apart.
        """
        parts = (
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
        return [part for part, usual in parts if part != usual]


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
    """A token at which a passage to show begins; may be given more than once (else passages are chosen)."""
    words: int = between(100, 1)
    """Words of a passage, 2000 at most."""

    def checked(self) -> Self:
        """Return the options with every value checked. Raises UserError, and TypeError for a value of another type."""
        options = super().checked()
        check_words(options.words)
        return options

    def name_parts(self, text: str, reader: str, precision: str, against: Sequence[str]) -> list[str]:
        """Return the parts of the result's folder that are not usual, as `ExplainOptions.name_parts`; the reader always."""
        parts = (
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
        return [part for part, usual in parts if part != usual]


def check_words(words: int) -> None:
    """Raise UserError for a passage of too many words."""
    if words > LONGEST_PASSAGE:
        raise UserError(f"a passage has 1 to {LONGEST_PASSAGE:,} words, not {words:,}; choose fewer with --words")
