"""Text of an examination: its words if tokens are pieces of words, their properties, and its reading from end to end."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from backstory.config.examination_options import ExaminationSettings
from backstory.context.examination import SPLITS, Advance, check_length
from backstory.context.experiments import EXPERIMENTS
from backstory.data import (
    Boundaries,
    Dataset,
    Split,
    Vocabulary,
    WordScore,
    in_words,
    lossless,
    word_nats,
    word_numbers,
)
from backstory.data.tags import tagged_by, tags_of
from backstory.evaluation import Block, read
from backstory.evaluation.token_scores import log_mass
from backstory.models import Prediction
from backstory.readers import Reader
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError
from backstory.utils.terminal import ProgressCallback


@dataclass(frozen=True, eq=False)
class Folded:
    """A text of pieces as words."""

    ids: np.ndarray
    """(W,) id of each word."""
    starts: np.ndarray
    """(W,) first token of each word."""
    places: np.ndarray
    """(W,) number of each word in the text, as `word_numbers` counts. Several empty lines in one piece are one word here."""
    pieces: list[np.ndarray]
    """The pieces of each kind of word, by its id."""
    documents: np.ndarray
    """(documents,) first word of each document."""
    start: int
    """The word that is read before a text: the start token by itself."""
    tokens: int
    """N, the number of pieces in the text."""
    boundaries: Boundaries | None = None
    """Pieces that begin words; None for words whose score is the plain sum over their pieces."""

    @property
    def word_score(self) -> WordScore:
        """Name of the words' score in results."""
        return "sum" if self.boundaries is None else "corrected"

    def longer(self, first: np.ndarray, positions: np.ndarray, limit: int | None) -> int:
        """Count the words at these positions whose contexts, from the words at `first` on, exceed `limit` pieces."""
        if limit is None:
            return 0
        ends = np.append(self.starts, self.tokens)[positions + 1]
        return int((ends - 1 - self.starts[first] > limit).sum())

    def fitting(self, positions: np.ndarray, limit: int) -> int:
        """Return the longest context in words that has at most `limit` pieces before the word at each of these positions."""
        ends = np.append(self.starts, self.tokens)[positions + 1]
        return int((positions - np.searchsorted(self.starts, ends - 1 - limit)).min())

    def usual_length(self, limit: int) -> int | None:
        """Return the longest context in words that has at most `limit` pieces before 99 of 100 words; None if any has."""
        ends = np.append(self.starts, self.tokens)[1:] - 1
        words = np.flatnonzero(ends > limit)
        if not len(words):
            return None
        lengths = words - np.searchsorted(self.starts, ends[words] - limit)
        return max(1, int(np.percentile(lengths, 1, method="lower")))


@checked()
def fold(
    vocabulary: Vocabulary,
    split: Split,
    known: dict[tuple[int, ...], int] | None = None,
    word_score: WordScore = "corrected",
) -> Folded | None:
    """Return the words of a split, as `word_numbers` counts them; None if its tokens are not pieces or lose some text.

    `known` maps the pieces of a word to its id. New words are added, so that several splits can share their ids. Two words are
    the same if their pieces are, including the space before them; several empty lines in one piece are one word.
    """
    if vocabulary.tokenizer.unit != "piece" or not lossless(vocabulary, split):
        return None
    numbers = np.fromiter((n or 0 for n in word_numbers(vocabulary, split)), np.int64, len(split.ids))
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    known = {} if known is None else known
    words = np.split(np.asarray(split.ids, np.int64), starts[1:])
    ids = np.array([known.setdefault(tuple(word.tolist()), len(known)) for word in words], np.int64)
    start = known.setdefault((vocabulary.start,), len(known))
    documents = np.searchsorted(starts, split.documents)
    pieces = [np.array(word, np.int64) for word in known]
    boundaries = vocabulary.boundaries if word_score == "corrected" else None
    return Folded(
        ids=ids,
        starts=starts,
        places=numbers[starts],
        pieces=pieces,
        documents=documents,
        start=start,
        tokens=len(split.ids),
        boundaries=boundaries,
    )


@dataclass(frozen=True, eq=False)
class AnnotatedText:
    """Token ids with their unit, training counts, documents and part-of-speech tags."""

    ids: np.ndarray
    """(N,) tokens, or words if the tokens are pieces of words; `start`, `counts`, `documents` and `tags` count in the same."""
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
        """Number of tokens; for words, the number of their pieces."""
        return len(self.ids) if self.folded is None else self.folded.tokens

    @staticmethod
    def of(
        dataset: Dataset, split: str, settings: ExaminationSettings, data_dir: Path | None = None
    ) -> "AnnotatedText":
        """Return a split of a corpus, tagged if the experiment or a split of the targets needs it. Raises UserError."""
        vocabulary, part, tagger = dataset.vocabulary, dataset.splits[split], settings.tagger
        check_length(len(part.ids), settings.longest_context)  # before anything is read
        folded = fold(vocabulary, part, word_score=settings.word_score)
        words = dataset if folded is None else in_words(dataset, split)
        tags = source = None
        if folded is not None:
            check_length(len(folded.ids), settings.longest_context)
        if EXPERIMENTS[settings.experiment].tagged or any(SPLITS[by].needs == "tags" for by in settings.by):
            tags, source = tags_of(words, split, tagger, data_dir), tagged_by(words, split, tagger, data_dir)
        if folded is None:
            unit, unknown = vocabulary.tokenizer.unit, vocabulary.unknown
            counts = vocabulary.counts if vocabulary.counts.any() else None  # a foreign vocabulary has none
            return AnnotatedText(
                part.ids,
                vocabulary.start,
                unit,
                counts=counts,
                unknown=unknown,
                documents=part.documents,
                tags=tags,
                tagger=source,
            )
        spelled = words.splits[split].ids[folded.places]
        # Words of different pieces may be spelled alike: with the space before them, and without.
        spelling = np.full(len(folded.pieces), -1)
        spelling[folded.ids] = spelled
        counts = None
        if "train" in dataset.splits:
            counts = np.where(spelling < 0, 0, words.vocabulary.counts[spelling])
        unknown = folded.ids[spelled == words.vocabulary.unknown]
        return AnnotatedText(
            folded.ids,
            folded.start,
            "word",
            counts=counts,
            unknown=int(np.bincount(unknown).argmax()) if len(unknown) else None,
            documents=folded.documents,
            tags=None if tags is None else tags[folded.places],
            tagger=source,
            folded=folded,
            pieces=np.asarray(part.ids),
        )

    def with_training(self, source: Dataset) -> tuple["AnnotatedText", np.ndarray]:
        """Return the text, and the ids of a corpus's training text; new words get the next ids."""
        train = source.splits["train"]
        if self.folded is None:
            return self, train.ids
        known = {tuple(word.tolist()): number for number, word in enumerate(self.folded.pieces)}
        words = fold(source.vocabulary, train, known)
        if words is None:
            raise UserError("the training text has words that its tokens do not hold; examine with another experiment")
        return replace(self, folded=replace(self.folded, pieces=words.pieces)), words.ids


# --- the infinite context ---


def row_length(tokens: int, batch_size: int, before: int) -> int:
    """Return the number of tokens that each of `batch_size` rows scores, after the `before` tokens that it only reads."""
    return -(-(tokens - before) // batch_size)


def read_scores(
    reader: Reader,
    ids: np.ndarray,
    start: int,
    uncertain: np.ndarray,
    boundaries: Boundaries | None,
    progress: ProgressCallback,
    inner: bool = False,
) -> np.ndarray:
    """Read B texts of T tokens (B, T) side by side; return nats of the tokens and log B before them: (2, 1, B, T) float64.

    B is the mass of the tokens that begin a word, computed where it is `uncertain` (B, T), else one. With `inner` (2, 2, B, T)
    also holds the scores of the reader inside a cache. `progress` receives the tokens of a row before and after each block.
    """
    device, done = next(reader.model.parameters()).device, 0
    members = torch.from_numpy(np.empty(0, np.int64) if boundaries is None else boundaries.beginning).to(device)
    blocks: list[np.ndarray] = []

    def each(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        nonlocal done
        before, done = done, done + block.targets.shape[1]
        where = torch.from_numpy(uncertain[:, before:done]).to(device).nonzero(as_tuple=True)
        scores = torch.zeros(2, 1 + inner, *block.targets.shape, dtype=torch.float64)
        with reader.precision.context(device):
            for i, part in enumerate([prediction, prediction.parts()["p"]] if inner else [prediction]):
                scores[0, i] = -(log_prob if i == 0 else part.log_prob(block.targets)).double()
                if len(where[0]):
                    mass = log_mass(part, *where, members)
                    scores[1, i][tuple(index.cpu() for index in where)] = mass.cpu()
        blocks.append(scores.numpy())
        progress(before, done)

    read(reader, ids.reshape(-1), start, batch_size=len(ids), each=each)
    return np.concatenate(blocks, 3)


@dataclass(frozen=True, eq=False)
class WholeReading:
    """Reads a text from end to end: nats of every token (1, N); with `with_inner` (2, N), also of the inner reader."""

    reader: Reader
    ids: np.ndarray
    start: int
    documents: np.ndarray | None = None
    """Starts of documents that are each read by itself; None to carry the state from one to the next."""
    folded: Folded | None = None
    """Words of a text of pieces: the nats are then those of words, (1 or 2, W), and `documents` counts in words."""
    batch_size: int = 1
    """Rows that are read side by side, each from an empty state; with more than one, the text is one document."""
    before: int = 0
    """Tokens, or words, that a row reads before it scores; the first row scores them too."""
    with_inner: bool = False
    """True to score the reader inside the outermost one too; the difference is the gain of a cache."""

    def __call__(self, advance: Advance) -> np.ndarray:
        return self._in_rows(advance) if self.batch_size > 1 else self._by_document(advance)

    @cached_property
    def _starts(self) -> np.ndarray:
        """First token of each word (W,), or each token (N,)."""
        return np.arange(len(self.ids)) if self.folded is None else self.folded.starts

    @property
    def _boundaries(self) -> Boundaries | None:
        return None if self.folded is None else self.folded.boundaries

    def _starts_in(self, begin: int, end: int) -> np.ndarray:
        """Return where words begin between two tokens, counted from the first."""
        first, last = np.searchsorted(self._starts, [begin, end])
        return self._starts[first:last] - begin

    def _uncertain(self, ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Return where B is not one, (N + 1,) bool."""
        boundaries = self._boundaries
        return np.zeros(len(ids) + 1, bool) if boundaries is None else boundaries.uncertain(ids, starts)

    def _of_words(self, scores: np.ndarray, starts: np.ndarray, tokens: int) -> np.ndarray:
        """Return nats of words (1 or 2, W), or of tokens as they are, from the scores (2, 1 or 2, N or more) of one text."""
        log_begins = np.zeros((scores.shape[1], tokens + 1))
        known = min(tokens + 1, scores.shape[2])
        log_begins[:, :known] = scores[1, :, :known]
        return word_nats(scores[0, :, :tokens], log_begins, starts)

    def _read(self, ids: np.ndarray, uncertain: np.ndarray, progress: ProgressCallback) -> np.ndarray:
        return read_scores(
            self.reader, ids, self.start, uncertain, self._boundaries, progress=progress, inner=self.with_inner
        )

    def _by_document(self, advance: Advance) -> np.ndarray:
        nats = []
        begins = np.zeros(1, np.int64) if self.documents is None else self._starts[self.documents]
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(self.ids)], strict=True):
            ids, starts = self.ids[begin:end], self._starts_in(begin, end)
            uncertain = self._uncertain(ids, starts)

            def progress(before: int, done: int, starts: np.ndarray = starts) -> None:
                advance(int(np.diff(np.searchsorted(starts, [before, done]))[0]))

            # Where the end of the last word is uncertain, the token after it is predicted too.
            text = np.append(ids, self.start) if uncertain[-1] else ids
            scores = self._read(text[None], uncertain[None], progress)
            nats.append(self._of_words(scores[:, :, 0], starts, len(ids)))
        return np.concatenate(nats, 1)

    def _in_rows(self, advance: Advance) -> np.ndarray:
        ends, words = np.append(self._starts, len(self.ids)), len(self._starts)
        size = row_length(words, self.batch_size, self.before)
        firsts = range(0, words - self.before, size)
        spans = [(int(ends[i]), int(ends[min(i + self.before + size, words)])) for i in firsts]
        # Rows are padded with the start token, so that it also comes before the next row.
        length = max(end - begin for begin, end in spans) + 1
        rows = np.full((len(spans), length), self.start, np.int64)
        uncertain = np.zeros(rows.shape, bool)
        whole = self._uncertain(np.asarray(self.ids), self._starts)
        for row, where, (begin, end) in zip(rows, uncertain, spans, strict=True):
            row[: end - begin] = self.ids[begin:end]
            where[1 : end - begin + 1] = whole[begin + 1 : end + 1]
        scores = self._read(
            rows, uncertain, lambda before, done: advance(words * done // length - words * before // length)
        )
        nats = []
        for row, (begin, end) in enumerate(spans):
            of_row = self._of_words(scores[:, :, row], self._starts_in(begin, end), end - begin)
            nats.append(of_row[:, self.before if row else 0 :])
        return np.concatenate(nats, 1)
