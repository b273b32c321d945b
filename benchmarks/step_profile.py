"""Where a training step's time goes: the operations of a recipe's step, or on a GPU its kernels, the longest first.

    python benchmarks/step_profile.py ptb-awd-lstm ptb-small [--device cuda] [--rows 40] [--out profile]

A step is of random text, of the recipe's batch and segment, with its update, and on a GPU replayed as in training. With
--out, each recipe's table is also written as text.
"""

import argparse
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from backstory import recipe
from backstory.models import build_model, choose_device, choose_precision
from backstory.models.devices import keep_freed_memory
from backstory.training.speed import random_text, training_step

TYPES, WARM_UP, STEPS = 10_000, 10, 20


def table(name: str, device: torch.device, rows: int) -> str:
    """Return the profile of a recipe's training steps."""
    config = recipe(name)
    torch.manual_seed(config.seed)
    precision = choose_precision(config.training.precision, device)
    text = random_text(config.training.batch_size, config.training.segment + 1, TYPES).to(device)
    step = training_step(build_model(config.model, TYPES).to(device), config, text, precision)
    for _ in range(WARM_UP):
        step()
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    with profile(activities=kinds) as measured:
        for _ in range(STEPS):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    order = f"self_{device.type}_time_total"
    return measured.key_averages().table(sort_by=order, row_limit=rows, max_name_column_width=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--out", type=Path, help="folder for the tables")
    args = parser.parse_args()
    keep_freed_memory()
    device = choose_device(args.device)
    for name in args.recipes:
        text = f"{name}, {STEPS} steps\n{table(name, device, args.rows)}"
        print(text, flush=True)
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
            (args.out / f"{name}.txt").write_text(text)


if __name__ == "__main__":
    main()
