"""Errors that a user can cause, each with its exit code, and helpers for their one-line messages."""

import difflib
import reprlib
import shlex
from collections.abc import Iterable
from typing import ClassVar


class UserError(Exception):
    """An error that the user can fix. The message is one line: what is wrong, then what to do."""

    exit_code: ClassVar[int] = 2


class NonFiniteError(Exception):
    """A loss or gradient is no longer finite; training ends before the optimizer step."""

    exit_code: ClassVar[int] = 3


def nearest(name: str, known: Iterable[str], before: str = "") -> str:
    """Return ` (did you mean 'x'?)` for the closest known name, with the prefix `before`, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean '{before}{close[0]}'?)" if close else ""


def check_name(name: str, known: Iterable[str], what: str, listing: str = "") -> None:
    """Raise UserError unless `name` is a known name of a `what`.

    `listing` is the command that lists the names; without it the message lists them.
    """
    names = list(known)
    if name not in names:
        there = (
            f"`{listing}` lists them" if listing else f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}"
        )
        raise UserError(f"there is no {what} '{name}'{nearest(name, names)}; {there}")


def as_argument(path: object) -> str:
    """Return a path as a command-line argument: a leading dash would make it a flag."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def pasted(path: object) -> str:
    """Return a path quoted for the shell, for a command that is printed."""
    return shlex.quote(as_argument(path))


def check_utf8(path: object) -> None:
    """Raise UserError for a path that is not UTF-8: a file that names it could not be written or read."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"the name {shown(str(path))} is not UTF-8; rename it, or choose another") from None


def plural(unit: str, number: float | None = None) -> str:
    """Return a unit in the plural unless the number is 1: `words`."""
    return unit if number == 1 else f"{unit}s"


def off(setting: str) -> str:
    """Return how to turn off a switch: `training.answer_loss_only to false (--training.no-answer-loss-only)`."""
    group, _, last = setting.replace("_", "-").rpartition(".")
    return f"{setting} to false (--{group}.no-{last})"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120


def shown(value: object) -> str:
    """Return a value as Python writes it, in one line and shortened if it is long."""
    try:
        written = _SHORT.repr(value)
        return " ".join(written.split()) if "\n" in written else written
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of thousands of digits"
