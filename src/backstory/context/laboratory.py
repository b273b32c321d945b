"""Examine a trained run: the baseline by reading the split once, then an experiment on chosen targets."""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from backstory.context.examine import Examination, check_experiment, check_length, check_model, examine
from backstory.context.folding import WordScorer, fold
from backstory.context.scorer import ReaderScorer
from backstory.models import Prediction
from backstory.models.allocator import keep_freed_memory
from backstory.reading import Block, read
from backstory.reading.evaluation import file_name
from backstory.reading.kinds import parse_stack, stack_name
from backstory.reading.opening import Readers, open_run
from backstory.storage.provenance import check_place, write_result


def examine_run(
    folder: Path | str,
    experiment: str,
    *,
    split: str = "valid",
    reader: Readers = "static",
    targets: int = 2000,
    maximum_context: int = 1000,
    seed: int = 0,
    precision: str = "auto",
    device: str = "auto",
    data_dir: Path | None = None,
    corpus: str | None = None,
    memory: int = 1 << 30,
    out: Path | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Run an experiment on a trained run and return the content of its result.json (docs/results.md describes it).

    `reader` names one reader, or several that are stacked on each other (`parse_stack`); it reads the baseline, and every
    context with nothing read before it. The result is written to `out`, else to RUN/examine-EXPERIMENT-SPLIT, with any reader
    but static added to the name; of a model from elsewhere, which reads the `corpus` of this name or path, only where there is
    an `out`. Targets and contexts are words where the tokens are pieces of them (`fold`). Baseline and conditions run in the
    same precision; `memory` is the budget of a batch of contexts, in bytes. Raises UserError, also for a reader whose weights
    move.
    """
    check_experiment(experiment)
    keep_freed_memory()
    name = stack_name(parse_stack(reader))
    added = () if name == "static" else (name,)
    how = {"reader": reader, "precision": precision, "device": device}
    opened = open_run(folder, split, **how, data_dir=data_dir, corpus=corpus)
    results = opened.run.results
    if out is None and results is not None:
        out = results / file_name("examine", experiment, split, *added)
    destination = Path(out) if out else None
    if destination is not None:
        check_place(destination, "examination")
    origin, began = opened.provenance(), time.perf_counter()
    limit = opened.run.model.capabilities.maximum_length
    check_model(opened.run.name, limit, maximum_context)
    scorer, words = ReaderScorer(opened.reader, memory), fold(opened.dataset.vocabulary, opened.split)
    ids = opened.split.ids if words is None else words.ids
    check_length(len(ids), maximum_context)  # before the baseline is read
    folding = None if words is None else WordScorer(scorer, words.pieces, limit)
    baseline: list[np.ndarray] = []

    def keep(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        baseline.append(-log_prob[block.scored].double().cpu().numpy())

    read(opened.reader, opened.split.ids, opened.dataset.vocabulary.start, each=keep)
    nats = np.concatenate(baseline) if words is None else words.sums(np.concatenate(baseline))
    on = Examination(ids, nats, folding or scorer, targets, maximum_context, seed)
    figures = {
        "experiment": experiment,
        "split": split,
        "reader": name,
        "readers": [layer.as_dict() for layer in opened.layers],
        "unit": opened.dataset.vocabulary.tokenizer.unit if words is None else "word",
        "seed": seed,
        **examine(experiment, on, progress),
        "pieces_per_word": None if words is None else len(opened.split.ids) / len(ids),
        "window": limit,
        "cut_contexts": folding.cut if folding is not None else 0,
    }
    if figures["cut_contexts"]:
        warnings.warn(
            f"{opened.run.name} reads at most {limit:,} tokens; {figures['cut_contexts']:,} contexts were longer, and cut",
            stacklevel=2,
        )
    origin["seconds"] = round(time.perf_counter() - began, 1)
    return write_result(destination, "examination", opened.run.name, figures, origin)
