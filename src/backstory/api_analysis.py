"""Python interface, `import backstory as bs`, continued from `api`: examine, explain and compare models, and report on runs."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from torch import Tensor, nn

from backstory.api_arguments import (
    array_of,
    check_one_text,
    examine_options,
    is_alone,
    on_token_ids,
    open_model,
    own_text,
    path_or_none,
    plain_options,
    refuse_name,
    takes_options,
)
from backstory.config import TextConfig
from backstory.config.explanation_options import CompareOptions, ExplainOptions
from backstory.context import (
    ExaminationResult,
    ProcessGroup,
    Scorer,
    examine_model,
    examine_run,
    examine_runs,
)
from backstory.data import Dataset, prepare
from backstory.explanations import compare_readers, explain_passage
from backstory.papers.paper import published_examinations
from backstory.readers import Reader
from backstory.reports import write
from backstory.results import (
    ComparisonFigures,
    ExplanationFigures,
    Result,
)
from backstory.results.run_listing import reported_runs
from backstory.runs.model_in_memory import unwrapped
from backstory.runs.run import Run, is_elsewhere
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError
from backstory.utils.terminal import ProgressCallback

__all__ = ["compare", "examine", "explain", "report"]


@takes_options
@checked()
def examine(
    model: Path | str | list[Path | str] | tuple[Path | str, ...] | Run | nn.Module | Reader | Scorer,
    corpus: Path | str | Dataset | np.ndarray | Tensor | None = None,
    experiment: str = "truncate",
    *,
    text: str | Path | BinaryIO | None = None,
    tokenizer: Any = None,
    name: str | None = None,
    ranks: ProcessGroup | None = None,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> ExaminationResult:
    """Run an experiment of the context laboratory: what a model makes of its context (docs/context.md).

    Args:
        model: A run's folder, or several that differ in their seed; `hf:PATH_OR_NAME`; a causal language model of
            transformers with its `tokenizer`; or a model, a reader or anything with `score` in memory.
        corpus: None for a run's own corpus (`split="valid"`), or a text file. For a model of Hugging Face the name or path
            of a corpus. For a model in memory a prepared corpus, its name, or token ids (N,), an array or a tensor.
        experiment: `truncate`, `shuffle`, `reverse`, `drop`, `replace`, ... (`backstory ls experiments`).
        text: A text of your own in place of a split, as for `evaluate`.
        tokenizer: The tokenizer of a model of transformers.
        name: What results call a model in memory.
        ranks: Processes that share the work, as `torchrun` starts them.
        progress: Called with the tokens read so far and all tokens.
        options: The flags of `backstory examine` with underscores: `targets`, `maximum_context` (tokens), `by`, `reader`,
            `out`, ... (`ExamineOptions`).

    Returns:
        The result, with `.figures`, `.to_frame()` (a row per condition), `.table()`, `.plot(path)` and `.save(folder)`.

    Raises UserError.

    Example:
        >>> result = bs.examine("runs/demo", experiment="truncate", targets=1000)
        >>> print(result.figures.effective_context.context)  # tokens
    """
    process: dict[str, Any] = {"ranks": ranks, "progress": progress}
    model = on_token_ids(unwrapped(model), array_of(corpus), tokenizer)
    if isinstance(model, list | tuple):
        if not all(isinstance(run, str | Path) for run in model):
            raise TypeError("several models must be named by the folders of their runs")
        check_one_text(corpus, text)
        own = path_or_none(corpus) if text is None else own_text(text)
        return examine_runs(model, examine_options(experiment, options), text=own, **process)
    if isinstance(model, str | Path | Run | nn.Module) and not is_alone(model, tokenizer):
        source, requested = open_model(model, tokenizer, name, options), own_text(text)
        check_one_text(corpus, text)
        if corpus is not None and (isinstance(source, Run) or is_elsewhere(source)):
            options["corpus"] = str(path_or_none(corpus))
        elif corpus is not None:
            refuse_name(corpus)
            requested = path_or_none(corpus)
        return examine_run(source, examine_options(experiment, options), text=requested, **process)
    if text is not None:
        raise UserError("a model in memory is examined on token ids or a prepared corpus; give it as corpus")
    if corpus is None:
        raise UserError("a model in memory has no corpus of its own; name one, or give token ids")
    requested = examine_options(experiment, options)
    text_config = TextConfig(corpus=str(corpus), field=requested.field or TextConfig().field)
    dataset: Dataset | np.ndarray = prepare(text_config) if isinstance(corpus, str | Path) else array_of(corpus)
    subject: Any = model
    return examine_model(subject, dataset, requested, name=name or "model", **process)


@takes_options
@checked()
def explain(
    run: Path | str | Run | nn.Module,
    name: str = "surprisal",
    *,
    text: str | Path | BinaryIO | None = None,
    tokenizer: Any = None,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> Result[ExplanationFigures] | Result[ComparisonFigures]:
    """Explain a passage word by word, or with `reading` compare readers along a text (`bs.compare`).

    Args:
        run: A run's folder, `hf:PATH_OR_NAME`, or a causal language model of transformers with its `tokenizer`.
        name: `surprisal`, `cache`, `buffer`, `memory` or `reading` (`backstory ls explanations`).
        text: A text of your own in place of a split, as for `evaluate`.
        tokenizer: The tokenizer of a model of transformers.
        progress: Called with the tokens read so far and all tokens.
        options: The flags of `backstory explain` with underscores: `split`, `at` (the token where the passage begins),
            `words`, `against`, `top`, `out`, ... (`ExplainOptions`, `CompareOptions`).

    Returns:
        The result; `.to_frame()` has a row per word. It is written to `out`, by default into the run.

    Raises UserError.

    Example:
        >>> bs.explain("runs/demo", "surprisal", at=5000, words=40).to_frame()
    """
    loading = {} if options.get("against") else options  # else they may be of the model that it is compared with
    source, requested = open_model(run, tokenizer, None, loading), own_text(text)
    if name == "reading":
        return compare_readers(source, CompareOptions.of(**plain_options(options)), text=requested, progress=progress)
    return explain_passage(source, name, ExplainOptions.of(**plain_options(options)), text=requested, progress=progress)


@takes_options
@checked()
def compare(
    run: Path | str | Run | nn.Module,
    reader: str | Sequence[str] = "static",
    against: str | Path | Sequence[str | Path] = "static",
    *,
    text: str | Path | BinaryIO | None = None,
    tokenizer: Any = None,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> Result[ComparisonFigures]:
    """Compare readers, or runs, along a stretch of text: the gain in nats per token, with its 95% interval.

    Args:
        run: A run's folder, `hf:PATH_OR_NAME`, or a causal language model of transformers with its `tokenizer`.
        reader: How it is read: `static`, `cache`, `dynamic+cache`, ... (`backstory ls readers`).
        against: What it is compared with: another reader of the same run, the folder of another run, or several of these.
        text: A text of your own in place of a split, as for `evaluate`.
        tokenizer: The tokenizer of a model of transformers.
        progress: Called with the tokens read so far and all tokens.
        options: The flags of `backstory explain reading` with underscores: `split`, `at`, `tokens`, `block`, `out`, ...
            (`CompareOptions`).

    Returns:
        The result: `.figures.comparisons` has a gain for each pair, above zero where `reader` does better; `.to_frame()` a
        row per reader. It is written to `out`, by default into the run.

    Raises UserError.

    Example:
        >>> result = bs.compare("runs/demo", "cache", against="static")
        >>> print(result.figures.comparisons[0].gain)  # nats per token
    """
    others = [against] if isinstance(against, str | Path) else against
    if isinstance(reader, str) and os.path.isdir(reader):
        raise UserError(
            f"{reader} is a folder, not a reader; to compare with another run: 'static', against={reader!r}"
        )
    if isinstance(reader, str) and is_elsewhere(reader):
        raise UserError(
            f"{reader} is a model, not a reader; to compare with another model: 'static', against={reader!r}"
        )
    readers = (reader,) if isinstance(reader, str) else tuple(reader)
    requested = CompareOptions.of(reader=readers, against=tuple(map(str, others)), **plain_options(options))
    return compare_readers(open_model(run, tokenizer), requested, text=own_text(text), progress=progress)


@takes_options
@checked()
def report(
    runs: Path | str | Sequence[Path | str],
    out: Path | str,
    overwrite: bool = False,
    figures: Path | str | None = None,
) -> None:
    """Write one self-contained page of the results in run folders, or their tables.

    Args:
        runs: The folder of a run, a folder that holds several, or a list of these.
        out: The page (`.html`), or a file in `.md`, `.tex` or `.csv`. One of ours that is there is replaced.
        overwrite: Replace any other file too.
        figures: A folder for every figure, as PDF, SVG and PNG.

    Raises UserError.

    Example:
        >>> bs.report(["runs/a", "runs/b"], "report.html")
    """
    folders = [runs] if isinstance(runs, str | Path) else runs
    write(reported_runs(map(Path, folders)), Path(out), overwrite, published_examinations(),
          None if figures is None else Path(figures))  # fmt: skip
