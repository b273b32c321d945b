"""Gradients of matrices in factors: over a segment of K tokens, left^T right with left (K, m) and right (K, n).

Dynamic evaluation moves the weights after every few tokens. A gradient that is written out and read again costs more there than
its two factors, from which an update multiplies it out piece by piece while the piece is in the core's own cache.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class FactoredGradient:
    """The gradient of a matrix (m, n): products left^T right, rows that are added at their numbers, and what is left whole."""

    def __init__(self, matrix: Tensor) -> None:
        self._shape, self._dtype = matrix.shape, matrix.dtype
        self._products: list[tuple[Tensor, Tensor]] = []
        self._rows: list[tuple[int, Tensor]] = []
        self.rest: Tensor | None = None
        """(m, n), or None: the gradient by uses of the matrix that leave no factors."""

    def add_product(self, left: Tensor, right: Tensor) -> None:
        """Add left^T right, of left (K, m) and right (K, n)."""
        # Left as (m, K): rows that adjoin are multiplied faster. Right without the graph of the activations that it may be,
        # which holds this collector: neither would ever be freed.
        self._products.append((left.t().contiguous(), right.detach()))

    def add_rows(self, numbers: Tensor, rows: Tensor) -> None:
        """Add rows (K, n) to the rows with these numbers (K,)."""
        self._rows += zip(numbers.tolist(), rows, strict=True)

    def write(self, first: int, out: Tensor) -> None:
        """Write the rows from `first` on, as many as `out` (rows, n) has."""
        last = first + len(out)
        if not self._products:
            out.zero_()
        for number, (left, right) in enumerate(self._products):
            torch.addmm(out, left[first:last], right, beta=min(number, 1), out=out)
        for number, row in self._rows:
            if first <= number < last:
                out[number - first] += row
        if self.rest is not None:
            out += self.rest[first:last]

    def factors(self) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Return left^T (m, K) and right (K, n) of all products as one; the numbers (R,) of rows, rising, and these (R, n)."""
        left = right = numbers = rows = None
        if self._products:
            lefts, rights = zip(*self._products, strict=True)
            left, right = (
                (lefts[0], rights[0].contiguous()) if len(lefts) == 1 else (torch.cat(lefts, 1), torch.cat(rights))
            )
        if self._rows:
            ordered = sorted(self._rows, key=lambda row: row[0])
            numbers, rows = torch.tensor([number for number, _ in ordered]), torch.stack([row for _, row in ordered])
        return left, right, numbers, rows

    def whole(self) -> Tensor:
        """Return the gradient (m, n)."""
        gradient = torch.empty(self._shape, dtype=self._dtype)
        self.write(0, gradient)
        return gradient


AnyGradient = Tensor | FactoredGradient | None
"""A gradient, whole or in factors; None if the loss does not depend on the weights."""


def whole(gradient: AnyGradient) -> Tensor | None:
    """Return a gradient as a tensor."""
    return gradient.whole() if isinstance(gradient, FactoredGradient) else gradient


Key = tuple[int, torch.Size, tuple[int, ...]]


class FactoredGradients:
    """Factors that a backward pass leaves for some matrices in place of their gradients."""

    def __init__(self, matrices: Iterable[Tensor]) -> None:
        self._gradients: dict[Key, FactoredGradient] = {}
        self._known = {_key(matrix) for matrix in matrices}

    def takes(self, matrix: Tensor) -> bool:
        """Return True for one of the matrices itself, False for what was computed from it."""
        return _key(matrix) in self._known

    def of(self, matrix: Tensor) -> FactoredGradient | None:
        """Return the gradient of a matrix; None if none was left."""
        return self._gradients.get(_key(matrix))

    def begin(self, matrix: Tensor) -> FactoredGradient:
        """Return the gradient of a matrix, to add to."""
        return self._gradients.setdefault(_key(matrix), FactoredGradient(matrix))


def _key(matrix: Tensor) -> Key:
    return matrix.data_ptr(), matrix.shape, matrix.stride()


_collector: ContextVar[FactoredGradients | None] = ContextVar("collector of factored gradients", default=None)


@contextmanager
def factoring(gradients: FactoredGradients | None) -> Iterator[None]:
    """Leave the gradients of a forward pass in the block in factors, where a kernel can and its matrix is taken."""
    token = _collector.set(gradients)
    try:
        yield
    finally:
        _collector.reset(token)


def collector() -> FactoredGradients | None:
    """Return where a forward pass is to leave its factors; None if gradients are to be whole."""
    return _collector.get()


def matrix_gradient(gradients: FactoredGradients | None, matrix: Tensor, left: Tensor, right: Tensor) -> Tensor | None:
    """Return left^T right, the gradient of a matrix (m, n); None if `gradients` takes it in factors."""
    if gradients is None or not gradients.takes(matrix):
        return torch.mm(left.t(), right)
    gradients.begin(matrix).add_product(left, right)
    return None


def embedding(tokens: Tensor, weight: Tensor) -> Tensor:
    """Return the rows of weight (V, E) at tokens (B, T): (B, T, E)."""
    gradients = collector()
    if gradients is None or not gradients.takes(weight):
        return F.embedding(tokens, weight)
    return _FactoredEmbedding.apply(tokens, weight, gradients)


class _FactoredEmbedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tokens, weight, gradients):  # type: ignore[override]
        ctx.save_for_backward(tokens, weight)
        ctx.gradients = gradients
        return F.embedding(tokens, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_output):  # type: ignore[override]
        tokens, weight = ctx.saved_tensors
        if ctx.needs_input_grad[1]:
            ctx.gradients.begin(weight).add_rows(tokens.flatten(), d_output.flatten(0, 1))
        return None, None, None
