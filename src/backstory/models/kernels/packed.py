"""Many products with one matrix and few rows each: oneDNN packs the matrix once, and each product takes it as it is packed."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

PAYS_FROM = 20
"""Products from which packing pays. To pack a transposed matrix takes as long as 18 products with 20 rows save."""


class PackedLinear:
    """Products with one matrix (n, k) on the CPU. `rows` is how many rows a product is expected to have."""

    def __init__(self, weight: Tensor, rows: int) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, rows)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x weight^T, for x (m, k)."""
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, None, "none", [], "")

    def plus(self, x: Tensor, added: Tensor) -> Tensor:
        """Return x weight^T + added, for added (m, n), rounded once."""
        return torch.ops.mkldnn._linear_pointwise.binary(x, added, self._weight, None, "add")


@cache
def packs(dtype: torch.dtype) -> bool:
    """Return True if this build of torch packs matrices of this dtype."""
    numbers = torch.ones(2, 2, dtype=dtype)
    try:
        PackedLinear(numbers, 2).plus(PackedLinear(numbers, 2)(numbers), numbers)
    except (AttributeError, RuntimeError):
        return False
    return True


def many_linear(weight: Tensor, rows: int, times: int) -> Callable[[Tensor], Tensor]:
    """Return x -> x weight^T for x (rows, k), to be called about so many times."""
    return PackedLinear(weight, rows) if _pays(weight, times) else lambda x: torch.mm(x, weight.t())


def many_linear_plus(weight: Tensor, rows: int, times: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return x, added -> x weight^T + added for x (rows, k) and added (rows, n), to be called about so many times."""
    if _pays(weight, times):
        return PackedLinear(weight, rows).plus
    return lambda x, added: torch.addmm(added, x, weight.t())


def _pays(weight: Tensor, times: int) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and times >= PAYS_FROM and packs(weight.dtype)
