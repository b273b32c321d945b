"""Many products with one matrix and few rows each: oneDNN packs the matrix once, and each product takes it as it is packed."""

from functools import cache

import torch
from torch import Tensor

PAYS_FROM = 20
"""Products from which packing pays. To pack a transposed matrix takes as long as 18 products with 20 rows save."""


class Linear:
    """Products with one matrix (n, k)."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight.t()

    def __call__(self, x: Tensor) -> Tensor:
        """Return x weight^T, for x (m, k)."""
        return torch.mm(x, self._weight)

    def plus(self, x: Tensor, added: Tensor) -> Tensor:
        """Return x weight^T + added, for added (m, n), rounded once."""
        return torch.addmm(added, x, self._weight)


class PackedLinear(Linear):
    """The same on the CPU with a packed matrix. `rows` is how many rows a product is expected to have."""

    def __init__(self, weight: Tensor, rows: int) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, rows)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, None, "none", [], "")

    def plus(self, x: Tensor, added: Tensor) -> Tensor:
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


def many_linear(weight: Tensor, rows: int, times: int) -> Linear:
    """Return the products with a matrix that are fastest for about so many, each of so many rows."""
    on_cpu = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
    return PackedLinear(weight, rows) if on_cpu and times >= PAYS_FROM and packs(weight.dtype) else Linear(weight)
