"""Examine a trained run: the baseline by reading the split once, then an experiment on chosen targets."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backstory.config import UserError
from backstory.context.examine import Examination, check_experiment, examine
from backstory.context.scorer import ModelScorer
from backstory.reading import Block, read
from backstory.reading.evaluation import open_run
from backstory.storage.provenance import write_result


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
    began, ids = time.perf_counter(), opened.split.ids
    scorer = ModelScorer(opened.run.model, opened.reader.precision, memory)
    _check_place(destination)
    on = Examination(ids, np.empty(0), scorer, targets, maximum_context, seed)
    on.positions()  # a text that is too short is refused before the baseline is read
    pieces: list[np.ndarray] = []

    def keep(block: Block, log_prob: torch.Tensor) -> None:
        pieces.append(-log_prob[block.scored].double().cpu().numpy())

    read(opened.reader, ids, opened.dataset.vocabulary.start, each=keep)
    on = Examination(ids, np.concatenate(pieces), scorer, targets, maximum_context, seed)
    figures = {
        "experiment": experiment,
        "split": split,
        "unit": opened.dataset.vocabulary.tokenizer.unit,
        **examine(experiment, on, progress),
    }
    return write_result(destination, "examination", path.name, figures, opened.provenance(time.perf_counter() - began))


def _check_place(folder: Path) -> None:
    """Raise UserError unless a folder can be made there: better before the work than after it."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {there}; choose another folder with --out")
