"""Tokens per second of the readers, relative to the static one in the same run.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/reading.py [--blocks 10] [--sizes S P] [--readers static cache-2000]

They read one row of random words, 256 at a time (or in the blocks of a reader that learns between blocks). Weights are
untrained, which does not affect the time. Caches are full. The readers take turns block by block, so that other load on
the machine affects all equally, and on a CPU processor time is counted instead of waiting. The table gives medians and
their ratio to the first reader's; with --out it is also written as JSON.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from figures import write
from torch import Tensor

from backstory.config import recipes
from backstory.config.readers import CacheSettings, DynamicSettings, GateSettings
from backstory.models import (
    ComposedModel,
    Precision,
    Prediction,
    build_model,
    choose_device,
    choose_precision,
)
from backstory.readers import Reader, StaticReader
from backstory.readers.dynamic import DynamicEvaluation
from backstory.readers.gradient_statistics import Collected, Statistics
from backstory.readers.learned import GateNetwork, Learned, LearnedReader
from backstory.readers.neural_cache import NeuralCache

SIZES = {"S": "ptb-small", "P": "ptb-awd-lstm"}
"""Recipes of the models: 2 layers of 200 units, and 2 of 1,150 and one of 400."""
TYPES = 10_000


def static(model: ComposedModel, precision: Precision) -> StaticReader:
    reader = StaticReader(model, precision)
    reader.start(1)
    return reader


def full_cache(model: ComposedModel, precision: Precision, window: int) -> NeuralCache:
    """A reader whose window is full of random vectors."""
    reader = NeuralCache(StaticReader(model, precision), CacheSettings(window))
    reader.start(1)
    words, device = torch.randint(TYPES, (1, window)), next(model.parameters()).device
    reader._pairs.offer(0.1 * torch.randn(1, window, model.head_size, device=device), words.to(device))
    reader._pairs.keep(words.to(device))
    return reader


def gradient_sizes(model: ComposedModel) -> Statistics:
    """Statistics of about the size of a trained model's."""
    squares = {name: torch.rand_like(p) * 1e-8 for name, p in model.named_parameters()}
    return Statistics(squares, squares, Collected("", "all", "", 100, 5, 1, 500, "float32"))


def dynamic(model: ComposedModel, precision: Precision, segment: int) -> DynamicEvaluation:
    reader = DynamicEvaluation(model, DynamicSettings(segment=segment), gradient_sizes(model), precision)
    reader.start(1)
    return reader


def learned(model: ComposedModel, precision: Precision, segment: int) -> LearnedReader:
    network = GateNetwork(GateSettings(), len(list(model.parameters()))).to(next(model.parameters()).device)
    trained = Learned(network.requires_grad_(False), DynamicSettings(segment=segment), (-1.0, 2.0), {})
    reader = LearnedReader(model, trained, gradient_sizes(model), precision)
    reader.start(1)
    return reader


@dataclass(frozen=True)
class Table(Prediction):
    """Log-probabilities (B, T, V) that are computed already."""

    table: Tensor

    def log_probs(self) -> Tensor:
        return self.table

    def log_prob(self, targets: Tensor) -> Tensor:
        return self.table.gather(2, targets[..., None])[..., 0]

    def select(self, rows: Tensor, times: Tensor) -> Prediction:
        return Table(None, self.table[rows, times][:, None])


class PlainLoop(Reader):
    """Dynamic evaluation as usually written: torch.nn's layers, one loss to score and learn, a loop over parameters."""

    def __init__(self, model: ComposedModel, precision: Precision, segment: int) -> None:
        self.model, self.precision, self.block = model, precision, segment
        sizes = [(w.weight_ih.shape[1], w.weight_hh.shape[1]) for w in model.core.layers]  # type: ignore
        self.layers = torch.nn.ModuleList(torch.nn.LSTM(a, b, batch_first=True) for a, b in sizes)
        self.table = torch.nn.Embedding(TYPES, model.embedding.weight.shape[1])
        self.bias = torch.nn.Parameter(torch.zeros(TYPES))
        self.parts = torch.nn.ModuleList([self.layers, self.table]).to(model.embedding.weight.device)
        self.parameters = [*self.parts.parameters(), self.bias]
        self.still = [p.detach().clone() for p in self.parameters]
        self.rms = [1e-4 * torch.rand_like(p) for p in self.parameters]
        mean = sum(r.sum() for r in self.rms) / sum(r.numel() for r in self.rms)
        self.pull = [(r / mean).clamp(max=1e3) for r in self.rms]
        self.state: list[Any] = [None] * len(self.layers)

    def start(self, batch_size: int) -> None:
        self.state = [None] * len(self.layers)

    @torch.enable_grad()
    def predict(self, tokens: Tensor) -> Table:
        hidden = self.table(tokens)
        for i, layer in enumerate(self.layers):
            hidden, state = layer(hidden, self.state[i])
            self.state[i] = tuple(s.detach() for s in state)
        logits = torch.nn.functional.linear(hidden, self.table.weight, self.bias)
        self.log_probs = torch.log_softmax(logits, -1)
        return Table(None, self.log_probs.detach())

    @torch.enable_grad()
    def observe(self, targets: Tensor) -> None:
        for p in self.parameters:
            p.grad = None
        torch.nn.functional.nll_loss(self.log_probs[0], targets[0]).backward()
        for p, still, rms, pull in zip(self.parameters, self.still, self.rms, self.pull, strict=True):
            assert p.grad is not None
            p.data += 1e-3 * pull * (still - p.data) - 1e-4 * p.grad / (rms + 1e-4)

    def snapshot(self) -> None: ...

    def restore(self, snapshot: None) -> None: ...


plain = PlainLoop

READERS: dict[str, Callable[[ComposedModel, Precision], Reader]] = {
    "static": static,
    **{f"cache-{window}": partial(full_cache, window=window) for window in (500, 2000, 10_000, 50_000)},
    **{
        f"{name}-{segment}": partial(made, segment=segment)
        for segment in (5, 20)
        for name, made in (("plain", plain), ("dynamic", dynamic), ("learned", learned))
    },
}
"""Constructors of the readers, started and filled so that the next block is typical."""


def read_block(reader: Reader, text: Tensor) -> float:
    """Seconds that the reader takes for a block of text (1, T + 1), scored and observed."""
    clock = time.perf_counter if text.is_cuda else time.process_time
    if text.is_cuda:
        torch.cuda.synchronize()
    began = clock()
    prediction = reader.predict(text[:, :-1])
    with reader.precision.context(text.device):
        prediction.log_prob(text[:, 1:]).sum().item()
    reader.observe(text[:, 1:])
    if text.is_cuda:
        torch.cuda.synchronize()
    return clock() - began


@torch.no_grad()
def compare(recipe: str, names: list[str], blocks: int, on: str, precision: str, warm_up: int = 2) -> dict[str, float]:
    """Median tokens per second of each reader, taking turns."""
    device = choose_device(on)
    model = build_model(recipes.load(recipe).model, TYPES).to(device).eval()
    readers = {name: READERS[name](model, choose_precision(precision, device)) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warm_up + blocks):
        for name, reader in readers.items():
            text = torch.randint(TYPES, (1, reader.block + 1), device=device)
            seconds = read_block(reader, text)
            if turn >= warm_up:
                times[name].append(seconds / reader.block)
    return {name: 1 / statistics.median(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--readers", nargs="+", choices=READERS, default=list(READERS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="float32")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    print(f"{'size':<5} {'reader':<14} {'tokens/s':>10}   {'time against ' + given.readers[0]}", flush=True)
    rows = {}
    for size in given.sizes:
        rows[size] = found = compare(SIZES[size], given.readers, given.blocks, given.device, given.precision)
        for name, speed in found.items():
            print(f"{size:<5} {name:<14} {speed:>10,.0f}   {found[given.readers[0]] / speed:.2f}", flush=True)
    if given.out:
        write(given.out, "reading", given.device, rows=rows)


if __name__ == "__main__":
    main()
