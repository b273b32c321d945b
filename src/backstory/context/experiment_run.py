"""Run an experiment: the same targets scored under every condition, against the baseline."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from backstory.config import NonFiniteError, UserError
from backstory.config.arguments import checked, diagnosed
from backstory.context.examination import Alone, Examination, Ranks
from backstory.context.experiments import EXPERIMENTS, Condition, Experiment, check_experiment
from backstory.context.figures import figures
from backstory.context.losses import LOSSES, Losses, Progress
from backstory.context.perturbations import Truncate
from backstory.context.splits import Groups, check_splits, outside_window, split_targets

PIECE = 256
"""Targets that are scored at a time: what is read together depends neither on the number of processes nor on a stop."""
Told = Callable[[int, int], None]


@checked()
def examine(
    experiment: str, on: Examination, progress: Told | None = None, by: Sequence[str] | None = None
) -> dict[str, Any]:
    """Run an experiment by name; the figures of docs/results.md that depend on its losses.

    `by` names splits of the targets (else those that belong to the experiment and can be made); `progress` is told (tokens read
    so far, tokens in all). Raises UserError, and NonFiniteError when a score is not a number.
    """
    losses = measure(experiment, on, progress, by=by)
    return {"maximum_context": on.maximum_context, **figures([losses], chosen_splits(experiment, by, losses), on.seed)}


def chosen_splits(experiment: str, by: Sequence[str] | None, losses: Losses) -> Sequence[str]:
    """The splits that were asked for, else those of the experiment that the losses hold."""
    return [name for name in EXPERIMENTS[experiment].by if name in losses.splits] if by is None else by


def _check_known(experiment: Any = None, on: Any = None, *_: object, **__: object) -> None:
    """Raise ValueError where what is known of the text is not of every token, or not of every type."""
    if isinstance(on, Examination):
        if on.ids.ndim != 1 or on.ids.dtype.kind not in "iu":
            raise ValueError("on.ids must be an array (N,) of whole numbers")
        for name in ("tags", "cached"):
            found = getattr(on, name)
            if found is not None and found.shape != on.ids.shape:
                raise ValueError(f"on.{name} must be of shape {on.ids.shape}, not {found.shape}")
        if on.counts is not None and (on.counts.ndim != 1 or not 0 <= on.ids.min() <= on.ids.max() < len(on.counts)):
            raise ValueError("on.counts must be an array (types,) with a number for every id")


@checked()
@diagnosed(_check_known)
def measure(
    experiment: str,
    on: Examination,
    progress: Told | None = None,
    *,
    by: Sequence[str] | None = None,
    kept: Progress | None = None,
    ranks: Ranks | None = None,
) -> Losses:
    """The losses of every target under every condition of an experiment.

    `kept` holds what was measured before, and is given every condition as it is finished. `ranks` share the targets; each has
    the whole at the end. Raises UserError, and NonFiniteError.
    """
    check_experiment(experiment)
    check_splits(by or ())
    kind, positions = EXPERIMENTS[experiment], on.positions()
    check_fits(experiment, on)
    conditions = list(kind.conditions(on))
    splits = split_targets(on, positions, None if kind.whole else on.context, by or ())
    work = _Work(on, positions, kind, conditions, progress or (lambda done, total: None), ranks or Alone())
    kept = kept or Progress(None, {})
    baseline = work.baseline(kept)
    finished: list[tuple[dict[str, Any], np.ndarray, float]] = []

    def losses() -> Losses:
        return Losses(
            positions,
            np.asarray(on.ids[positions]).astype(np.int32),
            baseline,
            work.baseline_context,
            np.array([nats for _, nats, _ in finished], np.float64).reshape(len(finished), len(positions)),
            np.array([length for _, _, length in finished], np.float64),
            [described for described, _, _ in finished],
            kept.settings,
            splits,
            on.clusters(positions),
        )

    if work.first:
        kept.keep(losses())
    for condition in conditions:
        described = condition.as_dict()
        nats, length = work.condition(condition, kept)
        if condition.method == "drop":
            described["dropped"] = work.mean_length(on.context) - length
        if condition.method == "without-cache" and on.cached is not None:
            described["outside_window"] = outside_window(on)
        finished.append((described, nats, length))
        if work.first:
            kept.keep(losses())
    return losses()


def check_fits(experiment: str, on: Examination) -> None:
    """Raise UserError unless there is what an experiment needs: contexts, tags, a cache."""
    kind = EXPERIMENTS[experiment]
    if not kind.whole and on.context > on.maximum_context:
        raise UserError(
            f"contexts of {on.context:,} tokens are longer than the longest, {on.maximum_context:,}; "
            "raise --maximum-context or lower --context"
        )
    if kind.tagged and on.tags is None:
        raise UserError(f"{experiment} needs part-of-speech tags, and the text has none; choose a tagger with --tagger")


def check_model(name: str, maximum_length: int | None, maximum_context: int) -> None:
    """Raise UserError where a model reads texts of at most so many tokens, and contexts are to be longer."""
    if maximum_length is not None and maximum_context > maximum_length:
        raise UserError(
            f"{name} reads at most {maximum_length:,} tokens, so no context can have {maximum_context:,}; use "
            f"--maximum-context {maximum_length}"
        )


class _Work:
    """Scores conditions, piece by piece, and tells how far it is."""

    def __init__(
        self,
        on: Examination,
        positions: np.ndarray,
        kind: Experiment,
        conditions: Sequence[Condition],
        told: Told,
        ranks: Ranks,
    ) -> None:
        self.on, self.positions, self.kind, self.conditions = on, positions, kind, conditions
        self.told, self.ranks = told, ranks
        self.unperturbed = None if kind.whole else on.context
        self.reads = kind.whole and callable(on.baseline)
        if kind.whole and on.baseline is None:
            self.unperturbed = on.maximum_context
        self.baseline_context = self.unperturbed
        self.without: np.ndarray | None = None
        contexts = [self.unperturbed, *(c.context for c in conditions)]
        self.done, self.total = 0, len(positions) * sum(n or 0 for n in contexts) + self.reads * len(on.ids)

    @property
    def first(self) -> bool:
        return self.ranks.rank == 0

    def advance(self, tokens: int) -> None:
        if tokens:
            self.done += tokens
            self.told(self.done, self.total)

    def baseline(self, kept: Progress) -> np.ndarray:
        """Nats of the targets under the baseline (N,)."""
        known = self._known(kept.baseline(self.positions))
        if self.unperturbed is not None:
            n = self.unperturbed
            if known is None:
                return self._scored("baseline", n, Truncate(n))[0]
            self.advance(n * len(self.positions))
            return known
        cached = self.kind is EXPERIMENTS["cache"]
        if known is not None and cached:
            # Both are of one reading: they are taken over together, or not at all.
            kept_too = kept.condition(self.conditions[0].as_dict(), self.positions)
            self.without = self._known(None if kept_too is None else kept_too[0])
        if known is not None and (not cached or self.without is not None):
            self.advance(self.reads * len(self.on.ids))
            return known
        source = self.on.baseline
        rows = 2 if cached else 1
        empty = np.full((rows, len(self.positions)), -np.inf)
        if callable(source):
            # One text that is read from end to end: nothing to share.
            found = np.atleast_2d(source(self.advance))[:, self.positions] if self.first else empty
        else:
            assert source is not None
            found = np.atleast_2d(source)[:, self.positions]
        if len(found) < rows:
            raise UserError("to tell what a cache is worth takes one; choose a reader with a cache with --reader")
        found = self._shared(found)
        self.without = found[1] if rows == 2 else None
        return found[0]

    def condition(self, condition: Condition, kept: Progress) -> tuple[np.ndarray, float]:
        """Nats of the targets under a condition (N,), and the mean length of their contexts."""
        if condition.perturb is None:
            assert self.without is not None
            return self.without, float("nan")
        assert condition.context is not None
        described = condition.as_dict()
        known = kept.condition(described, self.positions)
        row = None if known is None else np.append(known[0], known[1])
        row = self._known(row)
        if row is None:
            return self._scored(condition.name, condition.context, condition.perturb)
        self.advance(condition.context * len(self.positions))
        return row[:-1], float(row[-1])

    def mean_length(self, reach: int) -> float:
        """Mean length of the contexts before they are perturbed."""
        return float(np.mean([len(self.on.before(int(p), reach)[0]) for p in self.positions]))

    def _known(self, row: np.ndarray | None) -> np.ndarray | None:
        """What the first process has kept, at all of them."""
        if self.ranks.world == 1:
            return row
        if not self.ranks.largest(float(self.first and row is not None))[0]:
            return None
        many = int(self.ranks.largest(float(len(row)) if self.first and row is not None else 0.0)[0])
        own = row if self.first and row is not None else np.full(many, -np.inf)
        return np.array(self.ranks.largest(*own.tolist()))

    def _scored(self, name: str, reach: int, perturb: Any) -> tuple[np.ndarray, float]:
        on, count = self.on, len(self.positions)
        found, lengths = np.full(count, -np.inf), np.full(count, -np.inf)
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
            found[start : start + PIECE] = -scores
            lengths[start : start + PIECE] = [len(context) for context in contexts]
            self.advance(min(reach * len(piece) * self.ranks.world, before + reach * count - self.done))
        self.advance(before + reach * count - self.done)
        found, lengths = self._shared(np.stack([found, lengths]))
        return found, float(lengths.mean())

    def _shared(self, rows: np.ndarray) -> np.ndarray:
        """What the processes found, each its own part and minus infinity elsewhere, put together at all of them."""
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
    """Figures of an examination that was made, with its targets split in other ways; nothing is run again.

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
