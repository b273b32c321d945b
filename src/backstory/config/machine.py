"""What the machine refuses, a full disk or too little memory, told in one line: which path, and what to do."""

import errno
import os
import re
from pathlib import Path

from backstory.config.errors import UserError


class NoDisk(UserError):
    """The disk is full or fails: nothing is wrong with the command, which goes well once that is put right."""


class NoMemory(UserError):
    """There is less memory than the command needs."""


_SEE_TO_IT = "see to the disk"
REMEDIES = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room, as your quota of that disk is used up",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EIO: _SEE_TO_IT,
    errno.EROFS: _SEE_TO_IT,
    errno.ENODEV: _SEE_TO_IT,
    errno.ESTALE: _SEE_TO_IT,
}
"""What helps against an error of the system, by its number."""
AGAIN = "give the same command again"
_MEMORY = re.compile(
    r"can(?:'|no)t allocate memory|not enough memory|out of memory|bad_alloc|can't start new thread|failed to map segment",
    re.IGNORECASE,
)


def refused(
    error: OSError, place: Path | str | None = None, again: str = AGAIN, otherwise: str | None = None
) -> UserError:
    """The line on what the system refused: where (else at `place`), why, and what to do.

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
    """The line on an error that says that there is no more memory, in whatever words; None for any other."""
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
