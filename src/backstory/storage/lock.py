"""One piece of work at a time in a folder: an exclusive lock on a file in it, which the system frees however that ends."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from backstory.config.errors import UserError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

LOCK = ".lock"
"""The lock's file. It means nothing unless it is held: a killed process leaves it behind."""


@contextmanager
def locked(folder: Path, work: str, option: str) -> Iterator[Callable[[], bool]]:
    """Hold the folder, made if need be, for the block; afterwards the lock's file goes, and what was made and left empty.

    Gives a function that tells whether the folder that is held still stands in its place, neither moved nor removed.

    `work` says what is done in the folder ("training"), `option` which flag names another one. Raises UserError when
    another process holds the folder; then nothing is changed. Without locks in the system, or in the file system, the
    block runs unguarded.
    """
    if fcntl is None:
        yield folder.is_dir
        return
    made = [f for f in (folder, *folder.parents) if not f.exists()]
    descriptor = _acquire(folder, work, option)
    try:
        yield lambda: _stands(descriptor, folder / LOCK)
    finally:
        # Removed while it is still held: whoever opened it before sees in `_acquire` that it is gone.
        if _stands(descriptor, folder / LOCK):
            (folder / LOCK).unlink(missing_ok=True)
        os.close(descriptor)
        _remove_empty(made)


@contextmanager
def in_turn(file: Path) -> Iterator[None]:
    """Hold a file's lock for the block, once those who came before are done; the file is made if need be, and stays.

    Without locks in the system, or in the file system, the block runs unguarded. Raises OSError.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def held(folder: Path) -> bool:
    """Whether a process holds the folder's lock at this moment."""
    if fcntl is None or not (folder / LOCK).is_file():
        return False
    try:
        with open(folder / LOCK, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it has just gone, or the file system has no locks
        pass
    return False


def _acquire(folder: Path, work: str, option: str) -> int:
    """The descriptor of the folder's lock, held."""
    tries = 0
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            tries += 1
            # Another start may have been refused, and just have removed the folder it had made; not a hundred times.
            if isinstance(error, FileNotFoundError) and tries < 100:
                continue
            raise UserError(
                f"cannot write to {folder}: {error.strerror}; choose another folder with {option}"
            ) from None
        try:
            _lock(descriptor, folder, work, option)
            if _stands(descriptor, folder / LOCK):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, work: str, option: str) -> None:
    assert fcntl is not None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"another {work} is running in {folder}; wait for it or stop it, or choose another folder with {option}"
        ) from None
    except OSError:  # a file system without locks
        pass


def _stands(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one at the path, not one that its last holder removed."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders from the innermost on, up to the first that holds anything."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return
