"""What an explanation is made of, and what it finds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from backstory.data import Boundaries, Vocabulary
from backstory.explanations.displayed_words import Span
from backstory.readers import Reader
from backstory.reports.passage import Layer, Word

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Subject:
    """What an explanation is made of: a reader, the tokens it is to read, and the words among them that are shown."""

    reader: Reader
    vocabulary: Vocabulary
    ids: np.ndarray
    """(N,) the context and after it the passage, to the last of its tokens."""
    start: int
    """Where in `ids` the passage begins."""
    spans: Sequence[Span]
    """The words of the passage; their places count from `start`."""
    top: int
    """The most candidates of a word."""
    against: Reader | None = None
    """Another reader over the same vocabulary."""
    against_name: str = ""
    chosen: int | None = None
    """The word among them that is told of first, if it is not for the explanation to say."""
    boundaries: Boundaries | None = None
    """Which tokens begin words; None where a word is a token, or its score the plain sum over its tokens."""

    @property
    def starts(self) -> np.ndarray:
        """(words,) the first token of each word of the passage."""
        return np.array([span.start for span in self.spans])

    @property
    def tokens(self) -> int:
        """Tokens of the passage."""
        return len(self.ids) - self.start

    @cached_property
    def uncertain(self) -> np.ndarray:
        """(tokens + 1,) bool: where a word's score depends on how likely a word begins there."""
        if self.boundaries is None:
            return np.zeros(self.tokens + 1, bool)
        return self.boundaries.uncertain(np.asarray(self.ids), self.start + self.starts)[self.start :]


@dataclass(frozen=True)
class Explained:
    """What an explanation found: figures of its result file, layers of the passage, and a note to go with them."""

    figures: dict[str, Any]
    layers: tuple[Layer, ...]
    note: str = ""
    words: tuple[Word, ...] = ()
    """The words that the layers are of, where others before the passage are shown too."""
    chosen: int | None = None
    """The one that is told of first."""
