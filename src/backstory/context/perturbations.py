"""Perturbations: what is done to the tokens before a target (Khandelwal et al. 2018, sections 3 to 6).

A new one is a function (or a dataclass, where it has settings) of `Perturbation`'s form and a line in `experiments.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from backstory.config.arguments import checked, diagnosed

Tags = np.ndarray | None


class Perturbation(Protocol):
    """A context (n,) of token ids, nearest last, and the token that follows it, to another context of at least one token.

    `tags` (n,) are the part-of-speech tags of the context, as text; None where the experiment needs none. Randomness comes only
    from the generator given, and the context is left as it is.
    """

    def __call__(self, context: np.ndarray, target: int, tags: Tags, random: np.random.Generator, /) -> np.ndarray: ...


def parted(context: np.ndarray, boundary: int) -> tuple[np.ndarray, np.ndarray]:
    """The tokens farther from the target than `boundary`, and those that are not."""
    at = max(0, len(context) - boundary)
    return context[:at], context[at:]


@checked(keep=1)
@dataclass(frozen=True)
class Truncate:
    """Keep the `keep` tokens nearest to the target."""

    keep: int

    @diagnosed()
    def __call__(self, context: np.ndarray, target: int, tags: Tags, random: np.random.Generator) -> np.ndarray:
        return parted(context, self.keep)[1]


@checked(boundary=0, span=0)
@dataclass(frozen=True)
class Permute:
    """Put tokens farther than `boundary` into another order: the nearest `span` of them, or all where it is None."""

    order: Callable[[int, np.random.Generator], np.ndarray]
    """From a number of tokens, the places they are taken from."""
    boundary: int
    span: int | None = None

    @diagnosed()
    def __call__(self, context: np.ndarray, target: int, tags: Tags, random: np.random.Generator) -> np.ndarray:
        far, near = parted(context, self.boundary)
        kept, moved = parted(far, len(far) if self.span is None else self.span)
        return np.concatenate([kept, moved[self.order(len(moved), random)], near])


@diagnosed()
def shuffled(count: int, random: np.random.Generator) -> np.ndarray:
    """A random order."""
    return random.permutation(count)


@diagnosed()
def reversed_order(count: int, random: np.random.Generator) -> np.ndarray:
    """The last first."""
    return np.arange(count)[::-1]


@checked(boundary=0)
@dataclass(frozen=True, eq=False)
class ReplaceFar:
    """Tokens farther than `boundary` give way to a random contiguous piece of the training text, as long as they are."""

    boundary: int
    text: np.ndarray
    """(tokens,) ids of the training text; as long as a context at least."""

    @diagnosed()
    def __call__(self, context: np.ndarray, target: int, tags: Tags, random: np.random.Generator) -> np.ndarray:
        far, near = parted(context, self.boundary)
        if len(self.text) < len(far):
            raise ValueError(f"text must have as many tokens as a context, {len(far)}, not {len(self.text)}")
        start = int(random.integers(len(self.text) - len(far) + 1))
        return np.concatenate([np.asarray(self.text[start : start + len(far)]).astype(context.dtype), near])


@checked(boundary=0)
@dataclass(frozen=True)
class Drop:
    """Drop the words of a kind that are farther than `boundary`; nothing takes their place.

    The control drops as many there, whichever they are.
    """

    boundary: int
    kind: Callable[[str], bool]
    """Whether a word of this tag is dropped."""
    control: bool = False

    @diagnosed()
    def __call__(self, context: np.ndarray, target: int, tags: Tags, random: np.random.Generator) -> np.ndarray:
        assert tags is not None, "to drop words of a kind takes tags"
        far, near = parted(context, self.boundary)
        gone = np.fromiter((self.kind(tag) for tag in tags[: len(far)].tolist()), bool, len(far))
        if self.control:
            gone = random.permutation(gone)
        return np.concatenate([far[~gone], near])


@diagnosed()
def drop_target(context: np.ndarray, target: int, tags: Tags, random: np.random.Generator) -> np.ndarray:
    """Drop the target wherever it occurs; where nothing else is there, one token stays, as no context is empty."""
    left = context[context != target]
    return left if len(left) else context[-1:]


@checked()
@dataclass(frozen=True)
class ReplaceTarget:
    """Another word, one and the same, wherever the target occurs."""

    choices: Callable[[int], np.ndarray]
    """The words (k,) that may stand for a target, each as likely; where there is none, the context stays as it is."""

    @diagnosed()
    def __call__(self, context: np.ndarray, target: int, tags: Tags, random: np.random.Generator) -> np.ndarray:
        choices = self.choices(target)
        if not len(choices):
            return context
        return np.where(context == target, random.choice(choices), context).astype(context.dtype)


def _check_tagged(similar: object, ids: Any = None, tags: Any = None, counts: Any = None, most: int = 10) -> None:
    """Raise ValueError unless each token has a tag, and each type a count."""
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or tags.shape != ids.shape:
        raise ValueError("ids and tags must be arrays (tokens,) of as many whole numbers and tags")
    if (
        counts.ndim != 1
        or counts.dtype.kind not in "iuf"
        or (len(ids) and not 0 <= ids.min() <= ids.max() < len(counts))
    ):
        raise ValueError("counts must be an array (types,) of a number for each type, and ids those of types")


class Similar:
    """Words of the same part of speech and of a similar frequency in training: the `most` nearest on a logarithmic scale."""

    @checked(most=1)
    @diagnosed(_check_tagged)
    def __init__(self, ids: np.ndarray, tags: np.ndarray, counts: np.ndarray, most: int = 10) -> None:
        """Of the words of a tagged text (tokens,), each with its most frequent tag there; `counts` (types,) are of training."""
        words, of_word = np.unique(np.asarray(ids), return_inverse=True)
        kinds, of_kind = np.unique(tags, return_inverse=True)
        table = np.zeros((len(words), len(kinds)), np.int64)
        np.add.at(table, (of_word, of_kind), 1)
        kind = table.argmax(1)
        self._alike = {int(word): words[kind == k] for word, k in zip(words, kind, strict=True)}
        self._size, self._most = np.log1p(counts.astype(np.float64)), most

    @diagnosed()
    def __call__(self, target: int) -> np.ndarray:
        """Ids (k,), the most similar first; none for a word that is alone with its tag."""
        alike = self._alike.get(target, np.empty(0, np.int64))
        others = alike[alike != target]
        distance = np.abs(self._size[others] - self._size[target])
        return others[np.argsort(distance, kind="stable")[: self._most]]
