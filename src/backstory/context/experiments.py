"""The experiments by name, each a list of conditions: what is done to the context, and what a result says of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from backstory.config import UserError, check_name
from backstory.context.examination import Examination
from backstory.context.perturbations import (
    Drop,
    Permute,
    Perturbation,
    ReplaceFar,
    ReplaceTarget,
    Similar,
    Truncate,
    drop_target,
    reversed_order,
    shuffled,
)
from backstory.data.tags import is_content, is_function
from backstory.results.examination_record import PictureRecord

CONTEXTS = (5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 400, 500, 700, 1000, 1500, 2000, 3000, 4000, 6000, 8000)
BOUNDARIES = (1, 5, 10, 15, 20, 30, 50, 100, 200)
DROPPED = (5, 20, 100)
"""Boundaries beyond which words of a kind are dropped."""
SPAN = 20
"""Tokens that are permuted locally: about a sentence."""


@dataclass(frozen=True)
class Condition:
    """One way of changing contexts."""

    name: str
    method: str
    context: int | None
    """The tokens before a target that are perturbed; None for all there are."""
    perturb: Perturbation | None
    """None: all there is, by the reader inside the cache."""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """As results record it."""
        return {"name": self.name, "method": self.method, **self.parameters, "context": self.context}


@dataclass(frozen=True)
class Experiment:
    """An experiment by what it does and the conditions that it consists of."""

    description: str
    conditions: Callable[[Examination], Sequence[Condition]]
    whole: bool = False
    """Whether its baseline is the infinite context, instead of the unperturbed one."""
    tagged: bool = False
    """Whether it needs part-of-speech tags."""
    by: tuple[str, ...] = ()
    """How its targets are split unless somebody asks for something else."""
    picture: PictureRecord | None = None
    """How a report draws and tells its effects; None for the experiments of the paper, whose figures combine several. Every
    condition of an experiment with a picture has the parameter `series`, and without a split a `boundary`."""


def check_experiment(name: str) -> None:
    """Raise UserError unless there is an experiment of that name."""
    check_name(name, EXPERIMENTS, "experiment", "backstory ls experiments")


def _truncate(on: Examination) -> list[Condition]:
    lengths = [n for n in CONTEXTS if n < on.maximum_context] + [on.maximum_context]
    return [Condition(f"truncate-{n}", "truncate", n, Truncate(n)) for n in lengths]


def _boundaries(on: Examination, boundaries: Sequence[int] = BOUNDARIES) -> list[int]:
    """Those with something beyond them."""
    found = [b for b in boundaries if b < on.context]
    if not found:
        raise UserError(f"a context of {on.context} leaves nothing to change beyond {boundaries[0]}; raise --context")
    return found


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
        by=("class",),
    ),
    "cache": Experiment(
        "with all context, what the model is worth without its cache (figure 7)",
        lambda on: [Condition("without-cache", "without-cache", None, None)],
        whole=True,
        by=("cache",),
    ),
    "mask": Experiment(
        "replace all tokens farther than a boundary by <unk>, so that their number is known and nothing else",
        _mask,
        picture=PictureRecord(
            title="Words farther away masked", sentence="Perplexity after replacing all words farther away by <unk>"
        ),
    ),
}
