"""The errors a user can cause; the command line turns each into one line and an exit code."""

import difflib
import reprlib
import shlex
from collections.abc import Iterable
from typing import ClassVar


class UserError(Exception):
    """Something the user can put right; the message is one line that says what is wrong and what to do."""

    exit_code: ClassVar[int] = 2


class NonFiniteError(Exception):
    """A loss or a gradient stopped being a finite number; training ends before the optimizer step."""

    exit_code: ClassVar[int] = 3


def nearest(name: str, known: Iterable[str], before: str = "") -> str:
    """` (did you mean 'x'?)` for the known name closest to `name`, with what stands before both, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean '{before}{close[0]}'?)" if close else ""


def check_name(name: str, known: Iterable[str], what: str, listing: str = "") -> None:
    """Raise UserError, which says so, unless `name` is one of the known names of `what`.

    `listing` is the command that lists them; without one the message does.
    """
    names = list(known)
    if name not in names:
        there = (
            f"`{listing}` lists them" if listing else f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}"
        )
        raise UserError(f"there is no {what} '{name}'{nearest(name, names)}; {there}")


def as_argument(path: object) -> str:
    """A path as a command takes it: one that begins with a dash would be a flag."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def pasted(path: object) -> str:
    """A path as it stands in a command that is printed, so that a shell takes it back."""
    return shlex.quote(as_argument(path))


def check_utf8(path: object) -> None:
    """Raise UserError for a path that is not UTF-8: what names it could not be written, or not be read again."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"the name {shown(str(path))} is not UTF-8; rename it, or choose another") from None


def plural(unit: str, number: float | None = None) -> str:
    """A unit in the plural, unless there is exactly one: `words`."""
    return unit if number == 1 else f"{unit}s"


def off(setting: str) -> str:
    """How a switch among the settings is turned off: `training.answer_loss_only to false (--training.no-answer-loss-only)`."""
    group, _, last = setting.replace("_", "-").rpartition(".")
    return f"{setting} to false (--{group}.no-{last})"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120


def shown(value: object) -> str:
    """A value as Python writes it, in one line, cut short where it is long."""
    try:
        written = _SHORT.repr(value)
        return " ".join(written.split()) if "\n" in written else written
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of thousands of digits"
