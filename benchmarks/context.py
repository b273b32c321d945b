"""Targets per second of the context laboratory's scorer, against the naive form in the same run.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/context.py [--turns 5] [--sizes S P] [--tokens 300]
    python benchmarks/context.py --device cuda

The naive form is what one writes first: torch.nn's layers, 50 contexts at a time in float32, and logits and their logarithms at
every position, of which the last is looked at. Ours scores 256 contexts, in float32 and in bfloat16. Contexts are random words,
and weights are as at the start, which takes the same time. The contenders take turns, so that whatever else the machine does
meets all alike, and on a CPU the processor's time is counted. The table gives medians; with --out it is also written as JSON.
With `--linear` it shows instead that the time grows with targets and with context, and no faster.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from backstory.config import recipes
from backstory.context import ReaderScorer
from backstory.models import ComposedModel, build_model, choose_device, choose_precision, device_name
from backstory.models.allocator import keep_freed_memory
from backstory.reading import StaticReader
from backstory.storage.provenance import commit, now, versions

SIZES = {"S": "ptb-small", "P": "ptb-awd-lstm"}
"""Recipes of the models: 2 layers of 200 units, and 2 of 1,150 and one of 400."""
TYPES, NAIVE_BATCH, CONTEXTS = 10_000, 50, 256
Contender = tuple[int, Callable[[], object]]
"""How many targets it scores at a time, and what does so."""


class Naive(nn.Module):
    """The model of a recipe in torch.nn's layers, with logits at every position."""

    def __init__(self, model: ComposedModel) -> None:
        super().__init__()
        sizes = [(w.weight_ih.shape[1], w.weight_hh.shape[1]) for w in model.core.layers]  # type: ignore
        self.table = nn.Embedding(TYPES, sizes[0][0])
        self.layers = nn.ModuleList(nn.LSTM(a, b, batch_first=True) for a, b in sizes)
        self.out = nn.Linear(sizes[-1][1], TYPES)

    def forward(self, contexts: Tensor, targets: Tensor) -> Tensor:
        hidden = self.table(contexts)
        for layer in self.layers:
            hidden, _ = layer(hidden)
        return torch.log_softmax(self.out(hidden), -1)[:, -1].gather(1, targets[:, None])


def contenders(size: str, tokens: int, on: str) -> dict[str, Contender]:
    device = choose_device(on)
    model = build_model(recipes.load(SIZES[size]).model, TYPES).to(device).eval()
    naive = Naive(model).to(device).eval()
    rows, wanted = (torch.randint(TYPES, shape, device=device) for shape in ((NAIVE_BATCH, tokens), (NAIVE_BATCH,)))
    contexts = [np.random.default_rng(i).integers(0, TYPES, tokens).astype(np.uint16) for i in range(CONTEXTS)]
    targets = np.random.default_rng(0).integers(0, TYPES, CONTEXTS)
    found: dict[str, Contender] = {"naive, float32": (NAIVE_BATCH, lambda: naive(rows, wanted).sum().item())}
    for precision in ("float32", "bfloat16"):
        scorer = ReaderScorer(StaticReader(model, choose_precision(precision, device)))
        found[f"ours, {precision}"] = (CONTEXTS, lambda scorer=scorer: scorer.score(contexts, targets))
    return found


@torch.no_grad()
def compare(made: dict[str, Contender], turns: int, cuda: bool) -> dict[str, float]:
    """Median targets per second of each contender, taking turns, the first turn left out."""
    clock, times = time.perf_counter if cuda else time.process_time, {name: [] for name in made}
    for turn in range(turns + 1):
        for name, (count, score) in made.items():
            began = clock()
            score()  # brings its result to the CPU, so it is over when it returns
            if turn:
                times[name].append((clock() - began) / count)
    return {name: 1 / statistics.median(found) for name, found in times.items()}


def linear(size: str, turns: int, on: str) -> None:
    """Milliseconds per target and 100 tokens of context, for more targets and for longer contexts."""
    device = choose_device(on)
    scorer = ReaderScorer(StaticReader(build_model(recipes.load(SIZES[size]).model, TYPES).to(device).eval()))
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    for count, tokens in ((256, 100), (512, 100), (1024, 100), (256, 300), (256, 1000), (256, 2000)):
        contexts, targets = [np.full(tokens, 7, np.uint16)] * count, np.zeros(count, np.int64)
        scorer.score(contexts[:2], targets[:2])
        times = []
        for _ in range(turns):
            began = clock()
            scorer.score(contexts, targets)
            times.append(clock() - began)
        cost = 1000 * statistics.median(times) / count / tokens * 100
        print(
            f"{size:<5} {count:>6,} targets, {tokens:>5,} tokens: {cost:>8.3f} ms per target and 100 tokens", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--linear", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    keep_freed_memory()
    if given.linear:
        for size in given.sizes:
            linear(size, given.turns, given.device)
        return
    print(f"{'size':<5} {'form':<16} {'targets/s':>10}   against the naive form", flush=True)
    rows = {}
    for size in given.sizes:
        made = contenders(size, given.tokens, given.device)
        rows[size] = found = compare(made, given.turns, given.device == "cuda")
        for name, speed in found.items():
            print(f"{size:<5} {name:<16} {speed:>10,.2f}   {speed / found['naive, float32']:.2f}", flush=True)
    if given.out:
        made_by = device_name(choose_device(given.device))
        origin = {"commit": commit(), "versions": versions(), "device": made_by, "started": now()}
        result = {"benchmark": "context", "tokens": given.tokens, "rows": rows, "provenance": origin}
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
