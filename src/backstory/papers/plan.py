"""From a grid to its runs, with everything that could be wrong with it told before anything runs or is written."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from backstory.config import RunConfig, UserError, changes, check_name, from_dict, recipes, to_dict
from backstory.context.experiments import check_experiment
from backstory.data import check_drawn
from backstory.data.corpora import SPLITS
from backstory.evaluation.evaluation import check_after
from backstory.models.composed import check_overrides
from backstory.papers.paper import paper, published_value
from backstory.papers.preparations import preparation
from backstory.papers.suite import Asked, Claim, Examination, Grid, Published, Reading, Row, Scale, Setup, Side
from backstory.readers.registry import parse_stack, stack_name
from backstory.reports.reproductions import Place
from backstory.training.progress import check_settings

LARGEST_SEED = 2**31 - 1
DEFAULTS = 1
"""To be raised when a setting that a model or its training depends on has another default than before."""


@dataclass(frozen=True)
class Run:
    """One training with the readings and examinations that follow it."""

    row: str
    seed: int
    config: RunConfig
    minutes: float
    """What it takes, as the grid states it."""
    readings: tuple[Reading, ...]
    examinations: tuple[Examination, ...]
    prepare: tuple[str, ...] = ()
    """What `backstory reader` does before the readings."""
    begin: str | None = None
    """Name of the run that it begins with."""

    @property
    def name(self) -> str:
        """What its folder is called."""
        return run_name(self.row, self.seed)


def run_name(row: str, seed: int) -> str:
    """The name of a row's run."""
    return f"{row}-seed{seed}"


def runs_of(grid: Grid, scale: Scale, source: str) -> list[Run]:
    """The runs of a grid at one scale, row by row and seed by seed. Raises UserError for whatever is wrong in all of it."""
    check(grid, source)
    runs = []
    for row in grid.rows:
        if setup := row.at(scale):
            config = _settings(setup, f"{source}: row {row.name}, {scale}")
            for place, seed in enumerate(setup.seeds):
                seeded = from_dict(RunConfig, config | {"seed": seed}, source)
                examined = tuple(e for e in setup.examinations if place < e.runs)
                begin = run_name(setup.begin, seed) if setup.begin else None
                runs.append(Run(row.name, seed, seeded, setup.minutes, row.readings, examined, row.prepare, begin))
    if not runs:
        raise UserError(f"{source} has nothing at the {scale} scale; give another with --scale")
    return runs


def fingerprints(runs: Sequence[Run]) -> dict[str, str]:
    """By name, a hash of all that a run is made with: its settings, its `prepare`, and those of the run it begins with.

    Settings that have their default are left out, so that it stays when later versions have more of them; DEFAULTS counts the
    versions that changed one.
    """
    by_name = {run.name: run for run in runs}

    def made(run: Run) -> str:
        begin = made(by_name[run.begin]) if run.begin else None
        text = json.dumps([DEFAULTS, _settings_made_with(run.config), run.prepare, begin], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    return {run.name: made(run) for run in runs}


def _settings_made_with(config: RunConfig) -> dict[str, Any]:
    """Return the settings without those that have their first default.

    A default that changed later is resolved, so that only runs that the change concerns get another fingerprint.
    """
    settings = changes(config)
    if buffer := settings.get("model", {}).get("buffer"):
        buffer.pop("dropout", None)  # 0 at first; now that of the head, unless it is set
        if config.model.second_dropout:
            buffer["dropout"] = config.model.second_dropout
    return settings


def published_figure(published: Published) -> tuple[float, float | None, str]:
    """The number, its deviation where that is printed, and where. Raises UserError for a figure of no paper here."""
    if published.figure is not None:
        found, where = published_value(published.figure)
        return found.value, found.deviation, where
    assert published.value is not None
    return published.value, None, published.source


def chosen(runs: Sequence[Run], only: Iterable[str], grid: Grid) -> list[Run]:
    """The runs of the named rows; all where none is named. Raises UserError for a name that no run has."""
    wanted, known = list(only), list(dict.fromkeys(run.row for run in runs))
    for name in wanted:
        if name not in known and name in [row.name for row in grid.rows]:
            raise UserError(f"there is no row '{name}' at this scale; there are {', '.join(known)}")
        check_name(name, known, "row")
    return [run for run in runs if not wanted or run.row in wanted]


def check(grid: Grid, source: str) -> None:
    """Raise UserError, one line, for the first thing that is wrong with a grid at any scale."""
    if not grid.rows:
        raise UserError(f"{source}: rows is empty; a grid needs at least one row")
    for name in grid.papers:
        _told(f"{source}: papers", paper, name)
    _unique([row.name for row in grid.rows], f"{source}: two rows are called", "give each a name of its own")
    for row in grid.rows:
        _check_row(row, grid, f"{source}: row {row.name}")
    for claim in grid.claims:
        _check_claim(claim, grid, f"{source}: claim '{claim.sentence}'")
    for asked in grid.findings:
        _check_asked(asked, grid, f"{source}: findings")
    asked_for = [", ".join(part for part in (a.paper, a.row, a.beside) if part) for a in grid.findings]
    _unique(asked_for, f"{source}: findings has twice", "leave one out")


def _check_row(row: Row, grid: Grid, where: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", row.name):
        raise UserError(
            f"{where}: a name is made of letters, digits, dots and hyphens, since run folders are called by it"
        )
    made = [str(_told(where, preparation, text).made) for text in row.prepare]
    _unique(made, f"{where}: prepare makes twice", "the second time it would be taken for done; leave one out")
    if not row.readings:
        raise UserError(f"{where}: readings is empty; leave it out to read the test split")
    _unique([_read(reading) for reading in row.readings], f"{where}: two readings of", "leave one out")
    for reading in row.readings:
        _told(where, check_name, reading.split, SPLITS, "split")
        if reading.after is not None:
            _told(where, check_after, reading.after, reading.split, SPLITS)
        if (name := stack_name(_told(where, parse_stack, reading.reader))) != reading.reader:
            raise UserError(f"{where}: the reader {reading.reader} is written {name}")
        if reading.published is not None:
            _check_published(reading.published, reading, grid, where)
    if not (row.small or row.full):
        raise UserError(f"{where}: it has neither `small` nor `full`; say how it is run at one of them")
    for scale in get_args(Scale):
        if setup := row.at(scale):
            _check_setup(setup, row.readings, f"{where}, {scale}")
            if setup.begin is not None:
                _check_begin(row, setup, grid, scale, f"{where}, {scale}")


def _check_begin(row: Row, setup: Setup, grid: Grid, scale: Scale, where: str) -> None:
    """Raise UserError unless there is a run to begin with for every seed, and one of the rows begins from nothing."""
    setups = {other.name: found for other in grid.rows if (found := other.at(scale))}
    _told(f"{where}: begin", check_name, setup.begin, [other.name for other in grid.rows], "row")
    if setup.begin not in setups:
        raise UserError(f"{where}: it begins with row {setup.begin}, which is not at the {scale} scale")
    if lacking := [seed for seed in setup.seeds if seed not in setups[setup.begin].seeds]:
        raise UserError(f"{where}: it begins with row {setup.begin}, which has no seed {lacking[0]}")
    passed, name = [row.name], setup.begin
    while name in setups and name not in passed:
        passed.append(name)
        name = setups[name].begin
    if name == row.name:
        raise UserError(f"{where}: it begins with itself{_by_way(passed[1:])}; begin with another row, or leave it out")


def _by_way(rows: Sequence[str]) -> str:
    return f", by way of {', '.join(rows)}" if rows else ""


def _check_setup(setup: Setup, readings: Sequence[Reading], where: str) -> None:
    if not setup.seeds:
        raise UserError(f"{where}: seeds is empty; give at least one")
    _unique(setup.seeds, f"{where}: seeds has twice", "a run is made once")
    for seed in setup.seeds:
        if not 0 <= seed <= LARGEST_SEED:
            raise UserError(f"{where}: a seed must be at least 0 and at most {LARGEST_SEED}, not {seed}")
    places = [f"{e.experiment} on {e.split}" for e in setup.examinations]
    _unique(places, f"{where}: two examinations", "leave one out")
    for examination in setup.examinations:
        _told(where, check_experiment, examination.experiment)
        _told(where, check_name, examination.split, SPLITS, "split")
    config = from_dict(RunConfig, _settings(setup, where), where)
    _told(where, check_settings, config.training)
    _told(where, check_drawn, config.text)
    for reading in readings:
        if reading.addressing is not None:
            _told(where, check_overrides, config.model, {"core.addressing": reading.addressing})


def _settings(setup: Setup, where: str) -> dict[str, Any]:
    """The recipe's settings with the overrides put in, checked. Raises UserError."""
    if "seed" in setup.overrides:
        raise UserError(f"{where}: overrides sets a seed; seeds are set by `seeds`")
    recipe = _told(where, recipes.load, setup.recipe)
    return to_dict(from_dict(RunConfig, recipes.merged(to_dict(recipe), setup.overrides), f"{where}, overrides"))


def _check_published(published: Published, reading: Reading, grid: Grid, where: str) -> None:
    if (published.figure is None) == (published.value is None):
        raise UserError(f"{where}: published needs either a figure of a paper here, or a value and its source")
    if published.figure is None:
        if not published.source.strip():
            raise UserError(f"{where}: published has no source; say where {published.value:g} is printed")
        return
    found, _ = _told(where, published_value, published.figure)
    if published.source:
        raise UserError(f"{where}: {published.figure} has its source already; leave `source` out")
    printed = found.split, found.reader, found.batch_size or reading.rows, found.metric
    if printed != (reading.split, reading.reader, reading.rows, grid.metric):
        raise UserError(
            f"{where}: {published.figure} is a {found.metric} of the {found.split} split with the {found.reader} reader"
            f"{_in_rows(found.batch_size or 1)}, and stands beside the {grid.metric} of {_read(reading)}"
        )


def _check_claim(claim: Claim, grid: Grid, where: str) -> None:
    rows = {row.name: row for row in grid.rows}
    for side in (claim.better, claim.than):
        _told(where, check_name, side.row, rows, "row")
        if not any(reads(reading, side) for reading in rows[side.row].readings):
            raise UserError(f"{where}: row {side.row} does not read {_read(side)}")
    if claim.better == claim.than:
        raise UserError(f"{where}: it compares row {claim.than.row} with itself")
    if not any(rows[claim.better.row].at(scale) and rows[claim.than.row].at(scale) for scale in get_args(Scale)):
        raise UserError(f"{where}: {claim.better.row} and {claim.than.row} are at no scale together")


def _check_asked(asked: Asked, grid: Grid, where: str) -> None:
    rows = {row.name: row for row in grid.rows}
    found = _told(where, paper, asked.paper).findings.values()
    if not any(finding.paired == (asked.beside is not None) for finding in found):
        of = "a row" if asked.beside is None else "a row beside another"
        raise UserError(f"{where}: there are none of the paper {asked.paper} of {of}; name another paper")
    sides = [asked.row] if asked.beside is None else [asked.row, asked.beside]
    for side in sides:
        _told(where, check_name, side, rows, "row")
    _unique(sides, f"{where}: both rows are", "compare a row with another")
    scales = get_args(Scale)
    if not any(all((setup := rows[side].at(scale)) and setup.examinations for side in sides) for scale in scales):
        raise UserError(f"{where}: {' and '.join(sides)} {'is' if len(sides) == 1 else 'are'} at no scale examined; "
                        "give examinations, or leave it out")  # fmt: skip


def reads(reading: Reading, side: Side) -> bool:
    """Whether a claim's side speaks of this reading (of its row)."""
    return place_of(reading) == place_of(side)


def place_of(reading: Reading | Side) -> Place:
    """What tells a reading from the others of its row, as `place_in` says of one in a result."""
    return reading.split, reading.reader, reading.rows, reading.after, reading.addressing


def _read(reading: Reading | Side) -> str:
    """What is read and how: `test with foreign in 10 rows`, `test with dynamic after valid`."""
    after = "" if reading.after is None else f" after {reading.after}"
    addressed = "" if reading.addressing is None else f", addressed {reading.addressing}"
    return f"{reading.split} with {reading.reader}{_in_rows(reading.rows)}{after}{addressed}"


def _in_rows(rows: int) -> str:
    return "" if rows == 1 else f" in {rows} rows"


def _unique(values: Sequence[object], problem: str, remedy: str) -> None:
    twice = next((v for i, v in enumerate(values) if v in values[:i]), None)
    if twice is not None:
        raise UserError(f"{problem} {twice}; {remedy}")


def _told(where: str, call: Any, *arguments: Any) -> Any:
    """What the call gives; a UserError of it is told with where it came about."""
    try:
        return call(*arguments)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
