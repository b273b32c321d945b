"""A checkpoint with flipped bits, lost pages, or truncated or extended files is detected and skipped with one line."""

import random
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from processes import zygote
from runs import tiny_corpus
from small_runs import recipes, write_recipe

from backstory.storage.checkpoint import Checkpoint, DamagedCheckpoint, newest_checkpoint, read_checkpoint

PAGE = 4096


def corruption(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """A trial damages one file of the newest of two checkpoints of a real run."""
    recipe = write_recipe(recipes(tiny_corpus(folder / "corpus"))["averaged and fine-tuned"], folder / "recipe.yaml")
    with zygote(folder) as started:
        ended = started.start("train", recipe, "--out", folder / "run")
        if ended.wait() != 0:
            raise RuntimeError(ended.said())
    older, newest = sorted((folder / "run" / "checkpoints").glob("last-*"), key=lambda p: int(p.name.split("-")[1]))
    whole, before = read_checkpoint(newest), read_checkpoint(older)
    files = {path.name: path.read_bytes() for path in sorted(newest.iterdir())}
    for number in trials:
        chosen = random.Random(number)
        name = chosen.choice(list(files))
        content = damaged(files[name], chosen)
        (newest / name).write_bytes(content)
        for problem in noticed(newest, whole, before):
            yield f"damage {number}, {name} of {len(files[name])} bytes, now {len(content)}: {problem}"
        (newest / name).write_bytes(files[name])
    shutil.rmtree(folder / "run")


def flip(data: bytes, chosen: random.Random) -> bytes:
    place = chosen.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << chosen.randrange(8)]) + data[place + 1 :]


def zero_page(data: bytes, chosen: random.Random) -> bytes:
    first = chosen.randrange(0, len(data), PAGE)
    page = data[first : first + PAGE]
    return data[:first] + bytes(len(page)) + data[first + PAGE :]


def truncate(data: bytes, chosen: random.Random) -> bytes:
    return data[: chosen.randrange(len(data))]


def append(data: bytes, chosen: random.Random) -> bytes:
    return data + chosen.randbytes(chosen.choice((1, 8, 100, PAGE)))


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (flip, flip, zero_page, truncate, append)


def damaged(data: bytes, chosen: random.Random) -> bytes:
    """Other bytes than these."""
    while (content := chosen.choice(DAMAGES)(data, chosen)) == data:
        pass
    return content


def noticed(newest: Path, whole: Checkpoint, before: Checkpoint) -> list[str]:
    """Return faults in the handling of damage, which must be refused or proven irrelevant to what is read."""
    try:
        found = read_checkpoint(newest)
    except DamagedCheckpoint as error:
        problems = [] if "\n" not in str(error) and str(newest) in str(error) else [f"told in other words: {error}"]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            fallen_back = newest_checkpoint(newest.parent, "last")
        if fallen_back is None or not same(fallen_back, before):
            problems.append(f"fell back to {fallen_back and fallen_back.path.name}")
        if len(told) != 1 or "skipping a damaged checkpoint" not in str(told[0].message):
            problems.append(f"told {[str(w.message) for w in told]}")
        return problems
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return [] if same(found, whole) else ["it went unnoticed"]


def same(a: Checkpoint, b: Checkpoint) -> bool:
    """Return True if two checkpoints hold the same, in every bit."""

    def raw(found: Checkpoint) -> dict[str, Any]:
        tensors = {(f, n): t for f, group in found.tensors.items() for n, t in group.items()}
        return {key: (t.dtype, t.shape, t.flatten().view(torch.uint8).numpy().tobytes()) for key, t in tensors.items()}

    return raw(a) == raw(b) and a.documents == b.documents
