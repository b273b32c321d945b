"""Plan a suite: check all of it before anything runs or is written, and list its runs."""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args

from backstory.config import RunConfig, TextConfig, changes, from_dict, recipes, to_dict
from backstory.config.renamed import first_settings
from backstory.config.schema import SPLITS
from backstory.context.laboratory import check_examination
from backstory.data import check_synthetic
from backstory.data.synthetic.algorithms import TASKS, Algorithm
from backstory.evaluation.evaluation import check_after
from backstory.models.composed import check_overrides, check_parts
from backstory.papers.paper import paper, published_value
from backstory.papers.reader_commands import preparation
from backstory.papers.suite import (
    Claim,
    FindingCheck,
    PlannedExamination,
    PlannedReading,
    PublishedReference,
    Scale,
    Suite,
    System,
    SystemSetup,
)
from backstory.readers.registry import needs, parse_stack, stack_name
from backstory.runs.run import check_tensors, weights
from backstory.utils.errors import UserError, check_name, shown

T = TypeVar("T")
LARGEST_SEED = 2**31 - 1
LONGEST_NAME = 200
"""Maximum length of a name, which leaves most file systems enough for the suffixes added to it."""
DEFAULTS_VERSION = 1
"""Increase this when a default changes that a model or its training depends on."""


# --- runs ---


@dataclass(frozen=True)
class SuiteRun:
    """One training, and the readings and examinations that follow it."""

    system: str
    seed: int
    config: RunConfig
    minutes: float
    """Time that it takes, according to the suite."""
    readings: tuple[PlannedReading, ...]
    examinations: tuple[PlannedExamination, ...]
    prepare: tuple[str, ...] = ()
    """Commands of `backstory reader` before the readings."""
    init_from: str | None = None
    """Name of the run that it starts from."""

    @property
    def name(self) -> str:
        """Return the name of its folder."""
        return run_name(self.system, self.seed)


def run_name(system: str, seed: int) -> str:
    return f"{system}-seed{seed}"


def runs_of(suite: Suite, scale: Scale, source: str, minutes: float | None = None) -> list[SuiteRun]:
    """Return the runs of a suite at one scale, by system and seed. Raises UserError for anything wrong in the whole suite.

    With `minutes` each is trained for that time, not for its epochs.
    """
    check(suite, source)
    runs = []
    for system in suite.systems:
        if setup := system.at(scale):
            config = _settings(setup, f"{source}: system {system.name}, {scale}")
            if minutes is not None:
                config["training"] |= {"minutes": minutes, "steps": None}
            for index, seed in enumerate(setup.seeds):
                seeded = from_dict(RunConfig, config | {"seed": seed}, source)
                examinations = tuple(e for e in setup.examinations if index < e.runs)
                init_from = run_name(setup.init_from, seed) if setup.init_from else None
                runs.append(
                    SuiteRun(
                        system.name,
                        seed,
                        seeded,
                        setup.minutes if minutes is None else minutes,
                        system.readings,
                        examinations,
                        system.prepare,
                        init_from,
                    )
                )
    if not runs:
        raise UserError(f"{source} has nothing at the {scale} scale; give another with --scale")
    return runs


def with_seeds(suite: Suite, scale: Scale, further: Iterable[tuple[str, int]]) -> Suite:
    """Return a checked suite with more seeds, given as (system, seed); the systems that these start from get them, too."""
    setups = {system.name: setup for system in suite.systems if (setup := system.at(scale))}
    seeds = {name: dict.fromkeys(setup.seeds) for name, setup in setups.items()}
    for name, seed in further:
        system: str | None = name
        while system in setups:
            seeds[system].setdefault(seed)
            system = setups[system].init_from
    systems = (
        replace(s, **{scale: replace(setup, seeds=tuple(seeds[s.name]))}) if (setup := s.at(scale)) else s
        for s in suite.systems
    )
    return replace(suite, systems=tuple(systems))


def select(runs: Sequence[SuiteRun], only: Iterable[str], suite: Suite, seeds: Collection[int] = ()) -> list[SuiteRun]:
    """Return the runs of the named systems and seeds; all if none is named. Raises UserError for a name that no run has."""
    wanted, known = list(only), list(dict.fromkeys(run.system for run in runs))
    for name in wanted:
        if name not in known and name in [system.name for system in suite.systems]:
            raise UserError(f"there is no system '{name}' at this scale; there are {', '.join(known)}")
        check_name(name, known, "system")
    return [run for run in runs if (not wanted or run.system in wanted) and (not seeds or run.seed in seeds)]


def fingerprints(runs: Sequence[SuiteRun]) -> dict[str, str]:
    """Return, by name, a hash of everything a run depends on: its settings, its `prepare`, and those of the run it starts from.

    Settings that have their default are left out, so that the hash stays when later versions add settings; DEFAULTS_VERSION
    counts the versions that changed a default.
    """
    by_name = {run.name: run for run in runs}

    def fingerprint(run: SuiteRun) -> str:
        first = fingerprint(by_name[run.init_from]) if run.init_from else None
        text = json.dumps([DEFAULTS_VERSION, _settings_to_hash(run.config), run.prepare, first], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    return {run.name: fingerprint(run) for run in runs}


def _settings_to_hash(config: RunConfig) -> dict[str, Any]:
    """Return the settings without those that have their first default.

    A default that changed later is resolved, so that only runs that the change concerns get another fingerprint.
    """
    settings = first_settings(changes(config))
    if buffer := settings.get("model", {}).get("buffer"):
        buffer.pop("dropout", None)  # 0 at first; now that of the head, unless it is set
        if config.model.auxiliary_dropout:
            buffer["dropout"] = config.model.auxiliary_dropout
    return settings


# --- checks ---


def check(suite: Suite, source: str) -> None:
    """Raise UserError, one line, for the first thing that is wrong with a suite at any scale."""
    if not suite.systems:
        raise UserError(f"{source}: systems is empty; a suite needs at least one system")
    for name in suite.papers:
        _located(f"{source}: papers", paper, name)
    names = [system.name for system in suite.systems]
    _check_unique(names, f"{source}: two systems are called", "give each a name of its own")
    for system in suite.systems:
        _check_system(system, suite, f"{source}: system {system.name}")
    for claim in suite.claims:
        _check_claim(claim, suite, f"{source}: claim '{claim.sentence}'")
        if claim.paper:
            _located(f"{source}: claim '{claim.sentence}'", check_name, claim.paper, suite.papers, "paper of the suite")
    for finding_check in suite.findings:
        _check_finding_check(finding_check, suite, f"{source}: findings")
    tested = [", ".join((check.paper, *check.systems)) for check in suite.findings]
    _check_unique(tested, f"{source}: findings has twice", "leave one out")


def _check_system(system: System, suite: Suite, where: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", system.name):
        raise UserError(
            f"{where}: a name is made of letters, digits, dots and hyphens, because run folders are named after it"
        )
    if len(system.name) > LONGEST_NAME:
        raise UserError(f"{where}: a name has at most {LONGEST_NAME} letters, because run folders are named after it")
    preparations = [_located(where, preparation, text) for text in system.prepare]
    if output := _repeated([str(step.output) for step in preparations]):
        raise UserError(f"{where}: two prepare commands write {output}; remove one")
    made: set[str] = set()
    for text, step in zip(system.prepare, preparations, strict=True):
        _check_made(step.needs, made, f"{where}: prepare '{text}'")
        made.add(step.made)
    if not system.readings:
        raise UserError(f"{where}: readings is empty; leave it out to read the test split")
    _check_unique([reading.described() for reading in system.readings], f"{where}: two readings of", "leave one out")
    for reading in system.readings:
        _located(where, check_name, reading.split, SPLITS, "split")
        if reading.after is not None:
            _located(where, check_after, reading.after, reading.split, SPLITS)
        _located(where, reading.check)
        stack = _located(where, parse_stack, reading.reader)
        if (name := stack_name(stack)) != reading.reader:
            raise UserError(f"{where}: the reader {reading.reader} is written {name}")
        _check_made(needs(stack), made, f"{where}: the reading '{reading.described()}'")
        if reading.published is not None:
            _check_published(reading.published, reading, suite, where)
    if not (system.small or system.full):
        raise UserError(f"{where}: it has neither `small` nor `full`; say how it is run at one of them")
    for scale in get_args(Scale):
        if setup := system.at(scale):
            _check_setup(setup, system.readings, f"{where}, {scale}")
            if setup.init_from is not None:
                _check_init_from(system, setup, setup.init_from, suite, scale, f"{where}, {scale}")


def _check_made(needed: Mapping[str, str], made: Collection[str], what: str) -> None:
    """Raise UserError unless all that a reading or a preparation needs was made by the preparations before it."""
    for name, command in needed.items():
        if name not in made:
            raise UserError(
                f"{what} needs what `backstory reader {command}` makes; add '{command}' to prepare, before it"
            )


def _check_init_from(system: System, setup: SystemSetup, first: str, suite: Suite, scale: Scale, where: str) -> None:
    """Raise UserError unless every seed has a run to start from, whose model fits, and the chain of systems ends."""
    setups = {other.name: there for other in suite.systems if (there := other.at(scale))}
    _located(f"{where}: init_from", check_name, first, [other.name for other in suite.systems], "system")
    if first not in setups:
        raise UserError(f"{where}: it begins with system {first}, which is not at the {scale} scale")
    if missing := [seed for seed in setup.seeds if seed not in setups[first].seeds]:
        raise UserError(f"{where}: it begins with system {first}, which has no seed {missing[0]}")
    chain: list[str] = []
    name: str | None = first
    while name in setups and name != system.name and name not in chain:
        chain.append(name)
        name = setups[name].init_from
    if name == system.name:
        through = f", by way of {', '.join(chain)}" if chain else ""
        raise UserError(f"{where}: it begins with itself{through}; begin with another system, or leave it out")
    settings = [from_dict(RunConfig, _settings(each, where), where) for each in (setup, setups[first])]
    own, other = (_located(where, check_parts, config.model) for config in settings)
    if own is not None and other is not None:
        shared, loaded = weights(own), weights(other)
        try:
            check_tensors(loaded, {name: shared[name] for name in loaded if name in shared}, "weights")
        except ValueError as error:
            raise UserError(
                f"{where}: it begins with system {first}, which does not fit its model: {error}; give the same sizes and parts"
            ) from None


def _check_setup(setup: SystemSetup, readings: Sequence[PlannedReading], where: str) -> None:
    if not setup.seeds:
        raise UserError(f"{where}: seeds is empty; give at least one")
    if (seed := _repeated(setup.seeds)) is not None:
        raise UserError(f"{where}: seeds lists {seed} twice; remove one")
    for seed in setup.seeds:
        if not 0 <= seed <= LARGEST_SEED:
            raise UserError(f"{where}: a seed must be at least 0 and at most {LARGEST_SEED}, not {seed}")
    examinations = [" with ".join([f"{e.experiment} on {e.split}", *e.reader]) for e in setup.examinations]
    _check_unique(examinations, f"{where}: two examinations", "leave one out")
    config = from_dict(RunConfig, _settings(setup, where), where)
    _located(where, config.training.check)
    _located(where, check_synthetic, config.text)
    model = _located(where, check_parts, config.model)
    limited = model is not None and model.capabilities.maximum_length is not None
    for examination in setup.examinations:
        _located(where, check_name, examination.split, SPLITS, "split")
        if not isinstance(examination.tagger, str):
            raise UserError(f"{where}: tagger must be text, not {shown(examination.tagger)}")
        # Where no length is given, only a model that reads so many tokens at once takes another than the usual one.
        usual = examination if limited else replace(examination, context=examination.context_length)
        _located(where, check_examination, usual)
    for reading in readings:
        _located(where, check_overrides, config.model, _located(where, reading.inference_overrides))
        if reading.lengths:
            _located(where, _check_lengths, config.text, reading)


def _check_lengths(text: TextConfig, reading: PlannedReading) -> None:
    """Raise UserError unless the corpus is a task that can be generated with documents of a reading's lengths."""
    if text.corpus not in TASKS:
        raise UserError(f"the documents of the corpus {text.corpus} have no lengths to choose; leave `lengths` out")
    Algorithm(text.corpus, text.algorithm).of_lengths(reading.split, reading.lengths)


def _settings(setup: SystemSetup, where: str) -> dict[str, Any]:
    """Return the recipe's settings with the overrides, checked. Raises UserError."""
    if "seed" in setup.overrides:
        raise UserError(f"{where}: overrides sets a seed; seeds are set by `seeds`")
    recipe = _located(where, recipes.load_recipe, setup.recipe)
    return to_dict(from_dict(RunConfig, recipes.merged(to_dict(recipe), setup.overrides), f"{where}, overrides"))


def _check_published(reference: PublishedReference, reading: PlannedReading, suite: Suite, where: str) -> None:
    if (reference.figure is None) == (reference.value is None):
        raise UserError(f"{where}: published needs either a figure of a paper here, or a value and its source")
    if reference.figure is None and not reference.source.strip():
        raise UserError(f"{where}: published has no source; say where {reference.value:g} is printed")
    if reference.figure is not None and reference.source:
        raise UserError(f"{where}: {reference.figure} has its source already; leave `source` out")
    for figure in reference.figures:
        _check_figure(figure, reading, suite, where)


def _check_figure(figure: str, reading: PlannedReading, suite: Suite, where: str) -> None:
    """Raise UserError unless a printed value is of such a reading."""
    printed, _ = _located(where, published_value, figure)
    batch_size = printed.batch_size or reading.batch_size
    ours = reading.split, reading.reader, reading.batch_size, suite.metric
    if (printed.split, printed.reader, batch_size, printed.metric) != ours:
        batch = f" in a batch of {printed.batch_size}" if (printed.batch_size or 1) > 1 else ""
        raise UserError(
            f"{where}: {figure} is a {printed.metric} of the {printed.split} split with the {printed.reader} reader"
            f"{batch}, but is compared with the {suite.metric} of {reading.described()}"
        )


def _check_claim(claim: Claim, suite: Suite, where: str) -> None:
    systems = {system.name: system for system in suite.systems}
    for side in (claim.better, claim.than):
        _located(where, check_name, side.system, systems, "system")
        if all(reading.reading() != side.reading() for reading in systems[side.system].readings):
            raise UserError(f"{where}: system {side.system} does not read {side.described()}")
    if claim.better == claim.than:
        raise UserError(f"{where}: it compares system {claim.than.system} with itself")
    better, than = systems[claim.better.system], systems[claim.than.system]
    if not any(better.at(scale) and than.at(scale) for scale in get_args(Scale)):
        raise UserError(f"{where}: {better.name} and {than.name} are at no scale together")


def _check_finding_check(check: FindingCheck, suite: Suite, where: str) -> None:
    systems = {system.name: system for system in suite.systems}
    if not _located(where, check.findings):
        kind = "a system" if check.baseline is None else "two systems"
        raise UserError(f"{where}: the paper {check.paper} has no findings on {kind}; name another paper")
    for name in check.systems:
        _located(where, check_name, name, systems, "system")
    _check_unique(check.systems, f"{where}: both systems are", "compare a system with another")
    setups = [[systems[name].at(scale) for name in check.systems] for scale in get_args(Scale)]
    if not any(all(setup and setup.examinations for setup in at_scale) for at_scale in setups):
        verb = "is" if check.baseline is None else "are"
        raise UserError(
            f"{where}: {' and '.join(check.systems)} {verb} not examined at any scale; add examinations, or leave it out"
        )


def _repeated(values: Sequence[T]) -> T | None:
    """Return the first duplicate value."""
    return next((v for i, v in enumerate(values) if v in values[:i]), None)


def _check_unique(values: Sequence[object], problem: str, remedy: str) -> None:
    if (repeated := _repeated(values)) is not None:
        raise UserError(f"{problem} {repeated}; {remedy}")


def _located(where: str, call: Callable[..., T], *arguments: Any) -> T:
    """Call a function. Prefix the message of its UserError with `where`."""
    try:
        return call(*arguments)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def published_figure(reference: PublishedReference) -> tuple[float, float | None, str]:
    """Return the number, its deviation if that is printed, and the source. Raises UserError for an unknown value."""
    if reference.figure is not None:
        printed, source = published_value(reference.figure)
        return printed.value, printed.deviation, source
    assert reference.value is not None
    return reference.value, None, reference.source
