"""Checkpoints: a folder of safetensors and JSON files under a manifest with the SHA-256 of each, written last; no pickle."""

import errno
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from backstory.config.machine import out_of_memory
from backstory.config.small_file import read_small
from backstory.storage.atomic import TEMPORARY, fsync_file, fsync_folder, naming, sha256
from backstory.storage.documents import parse
from backstory.storage.manifest import (
    LARGEST_JSON,
    MANIFEST,
    REPLACED,
    SCHEMA,
    DamagedCheckpoint,
    numbered,
    read_manifest,
    verify_checkpoint,
    verify_file,
)


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory."""

    path: Path
    tensors: dict[str, dict[str, Tensor]]
    """By file (without `.safetensors`), then by name; on the CPU."""
    documents: dict[str, Any]
    """By file (without `.json`)."""
    hashes: dict[str, str]
    """SHA-256 (hex) of every file that was read, by its whole name."""


def write_checkpoint(
    parent: Path, name: str, tensors: Mapping[str, Mapping[str, Tensor]], documents: Mapping[str, Any]
) -> Path:
    """Write the folder `parent/name`, in a folder that is there, so that it is whole or not at all. Raises OSError."""
    temporary = parent / f"{TEMPORARY}{os.getpid()}-{name}"
    shutil.rmtree(temporary, ignore_errors=True)
    final = parent / name
    try:
        with naming(final, temporary):
            temporary.mkdir()
            _write_files(temporary, tensors, documents)
            _take_name(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync_folder(parent)
    return final


def _write_files(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], documents: Mapping[str, Any]) -> None:
    """Write all files, and their manifest last, each durable before it."""
    for file, group in tensors.items():
        _save({k: t.detach().cpu().contiguous() for k, t in group.items()}, folder / f"{file}.safetensors")
    for file, document in documents.items():
        (folder / f"{file}.json").write_text(json.dumps(document, allow_nan=False), encoding="utf-8")
    files = {p.name: {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in sorted(folder.iterdir())}
    for file in files:
        fsync_file(folder / file)
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"schema": SCHEMA, "files": files}, indent=1), encoding="utf-8")
    fsync_file(manifest)
    fsync_folder(folder)


def _take_name(temporary: Path, final: Path) -> None:
    """Rename a finished folder; one of that name (a step that is saved again) goes once it is replaced.

    Until then it has a name under which it is found as well, so that no moment is without a checkpoint.
    """
    replaced = final.with_name(final.name + REPLACED)
    if os.path.lexists(final):
        _remove(replaced)
        os.rename(final, replaced)
    os.rename(temporary, final)
    _remove(replaced)


def _remove(folder: Path) -> None:
    """Remove a checkpoint, its manifest first: what is left of an interrupted removal is not taken for one.

    Of a link nothing but the link goes.
    """
    if folder.is_symlink():
        folder.unlink()
        return
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
    files = read_manifest(folder)
    missing = (only or frozenset()) - {name.rsplit(".", 1)[0] for name in files}
    if missing:
        raise DamagedCheckpoint(f"{folder / MANIFEST} does not list {', '.join(sorted(missing))}")
    tensors, documents, hashes = {}, {}, {}
    for name, entry in files.items():
        stem, path = name.rsplit(".", 1)[0], folder / name
        if only is not None and stem not in only:
            continue
        verify_file(path, entry)
        hashes[name] = entry["sha256"]
        try:
            if name.endswith(".safetensors"):
                tensors[stem] = load_file(path)
            else:
                documents[stem] = parse(read_small(path, LARGEST_JSON))
        except Exception as error:  # the parser of tensors has errors of many kinds
            if lacking := out_of_memory(error):  # the file may well be whole
                raise lacking from None
            raise DamagedCheckpoint(f"{path} cannot be parsed ({error})") from None
    return Checkpoint(folder, tensors, documents, hashes)


def newest_checkpoint(
    parent: Path, prefix: str, only: frozenset[str] | None = None, name: str | None = None
) -> Checkpoint | None:
    """The newest `prefix-NUMBER` that verifies, with a one-line warning for each newer one that does not.

    `name` asks for one of them, or what it was about to replace. None where there is no checkpoint at all. Raises
    DamagedCheckpoint, which tells of the newest, where none verifies.
    """
    problems: list[DamagedCheckpoint] = []
    found: Checkpoint | None = None
    for path in numbered(parent, prefix):
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


def rotate_checkpoints(newest: Path, keep: int) -> None:
    """Of the folders `prefix-NUMBER` keep only `newest` and the `keep - 1` before it, once `newest` verifies.

    Those of larger numbers go too: the run went back behind them, as they were damaged or never came to count. If `newest`
    does not verify, nothing is removed and a warning says so: another one may be the last that is whole.
    """
    found = numbered(newest.parent, newest.name.rsplit("-", 1)[0])
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
    for path in numbered(parent, prefix):
        if not path.is_symlink():
            _remove(path)


def sweep_removals(parent: Path, prefix: str) -> None:
    """Remove what a killed process left of checkpoints that it was removing or replacing, once a newer one verifies."""
    found = [path for path in numbered(parent, prefix) if not path.is_symlink()]
    left = [path for path in found if path.name.endswith(REPLACED) or not (path / MANIFEST).exists()]
    for path in found if left else ():
        try:
            verify_checkpoint(path)
        except DamagedCheckpoint:
            continue
        for older in found[found.index(path) + 1 :]:
            if older in left:
                _remove(older)
        return


def drop_checkpoint(path: Path) -> bool:
    """Remove `prefix-NUMBER` if it stands and another before it is whole; whether a whole one is left."""
    found = numbered(path.parent, path.name.rsplit("-", 1)[0])
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
