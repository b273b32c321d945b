"""Manifests of checkpoints: the size and SHA-256 of each file, and so the identity of a run's weights; needs no torch."""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from backstory.storage.atomic import sha256, within
from backstory.storage.documents import parse
from backstory.storage.run_files import CHECKPOINTS
from backstory.utils.errors import UserError
from backstory.utils.small_file import open_regular, read_small

SCHEMA = 1
MANIFEST = "manifest.json"
LARGEST_MANIFEST, LARGEST_JSON, LARGEST_HEADER, LARGEST_TENSORS = 1 << 20, 64 << 20, 1 << 20, 1 << 36
"""Largest sizes, in bytes; larger files or headers are refused unread."""
REPLACED = "-replaced"
"""Suffix of a checkpoint that is being replaced by a new one of its name."""
NAME = re.compile(r"[A-Za-z0-9_-]+\.(safetensors|json)")


class DamagedCheckpoint(Exception):
    """Raised for a checkpoint whose files are not those of its manifest."""

    def as_user_error(self, remedy: str) -> UserError:
        """Return the error for a command that cannot go on without the checkpoint."""
        return UserError(f"{self}; {remedy}")


class NewerCheckpoint(DamagedCheckpoint):
    """Raised for a checkpoint of a later version, which may be whole: no remedy may remove it."""

    def as_user_error(self, remedy: str) -> UserError:
        return super().as_user_error("use the version of backstory that wrote it")


def read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the files of a checkpoint with the `bytes` and `sha256` of each. Raises DamagedCheckpoint."""
    path = folder / MANIFEST
    try:
        if _size(path) > LARGEST_MANIFEST:
            raise DamagedCheckpoint(f"{path} is too large for a manifest")
        manifest = parse(read_small(path, LARGEST_MANIFEST))
    except PermissionError as error:
        raise _forbidden(path, error) from None
    except (FileNotFoundError, ValueError):
        raise DamagedCheckpoint(f"{path} is missing or not JSON") from None
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be read ({error.strerror})") from None
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema != SCHEMA:
        kind = NewerCheckpoint if isinstance(schema, int) and schema > SCHEMA else DamagedCheckpoint
        raise kind(f"{path} has a schema this version does not read (it reads {SCHEMA})")
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(NAME.fullmatch(n) and isinstance(e, dict) for n, e in files.items()):
        raise DamagedCheckpoint(f"{path} does not list its files as it should")
    return files


def verify_file(path: Path, entry: Mapping[str, Any]) -> None:
    """Compare the size and hash of a file with its entry in the manifest. Raises DamagedCheckpoint."""
    tensors = path.suffix == ".safetensors"
    try:
        size = _size(path)
        if size != entry.get("bytes"):
            raise DamagedCheckpoint(f"{path} does not have the size in its manifest")
        if size > (LARGEST_TENSORS if tensors else LARGEST_JSON) or (tensors and _header(path) > LARGEST_HEADER):
            raise DamagedCheckpoint(f"{path} is too large")
        if sha256(path) != entry.get("sha256"):
            raise DamagedCheckpoint(f"{path} does not have the SHA-256 in its manifest")
    except PermissionError as error:
        raise _forbidden(path, error) from None
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be read ({error.strerror})") from None


def _size(path: Path) -> int:
    """Return the size of a regular file: pipes block, devices have no end, and links lead anywhere."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise DamagedCheckpoint(f"{path} is not a regular file")
    return status.st_size


def _header(path: Path) -> int:
    """Return the size of a tensor file's header, given by its first eight bytes."""
    with open_regular(path) as file:
        return int.from_bytes(file.read(8), "little")


def numbered(parent: Path, prefix: str) -> list[Path]:
    """Return the checkpoint folders `prefix-NUMBER`, newest first; one that was being replaced follows its replacement.

    The list is empty if `parent` does not exist. Raises UserError if it may not be read.
    """
    pattern = re.compile(rf"{prefix}-(\d+)({REPLACED})?")
    try:
        names = os.listdir(parent)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError as error:
        raise _forbidden(parent, error) from None
    matches = [(int(m[1]), not m[2], parent / name) for name in names if (m := pattern.fullmatch(name))]
    return [path for *_, path in sorted(matches, reverse=True)]


def _forbidden(path: Path, error: OSError) -> UserError:
    """Return the error for a file that may not be read: it is not damaged, so no older checkpoint may replace it."""
    return UserError(f"cannot read {path}: {error.strerror}; have its owner permit it")


def verify_checkpoint(folder: Path) -> None:
    """Compare the size and hash of every file with the manifest, without parsing. Raises DamagedCheckpoint."""
    for name, entry in read_manifest(folder).items():
        verify_file(folder / name, entry)


def is_whole(folder: Path) -> bool:
    """Return True if every file of a checkpoint has the size and hash in its manifest."""
    try:
        verify_checkpoint(folder)
    except DamagedCheckpoint:
        return False
    return True


LAST, BEST = "last", "best"
"""Prefixes of a run's checkpoints: `last-STEP` to resume from, `best-EPOCH` to evaluate."""
WEIGHTS_FILE = "weights.safetensors"


def best_file(run: Path) -> str | None:
    """Return the SHA-256 (hex) of the file of a run's best weights, from its manifest; None if there is none."""
    return next((sha256 for _, sha256 in _best_files(run)), None)


def still_holds(run: Path, sha256: str) -> bool:
    """Return True if the run's best weights, the newest that are undamaged, are those of this file."""
    for path, newest in _best_files(run):
        if newest == sha256:
            return True
        if is_whole(path):
            return False
    return False


def _best_files(run: Path) -> Iterator[tuple[Path, str]]:
    """Yield the checkpoints of best weights, newest first, with the hash of their weights."""
    try:
        paths = numbered(within(run, CHECKPOINTS), BEST)
    except UserError:
        return
    for path in paths:
        if path.is_symlink():
            continue
        try:
            sha256 = read_manifest(path).get(WEIGHTS_FILE, {}).get("sha256")
        except (DamagedCheckpoint, UserError):
            continue
        if isinstance(sha256, str):
            yield path, sha256
