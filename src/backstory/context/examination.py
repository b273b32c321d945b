"""Input of an experiment: a text, a scorer, which of the tokens are targets and what comes before each."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from backstory.config import UserError
from backstory.config.arguments import checked
from backstory.context.bootstrap import clusters_of
from backstory.context.scorer import Scorer

Advance = Callable[[int], None]
"""Receives the number of tokens read since the last call."""
Reading = Callable[[Advance], np.ndarray]
"""Reads the whole text: nats of every token (N,), or (2, N) with those of the reader inside the outermost one."""


class ProcessGroup(Protocol):
    """Processes that share the targets, as `torchrun` starts them (`training.distributed.Ranks` is one)."""

    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...

    def largest(self, *values: float) -> list[float]:
        """Return the maximum of each value over the processes."""
        ...


@dataclass(frozen=True)
class SingleProcess:
    """Process group of one process."""

    rank: int = 0
    world: int = 1

    def largest(self, *values: float) -> list[float]:
        return list(values)


@checked(targets=2, maximum_context=1, seed=0, context=2, near=1, start=0)
@dataclass(frozen=True, eq=False)
class Examination:
    """Input of an experiment."""

    ids: np.ndarray
    """(N,) tokens of the split."""
    baseline: np.ndarray | Reading | None
    """Nats of every token with the infinite context: all tokens before it, state carried. (2, N) also holds those without the
    cache. None if the model cannot read so: the longest context then stands for it."""
    scorer: Scorer
    targets: int
    """Number of tokens to score, drawn at random without replacement; at most all that have the longest context."""
    maximum_context: int = 1000
    seed: int = 0
    context: int = 300
    """Tokens to perturb, where the experiment does not vary their number."""
    near: int = 50
    """The farthest token that counts as near."""
    tags: np.ndarray | None = None
    """(N,) part-of-speech tags, as text."""
    training: np.ndarray | None = None
    """(tokens,) ids of the training text."""
    counts: np.ndarray | None = None
    """(types,) occurrences in the training text."""
    unknown: int | None = None
    """The id of `<unk>`."""
    start: int = 0
    """The token that is read before the first of a text."""
    documents: np.ndarray | None = None
    """(documents,) the token where each begins; None for one document."""
    within_documents: bool = False
    """True if a context begins where the target's document begins, with `start`."""
    adapts: bool = False
    """True if the reader learns from the text as it reads, so that targets close together are no independent samples."""
    cached: np.ndarray | None = None
    """(N,) number of tokens in the cache when each is scored; None without a cache."""

    def __post_init__(self) -> None:
        documents = self.documents
        if documents is not None and (documents.ndim != 1 or documents.dtype.kind not in "iu"):
            raise ValueError("documents must be an array (documents,) of the tokens at which documents begin")

    def positions(self) -> np.ndarray:
        """Return the targets (N,), ascending: tokens with `maximum_context` tokens before them, the same for every condition.

        Raises UserError where the text is too short.
        """
        check_length(len(self.ids), self.maximum_context)
        possible = len(self.ids) - self.maximum_context
        chosen = np.random.default_rng(self.seed).choice(possible, min(self.targets, possible), replace=False)
        return np.sort(chosen) + self.maximum_context

    @cached_property
    def beginnings(self) -> np.ndarray:
        """Return where the document of each token begins (N,)."""
        starts = np.zeros(1, np.int64) if self.documents is None or not len(self.documents) else self.documents
        return starts[np.searchsorted(starts, np.arange(len(self.ids)), "right") - 1]

    def clusters(self, positions: np.ndarray) -> np.ndarray | None:
        """Return the document or block (N,) of each target if targets close together are no independent samples, else None."""
        return clusters_of(positions, self.documents, len(self.ids)) if self.adapts else None

    def reached(self, positions: np.ndarray, reach: int) -> tuple[np.ndarray, np.ndarray]:
        """Return where the contexts of `reach` tokens of targets (N,) begin, and where they end."""
        first = positions - reach
        return (np.maximum(first, self.beginnings[positions]) if self.within_documents else first), positions

    def before(self, position: int, reach: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the last `reach` tokens before a target, and their tags if the text is tagged."""
        begin, cut = position - reach, self.within_documents and position - reach < self.beginnings[position]
        if cut:
            begin = int(self.beginnings[position])
        context = np.asarray(self.ids[begin:position])
        tags = None if self.tags is None else self.tags[begin:position]
        if not cut:
            return context, tags
        # As the infinite context of a document begins.
        first = np.array([self.start], context.dtype)
        return np.concatenate([first, context]), None if tags is None else np.concatenate([[""], tags])


def check_length(tokens: int, maximum_context: int) -> None:
    """Raise UserError unless a text of `tokens` tokens has at least two targets with the longest context."""
    if tokens - maximum_context < 2:
        raise UserError(
            f"the text has {tokens:,} tokens, too few for contexts of {maximum_context:,}; "
            "choose a longer split or a smaller --maximum-context"
        )
