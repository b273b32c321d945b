"""Experiments on context: the same targets scored under every condition, against the infinite context."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from backstory.config import NonFiniteError, UserError, check_name
from backstory.context.perturbations import Perturbation, Truncate
from backstory.context.scorer import Scorer
from backstory.context.statistics import effective_context, paired_interval

CONTEXTS = (5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 400, 500, 700, 1000)
THRESHOLD = 0.01
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Examination:
    """What an experiment is run on."""

    ids: np.ndarray
    """(N,) the split."""
    baseline: np.ndarray
    """(N,) nats of every token with the infinite context: all tokens before it, state carried."""
    scorer: Scorer
    targets: int
    """How many tokens are scored, drawn at random without replacement; at most all that have the longest context."""
    maximum_context: int = 1000
    seed: int = 0

    def positions(self) -> np.ndarray:
        """The targets, ascending: only tokens with `maximum_context` tokens before them, the same for every condition.

        Raises UserError where the text is too short.
        """
        check_length(len(self.ids), self.maximum_context)
        possible = len(self.ids) - self.maximum_context
        chosen = np.random.default_rng(self.seed).choice(possible, min(self.targets, possible), replace=False)
        return np.sort(chosen) + self.maximum_context

    def nats(self, positions: np.ndarray, perturb: Perturbation, progress: Callable[[int], None]) -> np.ndarray:
        """Nats of the targets (P,), each after its perturbed context of `maximum_context` tokens."""
        random = np.random.default_rng([self.seed, 1])
        targets, reach = np.asarray(self.ids[positions]), self.maximum_context
        pairs = zip(positions, targets, strict=True)
        contexts = [perturb(np.asarray(self.ids[p - reach : p]), int(target), random) for p, target in pairs]
        nats = -self.scorer.score(contexts, targets, progress)
        if not np.isfinite(nats).all():
            raise NonFiniteError("a score is not a finite number: the weights broke down")
        return nats


def check_length(tokens: int, maximum_context: int) -> None:
    """Raise UserError unless a text of so many tokens has at least two targets with such a context."""
    if tokens - maximum_context < 2:
        raise UserError(
            f"the text has {tokens:,} tokens, too few for contexts of {maximum_context:,}; "
            "choose a longer split or a smaller --maximum-context"
        )


def check_model(name: str, maximum_length: int | None, maximum_context: int) -> None:
    """Raise UserError where a model reads texts of at most so many tokens, and contexts are to be longer."""
    if maximum_length is not None and maximum_context > maximum_length:
        raise UserError(
            f"{name} reads at most {maximum_length:,} tokens, so no context can have {maximum_context:,}; use "
            f"--maximum-context {maximum_length}"
        )


def examine(experiment: str, on: Examination, progress: Progress | None = None) -> dict[str, Any]:
    """Run an experiment by name; `progress` is told (tokens read so far, tokens in all).

    Raises UserError, and NonFiniteError when a score is not a number.
    """
    check_experiment(experiment)
    return EXPERIMENTS[experiment].run(on, progress or (lambda done, total: None))


def check_experiment(name: str) -> None:
    """Raise UserError unless there is an experiment of that name."""
    check_name(name, EXPERIMENTS, "experiment", "backstory ls experiments")


def _truncate(on: Examination, progress: Progress) -> dict[str, Any]:
    """Figure 1a: the loss of perplexity with only the n nearest tokens, for each n."""
    positions = on.positions()
    contexts = [n for n in CONTEXTS if n < on.maximum_context] + [on.maximum_context]
    total, done = len(positions) * sum(contexts), 0

    def advance(tokens: int) -> None:
        nonlocal done
        done += tokens
        progress(done, total)

    baseline = on.baseline[positions]
    nats = np.stack([on.nats(positions, Truncate(n), advance) for n in contexts], 1)
    value, low, high = effective_context(contexts, baseline, nats, THRESHOLD, on.seed)
    return {
        "targets": len(positions),
        "maximum_context": on.maximum_context,
        "baseline": {"context": None, **_level(baseline)},
        "conditions": [
            {"context": n, **_level(x), **_effect(x - baseline, on.seed)} for n, x in zip(contexts, nats.T, strict=True)
        ],
        "effective_context": {"context": value, "low": low, "high": high, "threshold_percent": 100 * THRESHOLD},
    }


def _level(nats: np.ndarray) -> dict[str, float]:
    mean = float(nats.mean())
    return {"nats": mean, "perplexity": float(np.exp(mean))}


def _effect(differences: np.ndarray, seed: int) -> dict[str, float]:
    """The mean increase in nats with its 95% interval, and in percent of perplexity."""
    interval = paired_interval(differences, seed)
    percent = 100 * float(np.expm1(interval.value))
    return {"effect": interval.value, "low": interval.low, "high": interval.high, "effect_percent": percent}


@dataclass(frozen=True)
class Experiment:
    """An experiment by what it does and the function that runs it."""

    description: str
    run: Callable[[Examination, Progress], dict[str, Any]]


EXPERIMENTS = {
    "truncate": Experiment(
        "keep only the n nearest tokens, n from 5 to 1000 (figure 1a); gives the effective context", _truncate
    )
}
