"""Atomic writes: temporary file in the same folder, fsync, rename, fsync the folder."""

import glob
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from backstory.config.errors import UserError

TEMPORARY = ".tmp-"
"""Names of unfinished files and folders begin so; whatever is found under such a name at the start may be removed."""


def check_writable(folder: Path) -> None:
    """Raise UserError unless the folder, or the nearest one above it that exists, can be written to."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {there}; choose another folder with --out")


def sha256(path: Path) -> str:
    """The SHA-256 (hex) of a file, read in pieces. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync_folder(folder: Path) -> None:
    """Make the folder's entries durable, where the system can open a folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make a file's content durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write bytes to, which takes the place of `path` when the block ends well, else vanishes. Raises OSError."""
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def write_atomically(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Replace `path` by the content (of any size, if it comes in pieces), or leave it as it was. Raises OSError."""
    pieces = [content.encode()] if isinstance(content, str) else [content] if isinstance(content, bytes) else content
    with atomic_file(path) as file:
        for piece in pieces:
            file.write(piece)


def sweep_temporaries(folder: Path, name: str = "*") -> None:
    """Remove what a killed process left unfinished in the folder, or only what goes on so after `TEMPORARY` (a pattern)."""
    for path in folder.glob(f"{TEMPORARY}{name}"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def sweep_abandoned(path: Path) -> None:
    """Remove what processes that have ended left unfinished of one file, in a folder that nobody holds."""
    for left in path.parent.glob(f"{TEMPORARY}*-{glob.escape(path.name)}"):
        number = left.name.removeprefix(TEMPORARY).partition("-")[0]
        if number.isdecimal() and os.name == "posix" and not _runs(int(number)):
            left.unlink(missing_ok=True)


def _runs(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # somebody else's; no number of a process
        pass
    return True
