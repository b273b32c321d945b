"""One-line messages for arguments that tyro refuses, from the dataclass of the verb."""

import dataclasses
import shlex
import types
import typing
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Literal

import tyro

from backstory.cli.short_flags import ELSEWHERE, SHORT
from backstory.config import nearest, pasted
from backstory.config.errors import written_out
from backstory.config.renamed import present_flag
from backstory.config.small_file import user_path

NONE = ("none", "None")
"""Spellings of no value; messages have the first."""
_TRUTH = ("true", "false", "yes", "no", "on", "off", "1", "0")


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
        return any(_reads(kind, value) for kind in self.kinds())


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


def explain(kind: type, arguments: Sequence[str], verb: str, default: Any = None) -> str:
    """Return a message for the first mistake in arguments that tyro refused."""
    known = list(settings(kind, default))
    flags = {flag: s for s in known if not s.positional for flag in (*s.flags(), *s.short)}
    positional: list[str] = []
    rest = deque(arguments)
    while rest:
        token = rest.popleft()
        if not _is_flag(token):
            positional.append(token)
            continue
        name, attached, value = token.partition("=")
        name = name.replace("_", "-")
        if name not in flags:
            if others := list(other_kinds(kind, name, default)):
                return f"there is no flag {name} for these parts; it comes with {' or '.join(others)}"
            if present := present_flag(verb, name):
                return f"{name} is now called {present}; use that flag"
            if Path(token).exists():
                return f"there is no flag {name}; a file or folder of that name is given as {pasted(Path(token))}"
            if name == "--text" and any(s.positional and "TEXT" in s.name for s in known):
                return f"there is no flag --text; the text follows the run: `{_usage(verb, known)}`"
            if verb == "read" and name in ("--text", "--corpus"):
                return f"there is no flag {name}; it reads standard input: `{_usage(verb, known)} < FILE`"
            same = next((flag for flag in ELSEWHERE.get(name, ()) if flag in flags), None)
            hint = f" (did you mean '{same}'?)" if same else nearest_flag(name, flags)
            return f"there is no flag {name}{hint}; `backstory {verb} --help-all` lists them"
        values = [value] if attached else _values(flags[name], rest)
        if problem := _mistake(name, flags[name], values):
            if not values and rest and rest[0].partition("=")[0].replace("_", "-") not in flags:
                problem += f"; one that begins with a hyphen is given as {name}={shlex.quote(rest[0])}"
            return problem
    return _misplaced([s for s in known if s.positional], positional, verb)


def _usage(verb: str, known: Iterable[Setting]) -> str:
    """Return the command with its positional arguments."""
    return " ".join(["backstory", verb, *(s.name for s in known if s.positional)])


def repetition(kind: type, arguments: Sequence[str], default: Any = None) -> str:
    """Return a message for a flag that takes one value and is typed more than once; else an empty string."""
    names = Counter(a.partition("=")[0].replace("_", "-") for a in arguments if _is_flag(a))
    repeated = {name for name, count in names.items() if count > 1}
    for setting in settings(kind, default) if repeated else ():
        if setting.name in repeated and not setting.repeated and setting.kind is not bool:
            return (
                f"{setting.name} is given {names[setting.name]} times; give it once"
                + ", with all values" * setting.listed
            )
    return ""


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


def nearest_flag(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean '--x'?)` for the most similar flag, or an empty string.

    Flags of one group share a long prefix, so the similarity of the last part counts as much as that of the whole.
    """

    def similarity(flag: str) -> float:
        last, other = (f.rpartition(".")[2].lstrip("-") for f in (name, flag))
        return (SequenceMatcher(None, name, flag).ratio() + SequenceMatcher(None, last, other).ratio()) / 2

    best = max(known, key=similarity, default="")
    return f" (did you mean '{best}'?)" if best and similarity(best) > 0.7 else ""


def _expected(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    return {int: "a whole number", float: "a number", Path: "a path"}.get(kind, "text")


def _is_flag(token: str) -> bool:
    return token.startswith("-") and token != "-" and not _reads(float, token)


def read_path(value: str) -> Path:
    """Return a path that was typed. Raises ValueError for an empty one."""
    if not value:
        raise ValueError("a path is not empty")
    return user_path(value)


def _reads(kind: Any, value: str) -> bool:
    if kind is type(None):
        return value in NONE
    if typing.get_origin(kind) is Literal:
        return value in typing.get_args(kind)
    try:
        (read_path if kind is Path else kind)(value)
    except ValueError:
        return False
    return True


def _values(setting: Setting, rest: deque[str]) -> list[str]:
    """Take the values that follow a flag; for a switch, which takes none, only a truth value."""
    most = len(rest) if setting.listed and not setting.repeated else 1
    values: list[str] = []
    while rest and len(values) < most and not _is_flag(rest[0]):
        if setting.kind is bool and rest[0].lower() not in _TRUTH:
            break
        values.append(rest.popleft())
    return values


def _mistake(name: str, setting: Setting, values: list[str]) -> str:
    if setting.kind is bool:
        forms = " or ".join(setting.flags()) + ("" if len(setting.flags()) > 1 else ", or leave it out")
        return f"{name} takes no value, so not '{values[0]}'; give {forms}" if values else ""
    if not values and (setting.repeated or not setting.listed):
        return f"{name} needs a value: {setting.expected()}"
    for value in values:
        if not setting.accepts(value):
            return f"{name} must be {setting.expected()}, not '{value}'{setting.hint(value)}"
    return ""


def _misplaced(positions: list[Setting], values: list[str], verb: str) -> str:
    usage = _usage(verb, positions)
    if len(values) < len([s for s in positions if not s.name.startswith("[")]):
        missing = positions[len(values)]
        what = next(m.help for m in missing.marks if getattr(m, "help", None))
        return f"name {what[0].lower()}{what[1:].rstrip('.').split(';')[0]}: `{usage}`"
    entries = chain(positions, repeat(positions[-1])) if positions and positions[-1].listed else positions
    for setting, value in zip(entries, values, strict=False):
        if not setting.accepts(value):
            name = setting.name.removesuffix("...")
            return f"{name} must be {setting.expected()}, not '{value}'; the command is `{usage}`"
    if len(values) > len(positions) and not any(s.listed for s in positions):
        extra = values[len(positions)]
        if verb == "generate":
            return f'unexpected argument {extra!r}; put the prompt in quotes: `{usage} --prompt "THE WORDS"`'
        if verb == "read":
            return f"unexpected argument {extra!r}; it reads standard input: `{usage} < {pasted(extra)}`"
        if verb == "explain" and (extra == "-" or Path(extra).exists()):
            return (
                f"unexpected argument {extra!r}; a text is given as --text {extra if extra == '-' else pasted(extra)}"
            )
        if verb.endswith(" RECIPE") and Path(extra).exists():
            return f"unexpected argument {extra!r}; a text is given as --corpus {pasted(extra)}"
        if verb.startswith("explain") and Path(extra).is_file():
            return f"unexpected argument {extra!r}; a text is given as --text {pasted(extra)}"
        if verb.startswith("reader ") and Path(extra).is_dir() and not Path(values[0]).exists():
            return f"a reader is given as a flag: `backstory {verb} {pasted(extra)} --reader {values[0]}`"
        if verb in ("demo", "export") or (verb.endswith(" RECIPE") and "/" in extra):
            return f"unexpected argument '{extra}'; the folder to write is given as --out {pasted(extra)}"
        return f"unexpected argument '{extra}'; the command is `{usage}`, and `backstory {verb} --help` lists its flags"
    if len(values) > 1 and any(s.listed for s in positions):
        return f"unexpected argument '{values[-1]}'; a flag takes one value, and other arguments go together: `{usage}`"
    return f"the command line cannot be read; `backstory {verb} --help` explains"
