"""The flags of a command, from its dataclass, and short names of the commonest settings of a run, as `--lr`."""

import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from backstory.utils.errors import UserError, nearest, written_out
from backstory.utils.small_file import user_path

NONE = ("none", "None")
"""Spellings of no value; messages have the first."""
SHORT: Mapping[str, str] = {
    "--epochs": "--training.epochs",
    "--steps": "--training.steps",
    "--minutes": "--training.minutes",
    "--batch-size": "--training.batch-size",
    "--segment": "--training.segment",
    "--lr": "--training.learning-rate",
    "--optimizer": "--training.optimizer",
    "--clip": "--training.clip",
    "--weight-decay": "--training.weight-decay",
    "--precision": "--training.precision",
    "--device": "--training.device",
    "--tokenizer": "--text.tokenizer",
    "--core": "--model.core.kind",
    "--layers": "--model.core.layers",
    "--hidden": "--model.core.hidden",
    "--head": "--model.head.kind",
    "--dual": "--model.dual.kind",
    "--buffer": "--model.buffer.kind",
    "--embedding-size": "--model.embedding.size",
}
"""Short name -> flag of the setting's dotted name, for the commands with all settings of a run (`train`, `sweep run`)."""


@dataclass(frozen=True)
class Setting:
    """One argument of a verb."""

    name: str
    """Its flag (`--training.epochs`), or the name of a positional argument (`RUN`)."""
    kind: Any
    """Its type: int, `str | None`, a Literal, ..."""
    marks: tuple[Any, ...] = ()
    """Its markers for tyro."""
    owner: type = object
    """The dataclass that it is a field of, `field` of it."""
    field: str = ""
    default: Any = None
    choices: tuple[str, ...] = ()
    """For the kind of a part: all kinds that there are."""
    short: tuple[str, ...] = ()
    """Its short names."""

    @property
    def positional(self) -> bool:
        return tyro.conf.Positional in self.marks

    def flags(self) -> list[str]:
        """Return the flags that set it: most switches have a second one that turns them off."""
        group, dot, last = self.name.removeprefix("--").rpartition(".")
        paired = self.kind is bool and tyro.conf.FlagCreatePairsOff not in self.marks
        return [self.name, f"--{group}{dot}no-{last}"] if paired else [self.name]

    def kinds(self) -> tuple[Any, ...]:
        """Return the possible types of a value, None included; for a list, the types of its entries."""
        if self.listed:
            return typing.get_args(self.kind)[:1]
        union = typing.get_origin(self.kind) in (typing.Union, types.UnionType)
        return typing.get_args(self.kind) if union else (self.kind,)

    def options(self) -> list[str]:
        """Return the values to choose from; none where any will do."""
        literals = (kind for kind in self.kinds() if typing.get_origin(kind) is Literal)
        return list(self.choices) or [str(value) for kind in literals for value in typing.get_args(kind)]

    @property
    def listed(self) -> bool:
        """True if it takes any number of values."""
        return typing.get_origin(self.kind) is tuple

    @property
    def repeated(self) -> bool:
        """True if each value follows a flag of its own."""
        return tyro.conf.UseAppendAction in self.marks

    def expected(self) -> str:
        """Return the expected value in words."""
        words = [_expected(kind) for kind in self.kinds() if kind is not type(None)]
        return " or ".join([*words, *([NONE[0]] if type(None) in self.kinds() else [])])

    def hint(self, value: str) -> str:
        """Return what may have been meant by a value that it does not accept, or an empty string."""
        kinds = self.kinds()
        number = written_out(value, float not in kinds) if int in kinds or float in kinds else ""
        return nearest(value, self.options()) or number

    def accepts(self, value: str) -> bool:
        """Return True if a value has one of its types."""
        return any(reads(kind, value) for kind in self.kinds())


def settings(kind: type, default: Any = None) -> Iterator[Setting]:
    """Yield the arguments of a verb's dataclass and of nested ones; `default` has their values, and the kinds of parts."""
    short = {long: name for name, long in SHORT.items()} if takes_all_settings(kind) else {}
    for setting in _settings(kind, default, "", ()):
        yield dataclasses.replace(setting, short=(short[setting.name],)) if setting.name in short else setting


def takes_all_settings(kind: type) -> bool:
    """Return True if a command takes every setting of a run, which have short names there."""
    return any(name == "config" for name, _, _ in _fields(kind))


def _settings(kind: type, default: Any, prefix: str, kinds: tuple[str, ...]) -> Iterator[Setting]:
    """Yield the arguments of a dataclass below a prefix; `kinds` are those that it is one of."""
    defaults = {f.name: f.default for f in dataclasses.fields(kind)}
    for name, inner, marks in _fields(kind):
        value = getattr(default, name, None)
        part = type(value) if dataclasses.is_dataclass(value) else inner
        if dataclasses.is_dataclass(part):
            others = tuple(option.kind for option in typing.get_args(inner) if hasattr(option, "kind"))
            yield from _settings(typing.cast(type, part), value, _inside(prefix, name, marks), others)
        else:
            metavar = next((m.metavar for m in marks if getattr(m, "metavar", None)), None)
            flag = next((m.name for m in marks if getattr(m, "name", None)), name)
            yield Setting(
                metavar or f"--{prefix}{flag}".replace("_", "-"),
                inner,
                marks,
                kind,
                name,
                getattr(default, name, defaults[name]),
                kinds if name == "kind" else (),
            )


def _fields(kind: type) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yield name, type and markers of each field."""
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        marks = getattr(hint, "__metadata__", ())
        yield name, typing.get_args(hint)[0] if marks else hint, marks


def _inside(prefix: str, name: str, marks: tuple[Any, ...]) -> str:
    """Return the prefix of the flags of a part."""
    return prefix if any(getattr(mark, "name", None) == "" for mark in marks) else f"{prefix}{name}."


def other_kinds(kind: type, flag: str, default: Any, prefix: str = "") -> Iterator[str]:
    """Yield `--model.core.kind mogrifier` for each other kind of a part of `default` that has this flag."""
    for name, inner, marks in _fields(kind):
        inside, value = _inside(prefix, name, marks), getattr(default, name, None)
        options = [o for o in typing.get_args(inner) if dataclasses.is_dataclass(o)]
        for option in typing.cast(list[Any], options):
            if any(flag in s.flags() for s in _settings(option, None, inside, ())):
                yield f"--{inside}kind {option.kind}"
        if dataclasses.is_dataclass(value):
            yield from other_kinds(type(value), flag, value, inside)


def _expected(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    return {int: "a whole number", float: "a number", Path: "a path"}.get(kind, "text")


def read_path(value: str) -> Path:
    """Return a path that was typed. Raises ValueError for an empty one."""
    if not value:
        raise ValueError("a path is not empty")
    return user_path(value)


def reads(kind: Any, value: str) -> bool:
    if kind is type(None):
        return value in NONE
    if typing.get_origin(kind) is Literal:
        return value in typing.get_args(kind)
    try:
        (read_path if kind is Path else kind)(value)
    except ValueError:
        return False
    return True


def expanded(arguments: Sequence[str]) -> list[str]:
    """Return arguments with each short name replaced by the flag that it stands for."""
    return [long + value for argument in arguments for long, value in [_split(argument)]]


def typed_settings(arguments: Sequence[str]) -> dict[str, str]:
    """Return the dotted names of the settings that arguments give, each with its flag as it was typed."""
    flags = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    return {_split(flag)[0].removeprefix("--").replace("-", "_"): flag for flag in flags}


def typed_names(message: str, arguments: Sequence[str]) -> str:
    """Return a message with the settings that were given by their short names called so."""
    for argument in arguments:
        long, value = _split(argument)
        short = argument.removesuffix(value) if value else argument
        if long != short:
            setting = re.escape(long.removeprefix("--")).replace(r"\-", "[-_]")
            message = re.sub(rf"(?<![\w.-])(--)?{setting}(?![\w.-]|\.\w)", short.replace("_", "-"), message)
    return message


@contextmanager
def errors_as_typed(arguments: Sequence[str]) -> Iterator[None]:
    """Let errors of the block call settings by the names in the arguments."""
    try:
        yield
    except UserError as error:
        error.args = (typed_names(str(error), arguments),)
        raise


def _split(argument: str) -> tuple[str, str]:
    """Return the flag that an argument stands for, and the value that is attached to it (`=3`), if any."""
    name, equals, value = argument.partition("=")
    return SHORT.get(name.replace("_", "-"), name), equals + value
