"""A space: which settings of a recipe are searched and where, as strict YAML that is checked against the recipe."""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from backstory.config import RunConfig, UserError, from_dict, nearest, recipes, to_dict
from backstory.config.recipes import Packaged
from backstory.config.renamed import refuse_old_setting
from backstory.models import outline
from backstory.training.progress import check_settings

Value = bool | int | float | str | None
Settings = dict[str, Any]

FIXED = ("text", "seed", "training.validation_batch_size")
"""Settings that all trials share, as their validation perplexities are compared."""
DRAWS = 100
"""How many draws of a space are tried before anything is trained."""


@dataclass(frozen=True)
class Entry:
    """Where the values of one setting come from: `range`, `choice` or `same`, one of them."""

    range: tuple[float, ...] | None = None
    """The lowest and the highest; whole numbers where the setting is one."""
    log: bool = False
    """Of a range: every factor is as likely, not every difference."""
    choice: list | None = None
    """The values there are."""
    same: str | None = None
    """Another setting, whose value it has."""
    when: dict = field(default_factory=dict)
    """Other settings with the value, or a list of values, at which this one is searched; else it is as the recipe has it."""


@dataclass(frozen=True)
class Space:
    """A space as its file has it."""

    settings: dict
    """An entry for each setting, by its dotted name, in the order in which they are drawn."""
    title: str = ""


@dataclass(frozen=True)
class Parameter:
    """A checked entry."""

    name: str
    """The setting, dotted."""
    low: float | None = None
    high: float | None = None
    """The ends of a range, both possible; None where it has none."""
    whole: bool = False
    """A range of whole numbers."""
    log: bool = False
    choices: tuple[Value, ...] = ()
    same: str | None = None
    when: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    """Settings with the values at which it is searched."""

    @property
    def samples(self) -> tuple[Value, ...]:
        """The ends of the range, or all choices; of one that is the same as another, nothing."""
        return self.choices if self.low is None else (self.low, self.high)

    def takes(self, value: Value) -> bool:
        """Whether it can have that value."""
        if self.low is None or self.high is None:
            return self.same is not None or value in self.choices
        return isinstance(value, int | float) and self.low <= value <= self.high


_PACKAGED = Packaged(Space, "backstory.tuning", "spaces", "space")


def names() -> list[str]:
    """The packaged spaces."""
    return _PACKAGED.names()


def load(name_or_path: str) -> Space:
    """A packaged space by its name, or one's own by the path of its YAML file. Raises UserError; `parameters` checks more."""
    return _PACKAGED.load(name_or_path)


def parameters(space: Space, recipe: RunConfig, source: str, draws: int = DRAWS) -> tuple[Parameter, ...]:
    """The space's entries in order, each checked against the settings there are; `source` names the file in messages.

    `draws` of it are tried: none of a space that was searched before, by a version that took it.

    Raises UserError, one line, for the first thing that is wrong: settings that are unknown, are not to be searched or come in
    the wrong order, values that a setting cannot have, conditions that never hold, and draws that no training takes.
    """
    if not space.settings:
        raise UserError(f"{source}: settings is empty; a space needs at least one")
    base, found = to_dict(recipe), {}
    for name, entry in space.settings.items():
        if not isinstance(name, str):
            raise UserError(f"{source}: {name!r} is no name of a setting; write one as training.learning_rate")
        refuse_old_setting(name, source)
        where = f"{source}: {name}"
        if any(name == fixed or name.startswith(f"{fixed}.") for fixed in FIXED):
            raise UserError(f"{where} must be the same for all trials, as they are compared; leave it out")
        found[name] = _parameter(name, from_dict(Entry, entry, where), found, base, source)
    if all(p.same for p in found.values()):
        raise UserError(f"{source}: nothing is searched; give a setting a `range` or a `choice`")
    checked = tuple(found.values())
    _try(checked, recipe, source, draws)
    return checked


def draw(space: tuple[Parameter, ...], recipe: RunConfig, suggest: Callable[[Parameter], Value]) -> RunConfig:
    """The recipe with a value for every parameter whose conditions hold; `suggest` is asked for them in order.

    Raises UserError for values that do not go together.
    """
    settings = to_dict(recipe)
    for parameter in space:
        if holds(parameter, settings):
            value = lookup(settings, parameter.same) if parameter.same else suggest(parameter)
            settings = _with(settings, parameter.name, value, "the space")
    return from_dict(RunConfig, settings, "the space")


def check_given(space: tuple[Parameter, ...], recipe: RunConfig, given: RunConfig) -> None:
    """Raise UserError for a setting that differs from the recipe's although a value is drawn for it in any case."""
    before, after = to_dict(recipe), to_dict(given)
    for parameter in space:
        try:
            changed = lookup(before, parameter.name) != lookup(after, parameter.name)
        except KeyError:  # of a part that was changed for another kind
            continue
        if changed and not parameter.when:
            raise UserError(f"{parameter.name} is given and searched as well; leave it out here, or out of the space")


def holds(parameter: Parameter, settings: Settings) -> bool:
    """Whether a parameter is searched where the settings are these."""
    try:
        return all(lookup(settings, name) in values for name, values in parameter.when)
    except KeyError:  # of a part of another kind
        return False


def lookup(settings: Mapping[str, Any], name: str) -> Any:
    """The value of a dotted name. Raises KeyError where there is none."""
    value: Any = settings
    for key in name.split("."):
        if not isinstance(value, dict):
            raise KeyError(name)
        value = value[key]
    return value


def _parameter(name: str, entry: Entry, before: Mapping[str, Parameter], base: Settings, source: str) -> Parameter:
    where = f"{source}: {name}"
    if sum(given is not None for given in (entry.range, entry.choice, entry.same)) != 1:
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
    taken = _taken_in_all(name, ends, contexts, where)
    if not low < high:
        raise UserError(f"{where}: a range goes up, and {ends[0]} to {ends[1]} does not")
    if entry.log and low <= 0:
        raise UserError(f"{where}: a `log` range begins above 0, not at {ends[0]}")
    whole = isinstance(taken[0], int)
    return Parameter(name, taken[0], taken[1], whole, entry.log, when=when)


def _choices(name: str, given: list, contexts: list[Settings], where: str) -> tuple[Value, ...]:
    if not given:
        raise UserError(f"{where}: choice is empty; give it values")
    if any(isinstance(value, list | dict) for value in given):
        raise UserError(f"{where}: a choice is between numbers, words, true, false and null")
    choices = _taken_in_all(name, given, contexts, where)
    if len(set(choices)) < len(choices):
        raise UserError(f"{where}: a choice stands twice; leave one out")
    return tuple(choices)


def _tied(name: str, other: str, when: Any, before: Mapping[str, Parameter], contexts: Any, where: str) -> Parameter:
    for context in contexts:
        values = before[other].samples if other in before else ()
        _known(other, context, f"{where}: same")
        _taken(name, list(values) or [lookup(context, other)], context, where)
    return Parameter(name, same=other, when=when)


def _condition(
    other: Any, values: Any, before: Mapping[str, Parameter], base: Settings, where: str
) -> tuple[Value, ...]:
    """The values of another setting at which this one is searched. Raises UserError for some that it never has."""
    if not isinstance(other, str):
        raise UserError(f"{where}: when: {other!r} is no name of a setting")
    given = values if isinstance(values, list) else [values]
    if not given or any(isinstance(value, list | dict) for value in given):
        raise UserError(f"{where}: when: {other} needs a value, or a list of values")
    assigned = next(iter(_assignments(other, dict(before[other].when) if other in before else {}, before)))
    taken = _taken(other, given, _context(assigned, before, base, where), f"{where}: when")
    for value in taken:
        if other in before and not before[other].takes(value):
            raise UserError(f"{where}: when: {other} is never {value} in this space")
    return tuple(taken)


def _assignments(
    name: str, when: Mapping[str, tuple[Value, ...]], before: Mapping[str, Parameter]
) -> Iterator[dict[str, Value]]:
    """What other settings may be where this one is searched: its conditions, and the kinds of the part that it is of."""
    needed = dict(when)
    for other in needed.copy():
        # A condition may itself be searched under conditions; each is met by those before it.
        for further, values in _needed(other, before).items():
            needed.setdefault(further, values)
    parts = name.split(".")
    kinds = [".".join([*parts[:i], "kind"]) for i in range(1, len(parts))]
    given = {kind: before[kind].samples for kind in kinds if kind in before and kind != name} | needed
    for values in itertools.product(*given.values()):
        yield dict(zip(given, values, strict=True))


def _needed(name: str, before: Mapping[str, Parameter]) -> dict[str, tuple[Value, ...]]:
    """All conditions of a parameter, those of its conditions included."""
    needed = dict(before[name].when) if name in before else {}
    for other in needed.copy():
        needed = _needed(other, before) | needed
    return needed


def _context(assigned: dict[str, Value], before: Mapping[str, Parameter], base: Settings, source: str) -> Settings:
    settings = base
    order = list(before)
    for name in sorted(assigned, key=lambda n: order.index(n) if n in order else -1):
        settings = _with(settings, name, assigned[name], source)
    return settings


def _taken_in_all(name: str, values: list, contexts: list[Settings], where: str) -> list[Any]:
    """The values as the setting holds them, which it must in all of these settings. Raises UserError."""
    taken, problem = None, None
    for context in contexts:
        try:
            taken = _taken(name, values, context, where)
        except UserError as error:
            problem = error
    if problem is not None and taken is not None:
        raise UserError(f"{problem}; it is not there for every draw, so give it a `when`")
    if problem is not None:
        raise problem
    assert taken is not None
    return taken


def _taken(name: str, values: list, context: Settings, where: str) -> list[Any]:
    """The values as the setting holds them. Raises UserError for one that it cannot."""
    source = where.split(f": {name}")[0]
    taken = [lookup(to_dict(from_dict(RunConfig, _changed(context, name, value), source)), name) for value in values]
    if any(isinstance(value, list | dict) for value in taken):
        raise UserError(f"{where} is no single value, so it cannot be searched")
    return taken


def _known(name: str, settings: Settings, where: str) -> None:
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
    """The settings with one changed; a part of another kind has the defaults of its own."""
    changed = _changed(settings, name, value)
    return to_dict(from_dict(RunConfig, changed, source)) if name.endswith(".kind") else changed


def _try(space: tuple[Parameter, ...], recipe: RunConfig, source: str, draws: int) -> None:
    """Raise UserError unless every one of so many random draws could be trained."""
    chosen = random.Random(0)
    searched = list(space)
    for place, parameter in enumerate(searched):
        for other in {parameter.same, *(name for name, _ in parameter.when)} - {None}:
            if any(later.name == other for later in searched[place:]):
                raise UserError(f"{source}: {parameter.name} looks at {other}; give {other} before it")
        kind = next((p.name for p in searched[place + 1 :] if _decides(p.name, parameter.name)), None)
        if kind:
            raise UserError(f"{source}: {kind} decides whether there is {parameter.name}; give {kind} before it")

    def any_value(parameter: Parameter) -> Value:
        return chosen.choice(parameter.samples)

    for _ in range(draws):
        try:
            drawn = draw(space, recipe, any_value)
            check_settings(drawn.training)
            if outline(drawn.model, vocabulary_size=2) is None:  # what fits together does with any vocabulary
                raise UserError("it needs more memory than can be counted")
        except UserError as error:
            raise UserError(f"{source}: some of its draws cannot be trained: {error}") from None


def _decides(kind: str, name: str) -> bool:
    return kind.endswith(".kind") and kind != name and name.startswith(kind.removesuffix("kind"))
