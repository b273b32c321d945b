"""Cache of files on disk: written atomically, verified by size and SHA-256 when read, rebuilt if damaged."""

import atexit
import contextlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

from backstory.storage.atomic import TEMPORARY, listing, write_atomically
from backstory.storage.documents import parse
from backstory.storage.lock import side_by_side
from backstory.utils.errors import REMEDIES, NoDisk, UserError
from backstory.utils.small_file import read_small

INDEX = "index.json"
"""List of an entry's files with their sizes and hashes. It is written last: an entry without it is unfinished."""


def folder() -> Path:
    """Return the folder of all entries: BACKSTORY_CACHE, else ~/.cache/backstory.

    Raises UserError where the user has no home folder, as the number of a user without a name has in a container.
    """
    named = os.environ.get("BACKSTORY_CACHE") or "~/.cache/backstory"
    try:
        return Path(named).expanduser()
    except RuntimeError:
        raise UserError(f"there is no home folder for the cache {named}; set BACKSTORY_CACHE to a folder") from None


def fetch(key: str, make: Callable[[Path], None]) -> Path:
    """Return the verified folder of an entry; if it is missing or damaged, `make(folder)` writes its files first.

    If the cache cannot be written, a temporary folder is used until the process ends, with a warning. Raises UserError if
    that cannot be written either.
    """
    root = folder()
    try:
        return _fetch(root / key, make)
    except OSError as error:
        reason = error.strerror or str(error)
    warnings.warn(
        f"cannot write the cache {root} ({reason}), so a temporary one is used; set BACKSTORY_CACHE",
        stacklevel=1,  # this line, so that it is said once, whatever is fetched
    )
    try:
        return _fetch(_temporary() / key, make)
    except OSError as error:
        problem = f"cannot write a temporary folder either ({error.strerror or error}); set BACKSTORY_CACHE"
        raise (NoDisk(problem, again="") if error.errno in REMEDIES else UserError(problem)) from None


@cache
def _temporary() -> Path:
    path = Path(tempfile.mkdtemp(prefix="backstory-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _fetch(entry: Path, make: Callable[[Path], None]) -> Path:
    if not intact(entry):
        entry.mkdir(parents=True, exist_ok=True)
        with side_by_side(entry, lambda: _sweep(entry)):
            try:
                make(entry)
                finished = (p for p in sorted(entry.iterdir()) if p.name != INDEX and not p.name.startswith(TEMPORARY))
                write_atomically(entry / INDEX, json.dumps({"files": listing(finished)}, indent=1))
            except (UserError, OSError):  # a corpus that cannot be used, or a full disk, which this would keep full
                if not intact(entry):  # another process may have finished it
                    shutil.rmtree(entry, ignore_errors=True)
                raise
    return entry


def intact(entry: Path) -> bool:
    """Return True if an entry is complete, and every file has the size and SHA-256 in the index."""
    try:
        files = parse(read_small(entry / INDEX, inside=entry))["files"]
        return bool(files) and files == listing(entry / name for name in files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _sweep(entry: Path) -> None:
    """Remove the remains of killed processes that are older than an hour, while no process holds the entry.

    The age alone would not do: a clock may be set an hour ahead. It spares the writers whose locks this machine cannot see.
    """
    for path in entry.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > 3600:
                path.unlink()
