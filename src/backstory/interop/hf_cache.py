"""The cache of a Hugging Face model as an explicit state: a dictionary of tensors by dotted path.

The parts of a cache differ from model to model. They are learned from three caches: one of more rows and one of more tokens
than the first.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Path = tuple[str, ...]


@dataclass(frozen=True)
class CacheLeaf:
    """Tensor or number of a cache that reading changes."""

    kind: type
    """Tensor, or the type of a number."""
    shape: tuple[int, ...]
    """Shape for one row at the start: dimensions that grow with the text are 0."""
    dtype: torch.dtype
    rows: int | None
    """Dimension of the rows; None for values that all rows share, of which every row carries a copy."""


@dataclass(frozen=True)
class Layout:
    """Structure of a model's caches, by which they are taken apart and put together."""

    skeleton: Any
    """A cache, of which only the parts are used that reading never changes."""
    leaves: dict[Path, CacheLeaf]
    grows: bool
    """True if the state grows with the text."""

    @staticmethod
    def learn(cached: Callable[[int, int], Any]) -> "Layout | None":
        """Learn the structure from `cached(rows, tokens)`; return None for caches that cannot be followed."""
        shapes = (2, 2), (3, 2), (2, 5)
        skeleton = cached(*shapes[0])
        caches = [dict(_leaves(c)) for c in (skeleton, cached(*shapes[1]), cached(*shapes[2]))]
        if not caches[0] or not caches[0].keys() == caches[1].keys() == caches[2].keys():
            return None
        leaves, grows = {}, False
        for path, (one, more, longer) in ((path, [c[path] for c in caches]) for path in caches[0]):
            if not isinstance(one, Tensor):
                if one != more or one != longer:
                    leaves[path] = CacheLeaf(
                        type(one), (), torch.int64 if isinstance(one, int) else torch.float64, None
                    )
                continue
            if (
                not isinstance(more, Tensor)
                or not isinstance(longer, Tensor)
                or len({one.dim(), more.dim(), longer.dim()}) > 1
            ):
                return None
            rows = _differing(one, more)
            times = _differing(one, longer)
            if len(rows) > 1 or set(rows) & set(times):
                return None
            shape = [0 if d in times else size for d, size in enumerate(one.shape) if d not in rows]
            leaves[path] = CacheLeaf(Tensor, tuple(shape), one.dtype, rows[0] if rows else None)
            grows |= bool(times)
        return Layout(skeleton, leaves, grows)

    def start(self, rows: int, device: torch.device) -> dict[str, Tensor]:
        """Return an empty state for this number of rows."""
        return {
            ".".join(path): torch.zeros((rows, *leaf.shape), dtype=leaf.dtype, device=device)
            for path, leaf in self.leaves.items()
        }

    def state_of(self, cache: Any, rows: int, device: torch.device) -> dict[str, Tensor]:
        """Return the state in a cache; rows come first, and precision is never less than at the start."""
        values, state = dict(_leaves(cache)), {}
        for path, leaf in self.leaves.items():
            value = values[path]
            if leaf.rows is None:
                shared = torch.as_tensor(value, dtype=leaf.dtype, device=device)
                state[".".join(path)] = shared.expand(rows, *shared.shape)
            else:
                state[".".join(path)] = value.movedim(leaf.rows, 0).to(torch.promote_types(value.dtype, leaf.dtype))
        return state

    def cache_of(self, state: dict[str, Tensor]) -> Any:
        """Return a cache with a state; it shares no memory with it, as models write into their caches."""

        def build(node: Any, path: Path) -> Any:
            leaf = self.leaves.get(path)
            if leaf is not None:
                value = state[".".join(path)]
                if leaf.rows is not None:
                    return value.movedim(0, leaf.rows).clone()
                return value[0].clone() if leaf.kind is Tensor else leaf.kind(value[0].item())
            if isinstance(node, dict):
                return {key: build(value, (*path, str(key))) for key, value in node.items()}
            if isinstance(node, tuple | list):
                values = [build(value, (*path, str(i))) for i, value in enumerate(node)]
                return type(node)(*values) if hasattr(node, "_fields") else type(node)(values)
            if _is_part(node):
                part = copy.copy(node)
                for key, value in vars(node).items():
                    object.__setattr__(part, key, build(value, (*path, key)))
                return part
            return node

        return build(self.skeleton, ())


def _leaves(node: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the tensors and numbers of a cache by their path."""
    if isinstance(node, Tensor | int | float):
        yield path, node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, (*path, str(key)))
    elif isinstance(node, tuple | list):
        for i, value in enumerate(node):
            yield from _leaves(value, (*path, str(i)))
    elif _is_part(node):
        yield from _leaves(vars(node), path)


def _is_part(node: Any) -> bool:
    """Return True for a part of a cache; settings and classes are none."""
    from transformers import PreTrainedConfig

    ours = type(node).__module__.startswith("transformers.")
    return ours and hasattr(node, "__dict__") and not isinstance(node, PreTrainedConfig | type | torch.nn.Module)


def _differing(one: Tensor, other: Tensor) -> list[int]:
    return [d for d, sizes in enumerate(zip(one.shape, other.shape, strict=True)) if sizes[0] != sizes[1]]
