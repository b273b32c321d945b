"""What a run's readers are given before they read: statistics of training gradients, and settings tuned on validation."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from backstory.config import UserError, check_name, from_dict, to_dict
from backstory.config.readers import DynamicSettings, GateSettings, MetaTraining
from backstory.reading.cache_tuning import CacheGrid, tune_cache
from backstory.reading.kinds import READERS, SAVED, Ground, Stack, build, choose, given_settings, save_settings, typed
from backstory.reading.learned import learned_name, save_learned
from backstory.reading.metalearning import train_gates
from backstory.reading.opening import Opened, open_run
from backstory.reading.reader import Reader
from backstory.reading.statistics import Statistics, collect, load_statistics, save_statistics
from backstory.reading.tuning import Trial, Tuned, tune
from backstory.storage.atomic import check_writable

Progress = Callable[[int, int], None]


def collect_statistics(
    opened: Opened, moving: str, tokens: int | None, batch_size: int, segment: int, progress: Progress | None = None
) -> tuple[Path, Statistics]:
    """Collect statistics on the opened split and save them beside the model. Raises UserError."""
    run, split = opened.run, opened.split
    _check_split(split.name)
    check_writable(run.folder)
    text = f"{opened.dataset.corpus} {split.name}, {opened.dataset.fingerprint}"
    found = collect(
        run.model, split.ids[:tokens], opened.dataset.vocabulary.start, text=text, moving=moving, batch_size=batch_size,
        segment=segment, precision=opened.reader.precision, progress=progress,
    )  # fmt: skip
    return save_statistics(run.folder / SAVED, found), found


def tune_reader(
    folder: Path,
    stack: Stack,
    split: str,
    tokens: int | None,
    grid: Sequence[str] = (),
    progress: Progress | None = None,
    **how: Any,
) -> tuple[Path, Tuned]:
    """Tune the outermost reader of a stack on the beginning of a split and save its settings beside the model.

    What was typed of its settings is where the search starts; of a cache, it is held. Raises UserError.
    """
    _check_split(split)
    kind = READERS[stack[-1].name]
    if kind.steps is None and not kind.wraps:
        raise UserError(f"the reader {stack[-1].name} has no settings to tune")
    lists = parse_grid(kind.settings, grid)
    opened = open_run(folder, split, **how)
    check_writable(opened.run.folder)
    chosen = choose(stack, opened.run)
    precision, start = opened.reader.precision, chosen[-1].settings
    ids, first = opened.split.ids[:tokens], opened.dataset.vocabulary.start

    ground = Ground(opened.run, precision)  # one for all, so that what it has loaded serves every trial

    if kind.steps is None:
        # What was typed is held: of a cache all the rest is tried, whatever it is.
        lists = {name: [getattr(start, name)] for name in given_settings(stack[-1])} | lists
        tuned = _tuned_cache(build(chosen[:-1], opened.run, precision), ids, first, lists, progress)
    else:
        tuned = tune(
            partial(kind.make, ground), start, ids, first, factors=kind.steps(start), grid=lists, progress=progress
        )
    search = {"nats_per_token": tuned.nats, "tokens": tuned.tokens, "trials": [asdict(t) for t in tuned.trials]}
    on = f"the first {len(ids):,} tokens of {split}"
    return save_settings(opened.run, stack, tuned.best, on, search), tuned


def _tuned_cache(
    inner: Reader, ids: np.ndarray, first: int, lists: dict[str, list[Any]], progress: Progress | None
) -> Tuned:
    """All settings of a cache from one reading with what it goes around; the best hundred are told."""
    names = {"window": "windows", "theta": "thetas", "weight": "weights", "confidence": "confidences"}
    grid = CacheGrid(**{names[name]: tuple(values) for name, values in lists.items()})
    found = tune_cache(inner, ids, first, grid, progress)
    ranked = sorted(found.tried, key=lambda tried: tried.nats)[:100]
    trials = (Trial(to_dict(tried.settings), tried.nats, found.tokens) for tried in ranked)
    return Tuned(found.best.settings, found.best.nats, found.tokens, tuple(trials))


def _check_split(split: str) -> None:
    if split == "test":
        raise UserError("nothing is chosen on the test split or learned from it before it is read; use valid or train")


def parse_grid(settings: type, grid: Sequence[str]) -> dict[str, list[Any]]:
    """`rate=1e-4,3e-4` as the values of each setting, checked by themselves. Raises UserError."""
    found: dict[str, list[Any]] = {}
    usual = settings()
    for text in grid:
        name, _, values = text.partition("=")
        check_name(name, to_dict(usual), "setting")
        if not values:
            raise UserError(f"the grid '{text}' must be written setting=value,value")
        parsed = [from_dict(settings, {name: typed(value, name)}, f"grid {name}") for value in values.split(",")]
        found[name] = [getattr(point, name) for point in parsed]
    return found


def train_learned(
    opened: Opened,
    base: DynamicSettings,
    gates: GateSettings,
    training: MetaTraining,
    name: str,
    *,
    skip: int = 0,
    progress: Progress | None = None,
    report: Callable[[int, float], None] | None = None,
) -> Path:
    """Train a meta-learner on the opened split after its first `skip` tokens, and save it beside the model under a name.

    Raises UserError.
    """
    run, split = opened.run, opened.split
    _check_split(split.name)
    learned_name(name)
    if skip >= len(split.ids):
        raise UserError(
            f"{split.name} has {len(split.ids):,} tokens, of which --skip {skip:,} leaves none; use a smaller --skip"
        )
    check_writable(run.folder)
    statistics = load_statistics(run.folder / SAVED, run.model, base.moving, run.folder)
    learned = train_gates(
        run.model, statistics, split.ids[skip:], opened.dataset.vocabulary.start, base, gates, training,
        precision=opened.reader.precision, progress=progress, report=report,
    )  # fmt: skip
    learned.how.update(split=split.name, skip=skip)
    return save_learned(run.folder / SAVED, name, run.model, learned)
