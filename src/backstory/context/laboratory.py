"""Examine trained runs, sets of runs that differ in their seed, and models in memory, and write the results."""

import hashlib
import io
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch

from backstory.config import UserError, check_name, to_dict
from backstory.config.arguments import checked
from backstory.config.examination_options import ExaminationSettings, ExamineOptions
from backstory.config.options import LoadOptions
from backstory.config.plugin_files import plugin_hashes
from backstory.config.scores import UnknownShare
from backstory.config.terminal import ProgressCallback
from backstory.context.examination import Examination, ProcessGroup, SingleProcess, check_length, check_splits
from backstory.context.examined_text import AnnotatedText, WholeReading, row_length
from backstory.context.experiment_run import measure, reported_splits
from backstory.context.experiments import EXPERIMENTS, check_experiment
from backstory.context.losses import LossStore
from backstory.context.result import ExaminationResult, combine, figures
from backstory.context.scorer import ReaderScorer, Scorer, WordScorer, refuse_adapting
from backstory.data import Dataset, unknown_share
from backstory.data.tags import check_tagger
from backstory.data.tokenizers.built_in import UNKNOWN
from backstory.evaluation.opening import EvalSetup, open_evaluation
from backstory.models import ComposedModel, LanguageModel, device_name
from backstory.models.devices import keep_freed_memory
from backstory.readers import Reader, StaticReader
from backstory.readers.neural_cache import NeuralCache
from backstory.readers.registry import READERS, parse_stack, stack_name
from backstory.results.common import ProvenanceRecord, UnknownTokens
from backstory.results.result_file import write_result
from backstory.runs.model_in_memory import ModelElsewhere, architecture_hash
from backstory.runs.run import Run, open_run, weights_hash
from backstory.storage.atomic import within
from backstory.storage.provenance import check_place

FORMAT = 1
"""Raised when the rules of examinations change, so that losses made by older rules are not taken over."""
OF_RUNS = ("reader", "precision", "data_dir", "corpus", "allow_unknown", *LoadOptions.__dataclass_fields__)
"""Options of runs alone: a model in memory comes with its reader and its text."""


@checked()
def examine_run(
    run: Path | str | Run,
    options: ExamineOptions | None = None,
    *,
    text: Path | BinaryIO | None = None,
    ranks: ProcessGroup | None = None,
    progress: ProgressCallback | None = None,
) -> ExaminationResult:
    """Run an experiment on a trained run; docs/results.md describes the result.

    The reader reads the baseline, and every context with nothing read before it. `text` is a user's own text, instead of a
    split. The result is written to `options.out`, else to a folder in the run named by the options; that of a model from
    elsewhere (`hf:...`) only where there is an `out`. Targets and contexts are words where the tokens are pieces of them
    (`fold`). Conditions that a stopped examination finished there are taken over, unless `options.again`. Raises UserError,
    also for a reader whose weights move, and unless `options.allow_unknown` for a text that is mostly outside the vocabulary.
    """
    options = _checked(options or ExamineOptions())
    keep_freed_memory()
    if options.experiment == "cache":
        options = replace(options, reader=_with_cache(options.reader))
    stack = parse_stack(options.reader or "static")
    if adapting := next((layer.name for layer in stack if READERS[layer.name].adapts_weights), None):
        refuse_adapting(adapting)  # before the files that such a reader needs are looked for
    setup, reader = open_evaluation(run, options, text=text), stack_name(stack)
    destination = options.out
    if destination is None and setup.run.results is not None:
        destination = within(setup.run.results, options.folder_name(setup.split.name, reader))
    if destination is not None and (ranks or SingleProcess()).rank == 0:
        check_place(destination, "examination")
    subject = _run_subject(setup, reader, options)
    return _examine(subject, options, destination, progress=progress, ranks=ranks, again=options.again)


@checked()
def examine_runs(
    runs: Sequence[Path | str],
    options: ExamineOptions | None = None,
    *,
    text: Path | BinaryIO | None = None,
    ranks: ProcessGroup | None = None,
    progress: ProgressCallback | None = None,
) -> ExaminationResult:
    """Examine several runs that differ in their seed, each into its own folder, and put the results together.

    The set's own result is written to `options.out`, if given. Raises UserError.
    """
    options, first = options or ExamineOptions(), (ranks or SingleProcess()).rank == 0
    if len(runs) < 2:
        raise UserError("a set of models takes two runs at least; name them all")
    if options.out is not None and first:
        check_place(options.out, "examination")
    paths = [Path(run).resolve() for run in runs]
    if twice := next((run for i, run in enumerate(runs) if paths[i] in paths[:i]), None):
        raise UserError(f"{twice} is named twice; a set is of models that differ in their seed")
    # Examining takes long: runs that are no set are refused before the first.
    corpora = [open_run(run, replace(options.load_options(), device="cpu")).corpus["fingerprint"] for run in runs]
    if other := next((run for run, corpus in zip(runs, corpora, strict=True) if corpus != corpora[0]), None):
        raise UserError(f"{other} is of another corpus or tokenizer than {runs[0]}; compare models of one")
    results: list[ExaminationResult] = []

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(len(results) * total + done, len(runs) * total)

    again = _reopened(text)
    for run in runs:
        results.append(examine_run(run, replace(options, out=None), text=again(), ranks=ranks, progress=report))
    together = combine(results)
    if options.out is not None and first:
        together.save(options.out)
    return together


def _reopened(text: Path | BinaryIO | None) -> Callable[[], Path | BinaryIO | None]:
    """Return a function that gives a text once more for every run; a file that is open is read once."""
    if text is None or isinstance(text, Path):
        return lambda: text
    content, name = text.read(), getattr(text, "name", "text")

    def opened() -> BinaryIO:
        file = io.BytesIO(content)
        file.name = name  # by which results call it
        return file

    return opened


@checked()
def examine_model(
    model: LanguageModel | Reader | Scorer,
    corpus: Dataset | np.ndarray,
    options: ExamineOptions | None = None,
    *,
    name: str = "model",
    ranks: ProcessGroup | None = None,
    progress: ProgressCallback | None = None,
) -> ExaminationResult:
    """Run an experiment on a model, a reader or anything with `score`, that is in memory.

    `corpus` is a prepared one, of which a split is read, or token ids (N,) alone; these have no words, so that there are no
    tags and no frequencies. A scorer alone cannot read a text from end to end: the longest context stands for all there is.
    The result is written only to `options.out`. Raises UserError, also for a model of another vocabulary than the corpus.
    """
    options = _checked(options or ExamineOptions())
    if unused := [option for option in OF_RUNS if getattr(options, option) != getattr(ExamineOptions(), option)]:
        raise UserError(f"{unused[0]} works with runs only; leave it out to examine a model in memory")
    if not isinstance(model, LanguageModel | Reader) and not hasattr(model, "score"):
        raise UserError(
            f"a {type(model).__name__} cannot be examined; give a model, a reader or something with `score`"
        )
    reader = StaticReader(model) if isinstance(model, LanguageModel) else model if isinstance(model, Reader) else None
    limit = None if reader is None else reader.model.capabilities.maximum_length
    _check_window(name, limit, options)
    if options.experiment == "cache" and not isinstance(reader, NeuralCache):
        raise UserError("the experiment cache needs a reader whose outermost layer is a cache; give such a reader")
    if isinstance(corpus, Dataset):
        split, types = options.split, len(corpus.vocabulary)
        check_name(split, corpus.splits, "split")
        text, described = AnnotatedText.of(corpus, split, options), corpus.describe()
        training = corpus if options.experiment == "replace" and "train" in corpus.splits else None
    else:
        ids = np.asarray(corpus)
        check_length(len(ids), options.maximum_context)
        text, split, types = AnnotatedText(ids, int(ids[0])), "ids", int(ids.max()) + 1
        described, training = {"name": "token ids"}, None
    if reader is not None:
        # The output layer of a foreign model may be larger than its tokenizer.
        exact = isinstance(corpus, Dataset) and isinstance(reader.model, ComposedModel)
        _check_types(reader.model.vocabulary_size, types, exact)
    scorer = cast(Scorer, model) if reader is None else ReaderScorer(reader, _bytes(options.memory))
    text, on = _examination(text, reader, scorer, options, training, limit)
    layers = None if reader is None else _layers(reader)
    reading = {
        "split": split,
        "reader": "static" if reader is None else reader.name,
        "readers": tuple(layers or ()),
        "unit": text.unit,
    }
    described = {"fingerprint": _hash(np.asarray(text.ids, np.int64)), **described}
    if options.out is not None:
        check_place(options.out, "examination")
    if reader is None:
        weights, origin = (
            {"weights": name},
            ProvenanceRecord.begun({"seed": None}, "unknown", "unknown", "the scorer's own", described),
        )
    else:
        weights = _weights(reader) | {"model": architecture_hash(reader.model)}
        device = device_name(next(reader.model.parameters()).device)
        precision = reader.precision
        origin = ProvenanceRecord.begun({"seed": None}, device, precision.name, precision.reason, described)
    depends_on = {**reading, **weights, "text": described["fingerprint"]}
    subject = _Subject(name, on, reading, depends_on, origin, text, limit)
    # Scores of a reader without settings, or of a scorer, cannot be recognised.
    again = options.again or layers is None
    return _examine(subject, options, options.out, progress=progress, ranks=ranks, again=again)


@dataclass(frozen=True)
class _Subject:
    """A model with a text, however it is scored, and what its result says of both."""

    name: str
    on: Examination
    reading: dict[str, Any]
    """Fields of the result on how the text was read: `split`, `reader`, `readers`, `unit`."""
    depends_on: dict[str, Any]
    """All that losses depend on beside the options: weights, text, precision."""
    provenance: ProvenanceRecord
    text: AnnotatedText
    window: int | None = None
    """The most tokens that the model reads; None: no limit."""
    unknown_among: Callable[[np.ndarray], UnknownShare] | None = None
    """Returns the share of `<unk>` among the tokens at positions (N,); None for tokens of no vocabulary."""
    check: Callable[[Path | None], None] = lambda destination: None
    """Raises UserError if results are to be written to a run that has changed since it was loaded."""


def _examine(
    subject: _Subject,
    settings: ExaminationSettings,
    destination: Path | None,
    *,
    progress: ProgressCallback | None = None,
    ranks: ProcessGroup | None = None,
    again: bool = False,
) -> ExaminationResult:
    """Run an experiment on any model, and write its result and losses to the destination, if there is one.

    Conditions that an earlier run finished there are taken over, if all that they depend on is the same; `again` takes
    nothing over. Raises UserError.
    """
    began, experiment = time.perf_counter(), EXPERIMENTS[settings.experiment]
    first = ranks is None or ranks.rank == 0
    on, text, words = subject.on, subject.text, subject.text.folded
    key = {"format": FORMAT, **settings.losses_key(experiment.whole), **subject.depends_on}
    if experiment.tagged and text.tags is not None:
        key["tags"] = _hash(text.tags)
    if words is not None:
        key["word_score"] = words.word_score
    if plugins := plugin_hashes():
        key["plugins"] = plugins
    store = LossStore(destination if first else None, key, again)
    losses = measure(settings.experiment, on, progress, by=settings.by, store=store, ranks=ranks)
    cut = 0
    if words is not None:
        reach = settings.maximum_context if experiment.whole else settings.context
        cut = words.longer(*on.reached(losses.positions, reach), subject.window)
    share = None if subject.unknown_among is None else subject.unknown_among(losses.positions)
    about = {
        **settings.recorded(experiment.whole),
        **subject.reading,
        "tagger": text.tagger,
        "unknown_tag_share": None if text.tags is None else float((text.tags == UNKNOWN).mean()),
        "pieces_per_word": None if words is None else words.tokens / len(words.ids),
        "word_score": None if words is None else words.word_score,
        "window": subject.window,
        "cut_contexts": cut,
        **vars(UnknownTokens.counted(share)),
        **({} if experiment.picture is None else {"picture": experiment.picture}),
    }
    effects = figures([losses], reported_splits(settings.experiment, settings.by, losses), settings.seed)
    origin = replace(
        subject.provenance,
        weights=subject.depends_on.get("weights"),
        ranks=1 if ranks is None else ranks.world,
        seconds=round(time.perf_counter() - began, 1),
        taken_over=store.taken,
    )
    destination = destination if first else None
    subject.check(destination)
    store.finish(losses)
    if destination is not None and cut:
        warnings.warn(
            f"{subject.name} reads at most {subject.window:,} tokens; the contexts of {cut:,} targets are longer, and cut",
            stacklevel=2,
        )
    return ExaminationResult.of(write_result(destination, subject.name, effects.figures(about), origin), [losses])


def _run_subject(setup: EvalSetup, reader: str, options: ExamineOptions) -> _Subject:
    """Return an open run as the subject of an experiment; `reader` is the canonical name of its readers.

    Raises UserError where the experiment cannot be made on it.
    """
    dataset, split, run = setup.dataset, setup.split, setup.run
    limit = run.model.capabilities.maximum_length
    _check_window(run.name, limit, options)
    training = None
    if options.experiment == "replace":  # a user's own text comes without a training text
        training = (
            dataset if "train" in dataset.splits else run.dataset(options.corpus, options.data_dir, options.field)
        )
    text = AnnotatedText.of(dataset, split.name, options, options.data_dir)
    scorer = ReaderScorer(setup.reader, _bytes(options.memory))
    text, on = _examination(text, setup.reader, scorer, options, training, limit)
    layers = [layer.as_dict() for layer in setup.layers]
    reading = {"split": split.name, "reader": reader, "readers": tuple(layers), "unit": text.unit}
    depends_on = {**reading, **_weights(setup.reader), "text": dataset.fingerprint}
    if training is not None:
        depends_on["training"] = training.fingerprint
    if isinstance(run, ModelElsewhere):  # which its weights alone do not identify
        depends_on["model"] = run.settings() | {"architecture": run.architecture()}
    among = None if text.folded else partial(unknown_share, dataset.vocabulary, split)
    return _Subject(run.name, on, reading, depends_on, setup.provenance(), text, limit, among, run.check_unchanged)


def _examination(
    text: AnnotatedText,
    reader: Reader | None,
    scorer: Scorer,
    settings: ExaminationSettings,
    source: Dataset | None,
    limit: int | None,
) -> tuple[AnnotatedText, Examination]:
    """Return the text, and the input of an experiment on it. Without a reader it is not read from end to end.

    `source` is the corpus whose training text replaces contexts, if any. `limit` is the most tokens that the model reads: a
    window that slides over a longer text leaves a token less context than the longest that is tried, so that such a text is
    not read from end to end, but for what a cache is worth. Raises UserError.
    """
    training = cached = whole = None
    if source is not None:
        text, training = text.with_training(source)
    if text.folded is not None:
        scorer = WordScorer(scorer, text.folded.pieces, limit, text.folded.boundaries)
    if reader is not None and (limit is None or text.tokens <= limit or settings.experiment == "cache"):
        documents = text.documents if settings.within_documents else None
        ids, start = text.ids, text.start
        if text.folded is not None and text.pieces is not None:
            ids, start = text.pieces, int(text.folded.pieces[text.start][0])
        batch = settings.batch_size, settings.maximum_context
        with_inner = settings.experiment == "cache"
        whole = WholeReading(reader, ids, start, documents, text.folded, *batch, with_inner=with_inner)
        if with_inner and isinstance(reader, NeuralCache):
            cached = _cached(text, reader.settings.window, settings)
    adapts = reader is not None and any(layer.adapts or layer.capabilities.adapts_weights for layer in reader.stack())
    return text, Examination(
        text.ids,
        whole,
        scorer,
        settings.targets,
        settings.maximum_context,
        settings.seed,
        settings.context,
        settings.near,
        tags=text.tags,
        training=training,
        counts=text.counts,
        unknown=text.unknown,
        start=text.start,
        documents=text.documents,
        within_documents=settings.within_documents,
        start_token=settings.start_token,
        adapts=adapts,
        cached=cached,
    )


def _cached(text: AnnotatedText, window: int, settings: ExaminationSettings) -> np.ndarray:
    """Return how many of the tokens, or words, before each position (N,) a cache of `window` tokens holds there."""
    positions, before = np.arange(len(text.ids)), settings.maximum_context
    held = np.minimum(positions, window)
    if text.folded is not None:  # a word is held from its first piece on
        held = positions - np.searchsorted(text.folded.starts, text.folded.starts - window)
    if settings.batch_size == 1:
        return held
    size = row_length(len(positions), settings.batch_size, before)
    read_in_row = positions - np.maximum(positions - before, 0) // size * size
    return np.minimum(held, read_in_row)


def _checked(options: ExamineOptions) -> ExamineOptions:
    """Return the options with every value checked, names of experiments, splits and taggers too. Raises UserError."""
    options = options.checked()
    check_experiment(options.experiment)
    check_splits(options.by)
    check_tagger(options.tagger)
    return options


def _check_window(name: str, limit: int | None, options: ExamineOptions) -> None:
    """Raise UserError if the contexts of an experiment, with the start token before them, are longer than a model reads."""
    whole = EXPERIMENTS[options.experiment].whole
    flag, context = ("--maximum-context", options.maximum_context) if whole else ("--context", options.context)
    longest = context + options.start_token
    if limit is not None and longest > limit:
        before = ", the start token among them" if options.start_token else ""
        raise UserError(
            f"{name} reads at most {limit:,} tokens, so no context can have {longest:,}{before}; use {flag} "
            f"{limit - options.start_token}, or less where contexts are counted in words of several tokens"
        )


def _check_types(known: int, types: int, exact: bool) -> None:
    """Raise UserError unless a model of `known` types can read a text of `types`; `exact`: of just as many."""
    if known < types or (exact and known != types):
        raise UserError(
            f"the model knows {known:,} types and the text has {types:,}: it was made with another vocabulary or tokenizer; "
            "examine it on text that was prepared with its own"
        )


def _with_cache(readers: tuple[str, ...]) -> tuple[str, ...]:
    """Return the readers with a cache around them, if there is none among them."""
    names = [layer.name for layer in parse_stack(readers or "static")]
    if "cache" not in names:
        return (*readers, "cache")
    if names[-1] != "cache":
        raise UserError(f"what is taken away is the outermost reader, and that is {names[-1]}; name the cache last")
    return readers


def _layers(reader: Reader) -> list[dict[str, Any]] | None:
    """Return the names and settings of a reader's layers, innermost first; None where one does not expose its settings."""
    layers = []
    for layer in reader.stack():
        settings = getattr(layer, "settings", None)
        if settings is None and type(layer) is not StaticReader:
            return None
        layers.append({"name": layer.name, "settings": {} if settings is None else to_dict(settings)})
    return layers


def _weights(reader: Reader) -> dict[str, Any]:
    """Return what the losses of a reader depend on beside its settings and the text."""
    return {
        "weights": weights_hash(reader.model),
        "precision": reader.precision.name,
        "device": next(reader.model.parameters()).device.type,
        "torch": torch.__version__,
    }


def _bytes(gibibytes: float) -> int:
    return int(min(gibibytes * 2.0**30, sys.maxsize))


def _hash(array: np.ndarray) -> str:
    """Return the SHA-256 (hex) of an array's values."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
