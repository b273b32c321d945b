"""Tokens per second of the readers, against the static one in the same run.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/reading.py [--blocks 10] [--sizes S P] [--readers static cache-2000]

One row of random words, 256 at a time (a reader that learns between blocks: its own); weights are as at the start, which
takes the same time. Caches are full. The readers take turns block by block, so that whatever else the machine does meets all
alike, and on a CPU the processor's time is counted, not what a busy machine makes them wait. The table gives medians and
their ratio to the first reader's; with --out it is also written as JSON.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from backstory.config import recipes
from backstory.config.readers import CacheSettings
from backstory.models import ComposedModel, Precision, build_model, choose_device, choose_precision, device_name
from backstory.reading import Reader, StaticReader
from backstory.reading.cache import NeuralCache
from backstory.storage.provenance import commit, now, versions

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
    reader._pairs.offer(0.1 * torch.randn(1, window, model.core.output_size, device=device), words.to(device))
    reader._pairs.keep(words.to(device))
    return reader


READERS: dict[str, Callable[[ComposedModel, Precision], Reader]] = {
    "static": static,
    **{f"cache-{window}": partial(full_cache, window=window) for window in (500, 2000, 10_000, 50_000)},
}
"""How each is made, so that its next block is one like any other: started, and full."""


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
        made_by = device_name(choose_device(given.device))
        origin = {"commit": commit(), "versions": versions(), "device": made_by, "started": now()}
        given.out.write_text(json.dumps({"benchmark": "reading", "rows": rows, "provenance": origin}, indent=1) + "\n")


if __name__ == "__main__":
    main()
