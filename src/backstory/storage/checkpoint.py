"""Checkpoints: folders of safetensors and JSON files, under a manifest with the SHA-256 of each that is written last.

Trees of tensors and plain values (the state of a reader) are stored as a JSON document and numbered tensors. No pickle.
"""

import errno
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from backstory.config.renamed import STATE_CLASSES
from backstory.storage.atomic import fsync_file, fsync_folder, listing, naming, system_errors, unfinished
from backstory.storage.documents import parse
from backstory.storage.manifest import (
    LARGEST_JSON,
    MANIFEST,
    REPLACED,
    SCHEMA,
    DamagedCheckpoint,
    is_whole,
    numbered,
    read_manifest,
    verify_checkpoint,
    verify_file,
)
from backstory.utils.errors import out_of_memory
from backstory.utils.small_file import read_small


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory."""

    path: Path
    tensors: dict[str, dict[str, Tensor]]
    """Tensors on the CPU, by file (without `.safetensors`), then by name."""
    documents: dict[str, Any]
    """Parsed JSON by file (without `.json`)."""
    hashes: dict[str, str]
    """SHA-256 (hex) of every file that was read, by its full name."""


def write_checkpoint(
    parent: Path, name: str, tensors: Mapping[str, Mapping[str, Tensor]], documents: Mapping[str, Any]
) -> Path:
    """Write the folder `parent/name` whole or not at all; `parent` must exist. Raises OSError."""
    final = parent / name
    temporary = unfinished(final)
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
    """Write all files, and the manifest when they are durable."""
    for file, group in tensors.items():
        _save({k: t.detach().cpu().contiguous() for k, t in group.items()}, folder / f"{file}.safetensors")
    for file, document in documents.items():
        (folder / f"{file}.json").write_text(json.dumps(document, allow_nan=False), encoding="utf-8")
    files = listing(sorted(folder.iterdir()))
    for file in files:
        fsync_file(folder / file)
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"schema": SCHEMA, "files": files}, indent=1), encoding="utf-8")
    fsync_file(manifest)
    fsync_folder(folder)


def _take_name(temporary: Path, final: Path) -> None:
    """Rename a finished folder, and remove the one of that name (a step that is saved again) afterwards.

    Until then the old one has a name that readers know too, so that there is a checkpoint at every moment.
    """
    replaced = final.with_name(final.name + REPLACED)
    if os.path.lexists(final):
        _remove(replaced)
        os.rename(final, replaced)
    os.rename(temporary, final)
    _remove(replaced)


def _remove(folder: Path) -> None:
    """Remove a checkpoint, its manifest first, so that an interrupted removal leaves none. Of a link only the link goes."""
    if folder.is_symlink():
        folder.unlink()
        return
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file. Raises OSError."""
    try:
        with system_errors(path):
            save_file(tensors, path)
        path.chmod(path.parent.stat().st_mode & 0o666)  # as for other files here: the library lets only the owner read
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(path)) from None


def read_checkpoint(folder: Path, only: frozenset[str] | None = None) -> Checkpoint:
    """Read a checkpoint, checking the size and hash of every file before it is parsed.

    `only` names the files to read, without their endings. Raises DamagedCheckpoint.
    """
    if folder.is_symlink():
        raise DamagedCheckpoint(f"{folder} is a link")
    files = read_manifest(folder)
    missing = (only or frozenset()) - {name.rsplit(".", 1)[0] for name in files}
    if missing:
        raise DamagedCheckpoint(f"{folder / MANIFEST} does not list {', '.join(sorted(missing))}")
    tensors, documents, hashes = {}, {}, {}
    for name, entry in files.items():
        path, stem = folder / name, name.rsplit(".", 1)[0]
        if only is not None and stem not in only:
            continue
        verify_file(path, entry)
        hashes[name] = entry["sha256"]
        try:
            if name.endswith(".safetensors"):
                tensors[stem] = load_file(path)
            else:
                documents[stem] = parse(read_small(path, LARGEST_JSON))
        except Exception as error:  # the tensor parser raises errors of many types
            if lacking := out_of_memory(error):  # the file may be whole
                raise lacking from None
            raise DamagedCheckpoint(f"{path} cannot be parsed ({error})") from None
    return Checkpoint(folder, tensors, documents, hashes)


def newest_checkpoint(
    parent: Path, prefix: str, only: frozenset[str] | None = None, name: str | None = None
) -> Checkpoint | None:
    """Read the newest `prefix-NUMBER` that is undamaged, with a one-line warning for each newer one; None if there is none.

    `name` selects one of them, or the one that it was about to replace. Raises DamagedCheckpoint, for the newest, if all are
    damaged.
    """
    problems: list[DamagedCheckpoint] = []
    for path in numbered(parent, prefix):
        if name is not None and path.name.removesuffix(REPLACED) != name:
            continue
        try:
            checkpoint = read_checkpoint(path, only)
        except DamagedCheckpoint as error:
            problems.append(error)
            continue
        for problem in problems:
            warnings.warn(f"skipping a damaged checkpoint: {problem}", stacklevel=2)
        return checkpoint
    if problems:
        raise problems[0]
    return None


def rotate_checkpoints(newest: Path, keep: int) -> None:
    """Keep only `newest` and the `keep - 1` checkpoints before it, if `newest` is undamaged.

    Those with larger numbers are removed too: the run went back behind them, because they were damaged or not committed. If
    `newest` is damaged, nothing is removed, with a warning: another one may be the last that is whole.
    """
    paths = numbered(newest.parent, newest.name.rsplit("-", 1)[0])
    older = paths[paths.index(newest) :] if newest in paths else []
    # A link and what it leads to belong to somebody else.
    removed = [path for path in paths if path not in older[:keep] and not path.is_symlink()]
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
    """Remove all folders `prefix-NUMBER`, but no links."""
    for path in numbered(parent, prefix):
        if not path.is_symlink():
            _remove(path)


def sweep_removals(parent: Path, prefix: str) -> None:
    """Remove what a killed process left of checkpoints that it was removing or replacing, once a newer one verifies."""
    checkpoints = [path for path in numbered(parent, prefix) if not path.is_symlink()]
    unfinished = [path for path in checkpoints if path.name.endswith(REPLACED) or not (path / MANIFEST).exists()]
    newest = next(filter(is_whole, checkpoints), None) if unfinished else None
    if newest is not None:
        for path in checkpoints[checkpoints.index(newest) + 1 :]:
            if path in unfinished:
                _remove(path)


def drop_checkpoint(path: Path) -> bool:
    """Remove a checkpoint if it exists and another is undamaged. Return True if an undamaged one is left."""
    checkpoints = numbered(path.parent, path.name.rsplit("-", 1)[0])
    if not any(is_whole(other) for other in checkpoints if other != path):
        return False
    if path in checkpoints:
        _remove(path)
    return True


Tree = Any
"""Tuples, named tuples, lists and dictionaries (keys: str or int) of tensors, None, numbers and text."""


def pack(tree: Tree, home: torch.device) -> tuple[Any, dict[str, Tensor]]:
    """Return the document of a tree, and its tensors by the names that the document uses.

    `home` is the device of most tensors; the document marks the others. Raises TypeError for an object that is no tree.
    """
    tensors: dict[str, Tensor] = {}

    def walk(node: Any) -> Any:
        if isinstance(node, Tensor):
            name = str(len(tensors))
            tensors[name] = node
            return {"tensor": name, "home": node.device.type == home.type}
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            return {"named": type(node).__name__, "fields": {k: walk(v) for k, v in node._asdict().items()}}  # type: ignore[attr-defined]
        if isinstance(node, tuple | list):
            return {type(node).__name__: [walk(v) for v in node]}
        if isinstance(node, dict) and all(type(key) in (str, int) for key in node):
            return {"dict": [[key, walk(v)] for key, v in node.items()]}
        if isinstance(node, float):  # JSON has no infinity, the minimum of nothing
            return {"float": repr(float(node))}
        if node is None or type(node) in (bool, int, str):
            return node
        raise TypeError(f"a tree holds tensors, plain values and containers of them, not {type(node).__name__}")

    return walk(tree), tensors


def unpack(document: Any, tensors: Mapping[str, Tensor], like: Tree, home: torch.device) -> Tree:
    """Return the tree of a document, its tensors on the device `home` unless they are marked.

    The template `like` is the tree as it starts. It gives the classes of named tuples, the types of plain values, and the
    types and sizes of tensors; a dimension of size 0, and a tensor that the template lacks, may have any size. Raises
    ValueError for a document that does not fit the template or the tensors.
    """
    classes = {(kind.__name__, kind._fields): kind for kind in _named(like)}
    left = dict(tensors)

    def restore_tensor(node: Any, like: Any) -> Tensor:
        tensor = left.pop(node["tensor"])
        if isinstance(like, Tensor):
            # Checked here, as some kernels read beyond a state that is too short.
            changed = [size for size, start in zip(tensor.shape, like.shape, strict=False) if size != start and start]
            if changed or (tensor.dtype, tensor.dim()) != (like.dtype, like.dim()):
                raise ValueError(f"a tensor is {_describe(tensor)}, not {_describe(like)}")
        return tensor.to(home) if node["home"] else tensor

    def restore(node: Any, like: Any) -> Any:
        value = build(node, like)
        if type(like) in (bool, int, float, str) and value is not None:
            if type(value) is not type(like):
                raise ValueError(f"there is {type(value).__name__} where {type(like).__name__} should be")
            if type(value) is int and not -(2**53) < value < 2**53:
                raise ValueError("a number is out of range")
        return value

    def build(node: Any, like: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if "tensor" in node:
            return restore_tensor(node, like)
        if "float" in node:
            return float(node["float"])
        if "named" in node:
            saved = node["named"], tuple(node["fields"])
            name, fields = STATE_CLASSES.get(saved, saved)
            values = zip(fields, node["fields"].values(), strict=True)
            return classes[name, fields](*(restore(v, getattr(like, k, None)) for k, v in values))
        if "dict" in node:
            return {k: restore(v, like.get(k) if isinstance(like, dict) else None) for k, v in node["dict"]}
        kind = {"tuple": tuple, "list": list}[next(iter(node))]
        likes = list(like) if isinstance(like, tuple | list) else []
        return kind(restore(v, likes[i] if i < len(likes) else None) for i, v in enumerate(next(iter(node.values()))))

    try:
        tree = restore(document, like)
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise ValueError(f"a part of it is not of this reader ({error})") from None
    if left:
        raise ValueError("it holds tensors that belong nowhere")
    return tree


def _describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def _named(tree: Tree) -> Iterator[Any]:
    """Yield the classes of all named tuples in a tree."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        yield type(tree)
    if isinstance(tree, tuple | list | dict):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _named(value)
