"""A model's state as an explicit tree of tensors: detach, move, copy, flatten to names and back.

The `check_*` functions explain a wrong argument of a model or one of its parts after torch has failed.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from backstory.config.renamed import STATES
from backstory.utils.arguments import described, diagnosed, with_article

State = Any
"""Nested named tuples, tuples, lists or dictionaries of tensors; None for no state."""

S = TypeVar("S")


@diagnosed()
def map_state(function: Callable[[Tensor], Tensor], state: S) -> S:
    """Return the same tree with `function` applied to each tensor."""

    def walk(node: Any) -> Any:
        if isinstance(node, Tensor):
            return function(node)
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            return type(node)(*map(walk, node))
        if isinstance(node, tuple | list):
            return type(node)(map(walk, node))
        if isinstance(node, dict):
            return {k: walk(v) for k, v in node.items()}
        if node is None:
            return None
        # A number or an opaque object here would silently be shared by copies and lost by checkpoints.
        raise TypeError(f"a state holds tensors, None and containers of them, not {type(node).__name__}")

    return walk(state)


def detach(state: S) -> S:
    """Detach the state from its graph (between segments)."""
    return map_state(Tensor.detach, state)


def to(state: S, device: torch.device | str) -> S:
    """Move the state to another device."""
    return map_state(lambda t: t.to(device), state)


def clone(state: S) -> S:
    """Copy the state; the copy shares no memory with it."""
    return map_state(lambda t: t.detach().clone(), state)


def flatten(state: State) -> dict[str, Tensor]:
    """Return the tensors by dotted path, such as `hidden.0`, as a checkpoint stores them."""
    tensors: dict[str, Tensor] = {}

    def walk(node: Any, path: str) -> None:
        if isinstance(node, Tensor):
            tensors[path] = node
            return
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            node = node._asdict()  # type: ignore[attr-defined]
        if isinstance(node, tuple | list):
            node = dict(enumerate(node))
        if isinstance(node, dict):
            for key, value in node.items():
                walk(value, f"{path}.{key}" if path else str(key))
        elif node is not None:
            raise TypeError(f"a state holds tensors, None and containers of them, not {type(node).__name__}")

    walk(state, "")
    return tensors


def _current_name(name: str) -> str:
    first, dot, rest = name.partition(".")
    return f"{STATES.get(first, first)}{dot}{rest}"


@diagnosed()
def unflatten(template: S, tensors: Mapping[str, Tensor]) -> S:
    """Rebuild a state shaped like `template` (from `start`) out of `flatten`'s dictionary.

    Raises ValueError when names, shapes or types differ from the template's; a size of 0 there stands for any size.
    """
    expected = flatten(template)
    if expected.keys() != tensors.keys():
        tensors = {_current_name(name): tensor for name, tensor in tensors.items()}
    if expected.keys() != tensors.keys():
        raise ValueError(f"state holds {sorted(tensors)}, the model expects {sorted(expected)}")
    for name, tensor in expected.items():
        shape, expected_shape = tuple(tensors[name].shape), tuple(tensor.shape)
        fits = len(shape) == len(expected_shape) and all(
            size in (n, 0) for n, size in zip(shape, expected_shape, strict=True)
        )
        if not fits or tensors[name].dtype != tensor.dtype:
            raise ValueError(f"state '{name}' is {shape}, the model expects {expected_shape}")
    queue = iter(expected)
    return map_state(lambda t: tensors[next(queue)].to(t.device), template)


IDS = (torch.int64, torch.int32)
"""Types of tensors that hold ids."""


def check_ids(name: str, ids: Any, types: int, like: Tensor, shape: tuple[int, ...] | None = None) -> None:
    """Raise TypeError or ValueError unless these are ids from 0 to `types` - 1 on `like`'s device, (B, T) or of a shape."""
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        kind = ids.dtype if isinstance(ids, Tensor) else described(ids)
        raise TypeError(f"{name} must be a tensor of whole numbers, not {kind}")
    if ids.dtype not in IDS:
        raise TypeError(f"{name} must be of torch.int64 or torch.int32, not {ids.dtype}; use {name}.long()")
    if ids.ndim != 2 if shape is None else tuple(ids.shape) != shape:
        raise ValueError(f"{name} must be of shape {'(B, T)' if shape is None else shape}, not {tuple(ids.shape)}")
    if not ids.numel():
        raise ValueError(f"{name} must hold one token at least, not none")
    check_device(name, ids, like)
    if not ids.is_meta and (ids.min() < 0 or ids.max() >= types):  # those on meta have no values
        raise ValueError(f"{name} must be ids from 0 to {types - 1}, not {int(ids.min())} to {int(ids.max())}")


def check_vectors(name: str, vectors: Any, module: nn.Module, size: int | None = None) -> None:
    """Raise TypeError or ValueError unless these are vectors (B, T, size) of a module's dtype on its device."""
    if not isinstance(vectors, Tensor):
        raise TypeError(f"{name} must be a tensor (B, T, size), not {described(vectors)}")
    weight = next(module.parameters())
    if vectors.dtype != weight.dtype:
        raise TypeError(f"{name} must be of {weight.dtype}, not {vectors.dtype}")
    if vectors.ndim != 3 or not vectors.numel() or size not in (None, vectors.shape[2]):
        raise ValueError(f"{name} must be of shape (B, T, {size or 'size'}), not {tuple(vectors.shape)}")
    check_device(name, vectors, weight)


def check_device(name: str, tensor: Tensor, like: Tensor) -> None:
    """Raise ValueError unless both tensors are on one device."""
    if tensor.device != like.device:
        raise ValueError(f"{name} must be on {like.device}, as the model is, not on {tensor.device}")


def check_state(state: Any, start: Callable[[int], Any], rows: int, argument: str) -> None:
    """Raise TypeError or ValueError unless a state is like one of `start`, of the batch size that the `argument` has."""
    expected = start(rows)
    try:
        unflatten(expected, flatten(state))
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"state must be of this model and of {rows} rows, as {argument} is and as start({rows}) makes it: {error}"
        ) from None
    if type(state) is not type(expected):
        expected_type = with_article(type(expected).__name__)
        raise TypeError(f"state must be {expected_type}, as start({rows}) makes it, not {described(state)}")
    for name, tensor in flatten(expected).items():
        check_device(f"state.{name}", flatten(state)[name], tensor)
