"""Dynamic evaluation with either mean RMS in D = RMS / mean(RMS), over a range of lambda, on a validation split.

    OMP_NUM_THREADS=1 python benchmarks/normalization.py RUN [--tokens 10000] [--rate 1e-3] [--segment 20]

The two means (`normalization` weights or tensors) differ by a constant factor, so lambda in one is that factor times lambda
in the other; the table shows the cost of taking lambda over as printed. RUN has statistics of training gradients
(`backstory reader statistics`).
"""

import argparse
from dataclasses import replace
from pathlib import Path

from figures import write

from backstory.config.options import EvalOptions
from backstory.config.readers import DynamicSettings
from backstory.evaluation.opening import open_evaluation
from backstory.evaluation.reading_loop import read
from backstory.readers.dynamic import DynamicEvaluation, RootMeanSquare
from backstory.readers.gradient_statistics import load_statistics
from backstory.storage.run_files import SAVED
from backstory.utils.scores import perplexity

DECAYS = (0.0, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--segment", type=int, default=20)
    parser.add_argument("--decays", type=float, nargs="+", default=list(DECAYS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    opened = open_evaluation(given.run, EvalOptions(split="valid", allow_unknown=True))
    model = opened.run.model
    statistics = load_statistics(given.run / SAVED, opened.run.weights_hash, "all", str(given.run))
    ids, first = opened.split.ids[: given.tokens], opened.dataset.vocabulary.start
    start = DynamicSettings(rate=given.rate, segment=given.segment)
    shares, rows = {}, []
    for normalization in ("weights", "tensors"):
        reader = DynamicEvaluation(model, replace(start, decay=1e-9, normalization=normalization), statistics)
        assert isinstance(reader.rule, RootMeanSquare)
        shares[normalization] = reader.rule.decay.max().item()  # so small a lambda is never cut off at 1
    factor = shares["weights"] / shares["tensors"]
    print(f"the same lambda decays {factor:.2f} times as strongly with weights", flush=True)
    for decay in given.decays:
        row = {"decay": decay}
        for normalization in ("weights", "tensors"):
            settings = replace(start, decay=decay, normalization=normalization)
            nats = read(DynamicEvaluation(model, settings, statistics), ids, first).nats
            row[normalization] = perplexity(nats)
        rows.append(row)
        print(f"lambda {decay:<7g} {row['weights']:9.3f} {row['tensors']:9.3f}", flush=True)
    if given.out:
        how = {"tokens": len(ids), "rate": given.rate, "epsilon": start.epsilon, "segment": given.segment}
        write(given.out, "normalization", run=given.run.name, split="valid", settings=how, factor=factor, rows=rows)


if __name__ == "__main__":
    main()
