"""What an experiment is run on: a text, a scorer, which of the tokens are targets and what comes before each."""

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
"""Is told how many tokens were read since it was last told."""
Reading = Callable[[Advance], np.ndarray]
"""Reads the whole text: nats of every token (N,), or (2, N) where they were also made without the outermost reader."""


class Ranks(Protocol):
    """Processes that share the targets, as `torchrun` starts them (`training.distributed.Ranks` is one)."""

    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...

    def largest(self, *values: float) -> list[float]:
        """The largest that any process has of each."""
        ...


@dataclass(frozen=True)
class Alone:
    """The only process."""

    rank: int = 0
    world: int = 1

    def largest(self, *values: float) -> list[float]:
        return list(values)


@checked(targets=2, maximum_context=1, seed=0, context=2, near=1, start=0)
@dataclass(frozen=True, eq=False)
class Examination:
    """What an experiment is run on."""

    ids: np.ndarray
    """(N,) the split."""
    baseline: np.ndarray | Reading | None
    """Nats of every token with the infinite context: all tokens before it, state carried. (2, N) holds those without the cache
    too. None where the model cannot read so: the longest context then stands for it."""
    scorer: Scorer
    targets: int
    """How many tokens are scored, drawn at random without replacement; at most all that have the longest context."""
    maximum_context: int = 1000
    seed: int = 0
    context: int = 300
    """The tokens that are perturbed, where their number is not what an experiment varies."""
    near: int = 50
    """The farthest token that counts as near."""
    tags: np.ndarray | None = None
    """(N,) part-of-speech tags, as text."""
    training: np.ndarray | None = None
    """(tokens,) ids of the training text."""
    counts: np.ndarray | None = None
    """(types,) how often the training text holds each."""
    unknown: int | None = None
    """The id of `<unk>`."""
    start: int = 0
    """The token that is read before the first of a text."""
    documents: np.ndarray | None = None
    """(documents,) the token where each begins; None for one document."""
    within_documents: bool = False
    """Whether a context ends where the target's document begins: with `start`, then."""
    adapts: bool = False
    """Whether the reader learns from the text as it reads, so that targets close together are no independent samples."""
    cached: np.ndarray | None = None
    """(N,) how many of the tokens before each the cache holds there; None without a cache."""

    def positions(self) -> np.ndarray:
        """The targets, ascending: only tokens with `maximum_context` tokens before them, the same for every condition.

        Raises UserError where the text is too short.
        """
        check_length(len(self.ids), self.maximum_context)
        possible = len(self.ids) - self.maximum_context
        chosen = np.random.default_rng(self.seed).choice(possible, min(self.targets, possible), replace=False)
        return np.sort(chosen) + self.maximum_context

    @cached_property
    def beginnings(self) -> np.ndarray:
        """(N,) where the document of each token begins."""
        starts = np.zeros(1, np.int64) if self.documents is None or not len(self.documents) else self.documents
        return starts[np.searchsorted(starts, np.arange(len(self.ids)), "right") - 1]

    def clusters(self, positions: np.ndarray) -> np.ndarray | None:
        """The document or block (N,) of each target, where targets close together are no independent samples."""
        return clusters_of(positions, self.documents, len(self.ids)) if self.adapts else None

    def reached(self, positions: np.ndarray, reach: int) -> tuple[np.ndarray, np.ndarray]:
        """Of targets (N,): where their contexts of `reach` tokens begin, and where they themselves stand."""
        first = positions - reach
        return (np.maximum(first, self.beginnings[positions]) if self.within_documents else first), positions

    def before(self, position: int, reach: int) -> tuple[np.ndarray, np.ndarray | None]:
        """The last `reach` tokens before a target, and their tags, if the text is tagged."""
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
    """Raise UserError unless a text of so many tokens has at least two targets with such a context."""
    if tokens - maximum_context < 2:
        raise UserError(
            f"the text has {tokens:,} tokens, too few for contexts of {maximum_context:,}; "
            "choose a longer split or a smaller --maximum-context"
        )
