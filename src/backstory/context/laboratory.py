"""Run experiments on trained runs and on models at hand, and write what was found."""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from backstory.config import UserError, check_name, to_dict
from backstory.config.arguments import checked
from backstory.config.eval_options import EvalOptions, folder_name
from backstory.context.examination import Alone, Ranks, check_length
from backstory.context.experiment_run import check_model, chosen_splits, measure
from backstory.context.experiments import EXPERIMENTS, check_experiment
from backstory.context.figures import figures as figures_of
from backstory.context.folding import WordScorer
from backstory.context.losses import Progress
from backstory.context.result import Examined
from backstory.context.scorer import ReaderScorer, Scorer, refuse_adapting
from backstory.context.splits import check_splits
from backstory.context.subject import Options, Subject, Text, check_types, examination, hash_of
from backstory.data import Dataset, WordScore, unknown_share
from backstory.data.tags import Tagger
from backstory.data.tokenizers.built_in import UNKNOWN
from backstory.evaluation.opening import EvalSetup, Readers, open_evaluation
from backstory.models import LanguageModel, device_name
from backstory.models.devices import keep_freed_memory
from backstory.readers import Reader, StaticReader
from backstory.readers.neural_cache import NeuralCache
from backstory.readers.registry import READERS, parse_stack, stack_name
from backstory.storage.atomic import within
from backstory.storage.provenance import check_place, provenance, write_result

FORMAT = 1
"""Raised when the rules of this room change, so that losses made by older rules are not taken over."""


@checked()
def run_subject(
    subject: Subject,
    experiment: str,
    options: Options,
    destination: Path | None,
    *,
    progress: Callable[[int, int], None] | None = None,
    ranks: Ranks | None = None,
    again: bool = False,
) -> Examined:
    """Run an experiment on whatever model, and write its result and losses to the destination, if there is one.

    Conditions that an earlier run finished there are taken over, if all that they depend on is the same; `again` takes
    nothing over. Raises UserError.
    """
    check_experiment(experiment)
    began, kind = time.perf_counter(), EXPERIMENTS[experiment]
    place = destination if ranks is None or ranks.rank == 0 else None
    settings = {"format": FORMAT, "experiment": experiment, **_lasting(options, kind.whole), **subject.made_of}
    if kind.tagged and subject.on.tags is not None:
        settings["tags"] = hash_of(subject.on.tags)
    if subject.folded is not None:
        settings["word_score"] = subject.folded.word_score
    kept = Progress(place, settings, again)
    losses = measure(experiment, subject.on, progress, by=options.by, kept=kept, ranks=ranks)
    by = chosen_splits(experiment, options.by, losses)
    words, reach = subject.folded, options.maximum_context if kind.whole else options.context
    found = {
        "experiment": experiment,
        **subject.described,
        "seed": options.seed,
        "maximum_context": options.maximum_context,
        "context": None if kind.whole else options.context,
        "within_documents": options.within_documents,
        "batch_size": options.batch_size if kind.whole else 1,
        "near": options.near,
        "tagger": subject.tagger,
        "unknown_tag_share": None if subject.on.tags is None else float((subject.on.tags == UNKNOWN).mean()),
        "pieces_per_word": None if words is None else words.tokens / len(words.ids),
        "word_score": None if words is None else words.word_score,
        "window": subject.window,
        "cut_contexts": 0
        if words is None
        else words.longer(*subject.on.reached(losses.positions, reach), subject.window),
        **({} if subject.unknown_among is None else subject.unknown_among(losses.positions).figures()),
        **figures_of([losses], by, options.seed),
    }
    origin = {**subject.provenance, "weights": subject.made_of.get("weights")}
    origin |= {"seconds": round(time.perf_counter() - began, 1), "taken_over": kept.taken}
    if ranks is None or ranks.rank == 0:
        subject.check(place)
    kept.finish(losses)
    if place is not None and found["cut_contexts"]:
        warnings.warn(
            f"{subject.name} reads at most {subject.window:,} tokens; the contexts of {found['cut_contexts']:,} targets are "
            "longer, and cut",
            stacklevel=2,
        )
    return Examined(write_result(place, "examination", subject.name, found, origin), (losses,))


def _lasting(options: Options, whole: bool) -> dict[str, Any]:
    """The options that losses depend on."""
    found = {
        f.name: getattr(options, f.name)
        for f in fields(options)
        if f.name not in ("by", "tagger", "near", "batch_size", "word_score")
    }
    found |= {"batch_size": options.batch_size} if whole and options.batch_size > 1 else {}
    return found | {"context": None if whole else options.context, "near": None if whole else options.near}


@checked(memory=1)
def examine_run(
    folder: Path | str,
    experiment: str,
    *,
    split: str = "valid",
    text: Path | None = None,
    reader: Readers = "static",
    targets: int = 2000,
    maximum_context: int = 1000,
    context: int = 300,
    near: int = 50,
    within_documents: bool = False,
    by: Sequence[str] | None = None,
    tagger: str | Tagger = "auto",
    seed: int = 0,
    batch_size: int = 1,
    word_score: WordScore = "corrected",
    precision: str = "auto",
    device: str = "auto",
    data_dir: Path | None = None,
    corpus: str | None = None,
    memory: int = 1 << 30,
    out: Path | str | None = None,
    again: bool = False,
    allow_unknown: bool = False,
    ranks: Ranks | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Examined:
    """Run an experiment on a trained run; the content of its result.json is `.result` (docs/results.md describes it).

    `reader` names one reader, or several that are stacked on each other (`parse_stack`); it reads the baseline, and every
    context with nothing read before it. `text` is a text of one's own, instead of a split. The result is written to `out`, else
    to RUN/examine-EXPERIMENT-SPLIT, with any reader but static added to the name, and contexts within documents; of a model
    from elsewhere (`hf:...`), which reads the `corpus` of this name or path, only where there is an `out`. Targets and contexts
    are words where the tokens are pieces of them (`fold`), scored as `word_score` says. Baseline and conditions run in the same
    precision; `memory` is the budget of a batch of contexts, in bytes. Conditions that a stopped examination finished there are
    taken over, unless `again`. Raises UserError, also for a reader whose weights move, and unless `allow_unknown` for a text
    that is mostly outside the vocabulary.
    """
    check_experiment(experiment)
    check_splits(by or ())
    keep_freed_memory()
    options = Options(
        targets,
        maximum_context,
        context,
        near,
        within_documents,
        None if by is None else tuple(by),
        tagger,
        seed,
        batch_size,
        word_score,
    )
    if experiment == "cache":
        reader = _with_cache(reader)
    stack = parse_stack(reader)
    name = stack_name(stack)
    if adapting := [layer.name for layer in stack if READERS[layer.name].adapts_weights]:
        refuse_adapting(adapting[0])  # before what such a reader needs is asked for
    added = [*([] if name == "static" else [name]), *(["documents"] if within_documents else [])]
    added += [] if word_score == "corrected" else [f"word-score-{word_score}"]
    opened = open_evaluation(
        folder,
        EvalOptions.build(
            split=split,
            text=text,
            reader=reader,
            precision=precision,
            device=device,
            data_dir=data_dir,
            corpus=corpus,
            allow_unknown=allow_unknown,
        ),
    )
    if out is None and opened.run.results is not None:
        out = within(opened.run.results, folder_name("examine", experiment, opened.split.name, *added))
    destination = None if out is None else Path(out)
    if destination is not None and (ranks or Alone()).rank == 0:
        check_place(destination, "examination")
    subject = subject_of(opened, name, experiment, options, memory, data_dir, corpus)
    return run_subject(subject, experiment, options, destination, progress=progress, ranks=ranks, again=again)


def _with_cache(reader: Readers) -> Readers:
    """The readers asked for, and the cache if it is not among them."""
    asked, names = [reader] if isinstance(reader, str) else list(reader), [layer.name for layer in parse_stack(reader)]
    if "cache" not in names:
        return [*asked, "cache"]
    if names[-1] != "cache":
        raise UserError(f"what is taken away is the outermost reader, and that is {names[-1]}; name the cache last")
    return reader


def subject_of(
    opened: EvalSetup,
    reader: str,
    experiment: str,
    options: Options,
    memory: int,
    data_dir: Path | None = None,
    corpus: str | None = None,
) -> Subject:
    """A run that is open for reading as what is examined. `reader` is the name of the readers asked for.

    Raises UserError where the experiment cannot be made on it.
    """
    dataset, split, run = opened.dataset, opened.split, opened.run
    limit = run.model.capabilities.maximum_length
    check_model(run.name, limit, options.maximum_context)
    source = None
    if experiment == "replace":  # which a text of one's own does not come with
        source = dataset if "train" in dataset.splits else run.dataset(corpus, data_dir)
    text = Text.of(dataset, split.name, experiment, options, data_dir)
    text, scorer, training = _fitted(text, ReaderScorer(opened.reader, memory), source, limit)
    on = examination(text, opened.reader, scorer, experiment, options, training, limit)
    layers = [layer.as_dict() for layer in opened.layers]
    described = {"split": split.name, "reader": reader, "readers": layers, "unit": text.unit}
    made_of = {**described, **_made_of(opened.reader, run.weights_hash), "text": dataset.fingerprint}
    if source is not None:
        made_of["training"] = source.fingerprint
    if run.results is None:  # of a model from elsewhere its weights do not tell all
        made_of["model"] = run.settings()
    among = None if text.folded else partial(unknown_share, dataset.vocabulary, split)
    origin, check = opened.provenance(), run.check_unchanged
    return Subject(run.name, on, described, made_of, origin, text.tagger, text.folded, limit, among, check)


def _fitted(
    text: Text, scorer: Scorer, source: Dataset | None, limit: int | None
) -> tuple[Text, Scorer, np.ndarray | None]:
    """A text with the scorer of its words or tokens and, where a corpus is given, the ids (tokens,) of its training text."""
    training = None
    if source is not None:
        text, training = text.beside(source)
    if text.folded is not None:
        scorer = WordScorer(scorer, text.folded.pieces, limit, text.folded.boundaries)
    return text, scorer, training


def _layers_of(reader: Reader | None) -> list[dict[str, Any]] | None:
    """What a reader at hand is made of, the innermost first; None where it does not tell all that its scores depend on."""
    found: list[dict[str, Any]] = []
    while reader is not None:
        settings = getattr(reader, "settings", None)
        if settings is None and type(reader) is not StaticReader:
            return None
        found.insert(0, {"name": reader.name, "settings": {} if settings is None else to_dict(settings)})
        reader = reader.inner
    return found


def _made_of(reader: Reader, weights: str) -> dict[str, Any]:
    """What the losses of a reader depend on beside the text."""
    return {
        "weights": weights,
        "precision": reader.precision.name,
        "device": next(reader.model.parameters()).device.type,
        "torch": torch.__version__,
    }


@checked(memory=1)
def examine_model(
    model: LanguageModel | Reader | Scorer,
    corpus: Dataset | np.ndarray,
    experiment: str = "truncate",
    *,
    split: str = "valid",
    name: str = "model",
    memory: int = 1 << 30,
    out: Path | str | None = None,
    again: bool = False,
    ranks: Ranks | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Examined:
    """Run an experiment on a model, a reader or anything with `score`, that is at hand; `options` are the fields of `Options`.

    `corpus` is a prepared one, of which a split is read, or token ids (N,) alone; these have no words, so that there are no
    tags and no frequencies. A scorer alone cannot read a text from end to end: the longest context stands for all there is.
    The result is written only where `out` says so. Raises UserError, also for a model of another vocabulary than the corpus.
    """
    check_experiment(experiment)
    check_splits(options.get("by") or ())
    for option in options:
        check_name(option, [f.name for f in fields(Options)], "option")
    chosen = Options(**{**options, "by": None if options.get("by") is None else tuple(options["by"])})
    if not isinstance(model, LanguageModel | Reader) and not hasattr(model, "score"):
        raise UserError(
            f"a {type(model).__name__} cannot be examined; give a model, a reader or something with `score`"
        )
    reader = StaticReader(model) if isinstance(model, LanguageModel) else model if isinstance(model, Reader) else None
    scorer = cast(Scorer, model) if reader is None else ReaderScorer(reader, memory)
    limit = None if reader is None else reader.model.capabilities.maximum_length
    check_model(name, limit, chosen.maximum_context)
    if experiment == "cache" and not isinstance(reader, NeuralCache):
        raise UserError("what is taken away is a cache; give a reader whose outermost one is a cache")
    corpus_is, source = {"name": "token ids"}, None
    if isinstance(corpus, Dataset):
        check_name(split, corpus.splits, "split")
        text, corpus_is = Text.of(corpus, split, experiment, chosen), corpus.describe()
        source = corpus if experiment == "replace" and "train" in corpus.splits else None
    else:
        ids = np.asarray(corpus)
        check_length(len(ids), chosen.maximum_context)
        text, split = Text(ids, int(ids[0])), "ids"
    if reader is not None:
        exact = isinstance(corpus, Dataset)
        types = len(corpus.vocabulary) if isinstance(corpus, Dataset) else int(text.ids.max()) + 1
        check_types(reader.model.vocabulary_size, types, exact)
    text, scorer, training = _fitted(text, scorer, source, limit)
    on = examination(text, reader, scorer, experiment, chosen, training, limit)
    read_as = "static" if reader is None else reader.name
    layers = None if reader is None else _layers_of(reader)
    described = {"split": split, "reader": read_as, "readers": layers or [], "unit": text.unit}
    corpus_is = {"fingerprint": hash_of(np.asarray(text.ids, np.int64)), **corpus_is}
    made_of = {
        **described,
        **({"weights": name} if reader is None else _made_of(reader)),
        "text": corpus_is["fingerprint"],
    }
    precision = ("unknown", "the scorer's own") if reader is None else (reader.precision.name, reader.precision.reason)
    place = "unknown" if reader is None else device_name(next(reader.model.parameters()).device)
    destination = None if out is None else Path(out)
    if destination is not None:
        check_place(destination, "examination")
    origin = provenance({"seed": None}, place, *precision, corpus_is)
    subject = Subject(name, on, described, made_of, origin, text.tagger, text.folded, limit)
    # What does not tell all that its scores depend on cannot be known again.
    again = again or layers is None
    return run_subject(subject, experiment, chosen, destination, progress=progress, ranks=ranks, again=again)
