"""Inference time per batch of the systems of tables 1 to 4 of Lee et al. (2020), all with the same code on one core.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/inference.py [--turns 5] [--out results/benchmark-inference.json]

A batch is 6 rows of 120 characters, as the paper trains on Penn Treebank (it does not say what it timed). The systems
are those of the suite's full scale, in float32 with random weights, which do not affect the time. `content alone` is
the memory without link and allocation, and `window` is our own addressing of such a memory. All take turns in one
process. The table gives medians, and quartiles of the ratio to the dense memory of the same table in the same turn.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from figures import write
from torch import Tensor

from backstory.config import DNCConfig, MDMConfig, ModelConfig
from backstory.models import build_model, count_parameters
from backstory.models.contract import LanguageModel
from backstory.papers import suite
from backstory.papers.plan import runs_of

BATCH, TIME = 6, 120
CORPORA = {"Penn Treebank": ("dnc-1-1024", 50), "enwik8": ("enwik8-dnc-4", 206)}
"""For each corpus, the system that others are compared with, and the paper's number of types."""
PUBLISHED = {
    "lstm-3x805": 141, "transformer-3x820": 22, "trellis": 4915, "awd-lstm": 61,
    "dnc-1-65": 1348, "dnc-1-129": 1481, "dnc-1-257": 1710, "dnc-1-513": 2147, "dnc-1-769": 2625, "dnc-1-1024": 2710,
    "dnc-2-1024": 2590, "dnc-4-1024": 3250, "dnc-1-1024, localized:65:strict": 158,
    "dnc-1-1024, localized:129:strict": 154, "dnc-1-1024, localized:257:strict": 159,
    "dnc-1-1024, localized:513:strict": 155, "dnc-1-1024, localized:769:strict": 157,
    "enwik8-dnc-1": 2940, "enwik8-dnc-2": 3118, "enwik8-dnc-3": 3397, "enwik8-dnc-4": 3644,
    "enwik8-dnc-4, localized:33:strict": 320, "enwik8-dnc-4, localized:65:strict": 321,
    "enwik8-dnc-4, localized:97:strict": 318,
}  # fmt: skip
"""Published milliseconds per batch."""


def systems() -> Iterator[tuple[str, str, ModelConfig]]:
    """Yield the corpus, name and model of each row of the tables, and of the memory with our own windows."""
    loaded = suite.load("localized-ntm")
    for run in runs_of(loaded, "full", "localized-ntm"):
        if run.seed != 1 or run.system not in PUBLISHED:
            continue
        corpus = next(name for name in reversed(CORPORA) if name != "enwik8" or run.system.startswith("enwik8"))
        yield corpus, run.system, run.config.model
        core = run.config.model.core
        if run.system == CORPORA[corpus][0] and isinstance(core, DNCConfig | MDMConfig):
            content = replace(core, link=False, allocation=False)
            others = {f"{run.system}, content alone": content}
            for reading in run.readings:
                if (localized := reading.addressing) is not None and f"{run.system}, {localized}" in PUBLISHED:
                    window = localized.replace("localized", "window").removesuffix(":strict")
                    others[f"{run.system}, {localized}"] = replace(core, addressing=localized)
                    others[f"{run.system}, {window}"] = replace(content, addressing=window)
            for name, changed in others.items():
                yield corpus, name, replace(run.config.model, core=changed)


@torch.no_grad()
def milliseconds(model: LanguageModel, text: Tensor) -> float:
    """Return the time of one batch (6, 120), from its characters to its log-probabilities."""
    began = time.perf_counter()
    model(text, model.start(len(text)))[0].log_probs()
    return (time.perf_counter() - began) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", help="a part of the name of the systems to read")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.turns < 2:
        parser.error("quartiles take 2 turns or more")
    rows: dict[str, dict] = {}
    if args.only and args.out and args.out.exists():  # keep rows that are not measured again
        rows = json.loads(args.out.read_text(encoding="utf-8"))["rows"]
    print(
        f"{'corpus':<14} {'system':<34} {'parameters':>11} {'ms/batch':>9} {'dense =1':>9} {'published':>9} {'dense =1':>9}"
    )
    for corpus, (dense, types) in CORPORA.items():
        torch.manual_seed(0)
        chosen = {name: model for place, name, model in systems() if place == corpus}
        wanted = [name for name in chosen if (args.only or "") in name]
        if not wanted:
            continue
        chosen = {name: chosen[name] for name in dict.fromkeys((dense, *wanted))}  # ratios are to the dense one
        models = {name: build_model(model, types).eval() for name, model in chosen.items()}
        text = torch.randint(types, (BATCH, TIME))
        times: dict[str, list[float]] = {name: [] for name in models}
        for turn in range(1 + args.turns):  # the first turn warms up
            for name, model in models.items():
                times[name] += [milliseconds(model, text)] * (turn > 0)
        for name, taken in times.items():
            ratios = sorted(a / b for a, b in zip(taken, times[dense], strict=True))
            row = {
                "corpus": corpus,
                "parameters": count_parameters(models[name]),
                "ms_per_batch": statistics.median(taken),
                "to_dense": statistics.median(ratios),
                "to_dense_quartiles": statistics.quantiles(ratios, n=4)[::2],
                "published_ms_per_batch": PUBLISHED.get(name),
                "published_to_dense": PUBLISHED[name] / PUBLISHED[dense] if name in PUBLISHED else None,
                "turns": args.turns,
            }
            rows[name] = row
            measured = f"{row['parameters']:>11,} {row['ms_per_batch']:>9,.0f} {row['to_dense']:>9.2f}"
            printed = f"{PUBLISHED[name]:>9,} {row['published_to_dense']:>9.2f}" if name in PUBLISHED else ""
            print(f"{corpus:<14} {name:<34} {measured} {printed}", flush=True)
    if args.out:
        write(args.out, "inference", rows=rows)


if __name__ == "__main__":
    main()
