"""Python interface, `import backstory as bs`: the verbs of the command line as functions (docs/python.md).

Those that examine, explain, compare and report are in `api_analysis`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np
from torch import Tensor, nn

from backstory import codec
from backstory.api_arguments import (
    array_of,
    is_alone,
    on_token_ids,
    open_model,
    own_text,
    plain_options,
    refereed_text,
    takes_options,
)
from backstory.api_errors import in_python
from backstory.config import RunConfig, recipes
from backstory.config.options import EvalOptions, LoadOptions
from backstory.config.referee_options import RefereeOptions
from backstory.config.strict import conforming
from backstory.data import Dataset, Vocabulary
from backstory.data.encoding import with_corpus
from backstory.evaluation import evaluation, generation, proving, refereeing
from backstory.evaluation.audit_in_memory import audit_in_memory
from backstory.evaluation.opening import open_evaluation
from backstory.models import LanguageModel
from backstory.models.devices import unaffected
from backstory.readers import Reader, StaticReader
from backstory.results import (
    AuditRecord,
    EvaluationFigures,
    RefereeFigures,
    Result,
    TrainingFigures,
)
from backstory.results.training_record import EpochRecord
from backstory.runs.model_in_memory import unwrapped
from backstory.runs.run import Run, open_run
from backstory.runs.run_folder import Mode
from backstory.training import fit
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError
from backstory.utils.small_file import user_path
from backstory.utils.terminal import ProgressCallback

__all__ = [
    "audit",
    "compress",
    "decompress",
    "evaluate",
    "generate",
    "load",
    "referee",
    "train",
    "verify",
]


_of_training = in_python(
    {"allow_equal_splits"}, {"resume": "mode='resume'", "overwrite": "mode='overwrite'"}, unaffected
)
compress, decompress = takes_options(codec.compress), takes_options(codec.decompress)
generate, verify = takes_options(generation.generate), takes_options(proving.verify)


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
        original, name = recipes.load(str(recipe)), user_path(recipe)
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


@takes_options
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
@takes_options
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


@takes_options
@checked()
def audit(
    model: Path | str | Run | nn.Module | Reader,
    text: str | Path | BinaryIO | Dataset | np.ndarray | Tensor | None = None,
    *,
    tokenizer: Any = None,
    name: str | None = None,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> AuditRecord:
    """Audit how a reader scores a text: is it causal, normalised, scored before it learns, one pass, and as reported?

    Args:
        model: A run's folder, `hf:PATH_OR_NAME`, a model of transformers with its `tokenizer`; or a reader or a model in
            memory.
        text: As for `evaluate`. For a reader or a model in memory: token ids (N,), an array or a tensor, or a prepared
            corpus, of which `split` is read ("test"); a model of transformers then needs no tokenizer.
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
    text = array_of(text)
    model = on_token_ids(unwrapped(model), text, tokenizer)
    if isinstance(model, Reader) or is_alone(model, tokenizer):
        return audit_in_memory(model, text, progress, options)
    if isinstance(text, Dataset | np.ndarray | Tensor):
        raise UserError(
            "a run reads its own corpus or a text, not token ids; give a text, or the model: `bs.load(RUN)[0]`"
        )
    requested = EvalOptions.build(None, text=own_text(text), **plain_options(options))
    requested.check()
    setup = open_evaluation(open_model(model, tokenizer, name, options), requested, other_corpus=True)
    return evaluation.audit_reader(setup, progress)[1].record()


@takes_options
@checked()
def referee(
    predictor: Any = None,
    text: str | Path | BinaryIO | np.ndarray | Tensor | None = None,
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
        text: The path of a file, the text itself or a file that is open for bytes, read as bytes; or token ids (N,), an
            array or a tensor.
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
    opened = refereed_text(array_of(text), vocabulary, types, start)
    predictor = unwrapped(predictor)
    if isinstance(predictor, LanguageModel):
        predictor = StaticReader(predictor)
    elif isinstance(predictor, nn.Module) and not hasattr(predictor, "predict"):
        raise UserError(
            f"a {type(predictor).__name__} has no predict(tokens) and observe(targets); give an object around it that has them"
        )
    return refereeing.referee(predictor, opened, requested, process=process, name=name, progress=progress)
