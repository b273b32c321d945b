"""Check the folder of a Hugging Face model before transformers opens any of it, and the packages it needs."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from torch.nn.modules import module

from backstory.storage.atomic import sha256
from backstory.storage.documents import json_digest, parse
from backstory.utils.errors import UserError, install_hint, shown
from backstory.utils.small_file import LARGEST, check_inside, open_regular, read_small

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
LARGEST_HEADER = 100_000_000
"""Maximum header size of a tensor file in bytes, as in the safetensors library."""
_LAYERS = re.compile(r".*(layers?|blocks|depths?)")
_SIZES = re.compile(r"n_(embd|head|layer|inner|positions|ctx)|head_dim|(?!.*window|.*chunk).*(_size|_heads|layers)")


@dataclass(frozen=True)
class WeightSizes:
    """Sizes of a model's weights, from the headers of its files."""

    tensors: int
    elements: int

    @contextmanager
    def bounding(self) -> Iterator[None]:
        """Refuse, in the block, to build a module with far more parameters than the files hold.

        Raises ValueError there, at the first that is too many. Models are built without memory, and filled afterwards.
        """
        # Parameters are registered when built and when filled, and packed weights contain several.
        most, largest = 8 * self.tensors + 1000, 16 * self.elements + (1 << 26)
        many = elements = 0

        def count(_: Any, __: str, tensor: Any) -> None:
            nonlocal many, elements
            many, elements = many + 1, elements + (0 if tensor is None else tensor.numel())
            if many > most or elements > largest:
                raise ValueError(
                    f"its settings ask for far more than the {self.elements:,} weights in {self.tensors:,} tensors it has"
                )

        hooks = [
            module.register_module_parameter_registration_hook(count),
            module.register_module_buffer_registration_hook(count),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def look(folder: Path) -> WeightSizes:
    """Check a folder, or a snapshot in the hub's own cache, and return the sizes of its weights.

    Raises UserError for a file that is no regular one or that a link brings from elsewhere, weights that are no safetensors,
    an adapter, a model with an encoder, settings that ask for code of others, and settings that the weights cannot have been
    made with.
    """
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        try:
            _check_place(path, folder)
            if not path.is_dir():
                open_regular(path).close()
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}; put the file itself there, or remove it") from None
    if (folder / ADAPTER).exists():
        raise UserError(f"{folder} holds an adapter, whose model is elsewhere; merge the two and save the whole model")
    settings = _object(folder / CONFIG)
    if settings.get("is_encoder_decoder") is True:
        raise UserError(
            f"{folder} holds a model that reads a text with an encoder and writes another; choose a causal language model"
        )
    headers = [_header(folder / name) for name in weight_files(folder)]
    tensors = [entry for header in headers for name, entry in header.items() if name != "__metadata__"]
    try:
        held = WeightSizes(len(tensors), sum(prod(entry["shape"]) for entry in tensors))
    except (TypeError, KeyError):
        raise UserError(f"the weights in {folder} are damaged: a header cannot be read; fetch them again") from None
    for key, value in _values(settings):
        _check_setting(folder / CONFIG, key, value, held)
    return held


def _check_place(path: Path, folder: Path) -> None:
    """Raise OSError if a link leads out of the folder, but for one to the blobs beside the snapshots of the hub's cache."""
    try:
        check_inside(path, folder)
    except OSError:
        snapshots = folder.resolve().parent
        if snapshots.name != "snapshots":
            raise
        check_inside(path, snapshots.parent / "blobs")


def weight_files(folder: Path, listed: bool = False) -> list[str]:
    """Return the files of the weights. Raises UserError for an index of anything but safetensors files beside it.

    With `listed` those that the index lists, whether they are there or not.
    """
    alone = [WEIGHTS] if (folder / WEIGHTS).exists() else []
    if not (folder / INDEX).exists():
        return alone
    files = _object(folder / INDEX).get("weight_map")
    names = sorted(set(map(str, files.values()))) if isinstance(files, dict) else [""]
    for name in names:
        if not re.fullmatch(r"[^/\\\x00]+\.safetensors", name):
            raise UserError(
                f"{folder / INDEX} lists {shown(name)}, and weights are read only from safetensors files beside it; "
                "save the model again with save_pretrained"
            )
        if not listed and not (folder / name).exists():
            raise UserError(f"{folder / INDEX} lists {name}, which is missing; fetch the whole model")
    return names if listed else sorted({*names, *alone})


def weights_digest(folder: Path) -> str | None:
    """Return a digest (hex) of the files of the weights; None if there are none. Raises UserError and OSError."""
    stats = {folder / name: (folder / name).stat() for name in weight_files(folder)}
    hashes = [_file_hash(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()]
    return json_digest(hashes) if hashes else None


@cache
def _file_hash(path: Path, size: int, modified: int) -> str:
    """Return the SHA-256 (hex) of a file, read once for a size and time of change: it may have many GB."""
    return sha256(path)


def _object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises UserError for anything else."""
    try:
        content = parse(read_small(path, LARGEST))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give a folder that save_pretrained made") from None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); save the model again with save_pretrained") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no settings; save the model again with save_pretrained")
    return content


def _header(path: Path) -> dict[str, Any]:
    """Return the header of a safetensors file. Raises UserError for another file."""
    try:
        with open_regular(path) as file:
            size = int.from_bytes(file.read(8), "little")
            header = parse(file.read(size)) if size <= LARGEST_HEADER else None
    except (OSError, ValueError):
        header = None
    if not isinstance(header, dict):
        raise UserError(f"{path} cannot be loaded: it is not a safetensors file, or is damaged; fetch it again")
    return header


def _values(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all settings with their keys, nested ones too."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _values(value, name)
    else:
        yield key, node


def _check_setting(path: Path, key: str, value: Any, held: WeightSizes) -> None:
    what = f"{path} has {key} {shown(value)}"
    if key == "transformers_weights" or (key.endswith("_implementation") and "/" in str(value)):
        raise UserError(f"{what}, which leads elsewhere and is never followed; remove that setting")
    if not isinstance(value, int) or isinstance(value, bool):
        return
    if value < 0 and _SIZES.fullmatch(key):
        raise UserError(f"{what}, which no model has; save the model again with save_pretrained")
    if value > max(1000, held.tensors) and _LAYERS.fullmatch(key):
        raise UserError(f"{what}, and the weights have only {held.tensors:,} tensors; fetch the whole model")


def need(package: str, extra: str, what: str) -> None:
    """Raise UserError, with the command that installs it, unless a package is there that `what` needs."""
    if find_spec(package) is None:
        raise UserError(f"{what} needs the package {package}; {install_hint(extra)}")
