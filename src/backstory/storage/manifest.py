"""Manifests of checkpoints: a folder's files with the size and SHA-256 of each, read and verified without torch."""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from backstory.config.errors import UserError
from backstory.config.small_file import open_regular, read_small
from backstory.storage.atomic import sha256, within
from backstory.storage.documents import parse

SCHEMA = 1
MANIFEST = "manifest.json"
LARGEST_MANIFEST, LARGEST_JSON, LARGEST_HEADER, LARGEST_TENSORS = 1 << 20, 64 << 20, 1 << 20, 1 << 36
"""Bytes; a manifest, a document, the header of a tensor file, or a tensor file above this is refused unread."""
REPLACED = "-replaced"
"""Ends the name of a checkpoint that a new one of its name is taking the place of."""
NAME = re.compile(r"[A-Za-z0-9_-]+\.(safetensors|json)")


class DamagedCheckpoint(Exception):
    """A checkpoint whose files are not what its manifest says."""


def read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the files that a checkpoint lists, with `bytes` and `sha256` of each. Raises DamagedCheckpoint."""
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
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise DamagedCheckpoint(f"{path} has a schema this version does not read (it reads {SCHEMA})")
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(NAME.fullmatch(n) and isinstance(e, dict) for n, e in files.items()):
        raise DamagedCheckpoint(f"{path} does not list its files as it should")
    return files


def verify_file(path: Path, entry: Mapping[str, Any]) -> None:
    """Compare size and hash of a file with its entry in the manifest. Raises DamagedCheckpoint."""
    tensors = path.suffix == ".safetensors"
    try:
        size = _size(path)
        if size != entry.get("bytes"):
            raise DamagedCheckpoint(f"{path} has not the size its manifest says")
        if size > (LARGEST_TENSORS if tensors else LARGEST_JSON) or (tensors and _header(path) > LARGEST_HEADER):
            raise DamagedCheckpoint(f"{path} is too large")
        if sha256(path) != entry.get("sha256"):
            raise DamagedCheckpoint(f"{path} has not the SHA-256 its manifest says")
    except PermissionError as error:
        raise _forbidden(path, error) from None
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be read ({error.strerror})") from None


def _size(path: Path) -> int:
    """Bytes of a regular file; a pipe would be waited for, a device has no end, and a link leads anywhere."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise DamagedCheckpoint(f"{path} is no regular file")
    return found.st_size


def _header(path: Path) -> int:
    """Bytes of the header of a tensor file, as its first eight say."""
    with open_regular(path) as file:
        return int.from_bytes(file.read(8), "little")


def numbered(parent: Path, prefix: str) -> list[Path]:
    """Checkpoint folders `prefix-NUMBER`, newest first; one that was being replaced follows its replacement.

    None where there is no such folder. Raises UserError for one that may not be read: what it holds is not nothing.
    """
    pattern = re.compile(rf"{prefix}-(\d+)({REPLACED})?")
    try:
        names = os.listdir(parent)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError as error:
        raise _forbidden(parent, error) from None
    found = [(int(m[1]), not m[2], parent / name) for name in names if (m := pattern.fullmatch(name))]
    return [path for *_, path in sorted(found, reverse=True)]


def _forbidden(path: Path, error: OSError) -> UserError:
    """What may not be read is not damaged: an older checkpoint must not be taken in its place."""
    return UserError(f"cannot read {path}: {error.strerror}; have its owner permit it")


def verify_checkpoint(folder: Path) -> None:
    """Compare size and hash of every file with the manifest, parsing none of them. Raises DamagedCheckpoint."""
    for name, entry in read_manifest(folder).items():
        verify_file(folder / name, entry)


CHECKPOINTS = "checkpoints"
"""Folder of a run that holds `last-STEP` (to resume from) and `best-EPOCH` (to read with)."""
BEST = "best"
WEIGHTS_FILE = "weights.safetensors"


def best_file(run: Path) -> str | None:
    """Return the SHA-256 (hex) of the file of a run's best weights, as its manifest has it; None where there is none."""
    return next((sha256 for _, sha256 in _best_files(run)), None)


def still_holds(run: Path, sha256: str) -> bool:
    """Check that a run would be read with the weights of this file: the newest, but for those that are damaged."""
    for path, newest in _best_files(run):
        if newest == sha256:
            return True
        try:
            verify_checkpoint(path)
        except DamagedCheckpoint:
            continue
        return False
    return False


def _best_files(run: Path) -> Iterator[tuple[Path, str]]:
    """The checkpoints of best weights, newest first, with the hash of their weights."""
    try:
        found = numbered(within(run, CHECKPOINTS), BEST)
    except UserError:
        return
    for path in found:
        if path.is_symlink():
            continue
        try:
            sha256 = read_manifest(path).get(WEIGHTS_FILE, {}).get("sha256")
        except (DamagedCheckpoint, UserError):
            continue
        if isinstance(sha256, str):
            yield path, sha256
