"""Errors that a user can cause, each with its exit code, and helpers for their one-line messages."""

import difflib
import errno
import os
import re
import reprlib
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar


class UserError(Exception):
    """An error that the user can fix. The message is one line: what is wrong, then what to do."""

    exit_code: ClassVar[int] = 2


class FolderConflict(UserError):
    """A folder holds something else than the command would go on with.

    The advice names flags of the verb that raises it. A command that calls others gives its own with the `problem`.
    """

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(f"{problem}; {advice}" if advice else problem)
        self.problem = problem


class NonFiniteError(Exception):
    """A loss or gradient is no longer finite; training ends before the optimizer step."""

    exit_code: ClassVar[int] = 3


def nearest(name: str, known: Iterable[str], before: str = "") -> str:
    """Return ` (did you mean 'x'?)` for the closest known name, with the prefix `before`, or an empty string."""
    close = difflib.get_close_matches(name, [other for other in known if other != name], n=1, cutoff=0.6)
    return f" (did you mean '{before}{close[0]}'?)" if close else ""


_FACTORS = {"": 1, "%": 0.01, "k": 1000}
"""Factors of units. `m` has none: it may mean minutes, millions or thousandths."""


def written_out(value: str, whole: bool) -> str:
    """Return `; write 0.1` for a number with a unit or separators, as 10%, 64k or 1,000, or an empty string.

    A unit that can mean several things, as in 30m, is to be left out. Where a `whole` number is wanted, no other is proposed.
    Commas that do not separate thousands may separate numbers, or stand for a point.
    """
    match = re.fullmatch(r"([0-9][0-9_]*|[0-9]{1,3}(?:,[0-9]{3})+)(\.[0-9]+)? *(%|[a-zA-Z]*)", value.strip())
    if match is None or not (match[3] or "," in match[1]):
        return ""
    number, factor = float(re.sub("[_,]", "", match[1]) + (match[2] or "")), _FACTORS.get(match[3].lower())
    proposed = number if factor is None else number * factor
    if whole and not proposed.is_integer():
        return ""
    return f"; write {proposed:.15g}" + (", without a unit" if factor is None else "")


OF_PLUGIN = "of a plugin needs --plugin FILE, or its import in Python"
"""End of a message on a part that is unknown here, but may be one of a plugin."""


def check_name(name: str, known: Iterable[str], what: str, listing: str = "", from_plugins: bool = False) -> None:
    """Raise UserError unless `name` is a known name of a `what`.

    `listing` is the command that lists the names; without it the message lists them. `from_plugins`: plugins can add some.
    """
    names = list(known)
    if name not in names:
        verb = "is" if len(names) == 1 else "are"
        choices = f"`{listing}` lists them" if listing else f"there {verb} {', '.join(names)}"
        similar = nearest(name, names)
        plugin = f", and one {OF_PLUGIN}" if from_plugins and not similar else ""
        raise UserError(f"there is no {what} '{name}'{similar}; {choices}{plugin}")


def as_argument(path: object) -> str:
    """Return a path as a command-line argument: a leading dash would make it a flag, and `~` is read as the home folder."""
    return f"./{path}" if str(path).startswith(("-", "~")) else str(path)


def pasted(path: object) -> str:
    """Return a path quoted for the shell, for a command that is printed."""
    return shlex.quote(as_argument(path))


def check_utf8(path: object) -> None:
    """Raise UserError for a path that is not UTF-8: a file that names it could not be written or read."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        name, encoding = shown(str(path)), sys.getfilesystemencoding().upper()
        if encoding != "UTF-8":  # the name itself may be
            problem = f"the name {name} cannot be read, as Python takes names for {encoding} here"
            raise UserError(f"{problem}; set PYTHONUTF8=1, and {AGAIN}") from None
        raise UserError(f"the name {name} is not UTF-8; rename it, or choose another") from None


def install_hint(extra: str) -> str:
    """Return how to install the packages of an extra, for a message on one that is missing."""
    return f"run `pip install -e '.[{extra}]'` in the clone of backstory"


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


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, to be quoted in a message of ours; its type if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".:") if lines else type(error).__name__


AGAIN = "give the same command again"


class NoDisk(UserError):
    """The disk is full or fails; the same command works once that is repaired.

    `problem` names the remedy too. `again` says how to go on then, which is known best where the work was saved.
    """

    def __init__(self, problem: str, again: str = AGAIN) -> None:
        super().__init__(f"{problem}, and {again}" if again else problem)
        self.problem = problem


class NoMemory(UserError):
    """The command needs more memory than there is."""


_CHECK = "check the disk"
REMEDIES = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room, as your quota of that disk is used up",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EIO: _CHECK,
    errno.EROFS: f"choose another place, or {_CHECK}",
    errno.ENODEV: _CHECK,
    errno.ESTALE: _CHECK,
}
"""Remedy by errno."""
_MEMORY = re.compile(
    r"can(?:'|no)t allocate memory|not enough memory|out of memory|bad_alloc|failed to map segment"
    r"|(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
_PROCESSES = re.compile(r"can't start new thread|resource temporarily unavailable", re.IGNORECASE)
"""Errors of a system that starts no further thread or process, for lack of memory or by a limit on their number."""


def refused(
    error: OSError, path: Path | str | None = None, again: str = AGAIN, otherwise: str | None = None
) -> UserError:
    """Return a one-line error: the path (that of the error, or else `path`), the reason, and the remedy.

    The remedy is `again` once a full disk or memory is dealt with, and `otherwise` after any other error in writing, as on a
    file system that is read-only.
    """
    where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else str(path or "")
    reason = error.strerror or str(error)
    if no_memory := out_of_memory(error):
        return no_memory
    if error.errno == errno.EMFILE:
        return UserError(": ".join(part for part in (where, f"{reason}; raise the limit on them (ulimit -n)") if part))
    if otherwise and (error.errno not in REMEDIES or error.errno == errno.EROFS):
        return UserError(f"cannot write {where}: {reason}; {otherwise}")
    if error.errno == errno.ELOOP and reason == os.strerror(errno.ELOOP):
        return UserError(f"{where}: its links lead in a circle; mend them or give another path")
    if error.errno not in REMEDIES:
        return UserError(": ".join(part for part in (where, reason) if part))
    problem = f"cannot write to {where}: {reason}" if where else reason
    return NoDisk(f"{problem}; {REMEDIES[error.errno]}", again)


def damaged_bytecode(error: BaseException) -> UserError | None:
    """Return a one-line error if Python cannot read a module in the form that it has compiled; None otherwise.

    Python 3.11 keeps what it could write of that form when the disk is full or `ulimit -f` is met.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code.co_name != "_compile_bytecode":
        return None
    path = trace.tb_frame.f_locals.get("bytecode_path")
    return UserError(f"{path} is damaged, as a full disk or ulimit -f leaves it; remove it, and {AGAIN}")


def out_of_memory(error: BaseException) -> NoMemory | None:
    """Return a one-line error if this one means that memory ran out, however it says so; None otherwise."""
    known = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    processes = not known and _PROCESSES.search(str(error))
    if not known and not processes and not _MEMORY.search(str(error)):
        return None
    reason = " ".join(str(error).split())[:200]
    problem, limit = ("memory, or too many processes", "ulimit -v, ulimit -u") if processes else ("memory", "ulimit -v")
    return NoMemory(
        f"there is not enough {problem}{reason and f' ({reason})'}; end other programs, raise the limit "
        f"({limit}) if there is one, or give smaller sizes"
    )
