"""Targets per second of the context laboratory's scorer and of a naive one, in the same run.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/context.py [--turns 5] [--sizes S P] [--tokens 300]
    python benchmarks/context.py --device cuda

The naive one uses torch.nn's layers in float32, 50 contexts at a time, and computes the log-softmax at every position,
although only the last counts. Ours scores the same number of targets in float32 and in bfloat16. Contexts are random
words and weights are untrained, which does not affect the time. Each contender has a process of its own, because
allocator settings are per process. They take turns, so that other load on the machine affects all equally. The table
gives medians; with --out it is also written as JSON. With `--linear` it shows how the time grows with targets and
context.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from figures import write
from torch import Tensor, nn
from training import Contenders, compare

from backstory.config import recipes
from backstory.context import ReaderScorer
from backstory.models import ComposedModel, build_model, choose_device, choose_precision
from backstory.models.devices import keep_freed_memory
from backstory.readers import StaticReader

SIZES = {"S": "ptb-small", "P": "ptb-awd-lstm"}
"""Recipes of the models: 2 layers of 200 units, and 2 of 1,150 and one of 400."""
TYPES, BATCH = 10_000, 50


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


def built(size: str, on: str) -> ComposedModel:
    return build_model(recipes.load(SIZES[size]).model, TYPES).to(choose_device(on)).eval()


def naive(size: str, on: str, targets: int, tokens: int) -> Callable[[], None]:
    """Score the targets in batches of 50."""
    model, device = Naive(built(size, on)).to(on).eval(), torch.device(on)
    contexts = torch.randint(TYPES, (targets, tokens), device=device)
    wanted = torch.randint(TYPES, (targets,), device=device)

    @torch.no_grad()
    def score() -> None:
        for rows, following in zip(contexts.split(BATCH), wanted.split(BATCH), strict=True):
            model(rows, following).sum().item()

    return score


def ours(size: str, on: str, targets: int, tokens: int, precision: str) -> Callable[[], None]:
    """Score the targets as `backstory examine` does."""
    keep_freed_memory()
    random, device = np.random.default_rng(0), choose_device(on)
    scorer = ReaderScorer(StaticReader(built(size, on), choose_precision(precision, device)))
    contexts = [random.integers(0, TYPES, tokens).astype(np.uint16) for _ in range(targets)]
    wanted = random.integers(0, TYPES, targets)

    def score() -> None:
        scorer.score(contexts, wanted)

    return score


def linear(size: str, turns: int, on: str) -> None:
    """Milliseconds per target and 100 tokens of context, for more targets and for longer contexts."""
    keep_freed_memory()
    scorer = ReaderScorer(StaticReader(built(size, on)))
    clock = time.perf_counter if on == "cuda" else time.process_time
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
    parser.add_argument("--targets", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--linear", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.linear:
        for size in given.sizes:
            linear(size, given.turns, given.device)
        return
    print(f"{'size':<5} {'form':<14} {'targets/s':>10} {'speed':>6} {'GiB':>6}", flush=True)
    rows = {}
    for size in given.sizes:
        how = (size, given.device, given.targets, given.tokens)
        made: Contenders = {"naive": (naive, how)}
        made |= {f"ours, {p}": (ours, (*how, p)) for p in ("float32", "bfloat16")}
        found = compare(made, given.targets, given.turns, given.device, warm_up=1)
        rows[size] = {}
        for name, figures in found.items():
            speed, peak = figures["tokens_per_second"], figures["peak_gib"]
            ratio = speed / found["naive"]["tokens_per_second"]
            rows[size][name] = {"targets_per_second": speed, "speed": ratio, "peak_gib": peak}
            print(f"{size:<5} {name:<14} {speed:>10,.2f} {ratio:>6.2f} {peak:>6.2f}", flush=True)
    if given.out:
        write(given.out, "context", given.device, rows=rows)


if __name__ == "__main__":
    main()
