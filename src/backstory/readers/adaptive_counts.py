"""Predictions from counts that grow while a batch of texts is read; each follows from what was read of its own text alone.

`counted_text` counts, and holds the equations.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from backstory.models import Prediction
from backstory.models.positions import steps_at
from backstory.models.prediction import scored_once
from backstory.readers.counted_text import CountedText, CountedTexts


class ByLength(Prediction):
    """A prediction from counts, which has one for every length of context."""

    @abstractmethod
    def log_probs_by_length(self) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (L, B, T, V) with contexts up to each length, and the longest that is known (B, T) int64.

        Raises UserError for counts that have no predictions by length.
        """


@dataclass(frozen=True, eq=False)
class AdaptivePrediction(ByLength):
    """Predictions from a text's counts at positions of a block, computed lazily."""

    texts: CountedTexts
    codes: tuple[np.ndarray, ...]
    """Of each row of the block: everything up to the block's last token."""
    ends: Tensor
    """(B, T) int64: the number of codes of its row that each position knows."""
    rows: Tensor
    """(B, T) int64: the row of the block."""

    @scored_once
    def log_prob(self, targets: Tensor) -> Tensor:
        words, p = targets.flatten().tolist(), np.empty(targets.numel())
        for index, text in self._visit():
            p[index] = text.probability(words[index])
        return log_tensor(p, targets.device).view(targets.shape)

    def log_probs(self) -> Tensor:
        p = np.empty((self.rows.numel(), self.texts.types))
        for index, text in self._visit():
            p[index] = text.distribution()
        return log_tensor(p, self.rows.device).view(*self.rows.shape, -1)

    def log_probs_by_length(self) -> tuple[Tensor, Tensor]:
        p = np.empty((self.texts.longest + 1, self.rows.numel(), self.texts.types))
        known = np.zeros(self.rows.numel(), np.int64)
        for index, text in self._visit():
            for length, of_length in enumerate(text.by_length()):
                p[length, index], known[index] = of_length, length
            p[known[index] + 1 :, index] = p[known[index], index]
        log_probs = log_tensor(p, self.rows.device).view(len(p), *self.rows.shape, -1)
        return log_probs, torch.from_numpy(known).to(self.rows.device).view(self.rows.shape)

    def select(self, rows: Tensor, times: Tensor) -> "AdaptivePrediction":
        ends, of = (steps_at(x, rows, times) for x in (self.ends, self.rows))
        return replace(self, activations=self._selected(rows, times), ends=ends, rows=of)

    def _visit(self) -> Iterator[tuple[int, CountedText]]:
        """Yield the index of every position with the text at that place, in the order of the text."""
        rows, ends = (x.flatten().cpu().numpy() for x in (self.rows, self.ends))
        text, row = None, -1
        for index in np.lexsort((ends, rows)).tolist():
            codes = self.codes[rows[index]][: ends[index]]
            if text is None or rows[index] != row:
                text, row = self.texts.at(codes), rows[index]
            for code in codes[len(text) :].tolist():
                text.append(code)
            yield index, text


def log_tensor(p: np.ndarray, device: torch.device) -> Tensor:
    """Return log p in float32 on a device."""
    return torch.from_numpy(np.log(p).astype(np.float32)).to(device)


class _Row:
    """Codes of a growing text, in one array with spare capacity.

    Published codes never change, because predictions refer to them: contradicting codes go to a new array.
    """

    def __init__(self, codes: np.ndarray) -> None:
        self._array, self._length, self._written = codes.astype(np.int32), len(codes), len(codes)

    @property
    def codes(self) -> np.ndarray:
        """(N,)"""
        return self._array[: self._length]

    def followed_by(self, more: np.ndarray) -> np.ndarray:
        """Return the codes followed by more (M,), without adding these to the row."""
        end = self._length + len(more)
        shared = slice(self._length, min(self._written, end))
        if end > len(self._array) or (self._array[shared] != more[: shared.stop - shared.start]).any():
            array = np.empty(max(256, 2 * end), np.int32)
            array[: self._length] = self.codes
            self._array, self._written = array, self._length
        self._array[self._length : end] = more
        self._written = max(self._written, end)
        return self._array[:end]

    def extend(self, more: np.ndarray) -> None:
        """Append codes (M,)."""
        self._length = len(self.followed_by(more))


class AdaptiveCounts:
    """Counts of B texts that are read block by block."""

    def __init__(self, texts: CountedTexts) -> None:
        self._texts = texts
        self._rows: list[_Row] = []
        self._lead: list[np.ndarray] = []

    def __copy__(self) -> "AdaptiveCounts":
        other = AdaptiveCounts(self._texts)
        other._rows, other._lead = [_Row(row.codes) for row in self._rows], list(self._lead)  # rows grow in place
        return other

    def start(self, batch_size: int) -> None:
        """Begin `batch_size` texts."""
        self._texts.most = batch_size + 2
        self._hold([_Row(np.empty(0, np.int32)) for _ in range(batch_size)])

    def predict(self, tokens: Tensor) -> AdaptivePrediction:
        """Return the prediction at each position of the block tokens (B, T)."""
        inputs = tokens.cpu().numpy().astype(np.int32)
        # The first token was counted as a target, unless the text begins with it or continues otherwise.
        self._lead = [_lead(row.codes, first) for row, first in zip(self._rows, inputs[:, 0], strict=True)]
        rows = [row.followed_by(more) for row, more in self._after_lead(inputs[:, 1:])]
        known = torch.tensor([len(codes) for codes in rows], device=tokens.device)[:, None] - tokens.shape[1]
        steps = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
        of = torch.arange(len(tokens), device=tokens.device)[:, None].expand(tokens.shape)
        return AdaptivePrediction(None, self._texts, tuple(rows), known + steps, of)

    def observe(self, targets: Tensor) -> None:
        """Take the targets (B, T) of the block as read."""
        for row, more in self._after_lead(targets.cpu().numpy().astype(np.int32)):
            row.extend(more)
        self._hold(self._rows)

    def _hold(self, rows: list[_Row]) -> None:
        self._rows, self._lead = rows, [np.empty(0, np.int32)] * len(rows)

    def _after_lead(self, codes: np.ndarray) -> list[tuple[_Row, np.ndarray]]:
        """Return each row with the codes (B, M) that go on with it, behind its lead."""
        each = zip(self._rows, self._lead, codes, strict=True)
        return [(row, np.concatenate([lead, more])) for row, lead, more in each]

    def snapshot(self) -> list[Tensor]:
        return [torch.from_numpy(row.codes.copy()) for row in self._rows]

    def restore(self, snapshot: list[Tensor]) -> None:
        self._hold([_Row(codes.cpu().numpy()) for codes in snapshot])


def _lead(codes: np.ndarray, first: np.integer) -> np.ndarray:
    last = None if not len(codes) else codes[-1] if codes[-1] >= 0 else ~codes[-1]
    return np.empty(0, np.int32) if last == first else np.array([~first], np.int32)
