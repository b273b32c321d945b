"""Atomic writes: temporary file in the same folder, fsync, rename, fsync the folder."""

import glob
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from backstory.utils.errors import REMEDIES, UserError, check_utf8
from backstory.utils.small_file import check_inside, open_regular

TEMPORARY = ".tmp-"
"""Prefix of unfinished files and folders; whatever has it when work begins may be removed."""
LONGEST_NAME = 255
"""Bytes of a name that file systems take."""
LONGEST_ENDING = 200
"""Bytes of a name that follow the prefix, a process and a random number; `LONGEST_NAME` is for all."""


def check_writable(folder: Path, remedy: str = "choose another folder with --out") -> None:
    """Raise UserError, with a remedy, unless the folder, or the nearest one above it that exists, can be written to."""
    check_utf8(folder.absolute())
    first = Path(*folder.parts[:1])
    if str(first).lower().startswith("hf:") and not first.exists():
        raise UserError(f"{folder} is the name of a model of Hugging Face (hf:...); choose another folder with --out")
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {nearest}; {remedy}")


def only_by_owner(path: Path) -> bool:
    """Return True if this user cannot remove a path: its folder has the sticky bit, and both belong to others."""
    if not os.path.lexists(path) or not hasattr(os, "geteuid"):
        return False
    folder, user = path.parent.stat(), os.geteuid()
    return bool(folder.st_mode & stat.S_ISVTX) and user not in (0, folder.st_uid, path.lstat().st_uid)


def check_replaceable(path: Path, instead: str) -> None:
    """Raise UserError for a file that only another user can replace; `instead` is what to choose."""
    if only_by_owner(path):
        raise UserError(
            f"cannot replace {path}: only its owner can, as {path.parent} has the sticky bit; "
            f"have its owner remove it, or choose {instead}"
        )


def check_new(path: Path, instead: str, overwrite: bool | None = None) -> None:
    """Raise UserError for a path that exists, unless it is a file that may be replaced; `instead` is what to choose.

    `overwrite` is the flag of that name; None where a command has none.
    """
    if path.exists() and not (overwrite and path.is_file()):
        flag = "" if overwrite is None or not path.is_file() else " or --overwrite"
        raise UserError(f"{path} exists; choose {instead}{flag}")
    check_replaceable(path, instead)


def check_apart(written: Sequence[Path | None], read: Any) -> None:
    """Raise UserError if two of the files to write are one, or one of them is the file that is read."""
    source = os.path.realpath(read) if isinstance(read, str | Path) else None
    targets: list[str] = []
    for path in filter(None, written):
        target = os.path.realpath(path)
        if target == source or target in targets:
            problem = "is the file that is read" if target == source else "would be written twice"
            raise UserError(f"{path} {problem}; choose another file to write")
        targets.append(target)


def within(root: Path, *names: str) -> Path:
    """Return a path below a folder that another person may have made; it need not exist.

    Raises UserError if a link below the folder leads out of it. The folder itself may be a link.
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
    """Return the SHA-256 (hex) of a regular file. Raises OSError."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def listing(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return the `bytes` and `sha256` of regular files by their names. Raises OSError."""
    return {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in paths}


def fsync_folder(folder: Path) -> None:
    """Make the entries of a folder durable, if the system can open folders."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make the content of a file durable."""
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)  # Windows needs the right to write
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Make OSErrors of the block name `path` instead of its `temporary` form, or of nothing when the disk failed."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and temporary is not None:
            error.filename = str(error.filename).replace(str(temporary), str(path))
        elif error.filename is None and error.errno in REMEDIES:
            error.filename = str(path)
        raise


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Raise an OSError, which names `path`, for an error of the system in the words of Rust: `... (os error 28)`."""
    try:
        yield
    except Exception as error:
        number = None if isinstance(error, OSError) else re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None


def unfinished(path: Path) -> Path:
    """Return a name beside `path` for its unfinished form, which no other writer has.

    The number of the process is not enough: its threads share it, and in containers with a common folder every first process
    is number 1.
    """
    return path.with_name(f"{TEMPORARY}{os.getpid()}-{os.urandom(4).hex()}-{_ending(path.name)}")


def _ending(name: str) -> str:
    """Return how the name of an unfinished file ends: as its own, or as the end of one that would become too long."""
    return name if len(os.fsencode(name)) <= LONGEST_ENDING else name[-LONGEST_ENDING // 4 :]


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing bytes that replaces `path` when the block succeeds, and vanishes otherwise. Raises OSError."""
    temporary = unfinished(path)
    try:
        with naming(path, temporary):
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def write_atomically(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Replace a file by the content, which may come in blocks, or leave it as it was. Raises OSError."""
    blocks = [content.encode()] if isinstance(content, str) else [content] if isinstance(content, bytes) else content
    with atomic_file(path) as file:
        for block in blocks:
            file.write(block)


def sweep_temporaries(folder: Path, name: str = "*") -> None:
    """Remove what a killed process left unfinished in a folder; `name` is a pattern for what follows `TEMPORARY`."""
    for path in folder.glob(f"{TEMPORARY}{name}"):
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sweep_abandoned(path: Path) -> None:
    """Remove the unfinished copies of a file or folder that belong to processes that have ended."""
    for copy in path.parent.glob(f"{TEMPORARY}*-{glob.escape(_ending(path.name))}"):
        process = copy.name.removeprefix(TEMPORARY).partition("-")[0]
        if process.isdecimal() and os.name == "posix" and not _is_running(int(process)):
            _remove(copy)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's process; not the number of a process
        pass
    return True
