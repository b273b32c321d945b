"""A text read from end to end: the loss of every token after all tokens before it, in one row or in several at once."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backstory.context.examination import Advance
from backstory.context.folding import Folded
from backstory.data import word_nats
from backstory.evaluation import Block, read
from backstory.evaluation.token_scores import log_mass
from backstory.models import Prediction
from backstory.readers import Reader


def row_length(tokens: int, batch_size: int, before: int) -> int:
    """Tokens that each of `batch_size` rows scores, after `before` that it only reads."""
    return -(-(tokens - before) // batch_size)


@dataclass(frozen=True, eq=False)
class WholeReading:
    """Reads a text from end to end: nats of every token (N,); with a cache outermost (2, N), also of the reader in it."""

    reader: Reader
    ids: np.ndarray
    start: int
    documents: np.ndarray | None = None
    """Starts of documents that are each read by itself; None to carry the state from one to the next."""
    folded: Folded | None = None
    """Words of a text of pieces: the nats are then those of words, (W,) or (2, W), and `documents` counts in words."""
    batch_size: int = 1
    """Rows that are read side by side, each from an empty state; of one document."""
    before: int = 0
    """Tokens, or words, that a row reads before the first that is scored in it; the first row scores them too."""

    def __call__(self, advance: Advance) -> np.ndarray:
        return self._in_rows(advance) if self.batch_size > 1 else self._in_turn(advance)

    def _scores(self, block: Block, prediction: Prediction, log_prob: Tensor, uncertain: np.ndarray) -> np.ndarray:
        """Return nats of a block's tokens, and log B before them where it is `uncertain` (B, T): (2, 1 or 2, B, T)."""
        device, times = log_prob.device, block.targets.shape[1]
        where = torch.from_numpy(uncertain[:, :times]).to(device).nonzero(as_tuple=True)
        members = torch.from_numpy(self._beginning).to(device)
        found = torch.zeros(2, 1 if self.reader.inner is None else 2, *block.targets.shape, dtype=torch.float64)
        with self.reader.precision.context(device):
            parts = [prediction, *([] if self.reader.inner is None else [prediction.parts()["p"]])]
            for i, part in enumerate(parts):
                found[0, i] = -(log_prob if i == 0 else part.log_prob(block.targets)).double()
                if len(where[0]):
                    mass = log_mass(part, *where, members, self.reader.model.vocabulary_size)
                    found[1, i][tuple(index.cpu() for index in where)] = mass.cpu()
        return found.numpy()

    @property
    def _beginning(self) -> np.ndarray:
        """Tokens whose mass is B."""
        boundaries = None if self.folded is None else self.folded.boundaries
        return np.empty(0, np.int64) if boundaries is None else boundaries.beginning

    def _uncertain(self, ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Return where B is needed, (N + 1,) bool."""
        if self.folded is None or self.folded.boundaries is None:
            return np.zeros(len(ids) + 1, bool)
        return self.folded.boundaries.uncertain(ids, starts)

    def _of_words(self, scores: np.ndarray, starts: np.ndarray, tokens: int) -> np.ndarray:
        """Return nats of words (1 or 2, W), or of tokens as they are, from `_scores` (2, 1 or 2, N or more) of one text."""
        if self.folded is None:
            return scores[0, :, :tokens]
        ends = np.zeros((*scores.shape[1:-1], tokens + 1))
        known = min(tokens + 1, scores.shape[-1])
        ends[:, :known] = scores[1, :, :known]
        return word_nats(scores[0, :, :tokens], ends, starts)

    def _in_turn(self, advance: Advance) -> np.ndarray:
        found = []
        begins = np.zeros(1, np.int64) if self.documents is None else self.documents
        if self.folded is not None:
            begins = self.folded.starts[begins]
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(self.ids)], strict=True):
            ids, starts = self.ids[begin:end], self._starts(begin, end)
            uncertain = self._uncertain(ids, starts)
            # What comes after the last word is predicted too, where its end is not certain.
            text = np.append(ids, self.start) if uncertain[-1] else ids
            scores = self._read_one(text, uncertain, begin, end, advance)
            found.append(self._of_words(scores, starts, len(ids)))
        return np.concatenate(found, 1)

    def _read_one(self, text: np.ndarray, uncertain: np.ndarray, begin: int, end: int, advance: Advance) -> np.ndarray:
        """Return `_scores` (2, 1 or 2, N) of a text that holds the tokens from `begin` to `end`, and maybe one more."""
        pieces: list[np.ndarray] = []
        done = 0

        def keep(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
            nonlocal done
            pieces.append(self._scores(block, prediction, log_prob, uncertain[None, done:])[:, :, 0])
            before, done = done, done + pieces[-1].shape[-1]
            advance(self._counted(begin + before, min(end, begin + done)))

        read(self.reader, text, self.start, each=keep)
        return np.concatenate(pieces, -1)

    def _starts(self, begin: int, end: int) -> np.ndarray:
        """Return where words begin between two tokens, counted from the first."""
        if self.folded is None:
            return np.arange(end - begin)
        first, last = np.searchsorted(self.folded.starts, [begin, end])
        return self.folded.starts[first:last] - begin

    def _in_rows(self, advance: Advance) -> np.ndarray:
        places = np.arange(len(self.ids)) if self.folded is None else self.folded.starts
        ends, many = np.append(places, len(self.ids)), len(places)
        size = row_length(many, self.batch_size, self.before)
        firsts = range(0, many - self.before, size)
        spans = [(int(ends[i]), int(ends[min(i + self.before + size, many)])) for i in firsts]
        # Beyond its end a row is filled up with what is read before a text, which so stands before the next row too.
        length = max(end - begin for begin, end in spans) + 1
        stream = np.full((len(spans), length), self.start, np.int64)
        uncertain = np.zeros(stream.shape, bool)
        known = self._uncertain(np.asarray(self.ids), places)
        for row, where, (begin, end) in zip(stream, uncertain, spans, strict=True):
            row[: end - begin] = self.ids[begin:end]
            where[1 : end - begin + 1] = known[begin + 1 : end + 1]
        pieces: list[np.ndarray] = []
        done = reported = 0

        def keep(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
            nonlocal done, reported
            pieces.append(self._scores(block, prediction, log_prob, uncertain[:, done:]))
            done += block.targets.shape[1]
            before, reported = reported, many * done // length
            advance(reported - before)

        read(self.reader, stream.reshape(-1), self.start, batch_size=len(spans), each=keep)
        scores = np.concatenate(pieces, 3)
        found = []
        for row, (begin, end) in enumerate(spans):
            words = self._of_words(scores[:, :, row], self._starts(begin, end), end - begin)
            found.append(words[:, self.before if row else 0 :])
        return np.concatenate(found, 1)

    def _counted(self, first: int, end: int) -> int:
        """Return the number of tokens between two positions, or of words that begin there."""
        if self.folded is None:
            return end - first
        return int(np.diff(np.searchsorted(self.folded.starts, [first, end]))[0])
