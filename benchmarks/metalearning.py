"""Memory and time of training the meta-learner over a full-size model.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/metalearning.py [--recipe ptb-awd-lstm] [--steps 40] [--sample 10]

Unrolls STEPS updates of a model with random weights over random words, runs the adjoint back through them, and prints
the process's peak memory (Linux) and the time of both.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from figures import write

from backstory.config import recipes
from backstory.config.readers import DynamicSettings, GateSettings, MetaTraining
from backstory.models import build_model, count_parameters
from backstory.readers.gradient_statistics import Collected, Statistics
from backstory.readers.meta_training import train_gates

TYPES = 10_000


def peak() -> int:
    """Peak memory of this process in bytes."""
    line = next(li for li in Path("/proc/self/status").read_text().splitlines() if li.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="ptb-awd-lstm")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--sample", type=int, default=10)
    parser.add_argument("--segment", type=int, default=20)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    model = build_model(recipes.load(given.recipe).model, TYPES).eval()
    squares = {name: torch.rand_like(p) * 1e-8 for name, p in model.named_parameters()}
    statistics = Statistics(squares, squares, Collected("", "all", "", 100, 5, 1, 500, "float32"))
    length = given.steps * given.segment
    ids = np.random.default_rng(0).integers(0, TYPES, length + 1)
    training = MetaTraining(steps=given.steps, every=given.steps, stream=length, sample=given.sample)
    before, began = peak(), time.perf_counter()
    train_gates(model, statistics, ids, 0, DynamicSettings(segment=given.segment), GateSettings(), training)
    row = {
        "recipe": given.recipe,
        "weights": count_parameters(model),
        "steps": given.steps,
        "followed": f"1 in {given.sample}",
        "model_gib": round(before / 2**30, 2),
        "peak_gib": round(peak() / 2**30, 2),
        "seconds": round(time.perf_counter() - began, 1),
    }
    print("\n".join(f"{key:<10} {value}" for key, value in row.items()))
    if given.out:
        write(given.out, "metalearning", **row)


if __name__ == "__main__":
    main()
