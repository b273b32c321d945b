"""What is examined, and how: a text with what is known of its tokens, a reader that reads it whole, and the options."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from backstory.config import UserError
from backstory.config.arguments import checked
from backstory.config.unknown_share import UnknownShare
from backstory.context.examination import Examination, check_length
from backstory.context.experiment_run import check_fits
from backstory.context.experiments import EXPERIMENTS
from backstory.context.folding import Folded, fold
from backstory.context.scorer import Scorer
from backstory.context.splits import SPLITS
from backstory.context.whole_reading import WholeReading, row_length
from backstory.data import Dataset, WordScore, check_word_score, in_words
from backstory.data.tags import Tagger, check_tagger, tagged_by, tags_of
from backstory.readers import Reader
from backstory.readers.neural_cache import NeuralCache


@checked(targets=2, maximum_context=1, context=2, near=1, seed=0, batch_size=1)
@dataclass(frozen=True)
class Options:
    """What an examination is made with, whatever the model; all in tokens."""

    targets: int = 2000
    """Tokens that are scored under every condition, drawn at random; at most all there are."""
    maximum_context: int = 1000
    """The longest context: only tokens with so many before them are targets."""
    context: int = 300
    """The context that is perturbed, where its length is not what varies."""
    near: int = 50
    """The farthest token that counts as near."""
    within_documents: bool = False
    """Whether contexts end where the target's document begins."""
    by: tuple[str, ...] | None = None
    """Splits of the targets; None for those that belong to the experiment."""
    tagger: str | Tagger = "auto"
    """Who gives the part-of-speech tags, where they are needed."""
    seed: int = 0
    """Seed of the draw of targets, of the perturbations and of the bootstrap."""
    batch_size: int = 1
    """Rows in which a whole text is read side by side, each from an empty state and `maximum_context` tokens before the first
    that is scored in it."""
    word_score: WordScore = "corrected"
    """How the pieces of a word become its score: corrected for where it begins and ends, or their plain sum."""

    def __post_init__(self) -> None:
        """Raises UserError for a number out of range."""
        least_of = {"targets": 2, "maximum_context": 1, "context": 2, "near": 1, "seed": 0, "batch_size": 1}
        for name, least in least_of.items():
            if getattr(self, name) < least:
                raise UserError(f"{name} must be {least} or more, not {getattr(self, name)}")
        check_word_score(self.word_score)
        if self.batch_size > 1 and self.within_documents:
            raise UserError(
                "documents are read each by itself, one after the other; leave --batch-size out, or --within-documents"
            )
        check_tagger(self.tagger)


@dataclass(frozen=True, eq=False)
class Text:
    """Token ids and what is known of them."""

    ids: np.ndarray
    start: int
    unit: str = "token"
    counts: np.ndarray | None = None
    unknown: int | None = None
    documents: np.ndarray | None = None
    tags: np.ndarray | None = None
    tagger: str | None = None
    """Who gave the tags."""
    folded: Folded | None = None
    """The words, where the tokens are pieces of them: `ids`, `start` and `documents` are in words then."""
    pieces: np.ndarray | None = None
    """The token ids, then."""

    @property
    def tokens(self) -> int:
        """How many there are, of words the pieces."""
        return len(self.ids) if self.folded is None else self.folded.tokens

    @staticmethod
    def of(dataset: Dataset, split: str, experiment: str, options: Options, data_dir: Path | None = None) -> "Text":
        """A split of a corpus, tagged if the experiment or a split of the targets needs it. Raises UserError."""
        words, part = dataset.vocabulary, dataset.splits[split]
        check_length(len(part.ids), options.maximum_context)  # before anything is read
        tagged = EXPERIMENTS[experiment].tagged or any(SPLITS[by].tagged for by in options.by or ())
        if (folded := fold(words, part, word_score=options.word_score)) is not None:
            check_length(len(folded.ids), options.maximum_context)
            return Text._folded(dataset, split, folded, tagged, options.tagger, data_dir)
        return Text(
            part.ids,
            words.start,
            words.tokenizer.unit,
            words.counts,
            words.unknown,
            part.documents,
            tags_of(dataset, split, options.tagger, data_dir) if tagged else None,
            tagged_by(dataset, split, options.tagger, data_dir) if tagged else None,
        )

    @staticmethod
    def _folded(
        dataset: Dataset, split: str, folded: Folded, tagged: bool, tagger: str | Tagger, data_dir: Path | None
    ) -> "Text":
        """Words of pieces, with the counts, the tags and the `<unk>` of the same text in words. Raises UserError."""
        words = in_words(dataset, split)
        spelled = words.splits[split].ids[folded.places]
        # A word is of several kinds where its pieces differ: with the space before it, and without.
        kinds = np.full(len(folded.pieces), -1)
        kinds[folded.ids] = spelled
        unknown = folded.ids[spelled == words.vocabulary.unknown]
        return Text(
            folded.ids,
            folded.start,
            "word",
            np.where(kinds < 0, 0, words.vocabulary.counts[kinds]) if "train" in dataset.splits else None,
            int(np.bincount(unknown).argmax()) if len(unknown) else None,
            folded.documents,
            tags_of(words, split, tagger, data_dir)[folded.places] if tagged else None,
            tagged_by(words, split, tagger, data_dir) if tagged else None,
            folded,
            np.asarray(dataset.splits[split].ids),
        )

    def beside(self, source: Dataset) -> tuple["Text", np.ndarray]:
        """The same text, and the ids of a corpus's training text; in words where it is folded, whose ids go on in that one."""
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
    """A model with a text: what is examined, by whatever means it is scored."""

    name: str
    on: Examination
    described: dict[str, Any]
    """What a result says of how the text was read: `split`, `reader`, `readers`, `unit`."""
    made_of: dict[str, Any]
    """What losses depend on beside the options: weights, text, precision."""
    provenance: dict[str, Any]
    tagger: str | None = None
    """Who gave the tags; None without."""
    folded: Folded | None = None
    """The words of a text of pieces."""
    window: int | None = None
    """The most tokens that the model reads; None: no limit."""
    unknown_among: Callable[[np.ndarray], UnknownShare] | None = None
    """Tells how much of the tokens at some places (N,) is `<unk>`; None where the tokens are not those of a vocabulary."""
    check: Callable[[Path | None], None] = lambda destination: None
    """Raises UserError where what was measured is to be written there and the model's run has changed meanwhile."""


def examination(
    text: Text,
    reader: Reader | None,
    scorer: Scorer,
    experiment: str,
    options: Options,
    training: np.ndarray | None = None,
    limit: int | None = None,
) -> Examination:
    """What an experiment is run on. Without a reader the text cannot be read from end to end. Raises UserError.

    `limit` is the most tokens that the model reads: a window that slides over a longer text leaves a token less context than
    the longest that is tried, so that such a text is not read from end to end, but for what a cache is worth.
    """
    documents = text.documents if options.within_documents else None
    adapts = reader is not None and any(_adapts(layer) for layer in _layers(reader))
    if limit is not None and text.tokens > limit and experiment != "cache":
        reader = None
    on = Examination(
        text.ids,
        _whole(text, reader, documents, options) if reader is not None else None,
        scorer,
        options.targets,
        options.maximum_context,
        options.seed,
        options.context,
        options.near,
        text.tags,
        training,
        text.counts,
        text.unknown,
        text.start,
        text.documents,
        options.within_documents,
        adapts,
        _cached(text, reader, options) if experiment == "cache" and isinstance(reader, NeuralCache) else None,
    )
    check_fits(experiment, on)
    return on


def _layers(reader: Reader) -> Iterator[Reader]:
    """A reader and those inside it."""
    layer: Reader | None = reader
    while layer is not None:
        yield layer
        layer = layer.inner


def _adapts(layer: Reader) -> bool:
    return isinstance(layer, NeuralCache) or layer.capabilities.adapts_weights


def _cached(text: Text, cache: NeuralCache, options: Options) -> np.ndarray:
    """How many of the tokens, or words, before each (N,) the cache holds there."""
    places, window = np.arange(len(text.ids)), cache.settings.window
    if text.folded is None:
        held = np.minimum(places, window)
    else:  # a word is held from its first piece on
        held = places - np.searchsorted(text.folded.starts, text.folded.starts - window)
    return held if options.batch_size == 1 else np.minimum(held, _read_before(places, options))


def _read_before(places: np.ndarray, options: Options) -> np.ndarray:
    """How much of its row was read before each place (N,)."""
    before = options.maximum_context
    size = row_length(len(places), options.batch_size, before)
    return places - np.maximum(places - before, 0) // size * size


def _whole(text: Text, reader: Reader, documents: np.ndarray | None, options: Options) -> WholeReading:
    batch = options.batch_size, options.maximum_context
    if text.folded is None or text.pieces is None:
        return WholeReading(reader, text.ids, text.start, documents, None, *batch)
    start = int(text.folded.pieces[text.start][0])
    return WholeReading(reader, text.pieces, start, documents, text.folded, *batch)


def check_types(known: int, types: int, exact: bool) -> None:
    """Raise UserError unless a model of so many types can read a text of so many."""
    if known < types or (exact and known != types):
        raise UserError(
            f"the model knows {known:,} types and the text has {types:,}: it was made with another vocabulary or tokenizer; "
            "examine it on text that was prepared with its own"
        )


def hash_of(array: np.ndarray) -> str:
    """The SHA-256 (hex) of an array's values."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
