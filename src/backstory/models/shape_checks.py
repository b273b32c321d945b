"""What was wrong with what a model, a core, a head or a prediction was given: asked only once torch has failed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from backstory.config.arguments import described
from backstory.models.state import flatten, unflatten


def check_ids(name: str, ids: Any, types: int, beside: Tensor, shape: tuple[int, ...] | None = None) -> None:
    """Raise TypeError or ValueError unless these are ids (B, T), or of a shape, below a number of types, on one's device."""
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        found = ids.dtype if isinstance(ids, Tensor) else described(ids)
        raise TypeError(f"{name} must be a tensor of whole numbers, not {found}")
    if ids.ndim != 2 if shape is None else tuple(ids.shape) != shape:
        wanted = "(B, T)" if shape is None else str(shape)
        raise ValueError(f"{name} must be of shape {wanted}, not {tuple(ids.shape)}")
    if not ids.numel():
        raise ValueError(f"{name} must hold one token at least, not none")
    check_device(name, ids, beside)
    if ids.min() < 0 or ids.max() >= types:
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


def check_device(name: str, tensor: Tensor, of: Tensor) -> None:
    """Raise ValueError unless both tensors are on one device."""
    if tensor.device != of.device:
        raise ValueError(f"{name} must be on {of.device}, as the model is, not on {tensor.device}")


def check_state(state: Any, start: Callable[[int], Any], rows: int, beside: str) -> None:
    """Raise TypeError or ValueError unless a state is one that `start` begins, of as many rows as the argument `beside` has."""
    begun = start(rows)
    try:
        unflatten(begun, flatten(state))
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"state must be of this model and of {rows} rows, as {beside} is and as start({rows}) makes it: {error}"
        ) from None
    if type(state) is not type(begun):
        raise TypeError(f"state must be a {type(begun).__name__}, as start({rows}) makes it, not {described(state)}")
    for name, tensor in flatten(begun).items():
        check_device(f"state.{name}", flatten(state)[name], tensor)
