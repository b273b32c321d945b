"""The matrix products of a training step alone, which every step of a model needs.

Every layer y = x W^T takes three products over the positions of a segment: y itself, and the gradients d_x = d_y W and
d_W = d_y^T x. Where an input is the state of the step before, the products for y and d_x follow one another, step by step; that
of d_x is not needed for the state before the segment. A sampled softmax multiplies with the words that take part.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from backstory.config import DualConfig, LSTMConfig, MixtureConfig, ModelConfig, NoBufferConfig, RunConfig
from backstory.models import Precision
from backstory.models.kernels.packed import PackedLinear, packs
from backstory.models.sampled_softmax import word_count

Run = Callable[[], object]
TRIALS = 2
"""Timings of each form of a product; the least counts, after one that is not timed."""


class Product(NamedTuple):
    """(rows, inner) times (inner, columns), so many times with the same second factor."""

    rows: int
    inner: int
    columns: int
    times: int = 1


def step_products(config: RunConfig, targets: Tensor, types: int) -> list[Product] | None:
    """Return the products of a step on a segment with these targets (B, T), of V = `types` words.

    None for a core that is no LSTM, and for a model with a buffer: their products are not listed here.
    """
    model = config.model
    if not isinstance(model.core, LSTMConfig) or not isinstance(model.buffer, NoBufferConfig):
        return None
    parts = targets.tensor_split(min(config.training.accumulate, len(targets)))
    return [
        product for part in parts for product in (*_core(model.core, model, *part.shape), *_output(model, part, types))
    ]


def _core(core: LSTMConfig, model: ModelConfig, batch: int, steps: int) -> Iterator[Product]:
    last = model.core_output or core.hidden
    for inputs, units in pairwise([model.embedding.size, *[core.hidden] * (core.layers - 1), last]):
        yield from _layer(batch * steps, inputs, 4 * units)
        yield Product(batch, units, 4 * units, steps)
        if steps > 1:
            yield Product(batch, 4 * units, units, steps - 1)
        yield Product(4 * units, batch * steps, units)


def _output(model: ModelConfig, targets: Tensor, types: int) -> Iterator[Product]:
    """Yield the products from the core's output to the words."""
    assert isinstance(model.core, LSTMConfig)
    head, positions, words = model.head, targets.numel(), types
    size = model.core_output or model.core.hidden
    if isinstance(model.dual, DualConfig):
        units = model.dual.size or model.embedding.size
        yield from _layer(positions, size, units)
        if model.dual.direct:
            yield from _layer(positions, model.embedding.size, units)
        size = units
    if head.sampled:
        words = word_count(targets, types, head.frequent, head.sampled)
    if isinstance(head, MixtureConfig):
        yield from _layer(positions, size, head.experts * model.embedding.size)
        yield from _layer(positions, size, head.experts)
        positions, size = positions * head.experts, model.embedding.size
    yield from _layer(positions, size, words)


def _layer(positions: int, inputs: int, outputs: int) -> Iterator[Product]:
    """Yield the products of a layer that reads all positions at once, and of its gradients."""
    yield Product(positions, inputs, outputs)
    yield Product(positions, outputs, inputs)
    yield Product(outputs, positions, inputs)


def fastest_run(products: list[Product], device: torch.device, precision: Precision) -> Callable[[], None]:
    """Return a run of the products, each in the fastest of its forms on the present number of threads.

    A form is torch's product, or on a CPU oneDNN's, with weights that it packs at every run, which counts. Both factors have
    the layout that suits the form. Matrices of one size share their memory, factors apart from results.
    """
    factors, results = (_Memory(precision.dtype, device) for _ in range(2))
    runs = [_fastest(product, factors, results) for product in products]

    def run() -> None:
        with torch.no_grad():
            for one in runs:
                one()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


class _Memory(dict[int, Tensor]):
    """Matrices that are not all zeros, by the number of their elements."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device

    def __missing__(self, size: int) -> Tensor:
        self[size] = torch.randn(size, device=self.device).mul_(0.05).to(self.dtype)
        return self[size]

    def matrix(self, rows: int, columns: int) -> Tensor:
        return self[rows * columns].view(rows, columns)


def _fastest(product: Product, factors: _Memory, results: _Memory) -> Run:
    rows, inner, columns, times = product
    a, b = factors.matrix(rows, inner), factors.matrix(columns, inner)
    forms: list[Run] = [partial(plain, a, b, results.matrix(rows, columns), times)]
    if a.device.type == "cpu" and packs(a.dtype):
        forms.append(partial(packed, a, b, times))
    return min(forms, key=_seconds) if len(forms) > 1 else forms[0]


def plain(a: Tensor, b: Tensor, result: Tensor, times: int) -> None:
    """Compute a (m, k) times b^T, b (n, k), so many times."""
    for _ in range(times):
        torch.mm(a, b.t(), out=result)


def packed(a: Tensor, b: Tensor, times: int) -> None:
    """Compute the same by oneDNN, with b packed once."""
    product = PackedLinear(b, len(a))
    for _ in range(times):
        product(a)


def _seconds(run: Run) -> float:
    """Return the least processor time of a run."""
    run()
    seconds = []
    for _ in range(TRIALS):
        began = time.process_time()
        run()
        seconds.append(time.process_time() - began)
    return min(seconds)
