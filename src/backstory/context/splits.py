"""Splits of the targets into groups: by frequency, part of speech, where they occurred before, and place in the document."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from backstory.config import UserError, check_name
from backstory.context.examination import Examination
from backstory.data.tags import word_classes
from backstory.evaluation.metrics.metric import last_seen

FREQUENT = 800
"""Occurrences of a frequent word in the training text, at least."""
TAGS = ("NN", "VB", "JJ", "RB", "DT", "IN", "PRP", "CC", "CD", "MD", "TO")
POSITIONS = (0, 50, 100, 200, 500, 1000)
"""First position of each group, in tokens from the beginning of the document."""


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
    tagged: bool = False
    """True if it needs part-of-speech tags."""


def check_splits(names: Sequence[str]) -> None:
    """Raise UserError unless there are splits of these names."""
    for name in names:
        check_name(name, SPLITS, "split of the targets")


def split_targets(on: Examination, positions: np.ndarray, reach: int | None, by: Sequence[str]) -> dict[str, Groups]:
    """Return every split that the input allows. Raises UserError if a split in `by` is not among them."""
    known = {"class", "position"}
    known |= {"frequency"} if on.counts is not None else set()
    known |= {"tag", "content"} if on.tags is not None else set()
    known |= {"cache"} if on.cached is not None else set()
    missing = [name for name in by if name not in known]
    if missing:
        if missing[0] == "cache":
            raise UserError("a split by cache is one of the experiment cache alone; choose another with --by")
        lacking = "counts of a training text" if missing[0] == "frequency" else "part-of-speech tags"
        raise UserError(f"a split by {missing[0]} takes {lacking}, and there are none; choose another with --by")
    return {name: split.make(on, positions, reach) for name, split in SPLITS.items() if name in known}


def _frequency(on: Examination, positions: np.ndarray, reach: int | None) -> Groups:
    assert on.counts is not None
    rare = on.counts[np.asarray(on.ids[positions])] < FREQUENT
    return Groups(rare.astype(np.int16), ("frequent", "infrequent"))


def _tag(on: Examination, positions: np.ndarray, reach: int | None) -> Groups:
    assert on.tags is not None
    names = (*TAGS, "<eos>", "<unk>", "other")

    def group(tag: str) -> int:
        exact = names.index(tag) if tag in names else None
        return (
            exact if exact is not None else next((i for i, t in enumerate(TAGS) if tag.startswith(t)), len(names) - 1)
        )

    return Groups(np.array([group(str(tag)) for tag in on.tags[positions]], np.int16), names)


def _content(on: Examination, positions: np.ndarray, reach: int | None) -> Groups:
    assert on.tags is not None
    names, classes = ("content", "function", "neither"), word_classes(on.tags[positions])
    return Groups((classes[:, None] == np.array(names)).argmax(1).astype(np.int16), names)


def outside_window(on: Examination) -> float:
    """Return the share of the text's tokens that are not in the cache when they come: it can only harm these."""
    groups = _cache(on, np.arange(len(on.ids)), None)
    return float((groups.codes == groups.names.index("none")).mean())


def _cache(on: Examination, positions: np.ndarray, reach: int | None) -> Groups:
    assert on.cached is not None
    return _recency(on, positions, on.cached[positions])


def _class(on: Examination, positions: np.ndarray, reach: int | None) -> Groups:
    return _recency(on, positions, np.full(len(positions), len(on.ids) if reach is None else reach))


def _recency(on: Examination, positions: np.ndarray, farthest: np.ndarray) -> Groups:
    """Group the targets by their last occurrence: near, far (at most `farthest` tokens ago), or none of these."""
    ago = last_seen(on.ids, len(on.ids))[positions].astype(np.int64)
    if on.within_documents:
        farthest = np.minimum(farthest, positions - on.beginnings[positions])
    codes = np.where((ago == 0) | (ago > farthest), 2, np.where(ago <= on.near, 0, 1))
    return Groups(codes.astype(np.int16), ("near", "far", "none"))


def _position(on: Examination, positions: np.ndarray, reach: int | None) -> Groups:
    ends = [f"{end - 1}" for end in POSITIONS[1:]] + [""]
    codes = np.searchsorted(POSITIONS, positions - on.beginnings[positions], "right") - 1
    return Groups(codes.astype(np.int16), tuple(f"{a}-{b}" for a, b in zip(POSITIONS, ends, strict=True)))


SPLITS = {
    "frequency": TargetSplit(f"{FREQUENT} times or more in the training text, or fewer", _frequency),
    "tag": TargetSplit("part of speech", _tag, tagged=True),
    "content": TargetSplit("content words, function words", _content, tagged=True),
    "class": TargetSplit("whether the target occurs near before, only farther back, or nowhere", _class),
    "cache": TargetSplit(
        "whether the cache holds the target: near before, only farther back in its window, or not", _cache
    ),
    "position": TargetSplit("place in the document", _position),
}
