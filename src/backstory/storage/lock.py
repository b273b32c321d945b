"""Exclusive locks: one piece of work at a time in a folder, freed by the system however that work ends."""

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from backstory.utils.errors import REMEDIES, UserError, refused

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

LOCK = ".lock"
"""Name of the lock's file in a folder. It means nothing unless it is held: a killed process leaves it behind."""
ATTEMPTS = 100
"""Times that a folder is made again when another process removes it before the lock's file is opened."""
PROBE_SECONDS = 0.2
"""Seconds for which a start tries to take the lock: `held` has it for a moment while it looks."""


@contextmanager
def locked(folder: Path, work: str, option: str) -> Iterator[Callable[[], bool]]:
    """Hold a folder, made if need be, for the block.

    Yields a function that returns True while the folder is neither moved nor removed. `work` names the work in the folder
    ("training"), `option` the flag that chooses another folder. At the end the lock's file is removed, and so are the
    folders that were made and stayed empty. Raises UserError, with nothing changed, if another process holds the folder or
    it cannot be written to. Where the file system has no locks, the block runs unguarded.
    """
    new_folders = [f for f in (folder, *folder.parents) if not f.exists()]
    try:
        descriptor = _acquire(folder, work, option)
        try:
            yield lambda: _is_open_at(descriptor, folder / LOCK)
        finally:
            # Removed while it is still held: a process that opened it before sees in `_acquire` that its name is gone.
            if _is_open_at(descriptor, folder / LOCK):
                (folder / LOCK).unlink(missing_ok=True)
            os.close(descriptor)
    finally:
        for path in new_folders:  # from the innermost on, up to the first that is not empty
            try:
                path.rmdir()
            except OSError:
                break


@contextmanager
def in_turn(file: Path) -> Iterator[None]:
    """Wait for a file's lock and hold it for the block; the file is made if need be, and stays.

    Where the file system has no locks, the block runs unguarded. Raises OSError if the file cannot be opened.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        if fcntl is None:
            _take(descriptor, wait=True)
        else:
            # The kernel wakes the process that has waited longest; filelock polls, so that a busy one takes every turn.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def side_by_side(folder: Path, alone: Callable[[], None]) -> Iterator[None]:
    """Lock an existing folder for the block, together with others who do the same; if there are none, call `alone` first.

    No file is made. Where folders cannot be locked, the block runs unguarded, and `alone` is not called. Raises OSError if the
    folder cannot be opened.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone()
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits while `alone` of another runs
        yield
    finally:
        os.close(descriptor)


def held(folder: Path) -> bool:
    """Return True if a process holds the folder's lock at this moment."""
    try:
        with open(folder / LOCK, "rb") as file:
            return not _take(file.fileno(), shared=True)
    except OSError:  # there is none
        return False


def _acquire(folder: Path, work: str, option: str) -> int:
    """Return the open descriptor of the folder's lock, held."""
    attempts = 0
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except OSError as error:
            attempts += 1
            # Another start may just have been refused and have removed the folder that it made.
            if isinstance(error, FileNotFoundError) and attempts < ATTEMPTS:
                continue
            if error.errno in REMEDIES and error.errno != errno.EROFS:  # a full disk: another folder is no remedy
                raise refused(error, folder) from None
            raise UserError(
                f"cannot write to {folder}: {error.strerror}; choose another folder with {option}"
            ) from None
        try:
            if not _take_soon(descriptor):
                raise UserError(
                    f"another {work} is running in {folder}; wait for it or stop it, or choose another folder with {option}"
                )
            if _is_open_at(descriptor, folder / LOCK):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its last holder removed it after we opened it


def _take_soon(descriptor: int) -> bool:
    """Lock an open file. Return False if another process has it for longer than it takes to look whether it is held."""
    deadline = time.monotonic() + PROBE_SECONDS
    while not _take(descriptor):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _take(descriptor: int, wait: bool = False, shared: bool = False) -> bool:
    """Lock an open file. Return False if another process has it; True also where the file system has no locks.

    Processes may have it `shared` side by side, where the system can do that.
    """
    try:
        if shared and fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
        from filelock import lock_descriptor  # takes a tenth of a second to import

        return lock_descriptor(descriptor, blocking=wait)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _is_open_at(descriptor: int, path: Path) -> bool:
    """Return True if the open file is the one at the path, not one that was moved or removed."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
