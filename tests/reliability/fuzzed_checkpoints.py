"""Fuzzed checkpoints with correct hashes are read as they say or refused in one line; nothing is loaded wrongly."""

import json
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import safetensors.torch
import torch
from calling import Hung, call, listing, within
from checkpoint_changes import change
from stopped_runs import KINDS, newest, stopped_run

from backstory.config import to_dict
from backstory.runs.run import load_run
from backstory.utils.errors import UserError


def run(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """Even trials change the checkpoint used for reading, odd ones the checkpoint from which training resumes."""
    with patch.dict(os.environ, {"BACKSTORY_CACHE": str(folder / "cache")}):
        runs = [stopped_run(kind, folder) for kind in KINDS]
        for run, _ in runs:
            for path in (run / "checkpoints").glob("last-*"):
                if path != newest(run, "last"):
                    shutil.rmtree(path)
        for number in trials:
            chosen = random.Random(f"checkpoints {number}")
            original, settings = chosen.choice(runs)
            copy = folder / "copy"
            shutil.copytree(original, copy)
            prefix = ("best", "last")[number % 2]
            changed = newest(copy, prefix)
            done = [change(chosen, changed) for _ in range(chosen.choice([1, 1, 1, 2, 3]))]
            check = _reading if prefix == "best" else _resuming
            try:
                problem = check(copy, newest(original, prefix), changed, settings, chosen)
            finally:
                shutil.rmtree(copy)
            if problem:
                yield f"checkpoints {number}: {problem}; {prefix} of {original.name}: {'; '.join(done)}"


# --- what must hold ---


def _reading(copy: Path, original: Path, changed: Path, settings: Path, chosen: random.Random) -> str:
    try:
        with within(30):
            loaded = load_run(copy)
    except UserError as error:
        return f"not one line: {error}" if "\n" in str(error) or not str(error) else ""
    except (Hung, Exception) as error:
        return f"load_run: {type(error).__name__}: {str(error)[:200]}"
    said, tensors = _documents(changed), _tensors(changed, "weights")
    for name, parameter in loaded.model.named_parameters():
        if name not in tensors or tensors[name].dtype != torch.float32 or not _same(tensors[name], parameter.detach()):
            return f"{name} is not what the file holds"
    told = {"corpus": loaded.corpus, "places": loaded.places, "config": said["model"]["config"]}
    if not _holds(to_dict(loaded.config), told["config"]):
        return "the settings are not as they were written"
    if _exact(told) != _exact(said["model"]) or _exact(loaded.vocabulary.to_json()) != _exact(said["vocabulary"]):
        return "the documents are not as they were written"
    if problem := _unlike(_specification(changed), _specification(original), ""):
        return f"loaded silently: {problem}"
    if chosen.random() < 0.2:
        before = listing(copy)
        ended = call(["evaluate", str(copy), "--batch-size", "3"])
        return ended.problem((0, 2, 3)) or ("wrote" if ended.code and listing(copy) != before else "")
    return ""


def _resuming(copy: Path, original: Path, changed: Path, settings: Path, chosen: random.Random) -> str:
    try:
        specification, state = _specification(changed), _documents(changed)["progress"]["progress"]
    except Exception:  # unreadable, so it must be refused
        specification = state = None
    before = listing(copy)
    ended = call(["train", str(settings), "--resume", "--out", str(copy)])
    if problem := ended.problem((0, 2, 3)):
        return problem
    if ended.code == 2:
        return "" if listing(copy) == before else f"refused, and changed the run: {ended.err[-200:]!r}"
    if specification is None:
        return "went on from what nobody can read"
    if problem := _unlike(specification, _specification(original), ""):
        return f"went on silently: {problem}"
    return _impossible(state)


def _impossible(progress: dict[str, Any]) -> str:
    """Return why no run can have this progress; empty if one can."""
    numbers = [v for v in progress.values() if isinstance(v, int | float)] + progress["history"]
    if any(not -(2**53) < n < 2**53 for n in numbers):
        return f"went on from numbers out of range: {progress}"
    whole = {k: v for k, v in progress.items() if isinstance(v, int)}
    if min(whole.values()) < 0 or progress["epoch"] < 1 or progress["step"] < progress["segment"]:
        return f"went on from nowhere: {progress}"
    return ""


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _holds(settings: Any, said: Any) -> bool:
    """Return True if settings are what a document says; where it says nothing, they may be the defaults."""
    if isinstance(settings, dict):
        return isinstance(said, dict) and all(k in settings and _holds(settings[k], v) for k, v in said.items())
    if isinstance(settings, float) and isinstance(said, int | float | str) and not isinstance(said, bool):
        return settings == float(said)  # 1 and 1e-3 (which YAML takes for text) are numbers
    return type(settings) is type(said) and settings == said


def _exact(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _tensors(checkpoint: Path, file: str) -> dict[str, torch.Tensor]:
    return safetensors.torch.load((checkpoint / f"{file}.safetensors").read_bytes())


def _documents(checkpoint: Path) -> dict[str, Any]:
    return {p.stem: json.loads(p.read_bytes()) for p in checkpoint.glob("*.json") if p.name != "manifest.json"}


def _specification(checkpoint: Path) -> dict[str, Any]:
    """Names, shapes and dtypes of a checkpoint's tensors, and its documents."""
    files = sorted(p.stem for p in checkpoint.glob("*.safetensors") if p.name in _listed(checkpoint))
    tensors = {
        f: {n: (tuple(t.shape), str(t.dtype)) for n, t in _tensors(checkpoint, f).items() if n != "cuda0"}
        for f in files
    }
    return {"tensors": tensors, "documents": _documents(checkpoint)}


def _listed(checkpoint: Path) -> list[str]:
    return list(json.loads((checkpoint / "manifest.json").read_bytes())["files"])


FREE = ("words", "counts", "places", "history", "epoch_sums", "window_sums", "provenance", "config", "words")
"""Parts of a document whose keys or lengths may differ and still be right; their entries are of one type."""


def _unlike(found: Any, expected: Any, path: str) -> str:
    """Where a specification differs from another in its names and types, not its numbers."""
    if path.endswith(("best_nats", "averaged", "unknown")) and found is None:
        return ""
    if type(found) is not type(expected) and not {type(found), type(expected)} <= {int, type(None)}:
        return f"{path} is {type(found).__name__} {str(found)[:50]}, not {type(expected).__name__}"
    if isinstance(expected, tuple) or (path.startswith(".tensors") and not isinstance(expected, dict)):
        return "" if found == expected else f"{path} is {found}, not {expected}"
    if isinstance(expected, dict) and not path.endswith(FREE):
        older = {"threads"} if path == ".documents.progress" else set()  # which earlier versions did not save
        if found.keys() != expected.keys() and found.keys() != expected.keys() - older:
            return f"{path} holds {sorted(found)[:9]}, not {sorted(expected)[:9]}"
        return next((p for k in expected if k in found and (p := _unlike(found[k], expected[k], f"{path}.{k}"))), "")
    if isinstance(expected, list) and len({type(f) for f in found} | {type(e) for e in expected}) > 1:
        return f"{path} holds entries of several types"
    return ""
