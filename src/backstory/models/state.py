"""A model's state as an explicit tree of tensors: detach, move, copy, flatten to names and back."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from backstory.config.arguments import diagnosed
from backstory.config.renamed import STATES

State = Any
"""Named tuples, tuples, lists or dictionaries of tensors and of further such trees; None where there is no state."""

S = TypeVar("S")


@diagnosed()
def map_state(function: Callable[[Tensor], Tensor], state: S) -> S:
    """The same tree with `function` applied to each tensor."""

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
    """The state cut off from the graph that made it (between segments)."""
    return map_state(Tensor.detach, state)


def to(state: S, device: torch.device | str) -> S:
    """The state on another device."""
    return map_state(lambda t: t.to(device), state)


def clone(state: S) -> S:
    """A copy that shares no memory with the state."""
    return map_state(lambda t: t.detach().clone(), state)


def flatten(state: State) -> dict[str, Tensor]:
    """Tensors by dotted path, such as `hidden.0`, as a checkpoint stores them."""
    found: dict[str, Tensor] = {}

    def walk(node: Any, path: str) -> None:
        if isinstance(node, Tensor):
            found[path] = node
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
    return found


def _current_name(name: str) -> str:
    first, dot, rest = name.partition(".")
    return f"{STATES.get(first, first)}{dot}{rest}"


@diagnosed()
def unflatten(template: S, tensors: Mapping[str, Tensor]) -> S:
    """Rebuild a state shaped like `template` (from `start`) out of `flatten`'s dictionary.

    Raises ValueError when names, shapes or types differ from the template's; but what has size 0 there may have grown.
    """
    expected = flatten(template)
    if expected.keys() != tensors.keys():
        tensors = {_current_name(name): tensor for name, tensor in tensors.items()}
    if expected.keys() != tensors.keys():
        raise ValueError(f"state holds {sorted(tensors)}, the model expects {sorted(expected)}")
    for name, tensor in expected.items():
        found, wanted = tuple(tensors[name].shape), tuple(tensor.shape)
        fits = len(found) == len(wanted) and all(size in (n, 0) for n, size in zip(found, wanted, strict=True))
        if not fits or tensors[name].dtype != tensor.dtype:
            raise ValueError(f"state '{name}' is {found}, the model expects {wanted}")
    queue = iter(expected)
    return map_state(lambda t: tensors[next(queue)].to(t.device), template)
