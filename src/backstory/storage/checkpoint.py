"""Checkpoints: a folder of safetensors and JSON files under a manifest with the SHA-256 of each, written last; no pickle."""

import errno
import json
import os
import re
import shutil
import stat
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from backstory.storage.atomic import TEMPORARY, fsync_file, fsync_folder, sha256
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


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory."""

    path: Path
    tensors: dict[str, dict[str, Tensor]]
    """By file (without `.safetensors`), then by name; on the CPU."""
    documents: dict[str, Any]
    """By file (without `.json`)."""


def write_checkpoint(
    parent: Path, name: str, tensors: Mapping[str, Mapping[str, Tensor]], documents: Mapping[str, Any]
) -> Path:
    """Write the folder `parent/name` so that it is there whole or not at all. Raises OSError."""
    temporary = parent / f"{TEMPORARY}{os.getpid()}-{name}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        for file, group in tensors.items():
            _save({k: t.detach().cpu().contiguous() for k, t in group.items()}, temporary / f"{file}.safetensors")
        for file, document in documents.items():
            (temporary / f"{file}.json").write_text(json.dumps(document, allow_nan=False), encoding="utf-8")
        files = {p.name: {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in sorted(temporary.iterdir())}
        for file in files:
            fsync_file(temporary / file)
        manifest = temporary / MANIFEST
        manifest.write_text(json.dumps({"schema": SCHEMA, "files": files}, indent=1), encoding="utf-8")
        fsync_file(manifest)
        fsync_folder(temporary)
        final = parent / name
        _take_name(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync_folder(parent)
    return final


def _take_name(temporary: Path, final: Path) -> None:
    """Rename a finished folder; one of that name (a step that is saved again) goes once it is replaced.

    Until then it has a name under which it is found as well, so that no moment is without a checkpoint.
    """
    replaced = final.with_name(final.name + REPLACED)
    if final.exists():
        _remove(replaced)
        os.rename(final, replaced)
    os.rename(temporary, final)
    _remove(replaced)


def _remove(folder: Path) -> None:
    """Remove a checkpoint, its manifest first: what is left of an interrupted removal is not taken for one."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file. Raises OSError, where the library tells of the system's errors in words alone."""
    try:
        save_file(tensors, path)
        path.chmod(path.parent.stat().st_mode & 0o666)  # as other files here: the library's are for their owner alone
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise OSError(errno.EIO, str(error), str(path)) from None
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None


def read_checkpoint(folder: Path, only: frozenset[str] | None = None) -> Checkpoint:
    """Read a checkpoint, verifying size and hash of every file before parsing it.

    `only` names the files (without ending) that are wanted. Raises DamagedCheckpoint.
    """
    if folder.is_symlink():
        raise DamagedCheckpoint(f"{folder} is a link")
    files = _manifest(folder)
    missing = (only or frozenset()) - {name.rsplit(".", 1)[0] for name in files}
    if missing:
        raise DamagedCheckpoint(f"{folder / MANIFEST} does not list {', '.join(sorted(missing))}")
    tensors, documents = {}, {}
    for name, entry in files.items():
        stem, path = name.rsplit(".", 1)[0], folder / name
        if only is not None and stem not in only:
            continue
        _verify(path, entry)
        try:
            if name.endswith(".safetensors"):
                tensors[stem] = load_file(path)
            else:
                documents[stem] = parse(path.read_bytes())
        except Exception as error:  # the parser of tensors has errors of many kinds
            raise DamagedCheckpoint(f"{path} cannot be parsed ({error})") from None
    return Checkpoint(folder, tensors, documents)


def _manifest(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / MANIFEST
    try:
        if _size(path) > LARGEST_MANIFEST:
            raise DamagedCheckpoint(f"{path} is too large for a manifest")
        manifest = parse(path.read_bytes())
    except (OSError, ValueError):
        raise DamagedCheckpoint(f"{path} is missing or not JSON") from None
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise DamagedCheckpoint(f"{path} has a schema this version does not read (it reads {SCHEMA})")
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(NAME.fullmatch(n) and isinstance(e, dict) for n, e in files.items()):
        raise DamagedCheckpoint(f"{path} does not list its files as it should")
    return files


def _verify(path: Path, entry: Mapping[str, Any]) -> None:
    tensors = path.suffix == ".safetensors"
    try:
        size = _size(path)
        if size != entry.get("bytes"):
            raise DamagedCheckpoint(f"{path} has not the size its manifest says")
        if size > (LARGEST_TENSORS if tensors else LARGEST_JSON) or (tensors and _header(path) > LARGEST_HEADER):
            raise DamagedCheckpoint(f"{path} is too large")
        if sha256(path) != entry.get("sha256"):
            raise DamagedCheckpoint(f"{path} has not the SHA-256 its manifest says")
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
    with open(path, "rb") as file:
        return int.from_bytes(file.read(8), "little")


def _numbered(parent: Path, prefix: str) -> list[Path]:
    """Checkpoint folders `prefix-NUMBER`, newest first; one that was being replaced follows its replacement."""
    pattern = re.compile(rf"{prefix}-(\d+)({REPLACED})?")
    found = [(int(m[1]), not m[2], p) for p in parent.glob(f"{prefix}-*") if (m := pattern.fullmatch(p.name))]
    return [path for *_, path in sorted(found, reverse=True)]


def newest_checkpoint(
    parent: Path, prefix: str, only: frozenset[str] | None = None, name: str | None = None
) -> Checkpoint | None:
    """The newest `prefix-NUMBER` that verifies, with a one-line warning for each newer one that does not.

    `name` asks for one of them, or what it was about to replace. None where there is no checkpoint at all. Raises
    DamagedCheckpoint, which tells of the newest, where none verifies.
    """
    problems: list[DamagedCheckpoint] = []
    found: Checkpoint | None = None
    for path in _numbered(parent, prefix):
        if name is not None and path.name.removesuffix(REPLACED) != name:
            continue
        try:
            found = read_checkpoint(path, only)
            break
        except DamagedCheckpoint as error:
            problems.append(error)
    if problems and found is None:
        raise problems[0]
    for error in problems:
        warnings.warn(f"skipping a damaged checkpoint: {error}", stacklevel=2)
    return found


def verify_checkpoint(folder: Path) -> None:
    """Compare size and hash of every file with the manifest, parsing none of them. Raises DamagedCheckpoint."""
    for name, entry in _manifest(folder).items():
        _verify(folder / name, entry)


def rotate_checkpoints(newest: Path, keep: int) -> None:
    """Of the folders `prefix-NUMBER` keep only `newest` and the `keep - 1` before it, once `newest` verifies.

    Those of larger numbers go too: the run went back behind them, as they were damaged or never came to count. If `newest`
    does not verify, nothing is removed and a warning says so: another one may be the last that is whole.
    """
    found = _numbered(newest.parent, newest.name.rsplit("-", 1)[0])
    older = found[found.index(newest) :] if newest in found else []
    # A link is not ours, and what it leads to is not either.
    removed = [path for path in found if path not in older[:keep] and not path.is_symlink()]
    if not removed:
        return
    try:
        verify_checkpoint(newest)
    except DamagedCheckpoint as error:
        warnings.warn(f"the newest checkpoint is damaged, so others are kept: {error}", stacklevel=2)
        return
    for path in removed:
        _remove(path)


def remove_checkpoints(parent: Path, prefix: str) -> None:
    """Remove all folders `prefix-NUMBER`; links are left alone."""
    for path in _numbered(parent, prefix):
        if not path.is_symlink():
            _remove(path)


def drop_checkpoint(path: Path) -> bool:
    """Remove `prefix-NUMBER` if it stands and another before it is whole; whether a whole one is left."""
    found = _numbered(path.parent, path.name.rsplit("-", 1)[0])
    for other in found:
        if other == path:
            continue
        try:
            verify_checkpoint(other)
        except DamagedCheckpoint:
            continue
        if path in found:
            _remove(path)
        return True
    return False
