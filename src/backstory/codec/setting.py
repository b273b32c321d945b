"""The setting that a code depends on, for encoder and decoder: the model, the reader with its settings, and the machine."""

import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import torch

from backstory.codec.code_file import Header
from backstory.codec.token_code import CodedText
from backstory.config import from_dict
from backstory.config.options import LoadOptions
from backstory.data import Vocabulary
from backstory.data.tokenizers.pieces import Pieces
from backstory.models.devices import device_name
from backstory.models.kernels import compiled
from backstory.readers import READERS, Reader
from backstory.readers.registry import ConfiguredLayer, build, prepared_files
from backstory.runs.run import Run, open_run
from backstory.storage.atomic import check_apart, check_new, check_writable, sweep_abandoned, write_atomically
from backstory.storage.documents import json_digest
from backstory.storage.provenance import versions
from backstory.storage.run_files import check_outside_runs
from backstory.utils.errors import OF_PLUGIN, UserError, refused, shown
from backstory.utils.small_file import open_regular
from backstory.utils.terminal import one_line

Source = Path | str | bytes | BinaryIO
"""The path of a file, its bytes, or a file that is open for bytes."""


def read_all(file: Source) -> bytes:
    """Return the bytes of a file. Raises UserError if it cannot be read."""
    if isinstance(file, bytes):
        return file
    if not isinstance(file, str | Path):
        return file.read()
    try:
        with open_regular(Path(file)) as opened:
            return opened.read()
    except OSError as error:
        raise UserError(
            f"cannot read {one_line(str(file))}: {error.strerror}; name a file, or - for standard input"
        ) from None


def name_of(file: Source) -> str:
    """Return what messages call a file."""
    if isinstance(file, bytes):
        return "the code"
    return str(file) if isinstance(file, str | Path) else str(getattr(file, "name", "the code"))


def check_out(out: Path, overwrite: bool, read: Any = None) -> None:
    """Raise UserError, before the work, for a file that exists unless it may be replaced, or a place that cannot be written.

    The file that is read may not be replaced.
    """
    check_apart([out], read)
    check_outside_runs(out)
    check_new(out, "another place with --out", overwrite)
    check_writable(out.parent)


def write(path: Path, content: bytes) -> None:
    """Write a file whole. Raises UserError if it cannot be written."""
    try:
        sweep_abandoned(path)
        write_atomically(path, content)
    except OSError as error:
        raise refused(error, path, otherwise="choose another place with --out") from None


def describe(
    run: Run,
    reader: Reader,
    layers: Sequence[ConfiguredLayer],
    options: LoadOptions,
    overrides: Mapping[str, str],
    batch_size: int,
) -> dict[str, Any]:
    """Return the fields of a header that say which model reads in which way, and where."""
    return {
        "batch_size": batch_size,
        "model": run.argument,
        "weights": run.weights_hash,
        "vocabulary": vocabulary_hash(run.vocabulary),
        "reader": reader.name,
        "layers": [{"name": layer.name, "settings": layer.as_dict()["settings"]} for layer in layers],
        "prepared": prepared_files(run, layers, reader),
        "overrides": dict(overrides),
        "loading": {name: value for name, value in asdict(options).items() if name != "device"},
        "precision": reader.precision.name,
        "machine": machine(run.device),
    }


def vocabulary_hash(vocabulary: Vocabulary) -> str:
    """Return the SHA-256 (hex) of what turns a text into ids; where a tokenizer's file lies is no part of it."""
    tokenizer = vocabulary.tokenizer
    rule = tokenizer.json if isinstance(tokenizer, Pieces) else tokenizer.name
    return json_digest([vocabulary.words, vocabulary.lowercase, vocabulary.unknown, vocabulary.start, rule])


def machine(device: torch.device) -> dict[str, str | int]:
    """Return what the last bits of a product depend on."""
    own = versions()
    return {
        "device": device_name(device),
        "backstory": own["backstory"],
        "torch": own["torch"],
        "numpy": own["numpy"],
        "products": f"{torch.backends.cpu.get_cpu_capability()}, {'MKL' if torch.backends.mkl.is_available() else 'no MKL'}",
        "passes": "torch" if compiled.library() is None else "compiled",
        "threads": torch.get_num_threads(),
    }


def open_decoder(header: Header, model: Path | str | Run, device: str) -> tuple[Run, Reader]:
    """Load a model and build the reader that a header describes; warn where the machine is another one.

    Raises UserError if it is another model, or what its reader was prepared with has changed.
    """
    options = _options(header, device)
    run = open_run(model, options).overridden(header.overrides)
    if (run.weights_hash, vocabulary_hash(run.vocabulary)) != (header.weights, header.vocabulary):
        what = "other weights" if run.weights_hash != header.weights else "another vocabulary"
        raise UserError(
            f"{one_line(str(run.argument))} has {what} "
            f"than the model of this code, {one_line(header.model)}; name that one with --model"
        )
    layers = tuple(_layer(layer) for layer in header.layers)
    reader = build(layers, run, run.precision(header.precision))
    if prepared := prepared_files(run, layers, reader):
        changed = [name for name, digest in prepared.items() if header.prepared.get(name, digest) != digest]
        if changed:
            what = changed[0] if changed[0] in reader.other_models() else f"{changed[0]} of {run.argument}"
            raise UserError(f"{what} has changed since the file was written; decode with the old one")
    _warn_of_differences(header, run.device)
    return run, reader


def _options(header: Header, device: str) -> LoadOptions:
    try:
        return LoadOptions.of(**header.loading, device=device)
    except TypeError:
        raise UserError(
            "the header of this file names options that this backstory does not have; use the version that wrote it"
        ) from None


def _layer(layer: dict[str, Any]) -> ConfiguredLayer:
    """Return a layer from a header. Raises UserError."""
    name, settings = layer.get("name"), layer.get("settings")
    if not isinstance(name, str) or name not in READERS:
        raise UserError(f"this file was written with the reader {shown(name)}, which is unknown here; one {OF_PLUGIN}")
    return ConfiguredLayer(name, from_dict(READERS[name].settings, settings, f"reader {name}"), "from the file")


def _warn_of_differences(header: Header, device: torch.device) -> None:
    """Warn in one line that the last bits may be others here."""
    own = machine(device)
    if may_use(threads := header.machine.get("threads")):
        own["threads"] = threads
    own["device"] = _without_threads(str(own["device"]))
    written = header.machine | {"device": _without_threads(str(header.machine.get("device", "")))}
    differences = [
        f"{name} {written.get(name)} (here {value})"
        for name, value in own.items()
        if written.get(name, value if name == "passes" else None) != value  # older files do not say it
    ]
    if differences:
        warnings.warn(
            f"the file was written with {one_line(', '.join(differences))}; it comes out only if the numbers are the same to "
            "the last bit",
            stacklevel=3,
        )


def _without_threads(device: str) -> str:
    return device.rpartition(",")[0] if device.startswith("cpu") else device


def may_use(threads: object) -> TypeGuard[int]:
    """Return True for a number of threads that this machine can compute with."""
    return isinstance(threads, int) and 1 <= threads <= 4 * (os.cpu_count() or 1)


@contextmanager
def same_threads(header: Header) -> Iterator[None]:
    """Compute with as many threads as the encoder, if this machine can: sums depend on it."""
    before, then = torch.get_num_threads(), header.machine.get("threads")
    if may_use(then):
        torch.set_num_threads(then)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def broken(name: str, header: Header, coded: CodedText, size: int | None = None) -> UserError:
    """Return the error of a code that cannot be decoded."""
    saved = "" if size is None else f"; the first {size:,} bytes are saved"
    return UserError(
        f"{one_line(name)} cannot be decoded after {coded.checked_tokens:,} of {header.tokens:,} tokens: the code is "
        f"damaged, the numbers are not those of the encoder, or its reader used what a decoder does not have{saved}"
    )


def ids_hash(ids: Any) -> str:
    """Return the SHA-256 (hex) of token ids (N,) as little-endian int32."""
    return hashlib.sha256(ids.astype("<i4").tobytes()).hexdigest()
