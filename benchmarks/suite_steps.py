"""Tokens per second of the training steps of a suite's small systems; the suites' stated minutes come from these.

    OMP_NUM_THREADS=1 python benchmarks/suite_steps.py wikitext-2 localized-ntm-middle [--steps 3]

The precision is the one that training chooses on this machine. Processor time is counted, so that other load on the
machine hardly matters, and `ptb-small` is measured in the same process: a suite's minutes are for a core on which it
trains 5,000 tokens per second. With --out the table is also written as JSON.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from figures import write
from training import Size, ours

from backstory.config import RunConfig, recipes, to_yaml
from backstory.models.devices import choose_precision
from backstory.papers.plan import runs_of
from backstory.papers.suite import load

CPU = torch.device("cpu")
TYPES = {
    ("ptb", False): 10_000,
    ("wikitext-2", False): 33_278,
    ("wikitext-2", True): 28_912,
    ("ptb-char-50", False): 50,
    ("enwik8-prefix", False): 256,
}
"""Types by corpus and whether it is in lower case."""


def speed(config: RunConfig, steps: int, precision: str) -> float:
    """Return tokens per second of processor time, the median over the steps after the first."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "recipe.yaml")
        path.write_text(to_yaml(config), encoding="utf-8")
        types = TYPES[config.text.corpus, config.text.lowercase]
        step = ours(Size(str(path), types, config.training.batch_size, config.training.segment), "cpu", precision)
    seconds = []
    for _ in range(steps + 1):
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
    return config.training.batch_size * config.training.segment / statistics.median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="+")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default=choose_precision("auto", CPU).name)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    configs = {"ptb-small": recipes.load("ptb-small")}
    for suite in args.suites:
        configs |= {f"{suite} {run.system}": run.config for run in runs_of(load(suite), "small", suite)}
    rows = {}
    for name, config in configs.items():
        rows[name] = {"tokens_per_second": round(speed(config, args.steps, args.precision), 1)}
        print(f"{name:<40} {rows[name]['tokens_per_second']:>10,.0f} tokens/s", flush=True)
    if args.out:
        write(args.out, "suite-steps", steps=args.steps, precision=args.precision, rows=rows)


if __name__ == "__main__":
    main()
