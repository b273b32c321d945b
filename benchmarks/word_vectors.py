"""Initial word vectors: perplexity of short trainings of one recipe, by the initialisation of its embedding.

    python benchmarks/word_vectors.py [--recipe ptb-15min] [--steps 3473] [--seeds 3] [--data-dir DIR] [--out FILE.json]

Rows have the same steps and differ in `initialisation` and `initial` alone. Perplexities are on validation. With --out
the table is written as JSON after each training; a file of the same recipe and steps is continued.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from figures import write

import backstory as bs
from backstory.training import train
from backstory.utils.terminal import make_console

ROWS = (("random", 0.1), ("random", 0.2), ("ppmi", 0.1), ("ppmi", 0.2), ("ppmi", 0.4))
"""Values of `initialisation` and `initial`."""


def trained(name: str, steps: int, seed: int, row: tuple[str, float], data_dir: Path | None) -> dict[str, Any]:
    """Train once; return the validation perplexity after each epoch, and the seconds."""
    initialisation, initial = row
    changed = {"model.embedding.initialisation": initialisation, "model.embedding.initial": initial, "seed": seed}
    config = bs.recipe(name, changed | {"training.minutes": None, "training.steps": steps})
    with tempfile.TemporaryDirectory() as folder:
        result = train(config, Path(folder) / "run", data_dir=data_dir, console=make_console(stderr=True))
    assert result is not None
    curve = [epoch.valid_perplexity for epoch in result.figures.curve]
    return {"initialisation": initialisation, "initial": initial, "seed": seed, "valid_perplexity": curve,
            "seconds": result.provenance.seconds}  # fmt: skip


def earlier_trainings(out: Path | None, name: str, steps: int) -> list[dict[str, Any]]:
    """Return the trainings in a file; empty without one. Exit if they are of another recipe or length."""
    if out is None or not out.exists():
        return []
    record = json.loads(out.read_text())
    if (record["recipe"], record["steps"]) != (name, steps):
        raise SystemExit(
            f"{out} holds trainings of {record['recipe']} with {record['steps']} steps; choose another --out"
        )
    return record["trainings"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="ptb-15min")
    parser.add_argument("--steps", type=int, default=3473)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    trainings = earlier_trainings(given.out, given.recipe, given.steps)
    done = {(one["initialisation"], one["initial"], one["seed"]) for one in trainings}
    for seed in range(1, given.seeds + 1):
        for row in ROWS:
            if (*row, seed) in done:
                continue
            trainings.append(trained(given.recipe, given.steps, seed, row, given.data_dir))
            if given.out:
                write(given.out, "word vectors", recipe=given.recipe, steps=given.steps, trainings=trainings)
    for row in ROWS:
        last = [one["valid_perplexity"][-1] for one in trainings if (one["initialisation"], one["initial"]) == row]
        if last:
            print(
                f"{row[0]:8} {row[1]:<4} {statistics.mean(last):7.2f}  ({', '.join(f'{value:.2f}' for value in last)})"
            )


if __name__ == "__main__":
    main()
