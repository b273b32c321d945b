"""Subjects of an examination: a model with a text, what is known of its tokens, and how the model reads it whole."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from backstory.config import UserError
from backstory.config.options import ExaminationSettings
from backstory.config.scores import UnknownShare
from backstory.context.examination import Examination, check_length
from backstory.context.experiment_run import check_fits
from backstory.context.experiments import EXPERIMENTS
from backstory.context.folding import Folded, fold
from backstory.context.scorer import Scorer
from backstory.context.splits import SPLITS
from backstory.context.whole_reading import WholeReading, row_length
from backstory.data import Dataset, in_words
from backstory.data.tags import tagged_by, tags_of
from backstory.readers import Reader
from backstory.readers.neural_cache import NeuralCache


@dataclass(frozen=True, eq=False)
class AnnotatedText:
    """Token ids with their unit, training counts, documents and part-of-speech tags."""

    ids: np.ndarray
    """(N,) tokens, or words where the tokens are pieces of words; `start`, `counts`, `documents` and `tags` are of the same."""
    start: int
    unit: str = "token"
    counts: np.ndarray | None = None
    unknown: int | None = None
    documents: np.ndarray | None = None
    tags: np.ndarray | None = None
    tagger: str | None = None
    """Source of the tags."""
    folded: Folded | None = None
    """Words of the pieces."""
    pieces: np.ndarray | None = None
    """(tokens,) ids of the pieces."""

    @property
    def tokens(self) -> int:
        """Number of tokens; of words the number of their pieces."""
        return len(self.ids) if self.folded is None else self.folded.tokens

    @staticmethod
    def of(
        dataset: Dataset, split: str, settings: ExaminationSettings, data_dir: Path | None = None
    ) -> "AnnotatedText":
        """Return a split of a corpus, tagged if the experiment or a split of the targets needs it. Raises UserError."""
        vocabulary, part, tagger = dataset.vocabulary, dataset.splits[split], settings.tagger
        check_length(len(part.ids), settings.maximum_context)  # before anything is read
        tagged = EXPERIMENTS[settings.experiment].tagged or any(SPLITS[by].tagged for by in settings.by)
        folded = fold(vocabulary, part, word_score=settings.word_score)
        words = dataset if folded is None else in_words(dataset, split)
        tags = source = None
        if folded is not None:
            check_length(len(folded.ids), settings.maximum_context)
        if tagged:
            tags, source = tags_of(words, split, tagger, data_dir), tagged_by(words, split, tagger, data_dir)
        if folded is None:
            unit, counts, unknown = vocabulary.tokenizer.unit, vocabulary.counts, vocabulary.unknown
            return AnnotatedText(part.ids, vocabulary.start, unit, counts, unknown, part.documents, tags, source)
        spelled = words.splits[split].ids[folded.places]
        # Several words are spelled alike where their pieces differ: with the space before them, and without.
        spelling = np.full(len(folded.pieces), -1)
        spelling[folded.ids] = spelled
        unknown = folded.ids[spelled == words.vocabulary.unknown]
        return AnnotatedText(
            folded.ids,
            folded.start,
            "word",
            np.where(spelling < 0, 0, words.vocabulary.counts[spelling]) if "train" in dataset.splits else None,
            int(np.bincount(unknown).argmax()) if len(unknown) else None,
            folded.documents,
            None if tags is None else tags[folded.places],
            source,
            folded,
            np.asarray(part.ids),
        )

    def with_training(self, source: Dataset) -> tuple["AnnotatedText", np.ndarray]:
        """Return the text and the ids of a corpus's training text: of words, numbered on from those of this text."""
        train = source.splits["train"]
        if self.folded is None:
            return self, train.ids
        known = {tuple(word.tolist()): number for number, word in enumerate(self.folded.pieces)}
        words = fold(source.vocabulary, train, known)
        if words is None:
            raise UserError("the training text has words that its tokens do not hold; examine with another experiment")
        return replace(self, folded=replace(self.folded, pieces=words.pieces)), words.ids


@dataclass(frozen=True)
class Subject:
    """A model with a text, however it is scored, and what its result says of both."""

    name: str
    on: Examination
    described: dict[str, Any]
    """Fields of the result on how the text was read: `split`, `reader`, `readers`, `unit`."""
    made_of: dict[str, Any]
    """All that losses depend on beside the options: weights, text, precision."""
    provenance: dict[str, Any]
    text: AnnotatedText
    window: int | None = None
    """The most tokens that the model reads; None: no limit."""
    unknown_among: Callable[[np.ndarray], UnknownShare] | None = None
    """Returns the share of `<unk>` among the tokens at positions (N,); None for tokens of no vocabulary."""
    check: Callable[[Path | None], None] = lambda destination: None
    """Raises UserError if results are to be written to a run that has changed since it was loaded."""


def examination(
    text: AnnotatedText,
    reader: Reader | None,
    scorer: Scorer,
    settings: ExaminationSettings,
    training: np.ndarray | None = None,
    limit: int | None = None,
) -> Examination:
    """Return the input of an experiment. Without a reader the text is not read from end to end. Raises UserError.

    `limit` is the most tokens that the model reads: a window that slides over a longer text leaves a token less context than
    the longest that is tried, so that such a text is not read from end to end, but for what a cache is worth.
    """
    cached = None
    adapts = reader is not None and any(_adapts(layer) for layer in reader.stack())
    if limit is not None and text.tokens > limit and settings.experiment != "cache":
        reader = None
    if settings.experiment == "cache" and isinstance(reader, NeuralCache):
        cached = _cached(text, reader, settings)
    on = Examination(
        text.ids,
        None if reader is None else _whole(text, reader, settings),
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
        adapts=adapts,
        cached=cached,
    )
    check_fits(settings.experiment, on)
    return on


def _adapts(layer: Reader) -> bool:
    return isinstance(layer, NeuralCache) or layer.capabilities.adapts_weights


def _cached(text: AnnotatedText, cache: NeuralCache, settings: ExaminationSettings) -> np.ndarray:
    """Return how many of the tokens, or words, before each position (N,) the cache holds there."""
    positions, window = np.arange(len(text.ids)), cache.settings.window
    if text.folded is None:
        held = np.minimum(positions, window)
    else:  # a word is held from its first piece on
        held = positions - np.searchsorted(text.folded.starts, text.folded.starts - window)
    if settings.batch_size == 1:
        return held
    before = settings.maximum_context
    size = row_length(len(positions), settings.batch_size, before)
    read_in_row = positions - np.maximum(positions - before, 0) // size * size
    return np.minimum(held, read_in_row)


def _whole(text: AnnotatedText, reader: Reader, settings: ExaminationSettings) -> WholeReading:
    documents = text.documents if settings.within_documents else None
    batch = settings.batch_size, settings.maximum_context
    if text.folded is None or text.pieces is None:
        return WholeReading(reader, text.ids, text.start, documents, None, *batch)
    start = int(text.folded.pieces[text.start][0])
    return WholeReading(reader, text.pieces, start, documents, text.folded, *batch)


def check_types(known: int, types: int, exact: bool) -> None:
    """Raise UserError unless a model of `known` types can read a text of `types`; `exact`: of just as many."""
    if known < types or (exact and known != types):
        raise UserError(
            f"the model knows {known:,} types and the text has {types:,}: it was made with another vocabulary or tokenizer; "
            "examine it on text that was prepared with its own"
        )


def hash_of(array: np.ndarray) -> str:
    """Return the SHA-256 (hex) of an array's values."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
