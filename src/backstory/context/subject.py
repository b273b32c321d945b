"""Subjects of experiments: a trained run, or a model in memory, with its text and its scorer."""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from backstory.config import to_dict
from backstory.config.examination_options import ExaminationSettings, ExamineOptions
from backstory.context.examination import Examination, check_length
from backstory.context.examined_text import AnnotatedText, WholeReading, row_length
from backstory.context.experiments import EXPERIMENTS
from backstory.context.scorer import ReaderScorer, Scorer, WordScorer
from backstory.data import Dataset, unknown_share
from backstory.evaluation.audit_in_memory import token_ids
from backstory.evaluation.opening import EvalSetup
from backstory.models import ComposedModel, LanguageModel, device_name
from backstory.readers import Reader, StaticReader
from backstory.readers.neural_cache import NeuralCache
from backstory.results.common import ProvenanceRecord
from backstory.runs.model_in_memory import ModelElsewhere, architecture_hash
from backstory.runs.run import weights_hash
from backstory.utils.errors import UserError, check_name
from backstory.utils.scores import UnknownShare


@dataclass(frozen=True)
class Subject:
    """A model or scorer with a text to examine it on, and the parts of the result that describe both."""

    name: str
    examination: Examination
    reading: dict[str, Any]
    """Fields of the result on how the text was read: `split`, `reader`, `readers`, `unit`."""
    depends_on: dict[str, Any]
    """Everything besides the options that losses depend on: weights, text, precision."""
    provenance: ProvenanceRecord
    text: AnnotatedText
    settings: ExaminationSettings
    """The options, with contexts that the model's window holds where no length was given."""
    window: int | None = None
    """Maximum number of tokens that the model reads; None: no limit."""
    unknown_among: Callable[[np.ndarray], UnknownShare] | None = None
    """Returns the share of `<unk>` among the tokens at positions (N,); None for tokens of no vocabulary."""
    check_unchanged: Callable[[Path | None], None] = lambda destination: None
    """Raises UserError if results are to be written to a run that has changed since it was loaded."""
    identified: bool = True
    """False if `depends_on` does not identify the model, so that losses of an earlier examination may be those of another."""


# --- trained runs ---


def subject_of_run(setup: EvalSetup, reader: str, options: ExamineOptions) -> Subject:
    """Return an open run as the subject of an experiment; `reader` is the canonical name of its readers.

    Raises UserError where the run does not allow the experiment.
    """
    dataset, split, run = setup.dataset, setup.split, setup.run
    limit = run.model.capabilities.maximum_length
    settings = _fitted(options, limit)
    _check_window(run.name, limit, settings)
    training = None
    if options.experiment == "replace":
        training = dataset
        if "train" not in dataset.splits:  # a user's own text
            training = run.dataset(options.corpus, options.data_dir, options.field)
    text = AnnotatedText.of(dataset, split.name, settings, options.data_dir)
    settings = _fitted(options, limit, text)
    scorer = ReaderScorer(setup.reader, _bytes(options.memory))
    text, examination = _examination(text, setup.reader, scorer, settings, training=training, limit=limit)
    layers = [layer.as_dict() for layer in setup.layers]
    reading = {"split": split.name, "reader": reader, "readers": tuple(layers), "unit": text.unit}
    depends_on = {**reading, **_weights(setup.reader), "text": dataset.fingerprint}
    if training is not None:
        depends_on["training"] = training.fingerprint
    if isinstance(run, ModelElsewhere):  # its weights alone do not identify it
        depends_on["model"] = run.settings() | {"architecture": run.architecture()}
    return Subject(
        name=run.name,
        examination=examination,
        reading=reading,
        depends_on=depends_on,
        provenance=setup.provenance(),
        text=text,
        settings=settings,
        window=limit,
        unknown_among=None if text.folded else partial(unknown_share, dataset.vocabulary, split),
        check_unchanged=run.check_unchanged,
    )


# --- models in memory ---


def subject_in_memory(
    model: LanguageModel | Reader | Scorer, corpus: Dataset | np.ndarray, options: ExamineOptions, name: str
) -> Subject:
    """Return a model, a reader or a scorer in memory as the subject of an experiment on a corpus, or on token ids (N,).

    Raises UserError where they do not allow the experiment.
    """
    reader = StaticReader(model) if isinstance(model, LanguageModel) else model if isinstance(model, Reader) else None
    limit = None if reader is None else reader.model.capabilities.maximum_length
    settings = _fitted(options, limit)
    _check_window(name, limit, settings)
    if options.experiment == "cache" and not isinstance(reader, NeuralCache):
        raise UserError("the experiment cache needs a reader whose outermost layer is a cache; give such a reader")
    source = _corpus_text(corpus, settings) if isinstance(corpus, Dataset) else _ids_text(token_ids(corpus), settings)
    settings = _fitted(options, limit, source.text)
    if reader is not None:
        # The output layer of a foreign model may be larger than its tokenizer.
        exact = isinstance(corpus, Dataset) and isinstance(reader.model, ComposedModel)
        _check_types(reader.model.vocabulary_size, source.types, exact)
    scorer = cast(Scorer, model) if reader is None else ReaderScorer(reader, _bytes(options.memory))
    text, examination = _examination(source.text, reader, scorer, settings, training=source.training, limit=limit)
    layers = None if reader is None else _layers(reader)
    reading = {
        "split": source.split,
        "reader": "static" if reader is None else reader.name,
        "readers": tuple(layers or ()),
        "unit": text.unit,
    }
    weights = {"weights": name}
    if reader is not None:
        weights = _weights(reader) | {"model": architecture_hash(reader.model)}
    description = {"fingerprint": array_hash(np.asarray(text.ids, np.int64)), **source.description}
    return Subject(
        name=name,
        examination=examination,
        reading=reading,
        depends_on={**reading, **weights, "text": description["fingerprint"]},
        provenance=_provenance(reader, description),
        text=text,
        settings=settings,
        window=limit,
        # The settings of some readers, and of scorers, are unknown.
        identified=layers is not None,
    )


@dataclass(frozen=True, eq=False)
class _TextInMemory:
    """A text that comes with a model in memory."""

    text: AnnotatedText
    split: str
    types: int
    """Size of its vocabulary."""
    description: dict[str, Any]
    """Fields of its record in results."""
    training: Dataset | None = None
    """Corpus whose training text replaces contexts."""


def _corpus_text(corpus: Dataset, options: ExamineOptions) -> _TextInMemory:
    """Return a split of a prepared corpus. Raises UserError."""
    check_name(options.split, corpus.splits, "split")
    return _TextInMemory(
        AnnotatedText.of(corpus, options.split, options),
        options.split,
        types=len(corpus.vocabulary),
        description=corpus.describe(),
        training=corpus if options.experiment == "replace" and "train" in corpus.splits else None,
    )


def _ids_text(ids: np.ndarray, options: ExamineOptions) -> _TextInMemory:
    """Return a text of token ids (N,) alone, the first of which is read before it. Raises UserError if it cannot be read."""
    check_length(len(ids), options.longest_context)
    if ids.min() < 0:  # on a GPU an index from the end
        raise UserError(
            f"token ids must be 0 or above, not {ids.min()}; encode the text with the model's own vocabulary"
        )
    text = AnnotatedText(ids, start=int(ids[0]))
    return _TextInMemory(text, "ids", types=int(ids.max()) + 1, description={"name": "token ids"})


def _provenance(reader: Reader | None, corpus: dict[str, Any]) -> ProvenanceRecord:
    """Return the provenance of a result that begins now; nothing is known of a scorer's device and precision."""
    if reader is None:
        return ProvenanceRecord.begun({"seed": None}, "unknown", "unknown", "the scorer's own", corpus)
    device, precision = device_name(next(reader.model.parameters()).device), reader.precision
    return ProvenanceRecord.begun({"seed": None}, device, precision.name, precision.reason, corpus)


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
    """Return everything besides its settings and the text that the losses of a reader depend on."""
    return {
        "weights": weights_hash(reader.model),
        "precision": reader.precision.name,
        "device": next(reader.model.parameters()).device.type,
        "torch": torch.__version__,
    }


# --- the input of the experiment ---


def _examination(
    text: AnnotatedText,
    reader: Reader | None,
    scorer: Scorer,
    settings: ExaminationSettings,
    *,
    training: Dataset | None,
    limit: int | None,
) -> tuple[AnnotatedText, Examination]:
    """Return the text, and the input of an experiment on it. Without a reader the text is not read from end to end.

    `training` is the corpus whose training text replaces contexts, if any. `limit` is the most tokens that the model reads.
    A longer text is read from end to end for the experiment `cache` only: a window that slides over it would leave a token
    less context than the longest that is tried. Raises UserError.
    """
    training_ids = cached = whole = None
    if training is not None:
        text, training_ids = text.with_training(training)
    if text.folded is not None:
        scorer = WordScorer(scorer, text.folded.pieces, limit, text.folded.boundaries)
    with_cache = settings.experiment == "cache"
    if reader is not None and (limit is None or text.tokens <= limit or with_cache):
        whole = _whole_reading(text, reader, settings, with_inner=with_cache)
        if with_cache and isinstance(reader, NeuralCache):
            cached = _cached(text, reader.settings.window, settings)
    adapts = reader is not None and any(layer.adapts or layer.capabilities.adapts_weights for layer in reader.stack())
    return text, Examination(
        ids=text.ids,
        baseline=whole,
        scorer=scorer,
        targets=settings.targets,
        maximum_context=settings.longest_context,
        seed=settings.seed,
        context=settings.context_length,
        near=settings.near,
        tags=text.tags,
        training=training_ids,
        counts=text.counts,
        unknown=text.unknown,
        start=text.start,
        documents=text.documents,
        within_documents=settings.within_documents,
        start_token=settings.start_token,
        adapts=adapts,
        cached=cached,
    )


def _whole_reading(
    text: AnnotatedText, reader: Reader, settings: ExaminationSettings, with_inner: bool
) -> WholeReading:
    """Return the reading of a text from end to end: of its pieces, where the text is one of words."""
    ids, start = text.ids, text.start
    if text.folded is not None and text.pieces is not None:
        ids, start = text.pieces, int(text.folded.pieces[text.start][0])
    return WholeReading(
        reader,
        ids,
        start,
        documents=text.documents if settings.within_documents else None,
        folded=text.folded,
        batch_size=settings.batch_size,
        before=settings.longest_context,
        with_inner=with_inner,
    )


def _cached(text: AnnotatedText, window: int, settings: ExaminationSettings) -> np.ndarray:
    """Return how many of the tokens, or words, before each position (N,) a cache of `window` tokens holds there."""
    positions, before = np.arange(len(text.ids)), settings.longest_context
    held = np.minimum(positions, window)
    if text.folded is not None:  # a word is held from its first piece on
        held = positions - np.searchsorted(text.folded.starts, text.folded.starts - window)
    if settings.batch_size == 1:
        return held
    size = row_length(len(positions), settings.batch_size, before)
    read_in_row = positions - np.maximum(positions - before, 0) // size * size
    return np.minimum(held, read_in_row)


def _fitted(options: ExamineOptions, limit: int | None, text: AnnotatedText | None = None) -> ExamineOptions:
    """Return the options with contexts that a model of `limit` tokens holds where no length is given: in words of a text."""
    if limit is None:
        return options
    most = max(1, limit - options.start_token)
    if text is not None and text.folded is not None:
        most = text.folded.usual_length(most)
    return options.fitted(most)


def _check_window(name: str, limit: int | None, options: ExamineOptions) -> None:
    """Raise UserError if the contexts of an experiment, with the start token before them, are longer than a model reads."""
    whole = EXPERIMENTS[options.experiment].whole
    flag, context = ("--maximum-context", options.longest_context) if whole else ("--context", options.context_length)
    longest = context + options.start_token
    if limit is not None and longest > limit:
        before = ", the start token among them" if options.start_token else ""
        raise UserError(
            f"{name} reads at most {limit:,} tokens, so no context can have {longest:,}{before}; use {flag} "
            f"{limit - options.start_token}, or leave it out for a length that fits the words of the text"
        )


def _check_types(known: int, types: int, exact: bool) -> None:
    """Raise UserError unless a model of `known` types can read a text of `types`; `exact`: of just as many."""
    if known < types or (exact and known != types):
        raise UserError(
            f"the model knows {known:,} types and the text has {types:,}: it was made with another vocabulary or tokenizer; "
            "examine it on text that was prepared with its own"
        )


def _bytes(gibibytes: float) -> int:
    return int(min(gibibytes * 2.0**30, sys.maxsize))


def array_hash(array: np.ndarray) -> str:
    """Return the SHA-256 (hex) of an array's values."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
