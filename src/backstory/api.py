"""Python interface, `import backstory as bs`: the verbs of the command line as functions over run folders."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from backstory.config import TextConfig, UserError
from backstory.config.arguments import checked
from backstory.config.options import CompareOptions, ExamineOptions, ExplainOptions, LoadOptions
from backstory.context import ExaminationResult, ProcessGroup, Scorer, examine_model, examine_run, examine_runs
from backstory.data import Dataset, Vocabulary, prepare
from backstory.evaluation import evaluate, generate
from backstory.explanations import compare_readers, explain_passage
from backstory.models import LanguageModel
from backstory.papers.paper import published_examinations
from backstory.readers import Reader
from backstory.reports import write
from backstory.runs.run import is_elsewhere, open_run
from backstory.training import train

__all__ = ["evaluate", "examine", "explain", "generate", "load", "report", "train"]


@checked()
def load(run: Path | str) -> tuple[LanguageModel, Vocabulary]:
    """Return the model of a run with its best weights, in evaluation mode on the CPU, and its vocabulary.

    `hf:PATH_OR_NAME` is a causal language model of Hugging Face. Raises UserError.
    """
    loaded = open_run(run, LoadOptions(device="cpu"))
    return loaded.model, loaded.vocabulary


@checked()
def examine(
    model: Path | str | list[Path | str] | tuple[Path | str, ...] | LanguageModel | Reader | Scorer,
    corpus: Path | str | Dataset | np.ndarray | None = None,
    experiment: str = "truncate",
    *,
    name: str = "model",
    ranks: ProcessGroup | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> ExaminationResult:
    """Run an experiment of the context laboratory: what a model makes of its context (docs/context.md).

    `model` is a run's folder, several that differ in their seed, or a model, a reader or anything with `score` that is at hand.
    `corpus` is None for a run's own (`split="valid"`) or a text file; of a model of Hugging Face (`hf:...`) the name or path of
    a corpus; of a model at hand a prepared corpus, its name, or token ids (N,). `options` are those of `ExamineOptions`, as the
    flags of `backstory examine`: `targets`, `maximum_context`, `context`, `by`, `out`, ... `name` is that of a model at hand in
    the result; `progress` receives the tokens read and the tokens in all. The result has `.figures`, `.table()`, `.plot(path)`
    and `.save(folder)`. Raises UserError.
    """
    process: dict[str, Any] = {"ranks": ranks, "progress": progress}
    if isinstance(model, str | Path | list | tuple):
        if corpus is not None and not isinstance(corpus, str | Path):
            raise UserError("a run is examined on its own corpus, or on a text file; give the path of one, or None")
        text: dict[str, Any] = {} if corpus is None else {"text": Path(corpus)}
        first = model if isinstance(model, str | Path) else next(iter(model), "")
        if corpus is not None and is_elsewhere(first):
            text, options = {}, {**options, "corpus": str(corpus)}
        requested = ExamineOptions.of(experiment=experiment, **options)
        if isinstance(model, str | Path):
            return examine_run(model, requested, **text, **process)
        return examine_runs(model, requested, **text, **process)
    if corpus is None:
        raise UserError("a model at hand has no corpus of its own; name one, or give token ids")
    dataset = prepare(TextConfig(corpus=str(corpus))) if isinstance(corpus, str | Path) else corpus
    return examine_model(model, dataset, ExamineOptions.of(experiment=experiment, **options), name=name, **process)


@checked()
def explain(
    run: Path | str,
    name: str = "surprisal",
    *,
    text: Path | BinaryIO | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Explain a passage word by word, or with `reading` compare readers along a text; return the content of result.json.

    `text` is a text of one's own in place of a split: a file by its path, or one open for bytes. `options` are those of
    `ExplainOptions` and of `CompareOptions`, as the flags of `backstory explain` (docs/reports.md). Raises UserError.
    """
    if name == "reading":
        return compare_readers(run, CompareOptions.of(**options), text=text, progress=progress)
    return explain_passage(run, name, ExplainOptions.of(**options), text=text, progress=progress)


@checked()
def report(runs: Sequence[Path | str], out: Path | str, overwrite: bool = False) -> None:
    """Write one self-contained page of the results in run folders.

    A page of ours that is there is replaced, another file only with `overwrite`. Raises UserError.
    """
    write([Path(run) for run in runs], Path(out), overwrite, published_examinations())
