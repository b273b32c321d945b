"""Learning curves by the code of two checkouts: does a change that makes training faster leave learning as it was?

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/curves.py BEFORE AFTER --runs DIR [--seeds 1 2 3] [--out FILE] -- \
        ptb-small --data-dir DATA --training.epochs 3 --training.finetune-epochs 0

BEFORE and AFTER are checkouts of this repository; what follows `--` are the arguments of `backstory train`. The trainings of a
seed take turns; one that is finished in --runs is not repeated, unless the code or the arguments have changed. The table gives,
for each epoch, the mean validation perplexity of the seeds, and the smallest and largest ratio of a seed's two perplexities.
With --out it is also written as JSON.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from figures import write

from backstory.storage.atomic import sha256
from backstory.storage.provenance import commit_of


def curve(checkout: Path, seed: int, runs: Path, arguments: list[str]) -> tuple[float, list[float]]:
    """Train with the code of a checkout, unless that has been done.

    Returns the mean loss of the first steps that the log sums up, and the validation perplexity after each epoch.
    """
    folder = runs / f"{commit(checkout)}-{digest(checkout, arguments)[:12]}-{seed}"
    done = runs / f"{folder.name}.done"
    if not done.exists():
        command = [sys.executable, "-m", "backstory", "train", *arguments, "--seed", str(seed), "--out", str(folder)]
        command += ["--resume"] if folder.exists() else []
        subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(checkout.resolve() / "src")})
        done.touch()
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    first = next(event["nats"] for event in events if event["event"] == "steps")
    return first, [event["valid_perplexity"] for event in events if event["event"] == "epoch"]


def commit(checkout: Path) -> str:
    """Return the commit of a checkout, shortened, with `+changes` if its code is edited."""
    return commit_of(checkout / "src" / "backstory") or sys.exit(f"{checkout} is no checkout of this repository")


def digest(checkout: Path, arguments: list[str]) -> str:
    """Return the SHA-256 (hex) of a checkout's code and of the arguments of its trainings: edited code is trained again."""
    hashed = hashlib.sha256(json.dumps(arguments).encode())
    for path in sorted((checkout / "src").rglob("*")):
        if path.suffix in (".py", ".yaml", ".c"):
            hashed.update(f"{path.relative_to(checkout)} {sha256(path)}\n".encode())
    return hashed.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path)
    parser.add_argument("arguments", nargs="+", help="arguments of `backstory train`, after --")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    checkouts = {"before": options.before, "after": options.after}
    first, curves = ({name: [] for name in checkouts} for _ in range(2))
    for seed in options.seeds:
        for name, checkout in checkouts.items():
            nats, perplexities = curve(checkout, seed, options.runs, options.arguments)
            first[name].append(nats)
            curves[name].append(perplexities)
    rows = []
    print(f"{'epoch':>5} {'before':>9} {'after':>9}   after : before")
    before, after = (zip(*of_seeds, strict=True) for of_seeds in curves.values())
    for epoch, (old, new) in enumerate(zip(before, after, strict=True), 1):
        ratios = [b / a for a, b in zip(old, new, strict=True)]
        row = {
            "epoch": epoch,
            "before": statistics.mean(old),
            "after": statistics.mean(new),
            "smallest_ratio": min(ratios),
            "largest_ratio": max(ratios),
        }
        print("{epoch:>5} {before:>9.2f} {after:>9.2f}   {smallest_ratio:.4f} to {largest_ratio:.4f}".format(**row))
        rows.append(row)
    if options.out is not None:
        write(
            options.out,
            "learning curves",
            commits={name: commit(checkout) for name, checkout in checkouts.items()},
            arguments=options.arguments,
            seeds=options.seeds,
            first_nats=first,
            epochs=rows,
            curves=curves,
        )


if __name__ == "__main__":
    main()
