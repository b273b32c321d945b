"""Input of an experiment: a text, a scorer, the targets with the context before each, and splits of the targets into groups."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from backstory.context.bootstrap import clusters_of
from backstory.context.scorer import Scorer
from backstory.data.tags import word_classes
from backstory.evaluation.metrics.nats_by_distance import last_seen
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError, check_name

FREQUENT = 800
"""Fewest occurrences of a frequent word in the training text."""
TAGS = ("NN", "VB", "JJ", "RB", "DT", "IN", "PRP", "CC", "CD", "MD", "TO")
POSITIONS = (0, 50, 100, 200, 500, 1000)
"""First position of each group, in tokens from the beginning of the document."""
CACHE_ALONE = "only the experiment cache splits by cache; choose another split with --by"
Advance = Callable[[int], None]
"""Receives the number of tokens read since the last call."""
Reading = Callable[[Advance], np.ndarray]
"""Reads the whole text: nats of every token (N,), or (2, N) with those of the reader inside the outermost one."""


class ProcessGroup(Protocol):
    """Processes that share the targets, as `torchrun` starts them (`jobs.ranks.Ranks` is one)."""

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
    """Number of tokens to perturb, in experiments that do not vary it."""
    near: int = 50
    """Largest distance from the target that counts as near, in tokens."""
    tags: np.ndarray | None = None
    """(N,) part-of-speech tags, as text."""
    training: np.ndarray | None = None
    """(tokens,) ids of the training text."""
    counts: np.ndarray | None = None
    """(types,) occurrences in the training text."""
    unknown: int | None = None
    """The id of `<unk>`."""
    start: int = 0
    """The token that is read before a text."""
    documents: np.ndarray | None = None
    """(documents,) first token of each document; None for a single one."""
    within_documents: bool = False
    """True if a context goes back no further than the target's document, and begins with `start` there."""
    start_token: bool = False
    """True if `start` also goes before contexts that do not reach the beginning of a text."""
    adapts: bool = False
    """True if the reader learns from the text as it reads: nearby targets are then not independent."""
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
        sample = np.random.default_rng(self.seed).choice(possible, min(self.targets, possible), replace=False)
        return np.sort(sample) + self.maximum_context

    @cached_property
    def beginnings(self) -> np.ndarray:
        """Return the start of each token's document (N,)."""
        starts = np.zeros(1, np.int64) if self.documents is None or not len(self.documents) else self.documents
        return starts[np.searchsorted(starts, np.arange(len(self.ids)), "right") - 1]

    def clusters(self, positions: np.ndarray) -> np.ndarray | None:
        """Return the document or block (N,) of each target if nearby targets are not independent, else None."""
        return clusters_of(positions, self.documents, len(self.ids)) if self.adapts else None

    def reached(self, positions: np.ndarray, reach: int) -> tuple[np.ndarray, np.ndarray]:
        """Return where the contexts of `reach` tokens of targets (N,) begin, and where they end."""
        first = positions - reach
        return (np.maximum(first, self.beginnings[positions]) if self.within_documents else first), positions

    def begun(self, context: np.ndarray, position: int, reach: int) -> np.ndarray:
        """Return the perturbed context of a target, after `start` if that is set or the document begins there."""
        # The infinite context of a document begins with the start token too.
        if self.start_token or (self.within_documents and position - reach < self.beginnings[position]):
            return np.concatenate([np.array([self.start], context.dtype), context])
        return context

    def before(self, position: int, reach: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the last `reach` tokens before a target, and their tags if the text is tagged: what is perturbed."""
        document = int(self.beginnings[position]) if self.within_documents else 0
        begin = max(position - reach, document)
        return np.asarray(self.ids[begin:position]), None if self.tags is None else self.tags[begin:position]


def check_length(tokens: int, maximum_context: int) -> None:
    """Raise UserError unless a text of `tokens` tokens has at least two targets with the longest context."""
    if tokens - maximum_context < 2:
        half = tokens // 2  # the other half are targets
        fits = f", such as {half // (size := 10 ** (len(str(half)) - 1)) * size}" if half else ""
        raise UserError(
            f"the text has {tokens:,} tokens, too few for contexts of {maximum_context:,}; "
            f"choose a longer split or a smaller --maximum-context{fits}"
        )


# --- splits of the targets ---


@dataclass(frozen=True, eq=False)
class Groups:
    """Group of each of N targets."""

    codes: np.ndarray
    """(N,) int16."""
    names: tuple[str, ...]


@dataclass(frozen=True)
class TargetSplit:
    """A way to split the targets into groups."""

    description: str
    make: Callable[[Examination, np.ndarray, int | None], Groups]
    """Returns the groups of targets at positions (N,) whose contexts have a number of tokens (None: the whole text)."""
    needs: str = ""
    """Field of the examination that the split needs."""


def check_splits(names: Sequence[str], experiment: str) -> None:
    """Raise UserError for a split of the targets that is unknown, or that the experiment does not have."""
    for name in names:
        check_name(name, SPLITS, "split of the targets")
    if "cache" in names and experiment != "cache":
        raise UserError(CACHE_ALONE)


def split_targets(on: Examination, positions: np.ndarray, reach: int | None, by: Sequence[str]) -> dict[str, Groups]:
    """Return every split that the input allows. Raises UserError if a split in `by` is not among them."""
    possible = {
        name: split for name, split in SPLITS.items() if not split.needs or getattr(on, split.needs) is not None
    }
    if missing := next((name for name in by if name not in possible), None):
        if missing == "cache":
            raise UserError(CACHE_ALONE)
        lacking = "counts of a training text" if missing == "frequency" else "part-of-speech tags"
        raise UserError(f"a split by {missing} needs {lacking}, which this text lacks; choose another with --by")
    return {name: split.make(on, positions, reach) for name, split in possible.items()}


def _frequency(on: Examination, positions: np.ndarray, reach: int | None) -> Groups:
    assert on.counts is not None
    rare = on.counts[np.asarray(on.ids[positions])] < FREQUENT
    return Groups(rare.astype(np.int16), ("frequent", "infrequent"))


def _tag(on: Examination, positions: np.ndarray, reach: int | None) -> Groups:
    assert on.tags is not None
    names = (*TAGS, "<eos>", "<unk>", "other")

    def group(tag: str) -> int:
        name = tag if tag in names else next((prefix for prefix in TAGS if tag.startswith(prefix)), "other")
        return names.index(name)

    return Groups(np.array([group(str(tag)) for tag in on.tags[positions]], np.int16), names)


def _content(on: Examination, positions: np.ndarray, reach: int | None) -> Groups:
    assert on.tags is not None
    names, classes = ("content", "function", "neither"), word_classes(on.tags[positions])
    return Groups((classes[:, None] == np.array(names)).argmax(1).astype(np.int16), names)


def _class(on: Examination, positions: np.ndarray, reach: int | None) -> Groups:
    return _recency(on, positions, np.full(len(positions), len(on.ids) if reach is None else reach))


def _cache(on: Examination, positions: np.ndarray, reach: int | None) -> Groups:
    assert on.cached is not None
    return _recency(on, positions, on.cached[positions])


def _recency(on: Examination, positions: np.ndarray, farthest: np.ndarray) -> Groups:
    """Group the targets by their last occurrence: near, far (at most `farthest` tokens ago), or none."""
    ago = last_seen(on.ids, len(on.ids))[positions].astype(np.int64)
    if on.within_documents:
        farthest = np.minimum(farthest, positions - on.beginnings[positions])
    codes = np.where((ago == 0) | (ago > farthest), 2, np.where(ago <= on.near, 0, 1))
    return Groups(codes.astype(np.int16), ("near", "far", "none"))


def usual_tags(ids: np.ndarray, tags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the words (W,) of a tagged text (tokens,), and the number of the tag that each has most often (W,)."""
    words, of_word = np.unique(np.asarray(ids), return_inverse=True)
    kinds, of_kind = np.unique(tags, return_inverse=True)
    table = np.zeros((len(words), len(kinds)), np.int64)
    np.add.at(table, (of_word, of_kind), 1)
    return words, table.argmax(1)


def _similar(on: Examination, positions: np.ndarray, reach: int | None) -> Groups:
    """Group the targets as `_class` does, apart from those that `replace-target` has no similar word for."""
    assert on.tags is not None
    words, kinds = usual_tags(on.ids, on.tags)
    alone = words[np.bincount(kinds)[kinds] == 1]
    classes = _class(on, positions, reach)
    codes = np.where(np.isin(on.ids[positions], alone), len(classes.names), classes.codes)
    return Groups(codes.astype(np.int16), (*classes.names, "alone"))


def outside_window(on: Examination) -> float:
    """Return the share of the text's tokens that the cache does not hold when they come. It can only harm their scores."""
    groups = _cache(on, np.arange(len(on.ids)), None)
    return float((groups.codes == groups.names.index("none")).mean())


def _position(on: Examination, positions: np.ndarray, reach: int | None) -> Groups:
    ends = [f"{end - 1}" for end in POSITIONS[1:]] + [""]
    codes = np.searchsorted(POSITIONS, positions - on.beginnings[positions], "right") - 1
    return Groups(codes.astype(np.int16), tuple(f"{a}-{b}" for a, b in zip(POSITIONS, ends, strict=True)))


SPLITS = {
    "frequency": TargetSplit(f"{FREQUENT} times or more in the training text, or fewer", _frequency, "counts"),
    "tag": TargetSplit("part of speech", _tag, "tags"),
    "content": TargetSplit("content words, function words", _content, "tags"),
    "class": TargetSplit("whether the target occurs near before, only farther back, or nowhere", _class),
    "similar": TargetSplit(
        "as class, but apart from targets alone with their tag (such as <eos>), which have no similar word",
        _similar,
        "tags",
    ),
    "cache": TargetSplit(
        "whether the cache holds the target: near before, only farther back in its window, or not", _cache, "cached"
    ),
    "position": TargetSplit("place in the document", _position),
}
