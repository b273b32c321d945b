"""Hostile checkpoints: nothing in them is executed, waited for, expanded in memory or written through."""

import hashlib
import json
import multiprocessing
import os
import pickle
import resource
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

from calling import call
from stopped_runs import newest, sign, stopped_run

FORK = multiprocessing.get_context("fork")
SECONDS, GIBIBYTES = 60, 1.0
"""Limits on the time of a child, and on its memory above that of a good checkpoint."""


class Payload:
    """Object whose pickle runs a command when it is loaded."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.canary}",)


@dataclass
class Target:
    """A checkpoint to spoil, the file that a payload would make, and a folder outside that must stay as it is."""

    folder: Path
    canary: Path
    outside: Path

    def header(self, header: Any, data: bytes = b"", size: int | None = None) -> None:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        length = struct.pack("<Q", len(text) if size is None else size)
        (self.folder / "weights.safetensors").write_bytes(length + text + data)
        sign(self.folder)

    def document(self, content: bytes) -> None:
        """Replace each document, with renewed hashes."""
        for path in self.folder.glob("*.json"):
            path.write_bytes(content)
        sign(self.folder)

    def manifest(self, change: Callable[[dict[str, Any]], object]) -> None:
        path = self.folder / "manifest.json"
        data = json.loads(path.read_bytes())
        change(data)
        path.write_text(json.dumps(data))

    def listed(self, path: Path) -> dict[str, Any]:
        return {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def run(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """Each trial spoils the checkpoints used for reading and for resuming, and uses both in a child."""
    with patch.dict(os.environ, {"BACKSTORY_CACHE": str(folder / "cache")}):
        original, settings = stopped_run("averaged", folder)
        shutil.rmtree(min((original / "checkpoints").glob("last-*"), key=lambda p: int(p.name.split("-")[1])))
        copy, outside, canary = folder / "copy", folder / "outside", folder / "canary"
        shutil.copytree(original, copy)
        codes, told, usual = _used(copy, settings)
        shutil.rmtree(copy)
        if codes != [0, 0]:
            yield f"a good checkpoint is not taken: {codes} {told}"
        for number in trials:
            name = list(HOSTILE)[number]
            shutil.copytree(original, copy)
            shutil.copytree(newest(original, "best"), outside)
            try:
                for prefix in ("best", "last"):
                    HOSTILE[name](Target(newest(copy, prefix), canary, outside))
                before = _contents(outside)
                problem = _problem(*_used(copy, settings), usual)
                if canary.exists():
                    problem = "the payload was run"
                elif _contents(outside) != before:
                    problem = "written outside"
            finally:
                shutil.rmtree(copy)
                shutil.rmtree(outside)
                canary.unlink(missing_ok=True)
            if problem:
                yield f"hostile {name}: {problem}"


def _used(copy: Path, settings: Path) -> tuple[list[int | None], str, float]:
    """Read with a run and go on with it in a process of its own: exit codes, what was told, and the GiB it took at most.

    No exit codes where it did not come to its end.
    """
    here, there = FORK.Pipe(duplex=False)
    child = FORK.Process(target=_child, args=(copy, settings, there))
    child.start()
    there.close()
    try:
        return here.recv() if here.poll(SECONDS) else ([], f"not done after {SECONDS} s", 0.0)
    except EOFError:
        return [], "the process died", 0.0
    finally:
        child.kill()
        child.join()


def _child(copy: Path, settings: Path, pipe: Connection) -> None:
    calls = [["evaluate", str(copy), "--batch-size", "3"], ["train", str(settings), "--resume", "--out", str(copy)]]
    ended = [call(line, SECONDS) for line in calls]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    pipe.send(([e.code for e in ended], "".join(e.err + e.raised for e in ended), memory))


def _problem(codes: list[int | None], told: str, memory: float, usual: float) -> str:
    if codes != [2, 2] or len(told.splitlines()) != 2:
        return f"exit codes {codes}: {told[-500:]!r}"
    return f"{memory:.1f} GiB, usually {usual:.1f}" if memory > usual + GIBIBYTES else ""


def _contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


# --- what is done to a checkpoint ---


def _pickle_as(name: str) -> Callable[[Target], None]:
    def spoil(target: Target) -> None:
        paths = [target.folder / name] if "." in name else list(target.folder.glob(f"*.{name}"))
        for path in paths:
            path.write_bytes(pickle.dumps(Payload(target.canary)))
        sign(target.folder)

    return spoil


def _torch_archive(target: Target) -> None:
    """As torch.save writes it: a zip with a pickle in it."""
    with zipfile.ZipFile(target.folder / "weights.safetensors", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Payload(target.canary)))
    sign(target.folder)


def _zip_bomb(target: Target) -> None:
    with zipfile.ZipFile(target.folder / "weights.safetensors", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(1 << 28))
    sign(target.folder)


def _modules(target: Target) -> None:
    """Code where an import, or the reader of a format, might look for it."""
    code = f"import os; os.system('touch {target.canary}')"
    for name in ("__init__.py", "conftest.py", "backstory.py", "sitecustomize.py", "modeling.py", "code.json"):
        (target.folder / name).write_text(code)
    sign(target.folder)


def _shape(*shape: int) -> Callable[[Target], None]:
    """One tensor that claims a shape over a few bytes."""
    return lambda t: t.header(
        {"embedding.weight": {"dtype": "F32", "shape": list(shape), "data_offsets": [0, 8]}}, bytes(8)
    )


def _overlap(target: Target) -> None:
    path = target.folder / "weights.safetensors"
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    first = next(v for k, v in header.items() if k != "__metadata__")
    for entry in header.values():
        entry.update(data_offsets=first["data_offsets"], shape=first["shape"], dtype=first["dtype"])
    target.header(header, raw[8 + size :])


def _huge_model(target: Target) -> None:
    """Settings of a model that no machine holds, beside small weights."""
    for path in target.folder.glob("model.json"):
        data = json.loads(path.read_bytes())
        data["config"]["model"]["core"].update(hidden=10**9, layers=900)
        path.write_text(json.dumps(data))
    for path in target.folder.glob("progress.json"):
        data = json.loads(path.read_bytes())
        data["progress"].update(epoch=10**15, segment=10**15, step=10**16)
        path.write_text(json.dumps(data))
    sign(target.folder)


def _linked_file(target: Target) -> None:
    for path in target.folder.glob("*.safetensors"):
        shutil.move(path, target.outside / path.name)
        path.symlink_to(target.outside / path.name)


def _linked_manifest(target: Target) -> None:
    path = target.folder / "manifest.json"
    shutil.move(path, target.outside / "manifest.json")
    path.symlink_to(target.outside / "manifest.json")


def _linked_folder(target: Target) -> None:
    shutil.rmtree(target.folder)
    target.folder.symlink_to(target.outside)


def _pipe(name: str) -> Callable[[Target], None]:
    def spoil(target: Target) -> None:
        target.manifest(lambda m: m["files"]["weights.safetensors"].update(bytes=0))
        (target.folder / name).unlink()
        os.mkfifo(target.folder / name)

    return spoil


def _device(target: Target) -> None:
    """A link to a device without an end; to make the device itself takes rights that a test has not."""
    for name in ("manifest.json", "weights.safetensors"):
        (target.folder / name).unlink()
        (target.folder / name).symlink_to("/dev/zero")


def _named(name: str) -> Callable[[Target], None]:
    """One more file in the manifest, which is elsewhere."""

    def spoil(target: Target) -> None:
        path = target.outside / "weights.safetensors"
        named = name.format(outside=path)
        target.manifest(lambda m: m["files"].update({named: target.listed(path)}))

    return spoil


def _sparse(target: Target) -> None:
    """A file of a TiB that takes no space, whose hash would take an hour."""
    with open(target.folder / "weights.safetensors", "r+b") as file:
        file.truncate(1 << 40)
    target.manifest(lambda m: m["files"]["weights.safetensors"].update(bytes=1 << 40))


HOSTILE: dict[str, Callable[[Target], None]] = {
    "pickles called safetensors": _pickle_as("safetensors"),
    "pickles called json": _pickle_as("json"),
    "a pickle beside the files": _pickle_as("optimizer.pkl"),
    "a pickle called weights.json": _pickle_as("weights.json"),
    "an archive of torch": _torch_archive,
    "a zip bomb": _zip_bomb,
    "python files": _modules,
    "a document of lists in lists": lambda t: t.document(b"[" * 10_000_000),
    "a document of many lists": lambda t: t.document(b"[" + b"[]," * 20_000_000 + b"[]]"),
    "a document above the limit": lambda t: t.document(b'"' + b"x" * (65 << 20) + b'"'),
    "a number of a million digits": lambda t: t.document(b'{"progress": ' + b"9" * 1_000_000 + b"}"),
    "a document with NaN": lambda t: t.document(b'{"progress": NaN, "config": Infinity}'),
    "keys twice": lambda t: t.document(b'{"progress": {}, "config": {}, "progress": {}, "config": {}}'),
    "a header of 2^60 bytes": lambda t: t.header(b"{}", size=1 << 60),
    "a header of 90 MiB": lambda t: t.header(b'{"a": "' + b" " * (90 << 20) + b'"}'),
    "a shape of 2^60": _shape(1 << 60),
    "a shape that overflows": _shape(1 << 40, 1 << 40, 1 << 40),
    "tensors that overlap": _overlap,
    "settings of a huge model": _huge_model,
    "a file of a TiB": _sparse,
    "links to files": _linked_file,
    "a link for a manifest": _linked_manifest,
    "a link for a folder": _linked_folder,
    "a pipe for a manifest": _pipe("manifest.json"),
    "a pipe for weights": _pipe("weights.safetensors"),
    "a device": _device,
    "a name with dots": _named("../../outside/weights.safetensors"),
    "an absolute name": _named("{outside}"),
    "a manifest of 200 MiB": lambda t: (t.folder / "manifest.json").write_bytes(
        b'{"files": "' + b"x" * (200 << 20) + b'"}'
    ),
}
"""Changes of a checkpoint, by what it then holds."""
