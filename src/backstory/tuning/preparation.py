"""What a run's readers are given before they read: statistics of training gradients, and settings tuned on validation."""

from collections.abc import Callable, Sequence, Set
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from backstory.config import UserError, check_name, from_dict, to_dict
from backstory.config.readers import DynamicSettings, GateSettings, MetaTraining, TemperedSettings
from backstory.evaluation.opening import Opened, open_run
from backstory.readers.base import Reader
from backstory.readers.gradient_statistics import Statistics, collect, load_statistics, save_statistics
from backstory.readers.learned import learned_name, save_learned
from backstory.readers.meta_training import train_gates
from backstory.readers.registry import (
    READERS,
    Ground,
    Layer,
    Stack,
    build,
    choose,
    given_settings,
    save_settings,
    saved_in,
    stack_name,
    typed,
)
from backstory.runs.run import Run
from backstory.runs.run_folder import SAVED
from backstory.storage.atomic import check_writable
from backstory.tuning.cache_search import CacheGrid, tune_cache
from backstory.tuning.coordinate_search import TURNS, owner, search_turns
from backstory.tuning.reader_search import Trial, Tuned, tune
from backstory.tuning.temperature_search import TEMPERATURES, nats_by_temperature

Progress = Callable[[int, int], None]


def collect_statistics(
    opened: Opened, moving: str, tokens: int | None, batch_size: int, segment: int, progress: Progress | None = None
) -> tuple[Path, Statistics]:
    """Collect statistics on the opened split and save them beside the model. Raises UserError."""
    run, split = opened.run, opened.split
    _check_split(split.name)
    _check_run(run)
    text = f"{opened.dataset.corpus} {split.name}, {opened.dataset.fingerprint}"
    found = collect(
        run.model, split.ids[:tokens], opened.dataset.vocabulary.start, text=text, moving=moving, batch_size=batch_size,
        segment=segment, precision=opened.reader.precision, progress=progress,
    )  # fmt: skip
    run.check_unchanged(run.folder / SAVED)
    return save_statistics(saved_in(run), found), found


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

    What was typed of its settings is where the search starts; of one that wraps another, it is held. Raises UserError.
    """
    _check_split(split)
    kind, at_once = READERS[stack[-1].name], _AT_ONCE.get(stack[-1].name)
    if kind.steps is None and at_once is None:
        raise UserError(f"the reader {stack[-1].name} has no settings to tune")
    lists = parse_grid(kind.settings, grid)
    opened = open_run(folder, split, **how)
    _check_run(opened.run)
    chosen = choose(stack, opened.run, {stack[-1].name})
    precision, start = opened.reader.precision, chosen[-1].settings
    ids, first = opened.split.ids[:tokens], opened.dataset.vocabulary.start

    ground = Ground(opened.run, precision)  # one for all, so that what it has loaded serves every trial

    if at_once is not None:
        # What was typed is held: all the rest is tried, whatever it is.
        lists = {name: [getattr(start, name)] for name in given_settings(stack[-1])} | lists
        tuned = at_once(build(chosen[:-1], opened.run, precision), ids, first, lists, progress)
    else:
        assert kind.steps is not None
        tuned = tune(
            partial(kind.make, ground), start, ids, first, factors=kind.steps(start), grid=lists, progress=progress
        )
    opened.run.check_unchanged(opened.run.folder / SAVED)
    return save_settings(opened.run, stack, tuned.best, *_told(tuned, split)), tuned


def tune_in_turn(
    folder: Path,
    stack: Stack,
    split: str,
    tokens: int | None,
    grid: Sequence[str] = (),
    progress: Progress | None = None,
    **how: Any,
) -> tuple[list[Path], Tuned]:
    """Settle one setting of a stack's readers after the other (`search_turns`) and save those of each that had a turn.

    `grid` gives other values to try, or further settings; what was typed is held. Raises UserError.
    """
    _check_split(split)
    lists = parse_turns(stack, grid)
    opened = open_run(folder, split, **how)
    _check_run(opened.run)
    held = {name for layer in stack for name in given_settings(layer)}
    turns = {n: values for n, values in {**TURNS, **lists}.items() if n in lists or n not in held}
    start = choose(stack, opened.run, {layer.name for layer in stack if turns.keys() & _settings_of(layer)})
    if idle := next((name for name in lists if owner(start, name) is None), None):
        raise UserError(f"the reader {stack_name(stack)} does not use {idle} with this rule; leave it out of --grid")
    turns = {name: values for name, values in turns.items() if owner(start, name) is not None}
    if not turns:
        raise UserError(f"the reader {stack_name(stack)} has none of {', '.join(TURNS)} to settle in turn")
    make = partial(build, run=opened.run, precision=opened.reader.precision, loaded={})
    ids, first = opened.split.ids[:tokens], opened.dataset.vocabulary.start
    tuned = search_turns(make, start, turns, ids, first, progress)
    places = sorted({place for name in turns if (place := owner(start, name)) is not None})
    told = _told(tuned, split)
    opened.run.check_unchanged(opened.run.folder / SAVED)
    return [save_settings(opened.run, stack[: p + 1], tuned.best[p].settings, *told) for p in places], tuned


def _told(tuned: Tuned, split: str) -> tuple[str, dict[str, Any]]:
    """What is saved beside settings: the text that they were tuned on, and the search."""
    search = {
        "nats_per_token": tuned.nats,
        "tokens": tuned.tokens,
        "tried": tuned.tried,
        "trials": [asdict(t) for t in tuned.trials],
    }
    return f"the first {tuned.tokens:,} tokens of {split}", search


def _tuned_cache(
    inner: Reader, ids: np.ndarray, first: int, lists: dict[str, list[Any]], progress: Progress | None
) -> Tuned:
    """All settings of a cache from one reading with what it goes around; the best hundred are told."""
    names = {"window": "windows", "theta": "thetas", "weight": "weights", "confidence": "confidences"}
    grid = CacheGrid(**{names[name]: tuple(values) for name, values in lists.items()})
    found = tune_cache(inner, ids, first, grid, progress)
    ranked = sorted(found.tried, key=lambda tried: tried.nats)[:100]
    trials = (Trial(to_dict(tried.settings), tried.nats, found.tokens) for tried in ranked)
    return Tuned(found.best.settings, found.best.nats, found.tokens, tuple(trials), len(found.tried))


def _tuned_temperature(
    inner: Reader, ids: np.ndarray, first: int, lists: dict[str, list[Any]], progress: Progress | None
) -> Tuned:
    """All temperatures from one reading with what is tempered."""
    points = [TemperedSettings(temperature) for temperature in lists.get("temperature", TEMPERATURES)]
    found = nats_by_temperature(inner, ids, first, [point.temperature for point in points], progress)
    nats, best = min(zip(found, points, strict=True), key=lambda pair: pair[0])
    trials = (Trial(to_dict(point), value, len(ids)) for value, point in zip(found, points, strict=True))
    return Tuned(best, nats, len(ids), tuple(trials), len(points))


_AT_ONCE = {"cache": _tuned_cache, "tempered": _tuned_temperature}
"""The readers of which one reading with what they go around scores all settings."""


def _check_run(run: Run) -> None:
    run.check_as_trained("readers are prepared")
    check_writable(saved_in(run))


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
        _add(found, name, [getattr(point, name) for point in parsed])
    return found


def _add(found: dict[str, list[Any]], name: str, values: list[Any]) -> None:
    """Take the values of a setting. Raises UserError where it has some already, or a value twice."""
    if name in found:
        raise UserError(f"--grid gives {name} twice; give all of its values at once: {name}=VALUE,VALUE")
    if twice := [value for i, value in enumerate(values) if value in values[:i]]:
        raise UserError(f"--grid {name}: the value {twice[0]} stands twice; leave one out")
    found[name] = values


def _settings_of(layer: Layer) -> Set[str]:
    """Names of the settings of a layer's reader."""
    return to_dict(READERS[layer.name].settings()).keys()


def parse_turns(stack: Stack, grid: Sequence[str]) -> dict[str, list[Any]]:
    """`segment=5,20` as the values of a setting, of whichever reader of a stack has it. Raises UserError."""
    owners = {name: READERS[layer.name].settings for layer in stack for name in _settings_of(layer)}
    found: dict[str, list[Any]] = {}
    for text in grid:
        name = text.partition("=")[0]
        check_name(name, owners, "setting")
        _add(found, name, parse_grid(owners[name], [text])[name])
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
    _check_run(run)
    statistics = load_statistics(saved_in(run), run.weights_hash, base.moving, run.folder)
    learned = train_gates(
        run.model, statistics, split.ids[skip:], opened.dataset.vocabulary.start, base, gates, training,
        precision=opened.reader.precision, progress=progress, report=report,
    )  # fmt: skip
    learned.how.update(split=split.name, skip=skip)
    run.check_unchanged(run.folder / SAVED)
    return save_learned(saved_in(run), name, run.weights_hash, learned)
