"""Content-based addressing of an external memory: dense (eq. 2), localized (algorithm 1), or of a window alone.

What Lee et al. (2020) print as exp(CS^ks) is exp(ks CS) here, as in every neural Turing machine: a power of a cosine in [0, 1]
gives no slot of 1,024 more than 0.27% of the weights, and one of a negative cosine is not a number. `literal` is the printed
form with sign(CS) |CS|^ks.
"""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from backstory.config import UserError, check_name
from backstory.models.kernels.memory_passes import matches, outer, squared_lengths

EPSILON = 1e-6
"""Inside every root and, or another bound, under every sum that is divided by: no step makes NaN of finite numbers."""

TIE = 1e-5
"""Cosines so close are equal, but with `strict`: slots that are written alike differ by rounding, which is another for every
order of the sums."""

KINDS = ("dense", "localized", "literal", "window")
STRICT = ":strict"
"""Ends the name of an addressing whose windows are around the strict maximum."""


@dataclass(frozen=True)
class Addressing:
    """How weights over the slots come from cosines."""

    kind: str = "dense"
    """`dense`, `localized`, `literal`, or `window`: localized, and nothing but the content says where."""
    selected: int | None = None
    """Rows of a window, 2d + 1; none: all of the memory."""
    windows: int = 1
    """How many maxima have a window."""
    strict: bool = False
    """A window is around the first of the largest cosines, as algorithm 1 has it; else around the first within TIE of it."""

    def __str__(self) -> str:
        size = "" if self.selected is None else f":{self.selected}"
        windows = f"x{self.windows}" if self.windows > 1 else ""
        return f"{self.kind}{size}{windows}{STRICT * self.strict}"


def parse_addressing(text: str, slots: int) -> Addressing:
    """`dense`, `localized:257`, `localized:257x3`, `window:257`, `literal` or `literal:257`, of a memory of that many slots.

    With windows, `:strict` behind it (`localized:257:strict`) takes the strict maximum.
    Raises UserError for another, for an even number, and for more slots or windows than there can be.
    """
    name, colon, size = text.removesuffix(STRICT).partition(":")
    strict = text.endswith(STRICT)
    check_name(name, KINDS, "addressing")
    if not colon and not strict and name in ("dense", "literal"):
        return Addressing(name)
    found = re.fullmatch(r"([1-9]\d{0,8})(?:x([1-9]\d{0,2}))?", size)
    if name == "dense" or found is None:
        wanted = (
            "`dense` alone" if name == "dense" else f"`{name}:257`" + (", `localized:257x3`" * (name == "localized"))
        )
        raise UserError(f"addressing '{text}' is not understood; give {wanted}")
    selected, windows = int(found[1]), int(found[2] or 1)
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
    """What the heads look for."""

    vectors: Tensor
    """(B, H, M)"""
    strengths: Tensor
    """(B, H), at least 1."""
    masks: Tensor | None = None
    """(B, H, M) in (0, 1): what of a slot and of the key counts."""


def cosines(memory: Tensor, keys: Keys) -> Tensor:
    """Of every slot of memory (B, N, M) with every key: (B, H, N); 0 for a slot of zeros."""
    return _Cosines.apply(memory, keys.vectors, keys.masks)  # type: ignore[return-value]


def known_cosines(products: Tensor, vectors: Tensor, squares: Tensor) -> Tensor:
    """The same without gradients, from products (B, H, N) with keys (B, H, M) and the slots' squared lengths (B, N)."""
    return products * _per_lengths(squares.unsqueeze(1), vectors.square().sum(2, keepdim=True))


def _per_lengths(norms: Tensor, lengths: Tensor) -> Tensor:
    """1 / (|m| |k|) from the squares of both."""
    return ((norms + EPSILON) * (lengths + EPSILON)).rsqrt()


class _Cosines(torch.autograd.Function):
    """c = m.k / (|m| |k|), of masked ones m o z and k o z, with products of z^2: no copy of the memory for each head."""

    @staticmethod
    def forward(ctx: Any, memory, vectors, masks):  # type: ignore[override]
        if masks is None:
            looked, norms = vectors, torch.linalg.vector_norm(memory, dim=2).square_().unsqueeze(1)
        else:
            shares = masks.square()
            looked, norms = vectors * shares, squared_lengths(memory, shares)
        lengths = (looked * vectors).sum(2, keepdim=True)
        per = _per_lengths(norms, lengths)
        found = matches(memory, looked) * per
        ctx.save_for_backward(memory, vectors, masks, looked, norms, lengths, per, found)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_found):  # type: ignore[override]
        memory, vectors, masks, looked, norms, lengths, per, found = ctx.saved_tensors
        d_products, both = d_found * per, d_found * found
        of_rows, of_keys = both / (norms + EPSILON), both.sum(2, keepdim=True) / (lengths + EPSILON)
        d_looked, shorter = torch.bmm(d_products, memory), of_keys * vectors
        if masks is None:
            d_vectors, d_masks, of_numbers = d_looked - shorter, None, of_rows.sum(1).unsqueeze(2)
        else:
            shares = masks.square()
            d_vectors, of_numbers = shares * (d_looked - shorter), outer(of_rows, shares)
            d_masks = masks * (vectors * (2 * d_looked - shorter) - torch.bmm(of_rows, memory.square()))
        return outer(d_products, looked).addcmul_(memory, of_numbers, value=-1), d_vectors, d_masks


def content_weights(found: Tensor, strengths: Tensor, how: Addressing) -> Tensor:
    """Weights over the slots (B, H, N) from their cosines and the keys' strengths (B, H); each sums to one."""
    scores = strengths.unsqueeze(2) * found
    if how.kind == "literal":
        size = found.abs().clamp_min(EPSILON)
        scores = found.sign() * size.pow(strengths.unsqueeze(2))
    if how.selected is not None:
        scores = scores.masked_fill(~chosen(found, how), -torch.inf)
    return torch.softmax(scores, 2)


@torch.no_grad()
def chosen(found: Tensor, how: Addressing) -> Tensor:
    """Which slots (B, H, N) have a weight: those around the first maximum, or all where every cosine is negative.

    A further window is around the maximum of what no window holds yet, unless that is negative. Windows end where the memory
    does.
    """
    places = torch.arange(found.shape[2], device=found.device)
    inside = torch.zeros_like(found, dtype=torch.bool)
    left, tie, reach = found, 0.0 if how.strict else TIE, (how.selected or 1) // 2
    for _ in range(how.windows):
        best = left.amax(2, keepdim=True)
        # The first of equal ones, on every device and in every batch.
        centre = torch.where(left >= best - tie, places, len(places)).amin(2, keepdim=True)
        inside |= ((places - centre).abs() <= reach) & (best >= 0)
        left = found.masked_fill(inside, -torch.inf)
    return inside | ~inside.any(2, keepdim=True)
