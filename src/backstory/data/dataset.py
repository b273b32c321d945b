"""Corpora as numbers: splits of token ids and their share of `<unk>`, and batches of them for truncated BPTT."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from backstory.data.corpora.text_files import Source as TextSource
from backstory.data.synthetic.algorithms import TASKS, Algorithm, Answers
from backstory.data.synthetic.recall import Recall, Truth
from backstory.data.tokenizers.built_in import END
from backstory.data.tokenizers.vocabulary import OutOfVocabulary, Vocabulary
from backstory.storage.documents import json_digest
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError, off
from backstory.utils.scores import UnknownShare
from backstory.utils.terminal import ProgressCallback


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """One split of a corpus.

    `ids` (tokens,) uint16 or int32; `documents` (documents,) int64, the position where each begins, with their `titles`
    (possibly empty); `characters` and `bytes` (UTF-8) of its text with line ends normalised; `words` as the tokenizer
    `words` counts them: words between white space, and one more for the end of every line.
    """

    name: str
    ids: np.ndarray
    documents: np.ndarray
    titles: list[str]
    characters: int
    bytes: int
    words: int
    out_of_vocabulary: OutOfVocabulary | None = None
    """Tokens outside the vocabulary; None if they were not counted."""

    def __repr__(self) -> str:
        return f"Split({self.name!r}, {len(self.ids):,} tokens, {len(self.documents):,} documents)"

    def spans(self) -> Iterator[tuple[int, int]]:
        """Return where each document begins and ends (exclusive)."""
        return pairwise([*self.documents.tolist(), len(self.ids)])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A corpus as numbers: its vocabulary and the splits train, valid and test.

    `fingerprint` is the SHA-256 (hex) of the content and of the options that turn it into ids: equal fingerprints, equal ids.
    """

    corpus: str
    vocabulary: Vocabulary
    splits: dict[str, Split]
    fingerprint: str
    provenance: str
    source: Recall | Algorithm | None = None
    """Generator of its documents; None for a text from files."""
    left_out: str = ""
    """Files and folders of runs that were left out of a folder, in a sentence; empty for none."""
    files: Mapping[str, Sequence[TextSource]] = field(default_factory=dict)
    """The ranges of files that each split was read from, where there are any."""

    def epoch(self, number: int) -> np.ndarray:
        """Return the ids (tokens,) to train on in an epoch, counted from 1: the training split, or as many new ones."""
        if number == 1 or self.source is None or not self.source.settings.new_each_epoch:
            return self.splits["train"].ids
        return self.source.epoch(number, len(self.splits["train"].ids))

    def truth(self, split: str) -> Truth | None:
        """Return the exact cost of every token of a split; None if it is not known."""
        return self.source.truth(self.splits[split].ids) if isinstance(self.source, Recall) else None

    def answers(self, split: str) -> Answers | None:
        """Return the answers in a split; None if the corpus is no task."""
        return self.source.answers(self.splits[split].ids) if isinstance(self.source, Algorithm) else None

    def answer_mask(self, ids: np.ndarray) -> np.ndarray:
        """Return which tokens of an epoch (tokens,) are part of an answer, bool. Raises UserError if the corpus is no task."""
        if not isinstance(self.source, Algorithm):
            raise UserError(
                f"the corpus {self.corpus} has no answers; set {off('training.answer_loss_only')}, or take {' or '.join(TASKS)}"
            )
        return self.source.answer_mask(ids)

    def of_lengths(self, split: str, lengths: tuple[int, ...]) -> "Dataset":
        """Generate one split of the task with documents of other lengths, in turn. Raises UserError if it is no task."""
        if not isinstance(self.source, Algorithm):
            raise UserError(
                f"the documents of the corpus {self.corpus} have no lengths to choose; leave --lengths out, "
                f"or read a run on {' or '.join(TASKS)}"
            )
        source = self.source.of_lengths(split, lengths)
        splits, sha = synthetic_splits(source, (split,))
        fingerprint = json_digest([self.fingerprint, lengths, sha])
        return Dataset(self.corpus, self.vocabulary, splits, fingerprint, source.provenance, source)

    def describe(self) -> dict[str, Any]:
        """Return what results record of the corpus, as JSON values."""
        return {
            "name": self.corpus,
            "fingerprint": self.fingerprint,
            "types": len(self.vocabulary),
            "provenance": self.provenance,
        }

    def lossless(self, split: str) -> bool:
        """Return True if the ids hold all of a split's text, so that bits per character and per byte mean something."""
        return lossless(self.vocabulary, self.splits[split])


def lossless(vocabulary: Vocabulary, split: Split) -> bool:
    """Return True if the ids of a split hold all of its text: a lossless vocabulary, and no `<unk>`."""
    return vocabulary.lossless and not unknown_tokens(vocabulary, split)


def unknown_tokens(vocabulary: Vocabulary, split: Split) -> int | None:
    """Count the `<unk>` tokens of a split; None if the vocabulary has no `<unk>`."""
    return None if vocabulary.unknown is None else int((split.ids == vocabulary.unknown).sum())


def unknown_share(vocabulary: Vocabulary, split: Split, positions: slice | np.ndarray | None = None) -> UnknownShare:
    """Return the share of `<unk>` in a split, or in some of its tokens: written so in the text, or outside the vocabulary.

    Which of some tokens are outside is known only if all `<unk>` of the split are, or none.
    """
    unknown, outside = unknown_tokens(vocabulary, split), split.out_of_vocabulary
    if unknown is None or vocabulary.unknown is None:
        return UnknownShare(len(split.ids if positions is None else split.ids[positions]), None)
    if positions is None:
        # The start token also ends lines, unless the tokenizer has no such token and begins with any.
        ends_lines = vocabulary.words[vocabulary.start] in (END, "\n")
        ends = int((split.ids == vocabulary.start).sum()) if ends_lines else 0
        return UnknownShare(len(split.ids), unknown, outside and outside.tokens, outside and outside.cause, ends)
    part = np.asarray(split.ids[positions])
    unknown_in_part = int((part == vocabulary.unknown).sum())
    if outside is None or 0 < outside.tokens < unknown:
        return UnknownShare(len(part), unknown_in_part)
    return UnknownShare(len(part), unknown_in_part, unknown_in_part if outside.tokens else 0, outside.cause)


def synthetic_splits(
    source: Recall | Algorithm, names: Sequence[str], progress: ProgressCallback | None = None
) -> tuple[dict[str, Split], str]:
    """Generate splits, and return them with the SHA-256 (hex) of their ids. `progress` is called with (bytes, bytes in all)."""
    words = source.words()
    dtype = np.dtype("<u2" if len(words) < 1 << 16 else "<i4")
    lengths = np.array([0 if word == END else len(word) for word in words])
    total = sum(source.size(name) for name in names) * dtype.itemsize
    splits, sha, done = {}, hashlib.sha256(), 0
    for name in names:
        blocks = []
        for ids in source.draw(name):
            blocks.append(ids.astype(dtype))
            sha.update(blocks[-1].tobytes())
            done += blocks[-1].nbytes
            if progress is not None:
                progress(done, total)
        ids = np.concatenate(blocks)
        starts = source.starts(ids)
        # One line per document: words with a space between two, and the line's end.
        size = int(np.bincount(ids, minlength=len(words)) @ lengths) + len(ids) - len(starts)
        titles = [f"document {i + 1}" for i in range(len(starts))]
        splits[name] = Split(name, ids, starts, titles, size, size, len(ids), OutOfVocabulary())
    return splits, sha.hexdigest()


# --- batches for truncated backpropagation through time: contiguous streams, random segments, rotation ---


@checked()
def rows(ids: np.ndarray, batch_size: int) -> np.ndarray:
    """Cut a text (tokens,) into `batch_size` contiguous rows (batch_size, length); the rest is dropped.

    Returns a view: ids on disk stay there. Raises UserError if a row would have fewer than two tokens (an input and a target).
    """
    if batch_size < 1:
        raise UserError(f"the batch size must be at least 1, not {batch_size}")
    length = len(ids) // batch_size
    if length < 2:
        raise UserError(
            f"the text has {len(ids):,} tokens, too few for batch size {batch_size}; "
            f"it needs {2 * batch_size:,}: use a smaller batch size or more text"
        )
    return ids[: batch_size * length].reshape(batch_size, length)


def segment_bounds(
    length: int,
    mean: float,
    deviation: float,
    minimum: int,
    short_probability: float,
    rng: np.random.Generator,
) -> list[tuple[int, int]]:
    """Cut a row of `length` tokens into segments: half-open ranges of input positions, with targets one position later.

    As in AWD-LSTM, the mean is halved with `short_probability` for a segment, whose length is normally distributed and at least
    `minimum`; the last segment ends with the row. Each of the positions 0 .. length - 2 is in exactly one segment. With
    `deviation` 0 the lengths are the mean, or half of it.
    """
    bounds, first, last = [], 0, length - 1
    while first < last:
        # Two random numbers a segment, whatever the settings, so that no setting shifts the numbers of another.
        short, noise = rng.random() < short_probability, rng.standard_normal()
        drawn = int((mean / 2 if short else mean) + deviation * noise)
        size = min(max(minimum, drawn, 1), last - first)
        bounds.append((first, first + size))
        first += size
    return bounds


def rotations(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return where each row of (batch, length) begins in a partial shuffle: (batch,), uniform and independent."""
    return rng.integers(0, rows.shape[1], size=len(rows))


def piece(rows: np.ndarray, first: int, last: int, starts: np.ndarray | None = None) -> np.ndarray:
    """Return columns `first` to `last` (exclusive) as int64, of rows that begin at `starts` and wrap around."""
    if starts is None:
        return rows[:, first:last].astype(np.int64)
    columns = (starts[:, None] + np.arange(first, last)) % rows.shape[1]
    return rows[np.arange(len(rows))[:, None], columns].astype(np.int64)
