"""Examine a trained run: the baseline by reading the split once, then an experiment on chosen targets."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from backstory.context.examine import Examination, check_experiment, check_length, examine
from backstory.context.scorer import ModelScorer
from backstory.models import Prediction
from backstory.reading import Block, read
from backstory.reading.opening import open_run
from backstory.storage.provenance import check_place, write_result


def examine_run(
    folder: Path | str,
    experiment: str,
    *,
    split: str = "valid",
    targets: int = 2000,
    maximum_context: int = 1000,
    seed: int = 0,
    precision: str = "auto",
    device: str = "auto",
    data_dir: Path | None = None,
    memory: int = 1 << 30,
    out: Path | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Run an experiment on a trained run and return the content of its result.json (docs/results.md describes it).

    It is written to `out`, else to RUN/examine-EXPERIMENT-SPLIT. Baseline and conditions run in the same precision;
    `memory` is the budget of a batch of contexts, in bytes. Raises UserError.
    """
    check_experiment(experiment)
    path = Path(folder)
    destination = Path(out or path / f"examine-{experiment}-{split}")
    opened = open_run(folder, split, precision=precision, device=device, data_dir=data_dir)
    check_place(destination, "examination")
    origin, began = opened.provenance(), time.perf_counter()
    ids, scorer = opened.split.ids, ModelScorer(opened.run.model, opened.reader.precision, memory)
    check_length(len(ids), maximum_context)  # before the baseline is read
    baseline: list[np.ndarray] = []

    def keep(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        baseline.append(-log_prob[block.scored].double().cpu().numpy())

    read(opened.reader, ids, opened.dataset.vocabulary.start, each=keep)
    on = Examination(ids, np.concatenate(baseline), scorer, targets, maximum_context, seed)
    figures = {
        "experiment": experiment,
        "split": split,
        "unit": opened.dataset.vocabulary.tokenizer.unit,
        "seed": seed,
        **examine(experiment, on, progress),
    }
    origin["seconds"] = round(time.perf_counter() - began, 1)
    return write_result(destination, "examination", path.name, figures, origin)
