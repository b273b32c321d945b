"""Simulated coverage of 95% intervals over three seeds, and over few documents.

    python benchmarks/coverage.py [--trials 10000] [--out results/benchmark-coverage.json]

An effect on a target is the sum of a seed effect, a target effect and their interaction, each normal with mean 0, so
that the true mean is 0. Seeds score the same targets. Each seed's interval over the targets is the normal one instead
of a bootstrap; `over_seeds` combines them as for findings. A row has the deviations of the three components and the
share of trials whose interval contains 0.

The intervals over documents are bootstrap ones, with and without their widening by Student's t. Tokens of a document
share half the variance of the effects. With --out the tables are also written as JSON.
"""

import argparse
import math
from pathlib import Path

import numpy as np
from figures import write

from backstory.context.bootstrap import Interval, over_seeds, resampled_means, widening

SEEDS, TARGETS = 3, 400
PARTS = {
    "targets alone": (0.0, 1.0, 0.0),
    "seeds alone": (0.1, 0.0, 0.0),
    "mostly targets": (0.05, 1.0, 0.3),
    "all three": (0.1, 1.0, 1.0),
    "both together alone": (0.0, 0.0, 1.0),
}
"""Deviations of the seed effect, the target effect and their interaction."""
DOCUMENTS, TOKENS = (8, 20, 40, 140), 50
"""Numbers of documents, and the tokens in each."""
DRAWS = 8
"""Number of sets of resamples that the trials share in turn; more would only take longer."""


def covered(of_seed: float, of_target: float, of_both: float, trials: int) -> float:
    """Return the share of trials whose interval contains the true mean, 0."""
    random, hits = np.random.default_rng(0), 0
    for _ in range(trials):
        effects = of_seed * random.normal(size=(SEEDS, 1)) + of_target * random.normal(size=TARGETS)
        effects = effects + of_both * random.normal(size=(SEEDS, TARGETS))
        means, margins = effects.mean(1), 1.96 * effects.std(1) / math.sqrt(TARGETS)
        sampling = [Interval(m, m - e, m + e) for m, e in zip(means, margins, strict=True)]
        interval = over_seeds(means.tolist(), sampling)
        hits += interval.low <= 0 <= interval.high
    return hits / trials


def covered_over(documents: int, trials: int) -> dict[str, float]:
    """Return the shares of trials whose bootstrap interval over this many documents contains the true mean, 0."""
    random, within = np.random.default_rng(documents), np.repeat(np.arange(documents), TOKENS)
    hits = dict.fromkeys(("widened", "plain"), 0)
    for trial in range(trials):
        effects = math.sqrt(0.5) * (random.normal(size=documents)[within] + random.normal(size=len(within)))
        means = resampled_means(effects[:, None], trial * DRAWS // trials, clusters=within)
        plain = effects.mean() + (means - effects.mean()) / widening(documents)
        for name, resamples in zip(hits, (means, plain), strict=True):
            low, high = np.quantile(resamples, [0.025, 0.975])
            hits[name] += bool(low <= 0 <= high)
    return {name: count / trials for name, count in hits.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = {}
    for name, parts in PARTS.items():
        deviations = dict(zip(("seed", "target", "both"), parts, strict=True))
        rows[name] = {"deviations": deviations, "covered": covered(*parts, options.trials)}
        print(f"{name}: {rows[name]['covered']:.1%}", flush=True)
    over = {}
    for documents in DOCUMENTS:
        over[str(documents)] = covered_over(documents, options.trials)
        print(f"{documents} documents: {over[str(documents)]}", flush=True)
    if options.out:
        sizes = {"seeds": SEEDS, "targets": TARGETS, "tokens": TOKENS, "trials": options.trials}
        write(options.out, "coverage", **sizes, rows=rows, documents=over)


if __name__ == "__main__":
    main()
