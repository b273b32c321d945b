"""Content-based addressing of an external memory (Lee et al. 2020): dense (eq. 2), localized (algorithm 1), or a window alone.

The paper prints exp(CS^ks). Here it is exp(ks CS), as in every neural Turing machine: a power of a cosine in [0, 1] gives no
slot of 1,024 more than 0.27% of the weights, and a power of a negative cosine is not a number. `literal` is the printed form
with sign(CS) |CS|^ks.
"""

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from backstory.utils.errors import UserError, check_name

EPSILON = 1e-6
"""Added inside every root, and a lower bound of every divisor: no step makes NaN of finite numbers."""

TIE = 1e-5
"""Cosines this close count as equal, unless `strict`: rounding depends on the order of sums, so equal slots differ by it."""

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


def located(content: Tensor, before: Tensor, gate: Tensor, shift: Tensor, sharpness: Tensor) -> Tensor:
    """Location addressing (eqs. 3 to 5) of weights (B, H, N): gate and sharpness (B, H, 1), shift (B, H, 3) by -1, 0, 1."""
    mixed = before + gate * (content - before)
    left, stay, right = shift.split(1, 2)
    moved = left * mixed.roll(-1, 2) + stay * mixed + right * mixed.roll(1, 2)
    return sharpened(moved, sharpness)


def sharpened(weights: Tensor, power: Tensor) -> Tensor:
    """Weights (B, H, N) to a power (B, H, 1) of at least 1, normalised again; zeros stay zeros.

    If all weights are so small that the powers of weight / EPSILON sum to less than 1, they are not normalised: they fade.
    """
    return _Sharpened.apply(weights, power)  # type: ignore[return-value]


class _Sharpened(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights, power):  # type: ignore[override]
        # Powers of shares of the largest: nothing underflows, and a factor common to all slots has no gradient.
        largest = weights.amax(2, keepdim=True).clamp_min_(EPSILON)
        shares = (weights / largest).clamp_min_(0)
        powers = shares.pow(power)
        # At least 1 unless the largest was raised to EPSILON. A second bound would multiply the slopes of the first.
        total = powers.sum(2, keepdim=True)
        output = powers / total.clamp_min(1)
        ctx.save_for_backward(shares, power, output, largest, total)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output):  # type: ignore[override]
        shares, power, output, largest, total = ctx.saved_tensors
        # Weights that fade were divided by 1, which has no gradient.
        d_powers = d_output - (d_output * output).sum(2, keepdim=True) * (total >= 1)
        d_power = (d_powers * torch.xlogy(output, shares)).sum(2, keepdim=True)
        return d_powers.mul_(shares.pow(power - 1)).mul_(power / (largest * total.clamp_min(1))), d_power


def allocation_weights(usage: Tensor) -> Tensor:
    """Return allocation weights (B, N) from usage: (1 - u) times the product of the usage of all slots that are freer."""
    return _AllocationWeights.apply(usage)  # type: ignore[return-value]


class _AllocationWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, usage):  # type: ignore[override]
        ranked, order = usage.sort(dim=1, stable=True)
        ranked = ranked.mul_(1 - EPSILON).add_(EPSILON)
        freer = torch.ones_like(ranked)
        torch.cumprod(ranked[:, :-1], 1, out=freer[:, 1:])
        ctx.save_for_backward(ranked, order, freer)
        return torch.empty_like(usage).scatter_(1, order, (1 - ranked) * freer)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_weights):  # type: ignore[override]
        ranked, order, freer = ctx.saved_tensors
        d_ranked = d_weights.gather(1, order).mul_(freer)
        # Each usage is a factor of all products after it: sums from the end.
        factors = (d_ranked * (1 - ranked)).flip(1).cumsum(1).flip(1)
        d_ranked[:, :-1] -= factors[:, 1:] / ranked[:, :-1]
        return torch.empty_like(ranked).scatter_(1, order, d_ranked).mul_(EPSILON - 1)
