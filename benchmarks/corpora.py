"""Tokens and types of the corpora, overlap of their splits, and exact entropy of the synthetic documents.

    python benchmarks/corpora.py [--corpora ptb ...] [--data-dir DIR] [--out results/benchmark-corpora.json]

A row has the tokens of each split and the types. For corpora that are not synthetic it has the overlap of the splits,
and, if a cache's window was published for the corpus, the share of validation tokens that such a window does not hold.
For synthetic ones it has the exact perplexity of each split and, for the training split, how often tokens recur and at
what distance (median and 90th percentile). With --out the table is also written as JSON.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from figures import write

from backstory.config.schema import TextConfig
from backstory.data import prepare
from backstory.data.overlap import overlaps
from backstory.evaluation.metrics.nats_by_distance import last_seen
from backstory.results.common import OverlapRecord

NAMES = ("stdlib", "recall", "recall, facts 0.03", "ptb", "ptb-char", "ptb-char-50", "wikitext-2", "enwik8-prefix")
WINDOWS = {"ptb": 500, "wikitext-2": 3875}
"""Cache sizes of Khandelwal et al. 2018, section 6.2, in words."""


def settings(name: str) -> TextConfig:
    """Return the settings of a corpus by its name, with `, facts F` for other synthetic documents."""
    corpus, _, facts = name.partition(", facts ")
    config = TextConfig(corpus=corpus)
    return replace(config, recall=replace(config.recall, facts=float(facts))) if facts else config


def counts(name: str, data_dir: Path | None) -> dict[str, Any]:
    """Count a corpus."""
    dataset = prepare(settings(name), data_dir)
    row: dict[str, Any] = {
        "tokens": {split: len(part.ids) for split, part in dataset.splits.items()},
        "types": len(dataset.vocabulary),
        "fingerprint": dataset.fingerprint,
    }
    if (shared := OverlapRecord.measured(overlaps(dataset))) is not None:
        row["overlap"] = [one.to_dict() for one in shared]
    if name in WINDOWS:
        ids = dataset.splits["valid"].ids
        ago, window = last_seen(ids, len(ids)), WINDOWS[name]
        row["outside_window"] = {"window": window, "share": float(((ago == 0) | (ago > window)).mean())}
    if dataset.source:
        truths = {split: dataset.truth(split) for split in dataset.splits}
        row["exact_perplexity"] = {split: float(np.exp(t.exact.mean())) for split, t in truths.items() if t is not None}
        truth = truths["train"]
        assert truth is not None
        row["comes_back"] = {}
        for kind in truth.forgotten:
            ages = truth.distance[truth.kind == truth.kinds.index(kind)]
            if len(ages):
                half, most = np.quantile(ages, (0.5, 0.9))
                row["comes_back"][kind] = {"share": len(ages) / len(truth.exact), "median": half, "nine_in_ten": most}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", nargs="+", default=list(NAMES))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = {}
    for name in given.corpora:
        rows[name] = row = counts(name, given.data_dir)
        print(f"{name}: {row['tokens']}, {row['types']:,} types", flush=True)
    if given.out:
        write(given.out, "corpora", rows=rows)


if __name__ == "__main__":
    main()
