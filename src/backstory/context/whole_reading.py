"""A text read from end to end, for what every token costs after all that came before it: in one row, or in several at once."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backstory.context.examination import Advance
from backstory.context.folding import Folded
from backstory.models import Prediction
from backstory.reading import Block, Reader, read


@dataclass(frozen=True, eq=False)
class WholeReading:
    """Reads a text from end to end: nats of every token (N,); with a cache outermost (2, N), also of the reader in it."""

    reader: Reader
    ids: np.ndarray
    start: int
    documents: np.ndarray | None = None
    """Where documents begin that are read each by itself; None to read on from one to the next."""
    folded: Folded | None = None
    """Of a text of pieces: the words, of which the nats are then, (W,) or (2, W); `documents` are in words."""
    rows: int = 1
    """Rows that are read side by side, each from an empty state; of one document."""
    before: int = 0
    """Tokens, or words, that a row reads before the first that is scored in it; the first row scores them too."""

    def __call__(self, advance: Advance) -> np.ndarray:
        nats = self._in_rows(advance) if self.rows > 1 else self._in_turn(advance)
        return nats if self.folded is None else self.folded.sums(nats)

    def _nats(self, block: Block, prediction: Prediction, log_prob: Tensor) -> Tensor:
        """Of a block's tokens (1 or 2, rows, T)."""
        found = [log_prob]
        if self.reader.inner is not None:
            with self.reader.precision.context(log_prob.device):
                found.append(prediction.parts()["p"].log_prob(block.targets))
        return -torch.stack(found).double().cpu()

    def _in_turn(self, advance: Advance) -> np.ndarray:
        pieces: list[np.ndarray] = []
        done = 0

        def keep(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
            nonlocal done
            pieces.append(self._nats(block, prediction, log_prob)[:, block.scored.cpu()].numpy())
            before, done = done, done + pieces[-1].shape[1]
            advance(self._counted(before, done))

        begins = np.zeros(1, np.int64) if self.documents is None else self.documents
        if self.folded is not None:
            begins = self.folded.starts[begins]
        for begin, end in zip(begins, [*begins[1:], len(self.ids)], strict=True):
            read(self.reader, self.ids[begin:end], self.start, each=keep)
        return np.concatenate(pieces, 1)

    def _in_rows(self, advance: Advance) -> np.ndarray:
        places = np.arange(len(self.ids)) if self.folded is None else self.folded.starts
        ends, many = np.append(places, len(self.ids)), len(places)
        size = -(-(many - self.before) // self.rows)
        firsts = range(0, many - self.before, size)
        spans = [(ends[i], ends[min(i + self.before + size, many)]) for i in firsts]
        # Beyond its end a row is filled up with what is read before a text, which so stands before the next row too.
        length = max(end - begin for begin, end in spans) + 1
        stream = np.full((len(spans), length), self.start, np.int64)
        for row, (begin, end) in zip(stream, spans, strict=True):
            row[: end - begin] = self.ids[begin:end]
        pieces: list[np.ndarray] = []
        done = told = 0

        def keep(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
            nonlocal done, told
            pieces.append(self._nats(block, prediction, log_prob).numpy())
            done += block.targets.shape[1]
            before, told = told, many * done // length
            advance(told - before)

        read(self.reader, stream.reshape(-1), self.start, rows=len(spans), each=keep)
        nats = np.concatenate(pieces, 2)
        scored = [
            nats[:, row, (ends[i + self.before] - begin if row else 0) : end - begin]
            for row, (i, (begin, end)) in enumerate(zip(firsts, spans, strict=True))
        ]
        return np.concatenate(scored, 1)

    def _counted(self, first: int, end: int) -> int:
        """The tokens from one place to another, or the words that begin there."""
        if self.folded is None:
            return end - first
        return int(np.diff(np.searchsorted(self.folded.starts, [first, end]))[0])
