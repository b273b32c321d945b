"""What an explanation is made of, and what it finds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backstory.explanations.words import Span
from backstory.reading import Reader
from backstory.reports.passage import Layer, Word
from backstory.text import Vocabulary

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
