"""Run an experiment: the same targets scored under every condition, against the baseline."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from backstory.config import NonFiniteError, UserError
from backstory.config.arguments import checked, diagnosed
from backstory.context.examination import Examination, ProcessGroup, SingleProcess
from backstory.context.experiments import EXPERIMENTS, Condition, Experiment, Perturbation, Truncate, check_experiment
from backstory.context.figures import figures
from backstory.context.losses import LOSSES, Losses, LossStore
from backstory.context.splits import Groups, check_splits, outside_window, split_targets

PIECE = 256
"""Targets that are scored at a time: what is read together depends neither on the number of processes nor on a stop."""
Report = Callable[[int, int], None]
"""Receives the tokens read so far, and the tokens in all."""


@checked()
def examine(experiment: str, on: Examination, progress: Report | None = None, by: Sequence[str] = ()) -> dict[str, Any]:
    """Run an experiment by name and return the figures of docs/results.md that depend on its losses.

    `by` names splits of the targets (else those of the experiment that can be made). Raises UserError, and NonFiniteError if
    a score is not a number.
    """
    losses = measure(experiment, on, progress, by=by)
    return {"maximum_context": on.maximum_context, **figures([losses], chosen_splits(experiment, by, losses), on.seed)}


def chosen_splits(experiment: str, by: Sequence[str], losses: Losses) -> Sequence[str]:
    """Return the named splits of the targets, or without names those of the experiment that the losses hold."""
    return by or [name for name in EXPERIMENTS[experiment].by if name in losses.splits]


def _check_known(experiment: Any = None, on: Any = None, *_: object, **__: object) -> None:
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
@diagnosed(_check_known)
def measure(
    experiment: str,
    on: Examination,
    progress: Report | None = None,
    *,
    by: Sequence[str] = (),
    store: LossStore | None = None,
    ranks: ProcessGroup | None = None,
) -> Losses:
    """Return the losses of every target under every condition of an experiment.

    `store` holds what was measured before, and saves every condition as it is finished. `ranks` share the targets; each has
    the whole at the end. Raises UserError, and NonFiniteError.
    """
    check_experiment(experiment)
    check_splits(by)
    kind, positions = EXPERIMENTS[experiment], on.positions()
    check_fits(experiment, on)
    conditions = list(kind.conditions(on))
    splits = split_targets(on, positions, None if kind.whole else on.context, by)
    scoring = _Scoring(
        on, positions, kind, conditions, progress or (lambda done, total: None), ranks or SingleProcess()
    )
    store = store or LossStore(None, {})
    baseline = scoring.baseline(store)
    finished: list[tuple[dict[str, Any], np.ndarray, float]] = []

    def losses() -> Losses:
        return Losses(
            positions,
            np.asarray(on.ids[positions]).astype(np.int32),
            baseline,
            scoring.baseline_context,
            np.array([nats for _, nats, _ in finished], np.float64).reshape(len(finished), len(positions)),
            np.array([length for _, _, length in finished], np.float64),
            [described for described, _, _ in finished],
            store.settings,
            splits,
            on.clusters(positions),
        )

    if scoring.first:
        store.save(losses())
    for condition in conditions:
        described = condition.as_dict()
        nats, length = scoring.condition(condition, store)
        if condition.method == "drop":
            described["dropped"] = scoring.mean_length(on.context) - length
        if condition.method == "without-cache" and on.cached is not None:
            described["outside_window"] = outside_window(on)
        finished.append((described, nats, length))
        if scoring.first:
            store.save(losses())
    return losses()


def check_fits(experiment: str, on: Examination) -> None:
    """Raise UserError unless there is what an experiment needs: contexts and tags."""
    kind = EXPERIMENTS[experiment]
    if not kind.whole and on.context > on.maximum_context:
        raise UserError(
            f"contexts of {on.context:,} tokens are longer than the longest, {on.maximum_context:,}; "
            "raise --maximum-context or lower --context"
        )
    if kind.tagged and on.tags is None:
        raise UserError(f"{experiment} needs part-of-speech tags, and the text has none; choose a tagger with --tagger")


def check_model(name: str, maximum_length: int | None, maximum_context: int) -> None:
    """Raise UserError if contexts are to be longer than the texts that a model reads."""
    if maximum_length is not None and maximum_context > maximum_length:
        raise UserError(
            f"{name} reads at most {maximum_length:,} tokens, so no context can have {maximum_context:,}; use "
            f"--maximum-context {maximum_length}"
        )


class _Scoring:
    """Scores conditions, piece by piece, and reports the tokens that were read."""

    def __init__(
        self,
        on: Examination,
        positions: np.ndarray,
        kind: Experiment,
        conditions: Sequence[Condition],
        report: Report,
        ranks: ProcessGroup,
    ) -> None:
        self.on, self.positions, self.kind, self.conditions = on, positions, kind, conditions
        self.report, self.ranks, self.first = report, ranks, ranks.rank == 0
        self.baseline_context = None if kind.whole else on.context
        self.reads = kind.whole and callable(on.baseline)
        if kind.whole and on.baseline is None:
            self.baseline_context = on.maximum_context
        self.without: np.ndarray | None = None
        """Nats (N,) of the reader inside the cache."""
        contexts = [self.baseline_context, *(c.context for c in conditions)]
        self.done, self.total = 0, len(positions) * sum(n or 0 for n in contexts) + self.reads * len(on.ids)

    def advance(self, tokens: int) -> None:
        if tokens:
            self.done += tokens
            self.report(self.done, self.total)

    def baseline(self, store: LossStore) -> np.ndarray:
        """Return the nats of the targets (N,) under the baseline."""
        known = self._broadcast(store.baseline(self.positions))
        if self.baseline_context is not None:
            n = self.baseline_context
            if known is None:
                return self._score("baseline", n, Truncate(n))[0]
            self.advance(n * len(self.positions))
            return known
        cached = self.kind is EXPERIMENTS["cache"]
        if known is not None and cached:
            # Both are of one reading: they are taken over together, or not at all.
            stored = store.condition(self.conditions[0].as_dict(), self.positions)
            self.without = self._broadcast(None if stored is None else stored[0])
        if known is not None and (not cached or self.without is not None):
            self.advance(self.reads * len(self.on.ids))
            return known
        source, rows = self.on.baseline, 2 if cached else 1
        assert source is not None
        if not callable(source):
            nats = np.atleast_2d(source)[:, self.positions]
        elif self.first:  # one text that is read from end to end: nothing to share
            nats = np.atleast_2d(source(self.advance))[:, self.positions]
        else:
            nats = np.full((rows, len(self.positions)), -np.inf)
        if len(nats) < rows:
            raise UserError("to tell what a cache is worth takes one; choose a reader with a cache with --reader")
        nats = self._combined(nats)
        self.without = nats[1] if rows == 2 else None
        return nats[0]

    def condition(self, condition: Condition, store: LossStore) -> tuple[np.ndarray, float]:
        """Return the nats of the targets (N,) under a condition, and the mean length of their contexts."""
        if condition.perturb is None:
            assert self.without is not None
            return self.without, float("nan")
        assert condition.context is not None
        stored = store.condition(condition.as_dict(), self.positions)
        known = self._broadcast(None if stored is None else np.append(stored[0], stored[1]))
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
        if not self.ranks.largest(float(self.first and values is not None))[0]:
            return None
        size = int(self.ranks.largest(float(len(values)) if self.first and values is not None else 0.0)[0])
        own = values if self.first and values is not None else np.full(size, -np.inf)
        return np.array(self.ranks.largest(*own.tolist()))

    def _score(self, name: str, reach: int, perturb: Perturbation) -> tuple[np.ndarray, float]:
        """Score the targets after perturbed contexts of `reach` tokens: nats (N,), and the contexts' mean length."""
        on, count = self.on, len(self.positions)
        nats, lengths = np.full(count, -np.inf), np.full(count, -np.inf)
        before, key = self.done, zlib.crc32(name.encode())
        for number, start in enumerate(range(0, count, PIECE)):
            if number % self.ranks.world != self.ranks.rank:
                continue
            piece = self.positions[start : start + PIECE]
            targets, contexts = np.asarray(on.ids[piece]), []
            for position, target in zip(piece.tolist(), targets.tolist(), strict=True):
                # A target's own generator: what was drawn for others changes nothing.
                random = np.random.default_rng([on.seed, key, position])
                context, tags = on.before(position, reach)
                contexts.append(perturb(context, target, tags, random))
            scores = np.asarray(on.scorer.score(contexts, targets))
            if scores.shape != targets.shape:
                raise UserError(
                    f"the scorer gave scores of shape {scores.shape} for {len(targets)} targets; give one for each"
                )
            nats[start : start + PIECE] = -scores
            lengths[start : start + PIECE] = [len(context) for context in contexts]
            self.advance(min(reach * len(piece) * self.ranks.world, before + reach * count - self.done))
        self.advance(before + reach * count - self.done)
        nats, lengths = self._combined(np.stack([nats, lengths]))
        return nats, float(lengths.mean())

    def _combined(self, rows: np.ndarray) -> np.ndarray:
        """Combine the processes' parts of an array, each with minus infinity where the part is another's.

        Raises NonFiniteError if a score is not a finite number.
        """
        rows = np.where(np.isnan(rows), np.inf, rows)
        if self.ranks.world > 1:
            rows = np.array(self.ranks.largest(*rows.ravel().tolist())).reshape(rows.shape)
        if not np.isfinite(rows).all():
            raise NonFiniteError("a score is not a finite number: the weights broke down")
        return rows


@checked(seed=0)
def regroup(
    folder: Path | str,
    by: Sequence[str] = (),
    labels: Mapping[str, tuple[np.ndarray, Sequence[str]]] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Return the figures of a finished examination with its targets split in other ways; nothing is run again.

    `folder` holds `losses.npz`. `by` names splits that are saved there, or those of `labels`: a name with the group of each
    target (N,), in the order of the targets' positions, and the names of the groups. Raises UserError.
    """
    losses = Losses.load(Path(folder) / LOSSES)
    added = {name: Groups(np.asarray(codes, np.int16), tuple(names)) for name, (codes, names) in (labels or {}).items()}
    for name, groups in added.items():
        if groups.codes.shape != losses.positions.shape:
            raise UserError(
                f"the split {name} has {groups.codes.size:,} labels for {len(losses.positions):,} targets; give one for each"
            )
    return figures([replace(losses, splits={**losses.splits, **added})], by, seed)
