"""Prepare the readers of a run: statistics of training gradients, settings tuned on validation, a trained meta-learner."""

from collections.abc import Callable, Sequence, Set
from dataclasses import asdict, replace
from dataclasses import fields as dataclass_fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from backstory.config import from_dict, to_dict
from backstory.config.readers import TUNED_TOKENS, DynamicSettings, GateSettings, MetaTraining
from backstory.evaluation.opening import EvalSetup, open_evaluation
from backstory.models.devices import restored_threads
from backstory.readers.base import Reader
from backstory.readers.gradient_statistics import NoStatistics, Statistics, collect, load_statistics, save_statistics
from backstory.readers.kind import BuildContext, saved_in
from backstory.readers.learned import Learned, learned_name, save_learned
from backstory.readers.meta_training import train_gates
from backstory.readers.reading_threads import choose_threads
from backstory.readers.registry import (
    READERS,
    ConfiguredLayer,
    Layer,
    Stack,
    build,
    configure,
    save_settings,
    stack_name,
    typed,
    typed_settings,
)
from backstory.runs.run import Run
from backstory.storage.atomic import check_writable
from backstory.storage.run_files import SAVED
from backstory.tuning.reader_search import (
    COORDINATES,
    EarlyStoppedSearch,
    Tuned,
    owner,
    search_coordinates,
    search_grid,
    search_one_reading,
    search_steps,
)
from backstory.utils.errors import UserError, check_name
from backstory.utils.terminal import ProgressCallback

ValueLists = dict[str, list[Any]]
"""The values to try for each setting."""


@restored_threads()
def collect_statistics(
    opened: EvalSetup,
    moving: str,
    tokens: int | None,
    batch_size: int,
    segment: int,
    progress: ProgressCallback | None = None,
) -> tuple[Path, Statistics]:
    """Collect statistics on the opened split and save them beside the model. Raises UserError."""
    run, split = opened.run, opened.split
    _check_split(split.name)
    _check_run(run)
    text = f"{opened.dataset.corpus} {split.name}, {opened.dataset.fingerprint}"
    choose_threads(opened.reader, split.ids[:tokens], batch_size)
    statistics = collect(
        run.model, split.ids[:tokens], opened.dataset.vocabulary.start, text=text, moving=moving, batch_size=batch_size,
        segment=segment, precision=opened.reader.precision, progress=progress,
    )  # fmt: skip
    run.check_unchanged(run.folder / SAVED)
    return save_statistics(saved_in(run), statistics), statistics


@restored_threads()
def tune_reader(
    model: Path | str,
    stack: Stack,
    split: str,
    tokens: int | None,
    grid: Sequence[str] = (),
    progress: ProgressCallback | None = None,
    *,
    in_turn: bool = False,
    **fields: Any,
) -> tuple[list[Path], Tuned]:
    """Tune the readers of a stack on the beginning of a split and save their settings beside the model.

    The outermost reader is tuned in the way of its kind: all settings from one reading, or the points of a `grid`, or steps
    up and down. The search starts from the settings that were typed; one reading that scores all settings keeps them fixed.
    `in_turn` settles one setting after the other of all readers (`search_coordinates`): `grid` gives other values to try, or
    further settings; typed settings are fixed. `fields` are those of EvalOptions. Returns the files and the search. Raises
    UserError.
    """
    _check_split(split)
    if not in_turn and not READERS[stack[-1].name].tunable:
        name, settings = stack[-1].name, [one.name for one in dataclass_fields(READERS[stack[-1].name].settings)]
        if not settings:
            raise UserError(f"the reader {name} has no settings to tune")
        raise UserError(
            f"the reader {name} names no values to try; give some, as in --in-turn --grid {settings[0]}=VALUE,VALUE"
        )
    lists = parse_grid(stack if in_turn else stack[-1:], grid)
    setup = open_evaluation(model, split=split, allow_unknown=True, **fields)
    _check_run(setup.run)
    search, ids = _tune_in_turn if in_turn else _tune_outermost, setup.split.ids[:tokens]
    choose_threads(setup.reader, ids)
    tuned, best = search(setup, stack, lists, ids, progress)
    setup.run.check_unchanged(setup.run.folder / SAVED)
    text, record = f"the first {tuned.tokens:,} tokens of {split}", search_record(tuned)
    paths = [save_settings(setup.run, stack[: n + 1], settings, text, record) for n, settings in sorted(best.items())]
    return paths, tuned


def progress_unit(stack: Stack, in_turn: bool = False) -> str:
    """Return the unit of `tune_reader`'s progress: tokens of one reading, or settings that are tried."""
    one_reading = READERS[stack[-1].name].grid_scorer is not None and not in_turn
    return "tokens" if one_reading else "settings"


def _tune_outermost(
    setup: EvalSetup, stack: Stack, lists: ValueLists, ids: np.ndarray, progress: ProgressCallback | None
) -> tuple[Tuned, dict[int, Any]]:
    """Search the settings of the outermost reader in the way of its kind. Also return the best ones by its index."""
    kind, layers = READERS[stack[-1].name], configure(stack, setup.run, {stack[-1].name})
    start, first, context = layers[-1].settings, setup.dataset.vocabulary.start, _context(setup)
    make = _reader_builder(context)
    if kind.grid_scorer is not None:
        # Typed settings are fixed; all values of the others are tried.
        values = {name: [getattr(start, name)] for name in typed_settings(stack[-1])} | lists
        inner = make(layers[:-1])
        scorer = kind.grid_scorer(replace(context, inner=inner), values, len(ids))
        tuned = search_one_reading(scorer, inner, ids, first, progress)
    else:
        assert kind.steps is not None
        search = EarlyStoppedSearch(lambda s: make([*layers[:-1], replace(layers[-1], settings=s)]), ids, first)
        show = progress or (lambda done, total: None)
        tuned = (
            search_grid(search, start, lists, show) if lists else search_steps(search, start, kind.steps(start), show)
        )
    return tuned, {len(stack) - 1: tuned.best}


def _tune_in_turn(
    setup: EvalSetup, stack: Stack, lists: ValueLists, ids: np.ndarray, progress: ProgressCallback | None
) -> tuple[Tuned, dict[int, Any]]:
    """Tune one setting after the other. Also return the best settings of each reader that had one, by its index."""
    fixed = {name for layer in stack for name in typed_settings(layer)}
    coordinates = {n: values for n, values in {**COORDINATES, **lists}.items() if n in lists or n not in fixed}
    start = configure(stack, setup.run, {layer.name for layer in stack if coordinates.keys() & _settings_of(layer)})
    owners = {name: owner(start, name) for name in coordinates}
    if idle := next((name for name in lists if owners[name] is None), None):
        raise UserError(f"the reader {stack_name(stack)} does not use {idle} with this rule; leave it out of --grid")
    coordinates = {name: values for name, values in coordinates.items() if owners[name] is not None}
    if not coordinates:
        raise UserError(f"the reader {stack_name(stack)} has none of {', '.join(COORDINATES)} to tune in turn")
    first, context = setup.dataset.vocabulary.start, _context(setup)
    tuned = search_coordinates(_reader_builder(context), context, start, coordinates, ids, first, progress)
    return tuned, {index: tuned.best[index].settings for index in owners.values() if index is not None}


def _context(setup: EvalSetup) -> BuildContext:
    """Return the context from which readers of a run are built. Objects are loaded once for all of them."""
    return BuildContext(setup.run, setup.reader.precision)


def _reader_builder(context: BuildContext) -> Callable[[Sequence[ConfiguredLayer]], Reader]:
    """Return the function that builds a stack of readers."""
    return partial(build, run=context.run, precision=context.precision, loaded=context.loaded)


def search_record(tuned: Tuned) -> dict[str, Any]:
    """Return the record of a search that is saved beside the settings."""
    trials = [asdict(trial) for trial in tuned.trials]
    nats, tokens = tuned.nats, tuned.tokens
    return {"nats_per_token": nats, "tokens": tokens, "tried": tuned.tried, "trials": trials, "at_edge": tuned.at_edge}


def _check_run(run: Run) -> None:
    run.check_as_trained("readers are prepared")
    check_writable(saved_in(run), "what a reader learns is saved in the run: copy the run, and name the copy")


def _check_split(split: str) -> None:
    if split == "test":
        raise UserError("nothing is chosen on the test split or learned from it before it is read; use valid or train")


def parse_grid(stack: Stack, grid: Sequence[str]) -> ValueLists:
    """Parse `rate=1e-4,3e-4` as the values of each setting, of the one reader of a stack that has it. Raises UserError."""
    owners = {name: READERS[layer.name].settings for layer in stack for name in _settings_of(layer)}
    lists: ValueLists = {}
    for text in grid:
        name, _, values = text.partition("=")
        check_name(name, owners, "setting")
        sharing = [layer.name for layer in stack if name in _settings_of(layer)]
        if len(sharing) > 1:
            raise UserError(
                f"--grid {name}: the readers {' and '.join(sharing)} share that setting; tune them one after the other "
                "without --in-turn, or leave it out"
            )
        if not values:
            raise UserError(f"the grid '{text}' must be written setting=value,value")
        if name in lists:
            raise UserError(f"--grid gives {name} twice; give all of its values at once: {name}=VALUE,VALUE")
        points = (from_dict(owners[name], {name: typed(value, name)}, f"grid {name}") for value in values.split(","))
        lists[name] = [getattr(point, name) for point in points]
        if twice := [value for i, value in enumerate(lists[name]) if value in lists[name][:i]]:
            raise UserError(f"--grid {name}: the value {twice[0]} appears twice; leave one out")
    return lists


def _settings_of(layer: Layer) -> Set[str]:
    """Return the names of the settings of a layer's reader."""
    return to_dict(READERS[layer.name].settings()).keys()


@restored_threads()
def train_learned(
    opened: EvalSetup,
    base: DynamicSettings,
    gates: GateSettings,
    training: MetaTraining,
    name: str,
    *,
    skip: int | None = None,
    progress: ProgressCallback | None = None,
    report: Callable[[int, float], None] | None = None,
) -> tuple[Path, Learned]:
    """Train a meta-learner on the opened split after its first `skip` tokens, and save it beside the model under a name.

    None skips what readers are tuned on by default, or half of a text that is less than twice as long. Raises UserError.
    """
    run, split = opened.run, opened.split
    if skip is None:
        skip = min(TUNED_TOKENS, len(split.ids) // 2)
    _check_split(split.name)
    learned_name(name)
    if skip >= len(split.ids):
        raise UserError(
            f"{split.name} has {len(split.ids):,} tokens, of which --skip {skip:,} leaves none; use a smaller --skip"
        )
    _check_run(run)
    try:
        statistics = load_statistics(saved_in(run), run.weights_hash, base.moving, run.argument)
    except NoStatistics as error:  # a meta-learner cannot do without
        raise UserError(error.problem) from None
    choose_threads(opened.reader, split.ids[skip:])
    learned = train_gates(
        run.model, statistics, split.ids[skip:], opened.dataset.vocabulary.start, base, gates, training,
        precision=opened.reader.precision, progress=progress, report=report,
    )  # fmt: skip
    learned.record.update(split=split.name, skip=skip)
    run.check_unchanged(run.folder / SAVED)
    return save_learned(saved_in(run), name, run.weights_hash, learned), learned
