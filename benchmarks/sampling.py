"""Effect of sampling the targets, and of bfloat16 products, on the figures of an examination.

    backstory examine RUN --experiment drop-target --maximum-context 300 --targets 1000000 --out ALL
    python benchmarks/sampling.py --all ALL... [--targets 2000] [--draws 400] [--pair BFLOAT16 FLOAT32]... [--out FILE.json]

ALL are folders of examinations of every target. For repeated samples of their targets, the script prints how often the
95% interval contains the figure for all. BFLOAT16 and FLOAT32 are folders of two examinations that differ in precision
alone; for them it prints the largest difference of the means over the conditions, in nats. No model is run. With --out
the tables are also written as JSON.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from figures import write

from backstory.context.bootstrap import effective_context, paired_intervals
from backstory.context.losses import LOSSES, Losses


def coverage(folder: Path, targets: int, draws: int) -> list[dict[str, Any]]:
    """Return how often a sample's interval contains the figure for all, by condition and for effective contexts."""
    losses = Losses.load(folder / LOSSES)
    differences = (losses.nats - losses.baseline).T
    whole, count = differences.mean(0), len(differences)
    truncated = all(condition["method"] == "truncate" for condition in losses.conditions)
    contexts = [condition["context"] for condition in losses.conditions]
    use = effective_context(contexts, losses.baseline, losses.nats.T).context if truncated else None
    held, widths, found = np.zeros(len(whole)), [], 0
    for draw in range(draws):
        chosen = np.random.default_rng(draw).choice(count, targets, replace=False)
        intervals = paired_intervals(differences[chosen], draw)
        held += [i.low <= value <= i.high for i, value in zip(intervals, whole, strict=True)]
        widths.append([i.high - i.low for i in intervals])
        if truncated:
            # None means more than the longest tried, so beyond every context.
            drawn = effective_context(contexts, losses.baseline[chosen], losses.nats[:, chosen].T, seed=draw)
            ends = drawn.low, drawn.high
            low, high = (np.inf if end is None else end for end in ends)
            found += low <= (np.inf if use is None else use) <= high
    rows = [
        {
            "condition": c["name"],
            "all": float(whole[i]),
            "covered": held[i] / draws,
            "width": float(np.median(widths, 0)[i]),
        }
        for i, c in enumerate(losses.conditions)
    ]
    if truncated:
        rows.append({"condition": "effective context", "all": use, "covered": found / draws, "width": None})
    return [{"targets": count, "drawn": targets, "draws": draws, **row} for row in rows]


def apart(bfloat16: Path, float32: Path) -> dict[str, Any]:
    """Return the differences between two examinations that differ in precision alone."""
    one, other = (Losses.load(folder / LOSSES) for folder in (bfloat16, float32))
    alike = [c["name"] for c in one.conditions] == [c["name"] for c in other.conditions]
    if not alike or not np.array_equal(one.positions, other.positions):
        raise SystemExit(f"{bfloat16} and {float32} are not of the same targets and conditions")
    if [losses.settings.get("precision") for losses in (one, other)] != ["bfloat16", "float32"]:
        raise SystemExit(f"{bfloat16} must be in bfloat16 and {float32} in float32")
    means, baseline = one.nats.mean(1) - other.nats.mean(1), one.baseline.mean() - other.baseline.mean()
    return {
        "experiment": one.settings["experiment"],
        "targets": len(one.positions),
        "conditions": len(means),
        "mean": float(np.abs(np.append(means, baseline)).max()),
        "effect": float(np.abs(means - baseline).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", nargs="+", type=Path, default=[])
    parser.add_argument("--targets", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--pair", nargs=2, type=Path, action="append", default=[], metavar=("BFLOAT16", "FLOAT32"))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    covered, pairs = [], []
    for folder in given.all:
        covered += coverage(folder, given.targets, given.draws)
    for row in covered:
        width = "" if row["width"] is None else f", {row['width']:.4f} wide"
        print(
            f"{row['condition']}: of all {row['targets']:,} targets {row['all']}, held by {row['covered']:.1%}{width}"
        )
    for bfloat16, float32 in given.pair:
        pairs.append(apart(bfloat16, float32))
        print("{experiment}: {mean:.5f} nats apart at most, effects {effect:.5f}".format(**pairs[-1]), flush=True)
    if given.out:
        write(given.out, "sampling", coverage=covered, precision=pairs)


if __name__ == "__main__":
    main()
