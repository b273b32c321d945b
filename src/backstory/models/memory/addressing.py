"""Content-based addressing of an external memory (Lee et al. 2020): dense (eq. 2), localized (algorithm 1), or a window alone.

The paper prints exp(CS^ks). Here it is exp(ks CS), as in every neural Turing machine: a power of a cosine in [0, 1] gives no
slot of 1,024 more than 0.27% of the weights, and a power of a negative cosine is not a number. `literal` is the printed form
with sign(CS) |CS|^ks.
"""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from backstory.config import UserError, check_name
from backstory.models.kernels.memory_passes import key_products, outer, squared_lengths

EPSILON = 1e-6
"""Added inside every root, and a lower bound of every divisor: no step makes NaN of finite numbers."""

TIE = 1e-5
"""Cosines this close count as equal, unless `strict`. Equal slots differ by rounding, which depends on the order of sums."""

KINDS = ("dense", "localized", "literal", "window")
STRICT = ":strict"
"""Suffix of an addressing whose windows are around the strict maximum."""


@dataclass(frozen=True)
class Addressing:
    """The way from cosines to weights over the slots."""

    kind: str = "dense"
    """`dense`, `localized`, `literal`, or `window`: localized, with content alone."""
    selected: int | None = None
    """Slots of a window, 2d + 1; None: all of the memory."""
    windows: int = 1
    """Number of maxima that have a window."""
    strict: bool = False
    """A window is around the largest cosine, as in algorithm 1; otherwise around the first cosine within TIE of it."""

    def __str__(self) -> str:
        size = "" if self.selected is None else f":{self.selected}"
        windows = f"x{self.windows}" if self.windows > 1 else ""
        return f"{self.kind}{size}{windows}{STRICT * self.strict}"


def parse_addressing(text: str, slots: int) -> Addressing:
    """Parse `dense`, `localized:257`, `localized:257x3`, `window:257`, `literal` or `literal:257`, for a memory of so many
    slots.

    After a window, `:strict` (`localized:257:strict`) takes the strict maximum. Raises UserError for anything else, for an even
    number, and for more slots or windows than the memory can have.
    """
    name, colon, size = text.removesuffix(STRICT).partition(":")
    strict = text.endswith(STRICT)
    check_name(name, KINDS, "addressing")
    if not colon and not strict and name in ("dense", "literal"):
        return Addressing(name)
    match = re.fullmatch(r"([1-9]\d{0,8})(?:x([1-9]\d{0,2}))?", size)
    if name == "dense" or match is None:
        wanted = (
            "`dense` alone" if name == "dense" else f"`{name}:257`" + (", `localized:257x3`" * (name == "localized"))
        )
        raise UserError(f"addressing '{text}' is not understood; give {wanted}")
    selected, windows = int(match[1]), int(match[2] or 1)
    if selected % 2 == 0:
        raise UserError(
            f"addressing '{text}': a window is one slot and as many on both sides of it; give an odd number of slots"
        )
    if selected > slots:
        raise UserError(
            f"addressing '{text}' selects more slots than the {slots:,} of the memory; give at most {slots:,}"
        )
    if name != "localized" and windows > 1:
        raise UserError(f"addressing '{text}' has several windows, which `localized` alone has; give one window")
    if windows > (most := -(-slots // (selected // 2 + 1))):  # a window's middle is in no other
        raise UserError(
            f"addressing '{text}' has more windows than {slots:,} slots of memory can have of that size; give at most {most:,}"
        )
    return Addressing(name, selected, windows, strict)


class Keys(NamedTuple):
    """Keys of H heads."""

    vectors: Tensor
    """(B, H, M)"""
    strengths: Tensor
    """(B, H), at least 1."""
    masks: Tensor | None = None
    """(B, H, M) in (0, 1): the weight of each number of a slot and of the key."""


def cosines(memory: Tensor, keys: Keys) -> Tensor:
    """Return the cosines of every slot of memory (B, N, M) with every key: (B, H, N); 0 for a slot of zeros."""
    return _Cosines.apply(memory, keys.vectors, keys.masks)  # type: ignore[return-value]


def known_cosines(products: Tensor, vectors: Tensor, squares: Tensor) -> Tensor:
    """The same without gradients, from products (B, H, N) with keys (B, H, M) and the squared norms of the slots (B, N)."""
    return products * _inverse_norms(squares.unsqueeze(1), vectors.square().sum(2, keepdim=True))


def _inverse_norms(slot_squares: Tensor, key_squares: Tensor) -> Tensor:
    """1 / (|m| |k|) from the squares of both norms."""
    return ((slot_squares + EPSILON) * (key_squares + EPSILON)).rsqrt()


class _Cosines(torch.autograd.Function):
    """c = m.k / (|m| |k|), or of the masked m o z and k o z, with products of z^2: no copy of the memory for each head."""

    @staticmethod
    def forward(ctx: Any, memory, vectors, masks):  # type: ignore[override]
        if masks is None:
            keys, slot_squares = vectors, torch.linalg.vector_norm(memory, dim=2).square_().unsqueeze(1)
        else:
            shares = masks.square()
            keys, slot_squares = vectors * shares, squared_lengths(memory, shares)
        key_squares = (keys * vectors).sum(2, keepdim=True)
        inverse = _inverse_norms(slot_squares, key_squares)
        cosine = key_products(memory, keys) * inverse
        ctx.save_for_backward(memory, vectors, masks, keys, slot_squares, key_squares, inverse, cosine)
        return cosine

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_cosine):  # type: ignore[override]
        memory, vectors, masks, keys, slot_squares, key_squares, inverse, cosine = ctx.saved_tensors
        d_products, both = d_cosine * inverse, d_cosine * cosine
        of_slots, of_keys = both / (slot_squares + EPSILON), both.sum(2, keepdim=True) / (key_squares + EPSILON)
        d_keys, shorter = torch.bmm(d_products, memory), of_keys * vectors
        if masks is None:
            d_vectors, d_masks, of_numbers = d_keys - shorter, None, of_slots.sum(1).unsqueeze(2)
        else:
            shares = masks.square()
            d_vectors, of_numbers = shares * (d_keys - shorter), outer(of_slots, shares)
            d_masks = masks * (vectors * (2 * d_keys - shorter) - torch.bmm(of_slots, memory.square()))
        return outer(d_products, keys).addcmul_(memory, of_numbers, value=-1), d_vectors, d_masks


def content_weights(cosine: Tensor, strengths: Tensor, addressing: Addressing) -> Tensor:
    """softmax(ks CS) (eq. 2): weights (B, H, N) from cosines and the keys' strengths ks (B, H); each head's sum to one."""
    scores = strengths.unsqueeze(2) * cosine
    if addressing.kind == "literal":
        size = cosine.abs().clamp_min(EPSILON)
        scores = cosine.sign() * size.pow(strengths.unsqueeze(2))
    if addressing.selected is not None:
        scores = scores.masked_fill(~window_mask(cosine, addressing), -torch.inf)
    return torch.softmax(scores, 2)


@torch.no_grad()
def window_mask(cosine: Tensor, addressing: Addressing) -> Tensor:
    """Return which slots (B, H, N) have a weight (algorithm 1): those around the maximum, or all if every cosine is negative.

    A further window is around the maximum outside all windows before it, unless that is negative. Windows end at the ends of
    the memory.
    """
    index = torch.arange(cosine.shape[2], device=cosine.device)
    inside = torch.zeros_like(cosine, dtype=torch.bool)
    left, tie, reach = cosine, 0.0 if addressing.strict else TIE, (addressing.selected or 1) // 2
    for _ in range(addressing.windows):
        best = left.amax(2, keepdim=True)
        # The first of equal ones, on every device and in every batch.
        centre = torch.where(left >= best - tie, index, len(index)).amin(2, keepdim=True)
        inside |= ((index - centre).abs() <= reach) & (best >= 0)
        left = cosine.masked_fill(inside, -torch.inf)
    return inside | ~inside.any(2, keepdim=True)
