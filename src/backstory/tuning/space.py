"""Search spaces: the settings of a recipe to search and their values, as strict YAML that is checked against the recipe."""

import itertools
import math
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from backstory.config import RunConfig, from_dict, recipes, to_dict
from backstory.config.ignored_settings import OFF, ignored_settings
from backstory.config.recipes import Packaged
from backstory.config.renamed import refuse_old_setting
from backstory.models import check_parts
from backstory.utils.errors import UserError, nearest, shown

Value = bool | int | float | str | None
Settings = dict[str, Any]

FIXED = ("text", "seed", "training.validation_batch_size")
"""Settings that all trials share, as their validation perplexities are compared."""
DRAWS = 100
"""Random draws of a space that are checked before anything is trained."""


@dataclass(frozen=True)
class Entry:
    """The values of one setting: one of `range`, `choice` and `same`."""

    range: tuple[float, ...] | None = None
    """The lowest and the highest value; whole numbers if the setting is one."""
    log: bool = False
    """Sample the range uniformly in the logarithm."""
    choice: list | None = None
    """A list of values."""
    same: str | None = None
    """Another setting, whose value this one takes."""
    when: dict = field(default_factory=dict)
    """Other settings with a value, or a list of values, at which this one is searched; else it stays as in the recipe."""


@dataclass(frozen=True)
class Space:
    """The content of a space file."""

    settings: dict
    """An entry for each setting, by its dotted name, in the order of sampling."""
    title: str = ""


@dataclass(frozen=True)
class Parameter:
    """A checked entry."""

    name: str
    """The setting, dotted."""
    low: float | None = None
    high: float | None = None
    """The ends of a range, inclusive; None if it has none."""
    whole: bool = False
    """A range of whole numbers."""
    log: bool = False
    choices: tuple[Value, ...] = ()
    same: str | None = None
    when: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    """Conditions: other settings, with the values at which this one is searched."""

    @property
    def samples(self) -> tuple[Value, ...]:
        """The ends of the range, or all choices; empty for one that takes another's value."""
        return self.choices if self.low is None else (self.low, self.high)

    def takes(self, value: Value) -> bool:
        """Return True if it can have that value."""
        if self.low is None or self.high is None:
            return self.same is not None or value in self.choices
        return isinstance(value, int | float) and self.low <= value <= self.high


_PACKAGED = Packaged(Space, "backstory.tuning", "spaces", "space")
names, load = _PACKAGED.names, _PACKAGED.load
"""The names of the packaged spaces; what reads one of them, or a user's own file, and `parameters` checks more."""


def parameters(space: Space, recipe: RunConfig, source: str, draws: int = DRAWS) -> tuple[Parameter, ...]:
    """Return the checked entries of a space, in order; `source` names the file in messages.

    `draws` random draws are checked too; none of a sweep that began earlier, as the version that began it accepted the space.

    Raises UserError, one line, for the first mistake: settings that are unknown, must not be searched or come in the wrong
    order, values that a setting cannot have, conditions that never hold, and draws that cannot be trained.
    """
    if not space.settings:
        raise UserError(f"{source}: settings is empty; a space needs at least one")
    base, checked = to_dict(recipe), {}
    for name, entry in space.settings.items():
        if not isinstance(name, str):
            raise UserError(f"{source}: {name!r} is not the name of a setting; write one as training.learning_rate")
        refuse_old_setting(name, source)
        where = f"{source}: {name}"
        if any(name == fixed or name.startswith(f"{fixed}.") for fixed in FIXED):
            raise UserError(f"{where} must be the same for all trials, as they are compared; leave it out")
        if not isinstance(entry, dict):
            raise UserError(f"{where} needs a `range` or a `choice`, not {shown(entry)}")
        if entry.keys() & {"low", "high", "min", "max"}:
            raise UserError(f"{where}: write the ends of a range as `range: [LOWEST, HIGHEST]`")
        checked[name] = _parameter(name, from_dict(Entry, entry, where), checked, base, source)
    searched = tuple(checked.values())
    if all(p.same for p in searched):
        raise UserError(f"{source}: nothing is searched; give a setting a `range` or a `choice`")
    _check_order(searched, source)
    _check_draws(searched, recipe, source, draws)
    return searched


def draw(space: tuple[Parameter, ...], recipe: RunConfig, suggest: Callable[[Parameter], Value]) -> RunConfig:
    """Return the recipe with a value for every parameter whose conditions hold, each from `suggest`, in order.

    Raises UserError for values that cannot be combined.
    """
    settings = to_dict(recipe)
    for parameter in space:
        if holds(parameter, settings):
            value = lookup(settings, parameter.same) if parameter.same else suggest(parameter)
            settings = _with(settings, parameter.name, value, "the space")
    return from_dict(RunConfig, settings, "the space")


def check_not_searched(space: tuple[Parameter, ...], recipe: RunConfig, changed: RunConfig) -> None:
    """Raise UserError for a setting that a flag changes although every draw has a value for it."""
    before, after = to_dict(recipe), to_dict(changed)
    for parameter in space:
        try:
            differs = lookup(before, parameter.name) != lookup(after, parameter.name)
        except KeyError:  # the part has another kind now
            continue
        if differs and not parameter.when:
            raise UserError(f"{parameter.name} is set by a flag and searched by the space; remove one")


def warn_ignored(space: tuple[Parameter, ...], recipe: RunConfig, flags: Mapping[str, str]) -> None:
    """Warn of parameters and of settings given by flags that have no effect in any random draw; `flags` are by setting."""
    reasons, effective = {}, set()
    for config in _draws(space, recipe, DRAWS):
        settings, ignored = to_dict(config), ignored_settings(config)
        reasons |= ignored
        effective |= ({p.name for p in space if holds(p, settings)} | flags.keys()) - ignored.keys()
    searched = {p.name: f"the space searches {p.name}, which" for p in space}
    for name, subject in (dict(flags) | searched).items():
        without_effect = name in reasons.keys() - effective
        if without_effect and (name in searched or lookup(to_dict(recipe), name) not in (*OFF, [])):
            warnings.warn(f"{subject} has no effect {reasons[name]}", stacklevel=2)


def holds(parameter: Parameter, settings: Settings) -> bool:
    """Return True if a parameter is searched with these settings."""
    try:
        return all(lookup(settings, name) in values for name, values in parameter.when)
    except KeyError:  # the part has another kind
        return False


def lookup(settings: Mapping[str, Any], name: str) -> Any:
    """Return the value of a dotted name. Raises KeyError if there is none."""
    value: Any = settings
    for key in name.split("."):
        if not isinstance(value, dict):
            raise KeyError(name)
        value = value[key]
    return value


def _parameter(name: str, entry: Entry, before: Mapping[str, Parameter], base: Settings, source: str) -> Parameter:
    where = f"{source}: {name}"
    if sum(values is not None for values in (entry.range, entry.choice, entry.same)) != 1:
        raise UserError(f"{where} needs one of `range`, `choice` and `same`")
    if entry.log and entry.range is None:
        raise UserError(f"{where}: `log` is for a `range`; leave it out")
    conditions = {other: _condition(other, values, before, base, where) for other, values in entry.when.items()}
    when = tuple(conditions.items())
    contexts = [_context(assigned, before, base, source) for assigned in _assignments(name, conditions, before)]
    if entry.same is not None:
        return _tied(name, entry.same, when, before, contexts, where)
    if entry.choice is not None:
        choices = _choices(name, entry.choice, contexts, where)
        return Parameter(name, choices=choices, when=when)
    return _ranged(name, entry, when, contexts, where)


def _ranged(name: str, entry: Entry, when: Any, contexts: list[Settings], where: str) -> Parameter:
    if entry.range is None or len(entry.range) != 2:
        raise UserError(f"{where}: a range is two numbers, [lowest, highest]")
    low, high = entry.range
    ends = [int(end) if end.is_integer() else end for end in (low, high)]
    low_value, high_value = _converted_in_all(name, ends, contexts, where)
    if not low < high:
        raise UserError(f"{where}: a range goes up, and {ends[0]} to {ends[1]} does not")
    if entry.log and low <= 0:
        raise UserError(f"{where}: a `log` range begins above 0, not at {ends[0]}")
    return Parameter(name, low_value, high_value, isinstance(low_value, int), entry.log, when=when)


def _choices(name: str, values: list, contexts: list[Settings], where: str) -> tuple[Value, ...]:
    if not values:
        raise UserError(f"{where}: choice is empty; give it values")
    if any(isinstance(value, list | dict) for value in values):
        raise UserError(f"{where}: a choice is between numbers, words, true, false and null")
    choices = _converted_in_all(name, values, contexts, where)
    if len(set(choices)) < len(choices):
        raise UserError(f"{where}: a choice appears twice; leave one out")
    return tuple(choices)


def _tied(name: str, other: str, when: Any, before: Mapping[str, Parameter], contexts: Any, where: str) -> Parameter:
    for context in contexts:
        values = before[other].samples if other in before else ()
        _check_exists(other, context, f"{where}: same")
        _converted(name, list(values) or [lookup(context, other)], context, where)
    return Parameter(name, same=other, when=when)


def _condition(
    other: Any, values: Any, before: Mapping[str, Parameter], base: Settings, where: str
) -> tuple[Value, ...]:
    """Return the values of another setting at which this one is searched. Raises UserError for values it never has."""
    if not isinstance(other, str):
        raise UserError(f"{where}: when: {other!r} is not the name of a setting")
    values = values if isinstance(values, list) else [values]
    if not values or any(isinstance(value, list | dict) for value in values):
        raise UserError(f"{where}: when: {other} needs a value, or a list of values")
    assigned = next(iter(_assignments(other, dict(before[other].when) if other in before else {}, before)))
    values = _converted(other, values, _context(assigned, before, base, where), f"{where}: when")
    for value in values:
        if other in before and not before[other].takes(value):
            raise UserError(f"{where}: when: {other} is never {value} in this space")
    return tuple(values)


def _assignments(
    name: str, when: Mapping[str, tuple[Value, ...]], before: Mapping[str, Parameter]
) -> Iterator[dict[str, Value]]:
    """Yield the values of other settings with which this one is searched: of its conditions, and the kind of its part."""
    conditions = dict(when)
    for other in when:
        # A condition may itself be searched under conditions, which stand before it.
        for further, values in _all_conditions(other, before).items():
            conditions.setdefault(further, values)
    parts = name.split(".")
    kinds = [".".join([*parts[:i], "kind"]) for i in range(1, len(parts))]
    options = {kind: before[kind].samples for kind in kinds if kind in before and kind != name} | conditions
    for values in itertools.product(*options.values()):
        yield dict(zip(options, values, strict=True))


def _all_conditions(name: str, before: Mapping[str, Parameter]) -> dict[str, tuple[Value, ...]]:
    """Return the conditions of a parameter, and theirs in turn."""
    conditions = dict(before[name].when) if name in before else {}
    for other in conditions.copy():
        conditions = _all_conditions(other, before) | conditions
    return conditions


def _context(assigned: dict[str, Value], before: Mapping[str, Parameter], base: Settings, source: str) -> Settings:
    settings = base
    order = list(before)
    for name in sorted(assigned, key=lambda n: order.index(n) if n in order else -1):
        settings = _with(settings, name, assigned[name], source)
    return settings


def _converted_in_all(name: str, values: list, contexts: list[Settings], where: str) -> list[Any]:
    """Return the values in the setting's type, which must accept them in all of these contexts. Raises UserError."""
    converted, problem = None, None
    for context in contexts:
        try:
            converted = _converted(name, values, context, where)
        except UserError as error:
            problem = error
    if problem is not None and converted is not None:
        raise UserError(f"{problem}; this setting does not exist in every draw; add a `when` that says in which")
    if problem is not None:
        raise problem
    assert converted is not None
    return converted


def _converted(name: str, values: list, context: Settings, where: str) -> list[Any]:
    """Return the values in the setting's type. Raises UserError for a value it does not accept."""
    source = where.split(f": {name}")[0]
    converted = [
        lookup(to_dict(from_dict(RunConfig, _changed(context, name, value), source)), name) for value in values
    ]
    if any(isinstance(value, list | dict) for value in converted):
        raise UserError(f"{where} is not a single value, so it cannot be searched")
    return converted


def _check_exists(name: str, settings: Settings, where: str) -> None:
    try:
        lookup(settings, name)
    except KeyError:
        raise UserError(f"{where}: there is no setting '{name}'{nearest(name, _all_names(settings, ''))}") from None


def _all_names(settings: Settings, path: str) -> Iterator[str]:
    for key, value in settings.items():
        yield from _all_names(value, f"{path}{key}.") if isinstance(value, dict) else (f"{path}{key}",)


def _changed(settings: Settings, name: str, value: Any) -> Settings:
    change: Any = value
    for key in reversed(name.split(".")):
        change = {key: change}
    return recipes.merged(settings, change)


def _with(settings: Settings, name: str, value: Any, source: str) -> Settings:
    """Return the settings with one changed; a part of another kind starts with its own defaults."""
    changed = _changed(settings, name, value)
    return to_dict(from_dict(RunConfig, changed, source)) if name.endswith(".kind") else changed


def _check_order(space: tuple[Parameter, ...], source: str) -> None:
    """Raise UserError for a parameter that stands before one that it depends on."""
    for i, parameter in enumerate(space):
        for other in {parameter.same, *(name for name, _ in parameter.when)} - {None}:
            if other == parameter.name:
                raise UserError(f"{source}: {other} refers to itself; give it values of its own")
            if any(later.name == other for later in space[i:]):
                raise UserError(f"{source}: {parameter.name} refers to {other}; list {other} first")
        kind = next((p.name for p in space[i + 1 :] if _decides(p.name, parameter.name)), None)
        if kind:
            raise UserError(f"{source}: {kind} decides whether there is {parameter.name}; give {kind} before it")


def _check_draws(space: tuple[Parameter, ...], recipe: RunConfig, source: str, draws: int) -> None:
    """Raise UserError unless every one of so many random draws can be trained."""
    try:
        for config in _draws(space, recipe, draws):
            config.training.check()
            check_parts(config.model)
    except UserError as error:
        raise UserError(f"{source}: some of its draws cannot be trained: {error}") from None


def _draws(space: tuple[Parameter, ...], recipe: RunConfig, count: int) -> Iterator[RunConfig]:
    """Yield random draws, the same ones every time; every second one takes an end of each range, the others any value."""
    rng = random.Random(0)
    suggestions = (lambda parameter: rng.choice(parameter.samples), lambda parameter: _any_value(parameter, rng))
    for i in range(count):
        yield draw(space, recipe, suggestions[i % 2])


def _any_value(parameter: Parameter, rng: random.Random) -> Value:
    """Return a random value, distributed about as those of the first trials of a sweep."""
    if (low := parameter.low) is None or (high := parameter.high) is None:
        return rng.choice(parameter.choices)
    if parameter.whole and not parameter.log:
        return rng.randint(int(low), int(high))
    value = math.exp(rng.uniform(math.log(low), math.log(high))) if parameter.log else rng.uniform(low, high)
    value = min(max(value, low), high)  # rounding may lead out of the range
    return round(value) if parameter.whole else value


def _decides(kind: str, name: str) -> bool:
    """Return True if the setting `kind` chooses the part that has the setting `name`."""
    return kind.endswith(".kind") and kind != name and name.startswith(kind.removesuffix("kind"))
