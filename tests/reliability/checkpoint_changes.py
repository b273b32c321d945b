"""Random changes to a checkpoint with renewed hashes: in its documents, tensor files, manifest, and list of files."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from stopped_runs import sign

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


def change(chosen: random.Random, checkpoint: Path) -> str:
    """Change something in a checkpoint, renew its hashes, and return a description."""
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
        return "nothing more"  # the previous change broke it too much
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
    """Remove, duplicate, swap or add a file."""
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
