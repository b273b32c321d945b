"""Cost of checkpoints: the share of training time that `ptb-small` spends on writing them.

    OMP_NUM_THREADS=1 python benchmarks/checkpointing.py --data-dir DIR [--epochs 2] [--out FILE]

Trains the recipe for some epochs as `backstory train` does, and times the writing of `last` and `best`, including
verification and rotation.
"""

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import write
from rich.console import Console

from backstory.config import recipes
from backstory.training import train
from backstory.training.loop import Trainer


def timed(function: Callable, seconds: list[float]) -> Callable:
    """Wrap a function to record the duration of each call."""

    def wrapper(*arguments: Any) -> Any:
        began = time.perf_counter()
        done = function(*arguments)
        seconds.append(time.perf_counter() - began)
        return done

    return wrapper


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    recipe = recipes.load("ptb-small")
    settings = dataclasses.replace(recipe.training, epochs=given.epochs, finetune_epochs=0)
    last: list[float] = []
    best: list[float] = []
    # Time the functions under the names by which the loop calls them.
    Trainer.save, Trainer._save_best = timed(Trainer.save, last), timed(Trainer._save_best, best)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            dataclasses.replace(recipe, training=settings),
            Path(folder) / "run",
            data_dir=given.data_dir,
            console=Console(),
        )
        size = sum(p.stat().st_size for p in next((Path(folder) / "run").glob("checkpoints/last-*")).iterdir())
    assert result is not None and result.provenance.seconds is not None
    total = result.provenance.seconds
    row = {
        "epochs": given.epochs,
        "training_seconds": total,
        "last_seconds": statistics.median(last),
        "best_seconds": statistics.median(best),
        "mebibytes": size / 2**20,
        "percent": 100 * (sum(last) + sum(best)) / total,
    }
    print(
        f"{row['percent']:.2f}% of {total:.0f} s: {len(last)} + {len(best)} checkpoints of {row['mebibytes']:.0f} MiB, "
        f"{row['last_seconds']:.3f} s and {row['best_seconds']:.3f} s each"
    )
    if given.out:
        write(given.out, "checkpointing", **row)


if __name__ == "__main__":
    main()
