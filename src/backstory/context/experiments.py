"""Perturbations of the context, and the experiments built from them (Khandelwal et al. 2018, sections 3 to 6).

A new experiment is a perturbation here, a function that lists its conditions, and a line in `EXPERIMENTS`; with a `picture`
reports draw it. What a paper printed of it goes to `papers/published`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from backstory.context.examination import Examination, usual_tags
from backstory.data.tags import is_content, is_function
from backstory.results.examination_record import PictureRecord
from backstory.utils.arguments import checked, diagnosed
from backstory.utils.errors import UserError, check_name

CONTEXTS = (5, 10, 13, 20, 30, 50, 75, 100, 150, 200, 300, 400, 500, 700, 1000, 1500, 2000, 3000, 4000, 6000, 8000)
BOUNDARIES = (1, 5, 10, 15, 20, 30, 50, 100, 200)
DROPPED = (5, 20, 100)
"""Boundaries beyond which words of a kind are dropped."""
SPAN = 20
"""Number of tokens that a local permutation covers: about a sentence."""
Tags = np.ndarray | None


class Perturbation(Protocol):
    """Change of a context (n,) of token ids, nearest last, before a target, to another context of at least one token.

    `tags` (n,) are the part-of-speech tags of the context, as text; None if the experiment needs none. Randomness comes only
    from the generator, and the context is left as it is.
    """

    def __call__(self, context: np.ndarray, target: int, tags: Tags, random: np.random.Generator, /) -> np.ndarray: ...


def split_at(context: np.ndarray, boundary: int) -> tuple[np.ndarray, np.ndarray]:
    """Split a context: the tokens farther from the target than `boundary`, and the others."""
    at = max(0, len(context) - boundary)
    return context[:at], context[at:]


@checked(keep=1)
@dataclass(frozen=True)
class Truncate:
    """Keep the `keep` tokens nearest to the target (eq. 1)."""

    keep: int

    @diagnosed()
    def __call__(self, context: np.ndarray, target: int, tags: Tags, random: np.random.Generator) -> np.ndarray:
        return split_at(context, self.keep)[1]


@checked(boundary=0, span=0)
@dataclass(frozen=True)
class Permute:
    """Reorder tokens farther than `boundary`: the nearest `span` of them, or all if `span` is None (eq. 2)."""

    order: Callable[[int, np.random.Generator], np.ndarray]
    """Returns a permutation of a number of tokens: for each place the position that its token comes from."""
    boundary: int
    span: int | None = None

    @diagnosed()
    def __call__(self, context: np.ndarray, target: int, tags: Tags, random: np.random.Generator) -> np.ndarray:
        far, near = split_at(context, self.boundary)
        unmoved, moved = split_at(far, len(far) if self.span is None else self.span)
        return np.concatenate([unmoved, moved[self.order(len(moved), random)], near])


@diagnosed()
def shuffled(count: int, random: np.random.Generator) -> np.ndarray:
    """Return a random order."""
    return random.permutation(count)


@diagnosed()
def reversed_order(count: int, random: np.random.Generator) -> np.ndarray:
    """Return the reverse order."""
    return np.arange(count)[::-1]


@checked(boundary=0)
@dataclass(frozen=True, eq=False)
class ReplaceFar:
    """Replace the tokens farther than `boundary` by a random contiguous piece of another text, as long (section 5.1)."""

    boundary: int
    text: np.ndarray
    """(tokens,) ids, at least as many as in a context."""

    @diagnosed()
    def __call__(self, context: np.ndarray, target: int, tags: Tags, random: np.random.Generator) -> np.ndarray:
        far, near = split_at(context, self.boundary)
        if len(self.text) < len(far):
            raise ValueError(f"text must have as many tokens as a context, {len(far)}, not {len(self.text)}")
        start = int(random.integers(len(self.text) - len(far) + 1))
        return np.concatenate([np.asarray(self.text[start : start + len(far)]).astype(context.dtype), near])


@checked(boundary=0)
@dataclass(frozen=True)
class Drop:
    """Drop the words of a kind that are farther than `boundary`; nothing takes their place (eq. 3).

    The control drops as many random words there.
    """

    boundary: int
    kind: Callable[[str], bool]
    """True for the tags of words to drop."""
    control: bool = False

    @diagnosed()
    def __call__(self, context: np.ndarray, target: int, tags: Tags, random: np.random.Generator) -> np.ndarray:
        assert tags is not None, "to drop words of a kind takes tags"
        far, near = split_at(context, self.boundary)
        dropped = np.fromiter((self.kind(tag) for tag in tags[: len(far)].tolist()), bool, len(far))
        if self.control:
            dropped = random.permutation(dropped)
        return np.concatenate([far[~dropped], near])


@diagnosed()
def drop_target(context: np.ndarray, target: int, tags: Tags, random: np.random.Generator) -> np.ndarray:
    """Drop the target wherever it occurs (eq. 4). If nothing else is in the context, one token stays: no context is empty."""
    left = context[context != target]
    return left if len(left) else context[-1:]


@checked()
@dataclass(frozen=True)
class ReplaceTarget:
    """Replace the target wherever it occurs by one other word (section 6.1)."""

    choices: Callable[[int], np.ndarray]
    """Returns the words (k,) that may replace a target, with equal probability. With none, the context stays unchanged."""

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
    """Lists the `most` words of the same part of speech whose training frequency is nearest, on a logarithmic scale."""

    @checked(most=1)
    @diagnosed(_check_tagged)
    def __init__(self, ids: np.ndarray, tags: np.ndarray, counts: np.ndarray, most: int = 10) -> None:
        """Learn the most frequent tag of every word of a tagged text (tokens,); `counts` (types,) are of training."""
        words, kind = usual_tags(ids, tags)
        self._same_tag = {int(word): words[kind == k] for word, k in zip(words, kind, strict=True)}
        self._size, self._most = np.log1p(counts.astype(np.float64)), most

    @diagnosed()
    def __call__(self, target: int) -> np.ndarray:
        """Return ids (k,), the most similar first; none for a word that is alone with its tag."""
        same_tag = self._same_tag.get(target, np.empty(0, np.int64))
        others = same_tag[same_tag != target]
        distance = np.abs(self._size[others] - self._size[target])
        return others[np.argsort(distance, kind="stable")[: self._most]]


# --- conditions and experiments ---


@dataclass(frozen=True)
class Condition:
    """One change of contexts, with its parameters."""

    name: str
    method: str
    context: int | None
    """Number of tokens before a target to perturb; None for all."""
    perturb: Perturbation | None
    """None: the whole context, read by the reader inside the cache."""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the condition as results record it."""
        return {"name": self.name, "method": self.method, **self.parameters, "context": self.context}


@dataclass(frozen=True)
class Experiment:
    """Experiment: a description, and its conditions."""

    description: str
    conditions: Callable[[Examination], Sequence[Condition]]
    whole: bool = False
    """True if its baseline is the infinite context, instead of the unperturbed one."""
    tagged: bool = False
    """True if it needs part-of-speech tags."""
    by: tuple[str, ...] = ()
    """Usual splits of its targets."""
    picture: PictureRecord | None = None
    """Description by which reports draw and describe its effects; None for the experiments of the paper, whose figures combine
    several. Each condition of an experiment with a picture has the parameter `series`, and without a split a `boundary`."""


def check_experiment(name: str) -> None:
    """Raise UserError for an unknown experiment."""
    check_name(name, EXPERIMENTS, "experiment", "backstory ls experiments", from_plugins=True)


def _truncate(on: Examination) -> list[Condition]:
    lengths = [n for n in CONTEXTS if n < on.maximum_context] + [on.maximum_context]
    return [Condition(f"truncate-{n}", "truncate", n, Truncate(n)) for n in lengths]


def _boundaries(on: Examination, boundaries: Sequence[int] = BOUNDARIES) -> list[int]:
    """Return the boundaries with tokens beyond them. Raises UserError if there are none."""
    inside = [b for b in boundaries if b < on.context]
    if not inside:
        raise UserError(f"a context of {on.context} leaves nothing to change beyond {boundaries[0]}; raise --context")
    return inside


def _order(method: str, order: Callable[[int, np.random.Generator], np.ndarray]) -> Callable[..., list[Condition]]:
    def conditions(on: Examination) -> list[Condition]:
        return [
            Condition(
                f"{method}-{span}-{b}", method, on.context, Permute(order, b, length), {"span": span, "boundary": b}
            )
            for span, length in (("local", SPAN), ("global", None))
            for b in _boundaries(on)
        ]

    return conditions


def _replace(on: Examination) -> list[Condition]:
    if on.training is None or len(on.training) < on.context:
        raise UserError(f"to replace a context of {on.context} takes a training text that is as long; lower --context")
    return [
        Condition(
            f"replace-global-{b}", "replace", on.context, ReplaceFar(b, on.training), {"span": "global", "boundary": b}
        )
        for b in _boundaries(on)
    ]


def _drop(on: Examination) -> list[Condition]:
    return [
        Condition(
            f"drop-{words}-{b}" + ("-control" if control else ""),
            "drop",
            on.context,
            Drop(b, kind, control),
            {"words": words, "control": control, "boundary": b},
        )
        for words, kind in (("content", is_content), ("function", is_function))
        for b in _boundaries(on, DROPPED)
        for control in (False, True)
    ]


def _drop_distant(on: Examination) -> list[Condition]:
    if on.near >= on.context:
        raise UserError(
            f"a context of {on.context} has nothing distant beyond {on.near}; raise --context or lower --near"
        )
    return [Condition("drop-distant", "drop-distant", on.context, Truncate(on.near), {"boundary": on.near})]


def _replace_target(on: Examination) -> list[Condition]:
    assert on.tags is not None
    if on.counts is None:
        raise UserError("to replace a target by a similar word takes the counts of a training text; the model has none")
    by = {"similar": Similar(on.ids, on.tags, on.counts)}
    if on.unknown is not None:
        unknown = np.array([on.unknown])
        by = {"unknown": lambda target: unknown, **by}
    return [
        Condition(f"replace-target-{name}", "replace-target", on.context, ReplaceTarget(choices), {"replacement": name})
        for name, choices in by.items()
    ]


def _mask(on: Examination) -> list[Condition]:
    if on.unknown is None:
        raise UserError("to mask words takes a vocabulary with <unk>, and the model has none")
    text = np.full(on.context, on.unknown)
    return [
        Condition(f"mask-{b}", "mask", on.context, ReplaceFar(b, text), {"series": "masking", "boundary": b})
        for b in _boundaries(on)
    ]


EXPERIMENTS = {
    "truncate": Experiment(
        "keep only the n nearest tokens, n from 5 up (figures 1a to 1d); gives the effective context",
        _truncate,
        whole=True,
        by=("frequency",),
    ),
    "shuffle": Experiment(
        "put tokens farther than a boundary into random order, 20 of them or all (figure 2)",
        _order("shuffle", shuffled),
    ),
    "reverse": Experiment(
        "put tokens farther than a boundary into reverse order, 20 of them or all (figure 2)",
        _order("reverse", reversed_order),
    ),
    "replace": Experiment(
        "replace all tokens farther than a boundary by a random piece of the training text (figure 2b)", _replace
    ),
    "drop": Experiment(
        "drop content or function words farther than a boundary, or as many at random (figure 3)", _drop, tagged=True
    ),
    "drop-target": Experiment(
        "drop the target wherever the context holds it (figure 4a)",
        lambda on: [Condition("drop-target", "drop-target", on.context, drop_target)],
        by=("class",),
    ),
    "drop-distant": Experiment("drop everything but the near context (figure 4a)", _drop_distant, by=("class",)),
    "replace-target": Experiment(
        "replace the target in the context by <unk>, or by a similar word (figure 4b)",
        _replace_target,
        tagged=True,
        by=("class", "similar"),
    ),
    "cache": Experiment(
        "compare with and without the cache, both with the whole context (figure 7)",
        lambda on: [Condition("without-cache", "without-cache", None, None)],
        whole=True,
        by=("cache",),
    ),
    "mask": Experiment(
        "replace all tokens farther than a boundary by <unk>, so that only their number is known",
        _mask,
        picture=PictureRecord(
            title="Words farther away masked", sentence="Perplexity after replacing all words farther away by <unk>"
        ),
    ),
}
