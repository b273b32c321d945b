"""From a suite to its runs, with everything that could be wrong with it told before anything runs or is written."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from backstory.config import RunConfig, UserError, changes, check_name, from_dict, recipes, to_dict
from backstory.config.renamed import first_settings
from backstory.context.experiments import check_experiment
from backstory.context.splits import check_splits
from backstory.data import check_synthetic
from backstory.data.corpora.catalogue import SPLITS
from backstory.data.tags import check_tagger
from backstory.evaluation.evaluation import check_after
from backstory.models.composed import check_overrides
from backstory.papers.paper import paper, published_value
from backstory.papers.preparations import preparation
from backstory.papers.suite import (
    Claim,
    FindingCheck,
    PlannedExamination,
    Published,
    Reading,
    Scale,
    Setup,
    Side,
    Suite,
    System,
)
from backstory.readers.registry import parse_stack, stack_name
from backstory.reports.reproductions import Place
from backstory.training.progress import check_settings

LARGEST_SEED = 2**31 - 1
DEFAULTS = 1
"""To be raised when a setting that a model or its training depends on has another default than before."""


@dataclass(frozen=True)
class Run:
    """One training with the readings and examinations that follow it."""

    system: str
    seed: int
    config: RunConfig
    minutes: float
    """What it takes, as the suite states it."""
    readings: tuple[Reading, ...]
    examinations: tuple[PlannedExamination, ...]
    prepare: tuple[str, ...] = ()
    """What `backstory reader` does before the readings."""
    init_from: str | None = None
    """Name of the run that it begins with."""

    @property
    def name(self) -> str:
        """What its folder is called."""
        return run_name(self.system, self.seed)


def run_name(system: str, seed: int) -> str:
    """The name of a system's run."""
    return f"{system}-seed{seed}"


def runs_of(suite: Suite, scale: Scale, source: str) -> list[Run]:
    """Return the runs of a suite at one scale, by system and seed. Raises UserError for anything wrong in the whole suite."""
    check(suite, source)
    runs = []
    for system in suite.systems:
        if setup := system.at(scale):
            config = _settings(setup, f"{source}: system {system.name}, {scale}")
            for place, seed in enumerate(setup.seeds):
                seeded = from_dict(RunConfig, config | {"seed": seed}, source)
                examined = tuple(e for e in setup.examinations if place < e.runs)
                begin = run_name(setup.init_from, seed) if setup.init_from else None
                runs.append(
                    Run(system.name, seed, seeded, setup.minutes, system.readings, examined, system.prepare, begin)
                )
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
        begin = made(by_name[run.init_from]) if run.init_from else None
        text = json.dumps([DEFAULTS, _settings_made_with(run.config), run.prepare, begin], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    return {run.name: made(run) for run in runs}


def _settings_made_with(config: RunConfig) -> dict[str, Any]:
    """Return the settings without those that have their first default.

    A default that changed later is resolved, so that only runs that the change concerns get another fingerprint.
    """
    settings = first_settings(changes(config))
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


def chosen(runs: Sequence[Run], only: Iterable[str], suite: Suite) -> list[Run]:
    """The runs of the named systems; all where none is named. Raises UserError for a name that no run has."""
    wanted, known = list(only), list(dict.fromkeys(run.system for run in runs))
    for name in wanted:
        if name not in known and name in [system.name for system in suite.systems]:
            raise UserError(f"there is no system '{name}' at this scale; there are {', '.join(known)}")
        check_name(name, known, "system")
    return [run for run in runs if not wanted or run.system in wanted]


def check(suite: Suite, source: str) -> None:
    """Raise UserError, one line, for the first thing that is wrong with a suite at any scale."""
    if not suite.systems:
        raise UserError(f"{source}: systems is empty; a suite needs at least one system")
    for name in suite.papers:
        _told(f"{source}: papers", paper, name)
    _unique(
        [system.name for system in suite.systems], f"{source}: two systems are called", "give each a name of its own"
    )
    for system in suite.systems:
        _check_system(system, suite, f"{source}: system {system.name}")
    for claim in suite.claims:
        _check_claim(claim, suite, f"{source}: claim '{claim.sentence}'")
    for asked in suite.findings:
        _check_asked(asked, suite, f"{source}: findings")
    asked_for = [", ".join(part for part in (a.paper, a.system, a.baseline) if part) for a in suite.findings]
    _unique(asked_for, f"{source}: findings has twice", "leave one out")


def _check_system(system: System, suite: Suite, where: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", system.name):
        raise UserError(
            f"{where}: a name is made of letters, digits, dots and hyphens, since run folders are called by it"
        )
    made = [str(_told(where, preparation, text).made) for text in system.prepare]
    _unique(made, f"{where}: prepare makes twice", "the second time it would be taken for done; leave one out")
    if not system.readings:
        raise UserError(f"{where}: readings is empty; leave it out to read the test split")
    _unique([reading.described() for reading in system.readings], f"{where}: two readings of", "leave one out")
    for reading in system.readings:
        _told(where, check_name, reading.split, SPLITS, "split")
        if reading.after is not None:
            _told(where, check_after, reading.after, reading.split, SPLITS)
        if (name := stack_name(_told(where, parse_stack, reading.reader))) != reading.reader:
            raise UserError(f"{where}: the reader {reading.reader} is written {name}")
        if reading.published is not None:
            _check_published(reading.published, reading, suite, where)
    if not (system.small or system.full):
        raise UserError(f"{where}: it has neither `small` nor `full`; say how it is run at one of them")
    for scale in get_args(Scale):
        if setup := system.at(scale):
            _check_setup(setup, system.readings, f"{where}, {scale}")
            if setup.init_from is not None:
                _check_begin(system, setup, suite, scale, f"{where}, {scale}")


def _check_begin(system: System, setup: Setup, suite: Suite, scale: Scale, where: str) -> None:
    """Raise UserError unless there is a run to begin with for every seed, and one of the systems begins from nothing."""
    setups = {other.name: found for other in suite.systems if (found := other.at(scale))}
    _told(f"{where}: init_from", check_name, setup.init_from, [other.name for other in suite.systems], "system")
    if setup.init_from not in setups:
        raise UserError(f"{where}: it begins with system {setup.init_from}, which is not at the {scale} scale")
    if lacking := [seed for seed in setup.seeds if seed not in setups[setup.init_from].seeds]:
        raise UserError(f"{where}: it begins with system {setup.init_from}, which has no seed {lacking[0]}")
    passed, name = [system.name], setup.init_from
    while name in setups and name not in passed:
        passed.append(name)
        name = setups[name].init_from
    if name == system.name:
        raise UserError(
            f"{where}: it begins with itself{_by_way(passed[1:])}; begin with another system, or leave it out"
        )


def _by_way(systems: Sequence[str]) -> str:
    return f", by way of {', '.join(systems)}" if systems else ""


def _check_setup(setup: Setup, readings: Sequence[Reading], where: str) -> None:
    if not setup.seeds:
        raise UserError(f"{where}: seeds is empty; give at least one")
    _unique(setup.seeds, f"{where}: seeds has twice", "a run is made once")
    for seed in setup.seeds:
        if not 0 <= seed <= LARGEST_SEED:
            raise UserError(f"{where}: a seed must be at least 0 and at most {LARGEST_SEED}, not {seed}")
    places = [" with ".join([f"{e.experiment} on {e.split}", *e.reader]) for e in setup.examinations]
    _unique(places, f"{where}: two examinations", "leave one out")
    for examination in setup.examinations:
        _told(where, check_experiment, examination.experiment)
        _told(where, check_name, examination.split, SPLITS, "split")
        _told(where, examination.checked)
        _told(where, check_splits, examination.by)
        _told(where, check_tagger, examination.tagger)
        _told(where, parse_stack, examination.reader or "static")
    config = from_dict(RunConfig, _settings(setup, where), where)
    _told(where, check_settings, config.training)
    _told(where, check_synthetic, config.text)
    for reading in readings:
        _told(where, check_overrides, config.model, reading.inference_overrides())


def _settings(setup: Setup, where: str) -> dict[str, Any]:
    """The recipe's settings with the overrides put in, checked. Raises UserError."""
    if "seed" in setup.overrides:
        raise UserError(f"{where}: overrides sets a seed; seeds are set by `seeds`")
    recipe = _told(where, recipes.load, setup.recipe)
    return to_dict(from_dict(RunConfig, recipes.merged(to_dict(recipe), setup.overrides), f"{where}, overrides"))


def _check_published(published: Published, reading: Reading, suite: Suite, where: str) -> None:
    if (published.figure is None) == (published.value is None):
        raise UserError(f"{where}: published needs either a figure of a paper here, or a value and its source")
    if published.figure is None:
        if not published.source.strip():
            raise UserError(f"{where}: published has no source; say where {published.value:g} is printed")
        return
    found, _ = _told(where, published_value, published.figure)
    if published.source:
        raise UserError(f"{where}: {published.figure} has its source already; leave `source` out")
    printed = found.split, found.reader, found.batch_size or reading.batch_size, found.metric
    if printed != (reading.split, reading.reader, reading.batch_size, suite.metric):
        raise UserError(
            f"{where}: {published.figure} is a {found.metric} of the {found.split} split with the {found.reader} reader"
            f"{_in_batch(found.batch_size or 1)}, and stands beside the {suite.metric} of {reading.described()}"
        )


def _check_claim(claim: Claim, suite: Suite, where: str) -> None:
    systems = {system.name: system for system in suite.systems}
    for side in (claim.better, claim.than):
        _told(where, check_name, side.system, systems, "system")
        if not any(reads(reading, side) for reading in systems[side.system].readings):
            raise UserError(f"{where}: system {side.system} does not read {side.described()}")
    if claim.better == claim.than:
        raise UserError(f"{where}: it compares system {claim.than.system} with itself")
    if not any(
        systems[claim.better.system].at(scale) and systems[claim.than.system].at(scale) for scale in get_args(Scale)
    ):
        raise UserError(f"{where}: {claim.better.system} and {claim.than.system} are at no scale together")


def _check_asked(asked: FindingCheck, suite: Suite, where: str) -> None:
    systems = {system.name: system for system in suite.systems}
    found = _told(where, paper, asked.paper).findings.values()
    if not any(finding.paired == (asked.baseline is not None) for finding in found):
        of = "a system" if asked.baseline is None else "a system beside another"
        raise UserError(f"{where}: there are none of the paper {asked.paper} of {of}; name another paper")
    sides = [asked.system] if asked.baseline is None else [asked.system, asked.baseline]
    for side in sides:
        _told(where, check_name, side, systems, "system")
    _unique(sides, f"{where}: both systems are", "compare a system with another")
    scales = get_args(Scale)
    if not any(all((setup := systems[side].at(scale)) and setup.examinations for side in sides) for scale in scales):
        raise UserError(f"{where}: {' and '.join(sides)} {'is' if len(sides) == 1 else 'are'} at no scale examined; "
                        "give examinations, or leave it out")  # fmt: skip


def reads(reading: Reading, side: Side) -> bool:
    """Return True if a claim's side is this reading (of its system)."""
    return reading.reading() == side.reading()


def place_of(reading: Reading | Side) -> Place:
    """Return what tells a reading from the others of its system, as `place_in` does for one in a result."""
    return reading.split, reading.reader, reading.batch_size, reading.after, reading.addressing


def _in_batch(size: int) -> str:
    return "" if size == 1 else f" in a batch of {size}"


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
