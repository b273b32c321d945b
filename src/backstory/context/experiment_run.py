"""Run an experiment: the same targets scored under every condition, against the baseline."""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from backstory.context.effects import Effects, figures
from backstory.context.examination import (
    Examination,
    ProcessGroup,
    SingleProcess,
    check_splits,
    outside_window,
    split_targets,
)
from backstory.context.experiments import EXPERIMENTS, Condition, Experiment, Perturbation, Truncate, check_experiment
from backstory.context.losses import Losses, LossStore
from backstory.context.scorer import ReaderScorer, Scorer, WordScorer
from backstory.utils.arguments import checked, diagnosed
from backstory.utils.errors import NonFiniteError, UserError
from backstory.utils.terminal import ProgressCallback

PIECE = 64
"""Targets that are scored together, whatever the number of processes and wherever an examination was stopped.

Few enough that many processes share a sample evenly; 256 were no faster on one core."""
GPU_PIECE = 1024
"""The same on a GPU, which is idle with fewer: as many rows as a scorer reads side by side where memory allows."""


@checked()
def examine(
    experiment: str, on: Examination, progress: ProgressCallback | None = None, by: Sequence[str] = ()
) -> Effects:
    """Run an experiment by name and return the figures that depend on its losses.

    `by` names splits of the targets (else those of the experiment that can be made). Raises UserError, and NonFiniteError if
    a score is not a number.
    """
    losses = measure(experiment, on, progress, by=by)
    return figures([losses], reported_splits(experiment, by, losses), on.seed)


def reported_splits(experiment: str, by: Sequence[str], losses: Losses) -> Sequence[str]:
    """Return the named splits of the targets, or without names those of the experiment that the losses hold."""
    return by or [name for name in EXPERIMENTS[experiment].by if name in losses.splits]


def _check_arrays(experiment: Any = None, on: Any = None, *_: object, **__: object) -> None:
    """Raise ValueError unless tags and cached counts are of every token, and training counts of every type."""
    if isinstance(on, Examination):
        if on.ids.ndim != 1 or on.ids.dtype.kind not in "iu":
            raise ValueError("on.ids must be an array (N,) of whole numbers")
        for name in ("tags", "cached"):
            values = getattr(on, name)
            if values is not None and values.shape != on.ids.shape:
                raise ValueError(f"on.{name} must be of shape {on.ids.shape}, not {values.shape}")
        if on.counts is not None and (on.counts.ndim != 1 or not 0 <= on.ids.min() <= on.ids.max() < len(on.counts)):
            raise ValueError("on.counts must be an array (types,) with a number for every id")


@checked()
@diagnosed(_check_arrays)
def measure(
    experiment: str,
    on: Examination,
    progress: ProgressCallback | None = None,
    *,
    by: Sequence[str] = (),
    store: LossStore | None = None,
    ranks: ProcessGroup | None = None,
) -> Losses:
    """Return the losses of every target under every condition of an experiment.

    `store` holds the losses measured before, and saves those of every condition once they are finished. `ranks` share the
    targets; each returns the losses of all. Raises UserError, and NonFiniteError.
    """
    check_experiment(experiment)
    check_splits(by, experiment)
    kind, positions = EXPERIMENTS[experiment], on.positions()
    _check_fits(experiment, on)
    conditions = list(kind.conditions(on))
    splits = split_targets(on, positions, None if kind.whole else on.context, by)
    store, ranks = store or LossStore(None, {}), ranks or SingleProcess()
    scoring = _Scoring(on, positions, kind, conditions, store=store, progress=progress, ranks=ranks)
    losses = Losses(
        positions=positions,
        targets=np.asarray(on.ids[positions]).astype(np.int32),
        baseline=scoring.baseline(),
        baseline_context=scoring.baseline_context,
        nats=np.zeros((0, len(positions))),
        lengths=np.zeros(0),
        conditions=[],
        settings=store.settings,
        splits=splits,
        clusters=on.clusters(positions),
    )
    scoring.save(losses)
    for condition in conditions:
        nats, length = scoring.condition(condition)
        losses = replace(
            losses,
            nats=np.concatenate([losses.nats, nats[None]]),
            lengths=np.append(losses.lengths, length),
            conditions=[*losses.conditions, _recorded(condition, on, scoring, length)],
        )
        scoring.save(losses)
    return losses


def _recorded(condition: Condition, on: Examination, scoring: "_Scoring", length: float) -> dict[str, Any]:
    """Return a condition as results record it; `length` is the mean length of its contexts."""
    record = condition.as_dict()
    if condition.method == "drop":
        record["dropped"] = scoring.mean_length(on.context) - length
    if condition.method == "without-cache" and on.cached is not None:
        record["outside_window"] = outside_window(on)
    return record


def _check_fits(experiment: str, on: Examination) -> None:
    """Raise UserError unless the input has the contexts and tags that an experiment needs."""
    kind = EXPERIMENTS[experiment]
    if not kind.whole:
        check_context(on.context, on.maximum_context)
    if kind.tagged and on.tags is None:
        raise UserError(f"{experiment} needs part-of-speech tags, and the text has none; choose a tagger with --tagger")


def check_context(context: int, maximum_context: int) -> None:
    """Raise UserError for perturbed contexts that are longer than the longest."""
    if context > maximum_context:
        raise UserError(
            f"contexts of {context:,} tokens are longer than the longest, {maximum_context:,}; "
            "raise --maximum-context or lower --context"
        )


def piece_size(scorer: Scorer) -> int:
    """Return how many targets are scored together. The scorer itself cuts them into batches that fit its memory."""
    inner = scorer.scorer if isinstance(scorer, WordScorer) else scorer
    on_gpu = isinstance(inner, ReaderScorer) and inner.device.type == "cuda"
    return GPU_PIECE if on_gpu else PIECE


class _Scoring:
    """Scores conditions, piece by piece, takes over stored losses, and reports the tokens that were read."""

    def __init__(
        self,
        on: Examination,
        positions: np.ndarray,
        kind: Experiment,
        conditions: Sequence[Condition],
        *,
        store: LossStore,
        progress: ProgressCallback | None,
        ranks: ProcessGroup,
    ) -> None:
        self.on, self.positions, self.kind, self.conditions = on, positions, kind, conditions
        self.store, self.progress, self.ranks, self.first = store, progress, ranks, ranks.rank == 0
        self.baseline_context = None if kind.whole else on.context
        if kind.whole and on.baseline is None:
            self.baseline_context = on.maximum_context
        self.without_cache: np.ndarray | None = None
        """Nats (N,) of the reader inside the cache."""
        reads = len(on.ids) if kind.whole and callable(on.baseline) else 0
        contexts = [self.baseline_context, *(c.context for c in conditions)]
        self.done, self.total, self.reads = 0, len(positions) * sum(n or 0 for n in contexts) + reads, reads

    def advance(self, tokens: int) -> None:
        self.done += tokens
        if tokens and self.progress is not None:
            self.progress(self.done, self.total)

    def save(self, losses: Losses) -> None:
        if self.first:
            self.store.save(losses)

    def baseline(self) -> np.ndarray:
        """Return the nats of the targets (N,) under the baseline."""
        known = self._broadcast(self.store.baseline(self.positions))
        if self.baseline_context is None:
            return self._infinite(known)
        if known is None:
            return self._score("baseline", self.baseline_context, Truncate(self.baseline_context))[0]
        self.advance(self.baseline_context * len(self.positions))
        return known

    def _infinite(self, known: np.ndarray | None) -> np.ndarray:
        """Return the nats of the targets (N,) after all tokens before them; read the text unless they are `known`."""
        cached = self.kind is EXPERIMENTS["cache"]
        if known is not None and cached:
            # One reading gives both: take over both, or neither.
            stored = self.store.condition(self.conditions[0].as_dict(), self.positions)
            self.without_cache = self._broadcast(None if stored is None else stored[0])
        if known is not None and (not cached or self.without_cache is not None):
            self.advance(self.reads)
            return known
        source, rows = self.on.baseline, 2 if cached else 1
        assert source is not None
        if not callable(source):
            nats = np.atleast_2d(source)[:rows, self.positions]
        elif self.first:  # a text read from end to end cannot be shared
            nats = np.atleast_2d(source(self.advance))[:rows, self.positions]
        else:
            nats = np.full((rows, len(self.positions)), -np.inf)
        if len(nats) < rows:
            raise UserError("the experiment cache needs a reader with a cache; choose one with --reader")
        nats = self._combined(nats)
        self.without_cache = nats[1] if cached else None
        return nats[0]

    def condition(self, condition: Condition) -> tuple[np.ndarray, float]:
        """Return the nats of the targets (N,) under a condition, and the mean length of their contexts."""
        if condition.perturb is None:
            assert self.without_cache is not None
            return self.without_cache, float("nan")
        assert condition.context is not None
        stored = self.store.condition(condition.as_dict(), self.positions)
        known = self._broadcast(None if stored is None else np.append(*stored))
        if known is None:
            return self._score(condition.name, condition.context, condition.perturb)
        self.advance(condition.context * len(self.positions))
        return known[:-1], float(known[-1])

    def mean_length(self, reach: int) -> float:
        """Return the mean length of the contexts before they are perturbed."""
        return float(np.mean([len(self.on.before(int(p), reach)[0]) for p in self.positions]))

    def _broadcast(self, values: np.ndarray | None) -> np.ndarray | None:
        """Return the first process's values (n,), or None, at every process."""
        if self.ranks.world == 1:
            return values
        own = values if self.first else None
        size = int(self.ranks.largest(-1.0 if own is None else float(len(own)))[0])
        if size < 0:
            return None
        return np.array(self.ranks.largest(*(np.full(size, -np.inf) if own is None else own).tolist()))

    def _score(self, name: str, reach: int, perturb: Perturbation) -> tuple[np.ndarray, float]:
        """Score the targets after perturbed contexts of `reach` tokens: nats (N,), and the contexts' mean length."""
        on, count = self.on, len(self.positions)
        nats, lengths = np.full(count, -np.inf), np.full(count, -np.inf)
        before, key, size = self.done, zlib.crc32(name.encode()), piece_size(on.scorer)
        for number, start in enumerate(range(0, count, size)):
            if number % self.ranks.world != self.ranks.rank:
                continue
            piece = self.positions[start : start + size]
            targets, contexts = np.asarray(on.ids[piece]), []
            for position, target in zip(piece.tolist(), targets.tolist(), strict=True):
                # Each target has its own generator, so that it does not depend on those scored before it.
                random = np.random.default_rng([on.seed, key, position])
                context, tags = on.before(position, reach)
                contexts.append(perturb(context, target, tags, random))
            pairs = zip(contexts, piece.tolist(), strict=True)
            begun = [on.begun(context, position, reach) for context, position in pairs]
            scores = np.asarray(on.scorer.score(begun, targets))
            if scores.shape != targets.shape:
                raise UserError(
                    f"the scorer gave scores of shape {scores.shape} for {len(targets)} targets; give one for each"
                )
            nats[start : start + size] = -scores
            lengths[start : start + size] = [len(context) for context in contexts]
            self.advance(min(reach * len(piece) * self.ranks.world, before + reach * count - self.done))
        self.advance(before + reach * count - self.done)
        nats, lengths = self._combined(np.stack([nats, lengths]))
        return nats, float(lengths.mean())

    def _combined(self, rows: np.ndarray) -> np.ndarray:
        """Combine the processes' parts of an array; each part is minus infinity where another process computes the values.

        Raises NonFiniteError if a score is not a finite number.
        """
        rows = np.where(np.isnan(rows), np.inf, rows)
        if self.ranks.world > 1:
            rows = np.array(self.ranks.largest(*rows.ravel().tolist())).reshape(rows.shape)
        if not np.isfinite(rows).all():
            raise NonFiniteError("a score is not a finite number: the weights broke down")
        return rows
