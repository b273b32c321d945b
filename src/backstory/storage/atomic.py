"""Atomic writes: temporary file in the same folder, fsync, rename, fsync the folder."""

import glob
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from backstory.config.errors import UserError, check_utf8
from backstory.config.machine import REMEDIES
from backstory.config.small_file import check_inside, open_regular

TEMPORARY = ".tmp-"
"""Names of unfinished files and folders begin so; whatever is found under such a name at the start may be removed."""


def check_writable(folder: Path) -> None:
    """Raise UserError unless the folder, or the nearest one above it that exists, can be written to."""
    check_utf8(folder.absolute())
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {there}; choose another folder with --out")


def within(root: Path, *names: str) -> Path:
    """A path below a root that somebody else may have made, to read or to write; it need not exist.

    Raises UserError where a link below the root leads out of it. The root itself may be a link.
    """
    path = root.joinpath(*names)
    try:
        check_inside(path, root)
    except OSError as error:
        raise UserError(
            f"{path} is not followed: {error.strerror}; remove the link, or put what it leads to in its place"
        ) from None
    return path


def sha256(path: Path) -> str:
    """The SHA-256 (hex) of a regular file, read in pieces. Raises OSError."""
    with open_regular(path) as file:
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
def naming(path: Path, unfinished: Path | None = None) -> Iterator[None]:
    """Have an OSError name the path where it names what is still `unfinished`, or nothing after a disk failed."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and unfinished is not None:
            error.filename = str(error.filename).replace(str(unfinished), str(path))
        elif error.filename is None and error.errno in REMEDIES:
            error.filename = str(path)
        raise


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write bytes to, which takes the place of `path` when the block ends well, else vanishes. Raises OSError."""
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        with naming(path, temporary), open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):  # what went wrong before is what is told
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
