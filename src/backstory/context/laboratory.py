"""Examine trained runs, sets of runs that differ in their seed, and models at hand, and write the results."""

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from backstory.config import UserError, check_name, to_dict
from backstory.config.arguments import checked
from backstory.config.options import EvalOptions, ExaminationSettings, ExamineOptions
from backstory.context.examination import ProcessGroup, SingleProcess, check_length
from backstory.context.experiment_run import check_model, chosen_splits, measure
from backstory.context.experiments import EXPERIMENTS, check_experiment
from backstory.context.figures import figures as figures_of
from backstory.context.folding import WordScorer
from backstory.context.losses import LossStore
from backstory.context.result import ExaminationResult, combine
from backstory.context.scorer import ReaderScorer, Scorer, refuse_adapting
from backstory.context.splits import check_splits
from backstory.context.subject import AnnotatedText, Subject, check_types, examination, hash_of
from backstory.data import Dataset, unknown_share
from backstory.data.tags import check_tagger
from backstory.data.tokenizers.built_in import UNKNOWN
from backstory.evaluation.opening import EvalSetup, open_evaluation
from backstory.models import LanguageModel, choose_device, device_name
from backstory.models.devices import keep_freed_memory
from backstory.readers import Reader, StaticReader
from backstory.readers.neural_cache import NeuralCache
from backstory.readers.registry import READERS, parse_stack, stack_name
from backstory.results.result_file import write_result
from backstory.runs.run import open_run, weights_hash
from backstory.storage.atomic import within
from backstory.storage.provenance import check_place, provenance

FORMAT = 1
"""Raised when the rules of this room change, so that losses made by older rules are not taken over."""
Progress = Callable[[int, int], None]
"""Receives the tokens read so far, and the tokens in all."""
OF_RUNS = ("reader", "precision", "device", "data_dir", "corpus", "allow_unknown")
"""Options of runs alone: a model at hand comes with its reader and its text."""


@checked()
def examine_run(
    run: Path | str,
    options: ExamineOptions | None = None,
    *,
    text: Path | None = None,
    ranks: ProcessGroup | None = None,
    progress: Progress | None = None,
) -> ExaminationResult:
    """Run an experiment on a trained run; the content of its result.json is `.result` (docs/results.md describes it).

    The reader reads the baseline, and every context with nothing read before it. `text` is a text of one's own, instead of a
    split. The result is written to `options.out`, else to a folder in the run named by the options; that of a model from
    elsewhere (`hf:...`) only where there is an `out`. Targets and contexts are words where the tokens are pieces of them
    (`fold`). Conditions that a stopped examination finished there are taken over, unless `options.again`. Raises UserError,
    also for a reader whose weights move, and unless `options.allow_unknown` for a text that is mostly outside the vocabulary.
    """
    options = _checked(options or ExamineOptions())
    keep_freed_memory()
    if options.experiment == "cache":
        options = replace(options, reader=_with_cache(options.reader))
    reader = options.reader or ("static",)
    stack = parse_stack(reader)
    if adapting := [layer.name for layer in stack if READERS[layer.name].adapts_weights]:
        refuse_adapting(adapting[0])  # before the files that such a reader needs are looked for
    reading = EvalOptions.build(
        split=options.split,
        text=text,
        reader=reader,
        precision=options.precision,
        device=options.device,
        data_dir=options.data_dir,
        corpus=options.corpus,
        allow_unknown=options.allow_unknown,
    )
    opened = open_evaluation(run, reading)
    destination = options.out
    if destination is None and opened.run.results is not None:
        destination = within(opened.run.results, options.folder_name(opened.split.name, stack_name(stack)))
    if destination is not None and (ranks or SingleProcess()).rank == 0:
        check_place(destination, "examination")
    subject = run_subject(opened, stack_name(stack), options)
    return examine_subject(subject, options, destination, progress=progress, ranks=ranks, again=options.again)


@checked()
def examine_runs(
    runs: Sequence[Path | str],
    options: ExamineOptions | None = None,
    *,
    text: Path | None = None,
    ranks: ProcessGroup | None = None,
    progress: Progress | None = None,
) -> ExaminationResult:
    """Examine several runs that differ in their seed, each into its own folder, and put the results together.

    The set's own result is written to `options.out`, if given. Raises UserError.
    """
    options, first = options or ExamineOptions(), (ranks or SingleProcess()).rank == 0
    if len(runs) < 2:
        raise UserError("a set of models takes two runs at least; name them all")
    if options.out is not None and first:
        check_place(options.out, "examination")
    _check_set(runs)
    results: list[ExaminationResult] = []

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(len(results) * total + done, len(runs) * total)

    for run in runs:
        results.append(examine_run(run, replace(options, out=None), text=text, ranks=ranks, progress=report))
    together = combine(results)
    if options.out is not None and first:
        together.save(options.out)
    return together


@checked()
def examine_model(
    model: LanguageModel | Reader | Scorer,
    corpus: Dataset | np.ndarray,
    options: ExamineOptions | None = None,
    *,
    name: str = "model",
    ranks: ProcessGroup | None = None,
    progress: Progress | None = None,
) -> ExaminationResult:
    """Run an experiment on a model, a reader or anything with `score`, that is at hand.

    `corpus` is a prepared one, of which a split is read, or token ids (N,) alone; these have no words, so that there are no
    tags and no frequencies. A scorer alone cannot read a text from end to end: the longest context stands for all there is.
    The result is written only to `options.out`. Raises UserError, also for a model of another vocabulary than the corpus.
    """
    options = _checked(options or ExamineOptions())
    if unused := [option for option in OF_RUNS if getattr(options, option) != getattr(ExamineOptions(), option)]:
        raise UserError(f"{unused[0]} is an option for runs; leave it out, as a model at hand is read as it is")
    if not isinstance(model, LanguageModel | Reader) and not hasattr(model, "score"):
        raise UserError(
            f"a {type(model).__name__} cannot be examined; give a model, a reader or something with `score`"
        )
    reader = StaticReader(model) if isinstance(model, LanguageModel) else model if isinstance(model, Reader) else None
    limit = None if reader is None else reader.model.capabilities.maximum_length
    check_model(name, limit, options.maximum_context)
    if options.experiment == "cache" and not isinstance(reader, NeuralCache):
        raise UserError("what is taken away is a cache; give a reader whose outermost one is a cache")
    source, described = None, {"name": "token ids"}
    if isinstance(corpus, Dataset):
        split, types = options.split, len(corpus.vocabulary)
        check_name(split, corpus.splits, "split")
        text, described = AnnotatedText.of(corpus, split, options), corpus.describe()
        source = corpus if options.experiment == "replace" and "train" in corpus.splits else None
    else:
        ids = np.asarray(corpus)
        check_length(len(ids), options.maximum_context)
        text, split, types = AnnotatedText(ids, int(ids[0])), "ids", int(ids.max()) + 1
    if reader is not None:
        check_types(reader.model.vocabulary_size, types, exact=isinstance(corpus, Dataset))
    scorer = cast(Scorer, model) if reader is None else ReaderScorer(reader, _bytes(options.memory))
    text, scorer, training = _fitted(text, scorer, source, limit)
    layers = None if reader is None else _layers(reader)
    reading = {
        "split": split,
        "reader": "static" if reader is None else reader.name,
        "readers": layers or [],
        "unit": text.unit,
    }
    described = {"fingerprint": hash_of(np.asarray(text.ids, np.int64)), **described}
    weights = {"weights": name} if reader is None else _weights(reader)
    if options.out is not None:
        check_place(options.out, "examination")
    if reader is None:
        origin = provenance({"seed": None}, "unknown", "unknown", "the scorer's own", described)
    else:
        device = device_name(next(reader.model.parameters()).device)
        origin = provenance({"seed": None}, device, reader.precision.name, reader.precision.reason, described)
    subject = Subject(
        name,
        examination(text, reader, scorer, options, training, limit),
        reading,
        {**reading, **weights, "text": described["fingerprint"]},
        origin,
        text,
        limit,
    )
    # Scores of a reader that does not tell its settings, or of a scorer, cannot be recognised.
    again = options.again or layers is None
    return examine_subject(subject, options, options.out, progress=progress, ranks=ranks, again=again)


def examine_subject(
    subject: Subject,
    settings: ExaminationSettings,
    destination: Path | None,
    *,
    progress: Progress | None = None,
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
    key = {"format": FORMAT, **settings.losses_key(experiment.whole), **subject.made_of}
    if experiment.tagged and text.tags is not None:
        key["tags"] = hash_of(text.tags)
    if words is not None:
        key["word_score"] = words.word_score
    store = LossStore(destination if first else None, key, again)
    losses = measure(settings.experiment, on, progress, by=settings.by, store=store, ranks=ranks)
    cut = 0
    if words is not None:
        reach = settings.maximum_context if experiment.whole else settings.context
        cut = words.longer(*on.reached(losses.positions, reach), subject.window)
    figures = {
        **settings.recorded(experiment.whole),
        **subject.described,
        "tagger": text.tagger,
        "unknown_tag_share": None if text.tags is None else float((text.tags == UNKNOWN).mean()),
        "pieces_per_word": None if words is None else words.tokens / len(words.ids),
        "word_score": None if words is None else words.word_score,
        "window": subject.window,
        "cut_contexts": cut,
        **({} if subject.unknown_among is None else subject.unknown_among(losses.positions).figures()),
        **({} if experiment.picture is None else {"picture": experiment.picture.to_dict()}),
        **figures_of([losses], chosen_splits(settings.experiment, settings.by, losses), settings.seed),
    }
    origin = {
        **subject.provenance,
        "weights": subject.made_of.get("weights"),
        "seconds": round(time.perf_counter() - began, 1),
        "taken_over": store.taken,
    }
    if not first:
        destination = None
    subject.check(destination)
    store.finish(losses)
    if destination is not None and cut:
        warnings.warn(
            f"{subject.name} reads at most {subject.window:,} tokens; the contexts of {cut:,} targets are longer, and cut",
            stacklevel=2,
        )
    result = write_result(destination, "examination", subject.name, figures, origin)
    return ExaminationResult(result, (losses,))


def run_subject(opened: EvalSetup, reader: str, options: ExamineOptions) -> Subject:
    """Return an open run as the subject of an experiment; `reader` is the canonical name of its readers.

    Raises UserError where the experiment cannot be made on it.
    """
    dataset, split, run = opened.dataset, opened.split, opened.run
    limit = run.model.capabilities.maximum_length
    check_model(run.name, limit, options.maximum_context)
    source = None
    if options.experiment == "replace":  # a text of one's own comes without a training text
        source = dataset if "train" in dataset.splits else run.dataset(options.corpus, options.data_dir)
    text = AnnotatedText.of(dataset, split.name, options, options.data_dir)
    text, scorer, training = _fitted(text, ReaderScorer(opened.reader, _bytes(options.memory)), source, limit)
    on = examination(text, opened.reader, scorer, options, training, limit)
    layers = [layer.as_dict() for layer in opened.layers]
    reading = {"split": split.name, "reader": reader, "readers": layers, "unit": text.unit}
    made_of = {**reading, **_weights(opened.reader), "text": dataset.fingerprint}
    if source is not None:
        made_of["training"] = source.fingerprint
    if run.results is None:  # weights alone do not identify a model from elsewhere
        made_of["model"] = run.settings()
    among = None if text.folded else partial(unknown_share, dataset.vocabulary, split)
    return Subject(run.name, on, reading, made_of, opened.provenance(), text, limit, among, run.check_unchanged)


def _checked(options: ExamineOptions) -> ExamineOptions:
    """Return the options with every value checked, names of experiments, splits and taggers too. Raises UserError."""
    options = options.checked()
    check_experiment(options.experiment)
    check_splits(options.by)
    check_tagger(options.tagger)
    return options


def _check_set(runs: Sequence[Path | str]) -> None:
    """Raise UserError for runs that are no set, before the first is examined, which takes long."""
    paths = [Path(run).resolve() for run in runs]
    twice = next((run for i, run in enumerate(runs) if paths[i] in paths[:i]), None)
    if twice is not None:
        raise UserError(f"{twice} is named twice; a set is of models that differ in their seed")
    corpora = [open_run(run, choose_device("cpu")).corpus["fingerprint"] for run in runs]
    other = next((run for run, corpus in zip(runs, corpora, strict=True) if corpus != corpora[0]), None)
    if other is not None:
        raise UserError(f"{other} is of another corpus or tokenizer than {runs[0]}; compare models of one")


def _with_cache(readers: tuple[str, ...]) -> tuple[str, ...]:
    """Return the readers with a cache around them, if there is none among them."""
    names = [layer.name for layer in parse_stack(readers or "static")]
    if "cache" not in names:
        return (*readers, "cache")
    if names[-1] != "cache":
        raise UserError(f"what is taken away is the outermost reader, and that is {names[-1]}; name the cache last")
    return readers


def _fitted(
    text: AnnotatedText, scorer: Scorer, source: Dataset | None, limit: int | None
) -> tuple[AnnotatedText, Scorer, np.ndarray | None]:
    """Return a text with the scorer of its words or tokens and, of a corpus, the ids (tokens,) of its training text."""
    training = None
    if source is not None:
        text, training = text.with_training(source)
    if text.folded is not None:
        scorer = WordScorer(scorer, text.folded.pieces, limit, text.folded.boundaries)
    return text, scorer, training


def _layers(reader: Reader) -> list[dict[str, Any]] | None:
    """Return the names and settings of a reader's layers, innermost first; None where one does not tell its settings."""
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
