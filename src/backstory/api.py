"""Python interface, `import backstory as bs`: the verbs of the command line as functions (docs/python.md)."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard, overload

import numpy as np
from torch import nn

from backstory import codec
from backstory.api_arguments import (
    check_one_text,
    examine_options,
    open_model,
    own_text,
    path_or_none,
    plain_options,
    refereed_text,
    refuse_name,
)
from backstory.config import RunConfig, TextConfig, UserError, check_name, recipes
from backstory.config.arguments import checked, described
from backstory.config.examination_options import ExamineOptions
from backstory.config.explanation_options import CompareOptions, ExplainOptions
from backstory.config.options import EvalOptions, LoadOptions
from backstory.config.python_names import in_python
from backstory.config.referee_options import RefereeOptions
from backstory.config.strict import conforming
from backstory.config.terminal import ProgressCallback
from backstory.context import (
    ExaminationResult,
    ProcessGroup,
    Scorer,
    examine_model,
    examine_run,
    examine_runs,
)
from backstory.data import Dataset, Vocabulary, prepare
from backstory.data.encoding import with_corpus
from backstory.evaluation import evaluation, generation, proving, refereeing
from backstory.evaluation.opening import open_evaluation
from backstory.explanations import compare_readers, explain_passage
from backstory.models import LanguageModel
from backstory.models.devices import unaffected
from backstory.papers.paper import published_examinations
from backstory.readers import Reader, StaticReader
from backstory.reports import write
from backstory.results import (
    AuditRecord,
    ComparisonFigures,
    EvaluationFigures,
    ExplanationFigures,
    RefereeFigures,
    Result,
    TrainingFigures,
)
from backstory.results.evaluation_record import EpochRecord
from backstory.results.run_listing import reported_runs
from backstory.runs.run import Run, is_elsewhere, open_run
from backstory.runs.run_folder import Mode
from backstory.training import fit

__all__ = [
    "audit",
    "compare",
    "compress",
    "decompress",
    "evaluate",
    "examine",
    "explain",
    "generate",
    "load",
    "referee",
    "report",
    "train",
    "verify",
]


_OPTIONS = (EvalOptions, ExamineOptions, ExplainOptions, CompareOptions, RefereeOptions)
_SWITCHES = {field.name for options in _OPTIONS for field in fields(options) if field.default is False}
_in_python = in_python(_SWITCHES | {"allow_equal_splits"}, {"set": "overrides", "text.field": "field"}, unaffected)
_of_training = in_python(
    {"allow_equal_splits"}, {"resume": "mode='resume'", "overwrite": "mode='overwrite'"}, unaffected
)
compress, decompress = _in_python(codec.compress), _in_python(codec.decompress)
generate, verify = _in_python(generation.generate), _in_python(proving.verify)


@_of_training
@checked(threads=(1, 1024), workers=(1, 1024))
def train(
    recipe: str | Path | RunConfig,
    out: Path | str | None = None,
    *,
    corpus: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callable[[EpochRecord], object] | object] = (),
    mode: Mode = "new",
    data_dir: Path | None = None,
    accept: Sequence[str] | frozenset[str] = (),
    track: Sequence[str] = (),
    init_from: Path | None = None,
    allow_equal_splits: bool = False,
    threads: int | None = None,
    workers: int | None = None,
) -> Result[TrainingFigures] | None:
    """Train a model into a folder and return the result.

    Args:
        recipe: A recipe's name (`backstory ls recipes`), the path of a YAML file, the folder of a run to resume, or a
            `RunConfig`, as `bs.recipe` returns one.
        out: The run's folder; by default `runs/RECIPE`, or the run that is resumed. A `RunConfig` needs one.
        corpus: The corpus in place of the recipe's: a name (`backstory ls corpora`), a text file, or a folder.
        overrides: New values of settings by the dotted names that are flags on the command line.
        callbacks: Functions that receive an `EpochRecord` after each epoch, or objects with `on_epoch(epoch)` or
            `on_step(step)`. They cannot change the training. If one fails, the training is saved and ends with a
            UserError that names it; `mode="resume"` goes on.
        mode: `new`, `resume` or `overwrite`: what to do with a run that is in the folder.
        data_dir: Folder of the corpora; by default the one in BACKSTORY_DATA.
        accept: Differences from the resumed run that are allowed: `config`, `corpus`, `metrics`.
        track: Trackers that get the curves too: `tensorboard`, `trackio`, `wandb`.
        init_from: A run whose best weights initialise this one.
        allow_equal_splits: Allow a corpus whose validation and test are the same text.
        threads: Threads inside the operations on a CPU. By default OMP_NUM_THREADS, that of the run that is resumed, or the
            fastest number, which is timed on the first steps.
        workers: Processes that share the rows of a batch, with one thread each or `threads`. They are started and ended by
            this call. By default one, or as many as trained the run that is resumed.

    Returns:
        The result, with the figures of the training in `.figures`, its curve as `.to_frame()` and the run's folder as
        `.run`. None in all but the first process under `torchrun`.

    Raises UserError before anything is written, and when the disk fails later; NonFiniteError when the loss breaks down;
    Stopped after Ctrl-C, once the training is saved.

    Example:
        >>> result = bs.train("demo", corpus="my.txt", out="runs/mine", overrides={"training.epochs": 3})
        >>> print(result.figures.valid_perplexity, result.run)
    """
    if isinstance(recipe, RunConfig):
        original, name = conforming(recipe, "settings"), None
    else:
        original, name = recipes.load(str(recipe)), Path(recipe)
    config = recipes.with_overrides(original, overrides or {})
    if corpus is not None or config.text.corpus != original.text.corpus:
        config = with_corpus(config, None if corpus is None else str(corpus), original)
    if out is None:
        if name is None:
            raise UserError("a RunConfig has no name to call the run by; give out=FOLDER")
        out = recipes.default_folder(name)
    return fit.train(
        config,
        out,
        mode=mode,
        data_dir=data_dir,
        accept=frozenset(accept),
        track=track,
        init_from=init_from,
        allow_equal_splits=allow_equal_splits,
        threads=threads,
        workers=workers,
        callbacks=callbacks,
    )


def _is_alone(model: object, tokenizer: object) -> TypeGuard[LanguageModel]:
    """Return True for a model of Backstory in memory without its vocabulary, which reads token ids alone."""
    return isinstance(model, LanguageModel) and tokenizer is None


@_in_python
@checked()
def load(run: Path | str) -> tuple[LanguageModel, Vocabulary]:
    """Return the model of a run with its best weights, in evaluation mode on the CPU, and its vocabulary.

    Args:
        run: The run's folder, or `hf:PATH_OR_NAME`, a causal language model of Hugging Face.

    Raises UserError.

    Example:
        >>> model, vocabulary = bs.load("runs/demo")
        >>> tokens = torch.from_numpy(vocabulary.encode("Return a list")).long()[None]
        >>> prediction, state = model(tokens, model.start(batch_size=1))
        >>> log_probs = prediction.log_probs()  # (batch, time, vocabulary)
    """
    loaded = open_run(run, LoadOptions(device="cpu"))
    return loaded.model, loaded.vocabulary


@overload
def evaluate(
    model: Path | str | Run | nn.Module,
    text: None = None,
    *,
    corpus: list[str] | list[Path] | list[str | Path] | tuple[str | Path, ...],
    tokenizer: Any = None,
    name: str | None = None,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> list[Result[EvaluationFigures]]: ...
@overload
def evaluate(
    model: Path | str | Run | nn.Module,
    text: str | Path | BinaryIO | None = None,
    *,
    corpus: str | Path | None = None,
    tokenizer: Any = None,
    name: str | None = None,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> Result[EvaluationFigures]: ...
@_in_python
@checked()
def evaluate(
    model: Path | str | Run | nn.Module,
    text: str | Path | BinaryIO | None = None,
    *,
    corpus: str | Path | Sequence[str | Path] | None = None,
    tokenizer: Any = None,
    name: str | None = None,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> Result[EvaluationFigures] | list[Result[EvaluationFigures]]:
    """Score a text with a reader, each token before anything is learned from it.

    Args:
        model: A run's folder, `hf:PATH_OR_NAME`, or a model in memory with its `tokenizer`: a causal language model of
            transformers, or one of Backstory, whose tokenizer is its vocabulary.
        text: A text of your own in place of a split: the path of a file, the text itself (a string with white space that
            names no file; a single word needs a line break after it), or a file that is open for bytes.
        corpus: A corpus by its name or path in place of the run's own, or a list of several.
        tokenizer: The tokenizer of a model of transformers, or the vocabulary of one of Backstory.
        name: What results call a model in memory; by default the name that it was loaded by, or that of its class.
        progress: Called with the tokens read so far and all tokens.
        options: The flags of `backstory evaluate` with underscores: `split` ("test"), `reader` ("static"), `batch_size`
            (rows read side by side), `each_line`, `after` (a split to read first), `precision`, `device`, `out`,
            `audit_places`, `resume`, ... (`EvalOptions`).

    Returns:
        The result: `.figures` with the score in nats and bits per token, perplexity, bits per byte and the audit. It is
        written to `out`, by default into the run; for a text, a corpus that is named, or a model from elsewhere, only if
        `out` is given. Of a list of corpora a list of results, each in a folder of its corpus in `out`.

    Raises UserError, before anything is written.

    Example:
        >>> result = bs.evaluate("runs/demo", split="valid", reader="cache")
        >>> print(result.figures.perplexity, result.figures.audit.passed)
    """
    source, requested = open_model(model, tokenizer, name, options), own_text(text)
    if corpus is not None and not isinstance(corpus, str | Path):
        names = [str(name) for name in corpus]
        return evaluation.evaluate_corpora(source, names, progress=progress, text=requested, **options)
    options |= {} if corpus is None else {"corpus": str(corpus)}
    return evaluation.evaluate(source, progress=progress, text=requested, **options)


@_in_python
@checked()
def audit(
    model: Path | str | Run | nn.Module | Reader,
    text: str | Path | BinaryIO | Dataset | np.ndarray | None = None,
    *,
    tokenizer: Any = None,
    name: str | None = None,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> AuditRecord:
    """Audit how a reader scores a text: is it causal, normalised, scored before it learns, one pass, and as reported?

    Args:
        model: A run's folder, `hf:PATH_OR_NAME`, a model of transformers with its `tokenizer`; or a reader or a model of
            yours in memory.
        text: As for `evaluate`. For a reader or a model in memory: token ids (N,), or a prepared corpus, of which `split`
            is read ("test").
        tokenizer: The tokenizer of a model of transformers.
        name: What messages call a model of transformers.
        progress: Called with the tokens read so far and all tokens.
        options: As for `evaluate`; of a reader or a model in memory `split`, `batch_size`, `audit_places` and `audit_seed`.

    Returns:
        `passed`, the `checks` by name, the `failures` in words, and how much was tried. Nothing is written.

    Raises UserError.

    Example:
        >>> bs.audit("runs/demo", reader="cache").passed
        True
        >>> print(bs.audit(MyReader(model), token_ids).failures)
    """
    if isinstance(model, Reader) or _is_alone(model, tokenizer):
        return _audit_in_memory(model, text, progress, options)
    if isinstance(text, Dataset | np.ndarray):
        raise UserError("a run reads its own corpus or a text, not token ids; give a text, or the reader in memory")
    requested = EvalOptions.build(None, text=own_text(text), **plain_options(options))
    requested.check()
    setup = open_evaluation(open_model(model, tokenizer, name, options), requested, other_corpus=True)
    return evaluation.audit_reader(setup, progress)[1].record()


@_in_python
@checked()
def referee(
    predictor: Any = None,
    text: str | Path | BinaryIO | np.ndarray | None = None,
    *,
    process: str | None = None,
    vocabulary: Vocabulary | None = None,
    types: int | None = None,
    start: int = 0,
    name: str | None = None,
    claim: Mapping[str, float] | None = None,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> Result[RefereeFigures]:
    """Score any predictor on a text, and audit how the score is made (docs/referee.md).

    Args:
        predictor: A class or function that makes a predictor, an object with `predict(tokens)` and `observe(targets)` that
            has read nothing and can be copied, or a reader or a model of ours.
        text: The path of a file, the text itself or a file that is open for bytes, read as bytes; or token ids (N,).
        process: In place of a predictor the command line of a process that speaks the protocol.
        vocabulary: The vocabulary whose tokens a text is read as, in place of bytes.
        types: Types in each distribution, for token ids; by default as many as `predict` gives.
        start: The token id before the first of token ids.
        name: What the result calls the predictor.
        claim: Figures to compare with the referee's: `{"bits_per_byte": 1.07}`.
        progress: Called with the tokens read so far and all tokens.
        options: The flags of `backstory referee` with underscores: `block`, `batch_size`, `cuts`, `every_token`, `seed`,
            `tolerance`, `timeout`, `out` (`RefereeOptions`).

    Returns:
        The result: `.figures` with the score, `.figures.audit` and the `.figures.violations`, each with its token and its
        evidence. It is written if `out` is given.

    Raises UserError, for a predictor that fails or answers with another shape too.

    Example:
        >>> result = bs.referee(Bigrams, "my.txt")
        >>> print(result.figures.bits_per_byte, result.figures.audit.passed, result.figures.violations)
    """
    claimed = {} if claim is None else {"claim": [f"{figure}={value}" for figure, value in claim.items()]}
    requested = RefereeOptions.of(**plain_options(options) | claimed)
    if (predictor is None) == (process is None):
        raise UserError("give a predictor, or the command line of a process; one of them")
    opened = refereed_text(text, vocabulary, types, start)
    if isinstance(predictor, LanguageModel):
        predictor = StaticReader(predictor)
    return refereeing.referee(predictor, opened, requested, process=process, name=name, progress=progress)


@_in_python
@checked()
def examine(
    model: Path | str | list[Path | str] | tuple[Path | str, ...] | Run | nn.Module | Reader | Scorer,
    corpus: Path | str | Dataset | np.ndarray | None = None,
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
            of a corpus. For a model in memory a prepared corpus, its name, or token ids (N,).
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
    if isinstance(model, list | tuple):
        if not all(isinstance(run, str | Path) for run in model):
            raise TypeError("several models must be named by the folders of their runs")
        check_one_text(corpus, text)
        own = path_or_none(corpus) if text is None else own_text(text)
        return examine_runs(model, examine_options(experiment, options), text=own, **process)
    if isinstance(model, str | Path | Run | nn.Module) and not _is_alone(model, tokenizer):
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
        raise UserError("a model at hand has no corpus of its own; name one, or give token ids")
    requested = examine_options(experiment, options)
    text_config = TextConfig(corpus=str(corpus), field=requested.field or TextConfig().field)
    dataset = prepare(text_config) if isinstance(corpus, str | Path) else corpus
    subject: Any = model
    return examine_model(subject, dataset, requested, name=name or "model", **process)


@_in_python
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


@_in_python
@checked()
def compare(
    run: Path | str | Run | nn.Module,
    reader: str | Sequence[str],
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


@_in_python
@checked()
def report(
    runs: Path | str | Sequence[Path | str],
    out: Path | str,
    overwrite: bool = False,
    figures: Path | str | None = None,
) -> None:
    """Write one self-contained page of the results in run folders.

    Args:
        runs: The folder of a run, a folder that holds several, or a list of these.
        out: The page. One of ours that is there is replaced.
        overwrite: Replace any other file too.
        figures: A folder for every figure, as PDF, SVG and PNG.

    Raises UserError.

    Example:
        >>> bs.report(["runs/a", "runs/b"], "report.html")
    """
    folders = [runs] if isinstance(runs, str | Path) else runs
    write(reported_runs(map(Path, folders)), Path(out), overwrite, published_examinations(),
          None if figures is None else Path(figures))  # fmt: skip


_IN_MEMORY = ("split", "batch_size", "audit_places", "audit_seed")
"""Options of an audit that mean something for a model in memory."""


def _audit_in_memory(
    model: Reader | LanguageModel, text: object, progress: ProgressCallback | None, options: Mapping[str, Any]
) -> AuditRecord:
    """Audit a reader, or the static reader of a model, on token ids or a split of a prepared corpus."""
    reader = StaticReader(model) if isinstance(model, LanguageModel) else model
    requested, usual = EvalOptions.build(None, **options), EvalOptions()
    requested.check()
    if idle := next((n for n in options if n not in _IN_MEMORY and getattr(requested, n) != getattr(usual, n)), None):
        raise UserError(f"{idle} works with runs only; leave it out, and give the reader itself to audit another")
    if isinstance(text, Dataset):
        check_name(requested.split, text.splits, "split")
        ids, start = text.splits[requested.split].ids, text.vocabulary.start
    elif isinstance(text, np.ndarray) and text.ndim == 1 and len(text) and np.issubdtype(text.dtype, np.integer):
        ids, start = text, int(text[0])
    else:
        raise UserError(
            f"a reader or a model in memory reads token ids (N,) or a prepared corpus, not {described(text)}; "
            "`vocabulary.encode(text)` gives ids"
        )
    return evaluation.audit_ids(reader, ids, start, requested, progress)[1].record()
