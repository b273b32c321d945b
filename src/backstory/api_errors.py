"""Errors for callers from Python: flags of the command line become arguments, and an unknown argument is explained."""

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

from backstory.config.ignored_settings import dotted_names
from backstory.config.schema import RunConfig
from backstory.config.strict import to_dict
from backstory.utils.errors import NonFiniteError, UserError, nearest, shown
from backstory.utils.process import Stopped

F = TypeVar("F", bound=Callable[..., Any])

_COMMAND = re.compile(r"(`[^`]*`)")
_FLAG = re.compile(
    r"(?<![\w/.-])(?<!torchrun's )--(?!plugin\b)(?P<name>[a-z][\w.-]*\w|\w)"
    r"(?:(?:=|[ ](?=\d|[A-Z]+\b|[\w.]+[:=]|(?:config|corpus|metrics)\b))(?P<value>[\w.,:=]*\w))?"
)
"""A flag; its value is what follows `=`, or a space if it is a number, a PLACEHOLDER, a setting, or a value of `--accept`."""
_LISTS = {"accept", "overrides"}
_NO_OPTION = re.compile(r"there is no option '(?P<name>[^']*)'.*; there are (?P<options>[\w, ]+)")


def in_python(
    switches: Collection[str], names: Mapping[str, str], within: Callable[[], AbstractContextManager] = nullcontext
) -> Callable[[F], F]:
    """Decorate a function of the Python API, so that its errors name its arguments where they would name flags.

    `switches` are arguments that are True or False, and `names` those with another name, or form, than their flag. The function
    runs in the context that `within` makes. It raises TypeError for an unknown argument, with the nearest one, or the place of
    a setting of that name.
    """

    def decorate(function: F) -> F:
        parameters = inspect.signature(function).parameters
        own = [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD]
        takes_any = len(own) < len(parameters)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not takes_any and (unknown := [name for name in kwargs if name not in parameters]):
                raise TypeError(_unknown(function.__name__, unknown[0], kwargs[unknown[0]], parameters))
            try:
                with within():
                    return function(*args, **kwargs)
            except (UserError, NonFiniteError, Stopped) as error:
                message = with_arguments(_with_own_arguments(str(error), own), switches, names)
                error.args = (message, *error.args[1:])
                raise

        return cast(F, wrapper)

    return decorate


def _unknown(function: str, name: str, value: Any, known: Collection[str]) -> str:
    """Return the message for an argument that a function does not have."""
    settings = [setting for setting in dotted_names(to_dict(RunConfig())) if setting.rpartition(".")[2] == name]
    settings.sort(key=lambda setting: setting.count("."))  # `seed` before `text.recall.seed`
    if settings and "overrides" in known:
        return f"{function} has no argument {name!r}; settings go into overrides={{{settings[0]!r}: {shown(value)}}}"
    return f"{function} has no argument {name!r}{nearest(name, known)}; it has {', '.join(known)}"


def _with_own_arguments(message: str, own: Collection[str]) -> str:
    """Return the message for an unknown option with the function's own arguments among the names, and the nearest of all."""
    unknown = _NO_OPTION.fullmatch(message)
    if unknown is None:
        return message
    known = list(dict.fromkeys([*own, *unknown["options"].split(", ")]))
    return f"there is no option '{unknown['name']}'{nearest(unknown['name'], known)}; there are {', '.join(known)}"


def with_arguments(message: str, switches: Collection[str] = (), names: Mapping[str, str] | None = None) -> str:
    """Return a message with arguments in place of flags: `batch_size=5` for `--batch-size 5`.

    A setting has its dotted name, as in `overrides`. Commands, which stand between backticks, stay as they are.
    """

    def argument(flag: re.Match[str]) -> str:
        name, value = flag["name"].replace("-", "_"), flag["value"]
        name = (names or {}).get(name, name)
        if "." in name:
            group, _, last = name.rpartition(".")
            text = f"{group}.{last.removeprefix('no_')}=False" if last.startswith("no_") else name
            return text if value is None else f"{text} {value}"
        if value is None:
            return f"{name}=True" if name in switches else name
        number = re.fullmatch(r"[\d.,]+", value)
        written = value.replace(",", "") if number else value if value.isupper() else repr(value)
        return f"{name}=[{written}]" if name in _LISTS else f"{name}={written}"

    parts = _COMMAND.split(message.replace("the same command", "the same call"))
    return "".join(part if part.startswith("`") else _FLAG.sub(argument, part) for part in parts)
