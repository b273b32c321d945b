"""The machine: one-line errors for a full disk or too little memory, and the ranks that torchrun starts."""

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from backstory.config.errors import UserError, shown


class NoDisk(UserError):
    """The disk is full or fails. The command is right, and works once the disk does."""


class NoMemory(UserError):
    """The command needs more memory than there is."""


_CHECK = "check the disk"
REMEDIES = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room, as your quota of that disk is used up",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EIO: _CHECK,
    errno.EROFS: _CHECK,
    errno.ENODEV: _CHECK,
    errno.ESTALE: _CHECK,
}
"""Remedy by errno."""
AGAIN = "give the same command again"
_MEMORY = re.compile(
    r"can(?:'|no)t allocate memory|not enough memory|out of memory|bad_alloc|can't start new thread|failed to map segment",
    re.IGNORECASE,
)


def refused(
    error: OSError, place: Path | str | None = None, again: str = AGAIN, otherwise: str | None = None
) -> UserError:
    """Return a one-line error: the path (or `place`), the reason, and the remedy.

    That is `again` once a disk or memory is put right, and `otherwise` after any other error in writing.
    """
    where = _name(error.filename) or ("" if place is None else str(place))
    reason = error.strerror or str(error)
    if lacking := out_of_memory(error):
        return lacking
    if error.errno not in REMEDIES and otherwise:
        return UserError(f"cannot write {where}: {reason}; {otherwise}")
    if error.errno not in REMEDIES:
        return UserError(": ".join(part for part in (where, reason) if part))
    problem = f"cannot write to {where}: {reason}" if where else reason
    return NoDisk(f"{problem}; {REMEDIES[error.errno]}, and {again}")


def out_of_memory(error: BaseException) -> NoMemory | None:
    """Return a one-line error if this one means that memory ran out, in whatever words; None otherwise."""
    lacking = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    if not lacking and not _MEMORY.search(str(error)):
        return None
    told = " ".join(str(error).split())[:200]
    return NoMemory(
        f"there is not enough memory{told and f' ({told})'}; end other programs, raise the limit (ulimit -v) if there is one, "
        "or give smaller sizes"
    )


def _name(filename: object) -> str:
    return "" if filename is None or isinstance(filename, int) else os.fsdecode(filename)  # type: ignore[arg-type]


MEETING = ("RANK", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables by which ranks find each other."""


@dataclass(frozen=True)
class Launched:
    """Rank of this process and number of ranks; 0 of 1 without torchrun."""

    rank: int = 0
    world: int = 1
    local: int = 0
    """Rank on this machine."""
    here: int = 1
    """Ranks on this machine."""


def launched() -> Launched:
    """Return the ranks set in the environment. Raises UserError if a variable is missing, no number, or out of range."""
    started = world()
    if started == 1:
        return Launched()
    missing = next((name for name in MEETING if not os.environ.get(name)), None)
    if missing is not None:
        raise UserError(f"WORLD_SIZE is {started}, and {missing} is not set; start several processes with torchrun")
    _number("MASTER_PORT", 0, 1, 65535)
    here = _number("LOCAL_WORLD_SIZE", started, 1, started)
    return Launched(_number("RANK", 0, 0, started - 1), started, _number("LOCAL_RANK", 0, 0, here - 1), here)


def world() -> int:
    """Return the number of ranks, 1 without torchrun. Raises UserError if the environment has no number."""
    return _number("WORLD_SIZE", 1, 1)


def first_here() -> bool:
    """Return True in the first process of a distributed run on this machine, and in the only one."""
    named = os.environ.get("LOCAL_RANK", "0")
    return not named.isdecimal() or not named.strip("0")


def _number(name: str, usual: int, least: int, most: int = 1 << 20) -> int:
    named = os.environ.get(name) or str(usual)
    if len(named) < 10 and named.isascii() and named.isdecimal() and least <= int(named) <= most:
        return int(named)
    raise UserError(
        f"{name} must be a whole number from {least} to {most}, not {shown(named)}; unset it, or start with torchrun"
    )
