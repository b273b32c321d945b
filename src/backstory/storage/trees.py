"""Trees of tensors and plain values as a JSON document beside numbered tensors, and back; no pickle."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

Tree = Any
"""Tuples, named tuples, lists and dictionaries (keys: text or whole numbers) of tensors, None, numbers and text."""


def pack(tree: Tree, home: torch.device) -> tuple[Any, dict[str, Tensor]]:
    """The document of a tree, and its tensors by the names that the document has for them.

    `home` is the device of most tensors; of those elsewhere the document says so. Raises TypeError for what is no tree.
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
        if isinstance(node, float):  # JSON has no infinity, which the least of no numbers is
            return {"float": repr(float(node))}
        if node is None or type(node) in (bool, int, str):
            return node
        raise TypeError(f"a tree holds tensors, plain values and containers of them, not {type(node).__name__}")

    return walk(tree), tensors


def unpack(document: Any, tensors: Mapping[str, Tensor], like: Tree, home: torch.device) -> Tree:
    """The tree of a document, its tensors on the device `home` but for those that were elsewhere.

    `like` is such a tree at its start, which gives the classes of named tuples, the types of plain values, and where both hold
    a tensor its type and its sizes: but what was empty, or was not there, may have grown to any size. Raises ValueError for a
    document that does not go with it, or with the tensors.
    """
    classes = {(kind.__name__, kind._fields): kind for kind in _named(like)}
    left = dict(tensors)

    def tensor(node: Any, beside: Any) -> Tensor:
        found = left.pop(node["tensor"])
        if isinstance(beside, Tensor):
            # Not left to the kernels: some read on behind a state that is too short.
            grown = [n for n, start in zip(found.shape, beside.shape, strict=False) if n != start and start]
            if grown or (found.dtype, found.dim()) != (beside.dtype, beside.dim()):
                raise ValueError(f"a tensor is {_kind(found)}, not {_kind(beside)}")
        return found.to(home) if node["home"] else found

    def walk(node: Any, beside: Any) -> Any:
        found = made(node, beside)
        if type(beside) in (bool, int, float, str) and found is not None:
            if type(found) is not type(beside):
                raise ValueError(f"there is {type(found).__name__} where {type(beside).__name__} should be")
            if type(found) is int and not -(2**53) < found < 2**53:
                raise ValueError("a number is out of range")
        return found

    def made(node: Any, beside: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if "tensor" in node:
            return tensor(node, beside)
        if "float" in node:
            return float(node["float"])
        if "named" in node:
            values = {k: walk(v, getattr(beside, k, None)) for k, v in node["fields"].items()}
            return classes[node["named"], tuple(values)](**values)
        if "dict" in node:
            return {k: walk(v, beside.get(k) if isinstance(beside, dict) else None) for k, v in node["dict"]}
        kind = {"tuple": tuple, "list": list}[next(iter(node))]
        others = list(beside) if isinstance(beside, tuple | list) else []
        return kind(walk(v, others[i] if i < len(others) else None) for i, v in enumerate(next(iter(node.values()))))

    try:
        found = walk(document, like)
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise ValueError(f"a part of it is not of this reader ({error})") from None
    if left:
        raise ValueError("it holds tensors that belong nowhere")
    return found


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def _named(tree: Tree) -> Iterator[Any]:
    """The classes of all named tuples in a tree."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        yield type(tree)
    if isinstance(tree, tuple | list | dict):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _named(value)
