"""Fuzzed checkpoints under right hashes: read as what they say, or refused in one line; nothing wrong is loaded silently."""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import safetensors.torch
import torch
from calling import Hung, call, listing, within
from small_run import KINDS, newest, sign, stopped_run

from backstory.config import UserError, to_dict
from backstory.models.loading import load_run

VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, 7, -1, 0.5, -0.5, 1.0, 1e308, 1e-320, 2**31, 2**63, -(2**63), 10**30, 10**400),
    *("", "x", "1", "nan", "\x00", "\ud800", "é" * 300, [], {}, [1], ["x"], [[]], {"x": 1}, [None], [0.5, -1.0]),
]
LITERALS = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "9" * 5000,
    "-0",
    "[" * 3000 + "]" * 3000,
    '{"a":' * 3000,
    "//",
    "",
]
DTYPES = ["F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "F4", "C64", "U16", "X", "", 5, None]
SIZES = [0, 1, 2, 7, -1, 2**31, 2**60, 2**63, 2**64, 10**30, 0.5, "3", None, []]


def run(trials: range, folder: Path) -> Iterator[str]:
    """Even trials change the checkpoint that is read with, odd ones the one that training goes on from."""
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
            done = [_change(chosen, changed) for _ in range(chosen.choice([1, 1, 1, 2, 3]))]
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
        ended = call(["evaluate", str(copy), "--rows", "3"])
        return ended.problem((0, 2, 3)) or ("wrote" if ended.code and listing(copy) != before else "")
    return ""


def _resuming(copy: Path, original: Path, changed: Path, settings: Path, chosen: random.Random) -> str:
    try:
        specification, state = _specification(changed), _documents(changed)["progress"]["progress"]
    except Exception:  # nobody can read it, so it must be refused
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
    """What no run can have come to."""
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
    """Whether settings are what a document says; where it says nothing, they may be the defaults."""
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
    tensors = {f: {n: (tuple(t.shape), str(t.dtype)) for n, t in _tensors(checkpoint, f).items()} for f in files}
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
    if isinstance(expected, tuple) or path.startswith(".tensors") and not isinstance(expected, dict):
        return "" if found == expected else f"{path} is {found}, not {expected}"
    if isinstance(expected, dict) and not path.endswith(FREE):
        if found.keys() != expected.keys():
            return f"{path} holds {sorted(found)[:9]}, not {sorted(expected)[:9]}"
        return next((p for k in expected if (p := _unlike(found[k], expected[k], f"{path}.{k}"))), "")
    if isinstance(expected, list) and len({type(f) for f in found} | {type(e) for e in expected}) > 1:
        return f"{path} holds entries of several types"
    return ""


# --- changes ---


def _change(chosen: random.Random, checkpoint: Path) -> str:
    """Change something in a checkpoint, sign it again, and say what it was."""
    kind = chosen.choices([_document, _tensor_file, _file, _manifest], [8, 8, 2, 2])[0]
    try:
        told = kind(chosen, checkpoint)
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        safetensors.SafetensorError,
    ):
        return "nothing more"  # it was broken too far by the change before
    return f"{kind.__name__} {told}"[:300]


def _document(chosen: random.Random, checkpoint: Path) -> str:
    path = chosen.choice(sorted(p for p in checkpoint.glob("*.json") if p.name != "manifest.json"))
    if chosen.random() < 0.75:
        data = json.loads(path.read_bytes())
        told = _entry(chosen, data)
        path.write_text(json.dumps(data))
    else:
        text = path.read_text()
        where = chosen.randrange(len(text) + 1)
        told, text = chosen.choice(
            [
                lambda: ("cut off", text[:where]),
                lambda: ("more after it", text + chosen.choice(["x", "{}", " 1", "\x00"])),
                lambda: ("another number", _replaced(chosen, text, LITERALS)),
                lambda: (
                    "a key twice",
                    text.replace("{", '{"epoch": 3, "words": [], "config": 1, "progress": {}, ', 1),
                ),
                lambda: ("a character", text[:where] + chosen.choice('"{}[],:x0\\\x00é') + text[where + 1 :]),
                lambda: ("all else", chosen.choice(["", "null", "3", '"x"', "[]", "{}", *LITERALS])),
                lambda: ("a mark in front", "\ufeff" + text),
            ]
        )()
        path.write_bytes(text.encode(chosen.choice(["utf-8", "utf-8", "utf-8", "utf-16"]), "surrogatepass"))
    sign(checkpoint)
    return f"{path.name}: {told}"


def _replaced(chosen: random.Random, text: str, by: list[str]) -> str:
    """The text with one of its plain values replaced."""
    parts = text.split(", ")
    i = chosen.randrange(len(parts))
    key, colon, _ = parts[i].partition(": ")
    parts[i] = f"{key}{colon}{chosen.choice(by)}" if colon else chosen.choice(by)
    return ", ".join(parts)


def _entry(chosen: random.Random, data: Any) -> str:
    """Change one entry of a document somewhere in it."""
    node, path = data, ""
    while isinstance(node, dict | list) and node:
        key = chosen.choice(list(node)) if isinstance(node, dict) else chosen.randrange(len(node))
        if not isinstance(node[key], dict | list) or not node[key] or chosen.random() < 0.15:
            break
        node, path = node[key], f"{path}.{key}"
    else:
        raise LookupError
    match chosen.randrange(8):
        case 0:
            node.pop(key)
            return f"{path}.{key} away"
        case 1 if isinstance(node, dict):
            new = chosen.choice(["", "x", "epoch", "nats", "event", "learning_rate", "json", "\ud800", str(key) + "x"])
            node[new] = chosen.choice([node[key], *VALUES])
            return f"{path}.{new} added"
        case 1 if isinstance(node, list):
            node.append(chosen.choice([node[key], *VALUES]))
            return f"{path} one more"
        case 2 if isinstance(node[key], int | float):
            node[key] = chosen.choice(
                [node[key] + 1, node[key] - 1, -node[key], node[key] * 1000, node[key] / 2, str(node[key])]
            )
        case _:
            node[key] = chosen.choice(VALUES)
    return f"{path}.{key} = {str(node[key])[:60]!r}"


def _tensor_file(chosen: random.Random, checkpoint: Path) -> str:
    path = chosen.choice(sorted(checkpoint.glob("*.safetensors")))
    told = chosen.choice([_header, _header, _raw, _rewritten, _rewritten])(chosen, path)
    sign(checkpoint)
    return f"{path.name}: {told}"


def _header(chosen: random.Random, path: Path) -> str:
    """Another dtype, shape, place or name in the header of a safetensors file."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, rest = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    names = [n for n in header if n != "__metadata__"]
    name, other = chosen.choice(names), chosen.choice(names)
    entry = header[name]

    def shape() -> None:
        chosen.choice(
            [lambda: entry["shape"].reverse(), lambda: entry["shape"].append(1), lambda: entry["shape"].insert(0, 1)]
        )()

    changes: dict[str, Callable[[], object]] = {
        "dtype": lambda: entry.update(dtype=chosen.choice(DTYPES)),
        "shape": shape,
        "size": lambda: entry.update(shape=[chosen.choice(SIZES) for _ in range(chosen.randrange(4))]),
        "place": lambda: entry.update(data_offsets=[chosen.choice([*SIZES, *entry["data_offsets"]]) for _ in range(2)]),
        "overlap": lambda: entry.update(data_offsets=header[other]["data_offsets"]),
        "swap": lambda: header.update({name: header[other], other: entry}),
        "away": lambda: header.pop(name),
        "renamed": lambda: header.update(
            {chosen.choice(["", "x", "x/y", name + "/", "\ud800", "__metadata__"]): header.pop(name)}
        ),
        "twice": lambda: header.update({name + "2": entry}),
        "none": lambda: header.update({name: chosen.choice(VALUES)}),
        "lost": lambda: entry.pop(chosen.choice(list(entry))),
        "metadata": lambda: header.update(__metadata__=chosen.choice([*VALUES, {"a": "b"}, {"a": 1}])),
    }
    told = chosen.choice(list(changes))
    changes[told]()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + rest)
    return f"{told} of {name}: {str(header.get(name))[:100]}"


def _raw(chosen: random.Random, path: Path) -> str:
    raw = bytearray(path.read_bytes())
    size = int.from_bytes(raw[:8], "little")
    where = chosen.randrange(8, min(8 + size, len(raw)))
    told, raw = chosen.choice(
        [
            lambda: (
                "length",
                chosen.choice([0, 1, size - 1, size + 1, 2**31, 2**60, 2**64 - 1]).to_bytes(8, "little") + raw[8:],
            ),
            lambda: ("header byte", raw[:where] + chosen.randbytes(1) + raw[where + 1 :]),
            lambda: ("header bytes", raw[:where] + chosen.randbytes(9) + raw[where + 9 :]),
            lambda: ("cut off", raw[: chosen.randrange(len(raw))]),
            lambda: ("longer", raw + chosen.randbytes(8)),
            lambda: ("nothing", b""),
            lambda: ("noise", chosen.randbytes(chosen.choice([7, 8, 9, 500]))),
            lambda: ("data", raw[: 8 + size] + chosen.randbytes(len(raw) - 8 - size)),
        ]
    )()
    path.write_bytes(raw)
    return told


def _rewritten(chosen: random.Random, path: Path) -> str:
    """A good file of other tensors."""
    tensors = safetensors.torch.load(path.read_bytes())
    name = chosen.choice(sorted(tensors))
    tensor = tensors[name]
    other = {
        "float64": lambda: tensor.double(),
        "float16": lambda: tensor.half(),
        "bfloat16": lambda: tensor.bfloat16(),
        "int": lambda: tensor.nan_to_num().long() if tensor.is_floating_point() else tensor.int(),
        "bytes": lambda: tensor.view(-1).view(torch.uint8) if tensor.numel() else tensor,
        "bool": lambda: tensor.bool(),
        "turned": lambda: tensor.t().contiguous() if tensor.dim() == 2 else tensor[None],
        "flat": lambda: tensor.reshape(-1).clone(),
        "one more row": lambda: torch.cat([tensor, tensor[:1]]) if tensor.dim() else tensor[None],
        "a row less": lambda: tensor[:-1].clone() if tensor.dim() else tensor[None],
        "one number": lambda: tensor.reshape(-1)[:1].clone(),
        "empty": lambda: tensor.new_zeros(0),
        "nan": lambda: torch.full_like(tensor, float("nan")) if tensor.is_floating_point() else tensor + 1,
        "infinite": lambda: torch.full_like(tensor, float("inf")) if tensor.is_floating_point() else tensor + 1,
    }
    match chosen.randrange(8):
        case 0:
            told = f"{name} away"
            del tensors[name]
        case 1:
            told = "one more"
            tensors[
                chosen.choice(
                    [
                        "x",
                        name + "x",
                        name + "/x",
                        f"x/{name}",
                        "cuda0",
                        "",
                        name.rsplit("/", 1)[0] + "/momentum_buffer",
                    ]
                )
            ] = tensor.clone()
        case 2:
            told, tensors = "all away", {}
        case _:
            how = chosen.choice(list(other))
            told, tensors[name] = f"{name} {how}", other[how]()
    safetensors.torch.save_file(tensors, path)
    return told


def _file(chosen: random.Random, checkpoint: Path) -> str:
    """A file away, twice, swapped with another, or one more."""
    files = sorted(p for p in checkpoint.iterdir() if p.name != "manifest.json")
    one, other = chosen.choice(files), chosen.choice(files)
    match chosen.randrange(4):
        case 0:
            one.unlink()
            told = f"{one.name} away"
        case 1:
            a, b = one.read_bytes(), other.read_bytes()
            one.write_bytes(b)
            other.write_bytes(a)
            told = f"{one.name} and {other.name} swapped"
        case 2:
            one.rename(
                one.with_name(chosen.choice(["x.json", "x.safetensors", "x.pkl", other.name, one.stem + ".txt"]))
            )
            told = f"{one.name} renamed"
        case _:
            (checkpoint / chosen.choice(["x.json", "x.pt", "average.safetensors", "weights.json"])).write_bytes(
                one.read_bytes()
            )
            told = "one file more"
    sign(checkpoint)
    return told


def _manifest(chosen: random.Random, checkpoint: Path) -> str:
    path = checkpoint / "manifest.json"
    data = json.loads(path.read_bytes())
    if chosen.random() < 0.7:
        told = _entry(chosen, data)
        path.write_text(json.dumps(data))
    else:
        text = path.read_text()
        told = chosen.choice(["cut", "literal", "twice"])
        changed = {
            "cut": text[: chosen.randrange(len(text))],
            "literal": _replaced(chosen, text, LITERALS),
            "twice": text.replace('"schema"', '"schema": 2, "schema"'),
        }
        path.write_text(changed[told])
    return told
