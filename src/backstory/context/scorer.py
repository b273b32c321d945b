"""Scorers: from (context, target) pairs to log p(target | context), whatever the model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from backstory.config import UserError
from backstory.models import Prediction
from backstory.reading import Reader

STEPS = 64
"""Time steps of a batch of contexts that are run at once."""
STEP = 50
"""Lengths of contexts that are told apart when the memory of a batch is measured."""
MOST_ROWS = 1024
"""A larger batch is no faster."""


class Scorer(Protocol):
    """Any causal model, asked about one target after each of many contexts."""

    def score(
        self, contexts: Sequence[np.ndarray], targets: np.ndarray, progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        """log p(targets[i] | contexts[i]) in nats, (N,) float64; contexts may differ in length, none is empty.

        `progress` is told how many tokens were read since it was last told.
        """
        ...


def refuse_adapting(reader: str) -> NoReturn:
    """Raise UserError: what learns as it reads cannot score contexts side by side."""
    raise UserError(
        f"the reader {reader} learns as it reads, and contexts are read side by side; examine with another, such as static or "
        "cache"
    )


class ReaderScorer:
    """A reader that has read nothing before every context: what it remembers at the target is of the context alone.

    Contexts of like length run side by side, as many as fit the memory budget; the output layer runs on the last position
    of each alone.
    """

    def __init__(self, reader: Reader, memory: int = 1 << 30) -> None:
        """`memory` is the budget of a batch, in bytes. What the reader has read before is forgotten.

        Raises UserError for a reader whose weights move or whose rows depend on each other: side by side, contexts would learn
        from one another.
        """
        if reader.capabilities.adapts_weights:
            refuse_adapting(reader.name)
        if not reader.capabilities.independent_rows:
            raise UserError(
                f"the reader {reader.name} reads rows that depend on each other, and contexts are read side by side; examine "
                "with another, such as static or cache"
            )
        self.reader, self.memory = reader, memory
        self.device = next(reader.model.parameters()).device
        self._rows: dict[int, int] = {}

    def score(
        self, contexts: Sequence[np.ndarray], targets: np.ndarray, progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        lengths = np.array([len(c) for c in contexts], np.int64)
        if len(lengths) and not lengths.min():
            raise ValueError("a context must hold at least one token")
        scores, order = np.empty(len(contexts)), np.argsort(lengths, kind="stable")
        rows = self.rows(int(lengths.max())) if len(lengths) else 1
        for start in range(0, len(order), rows):
            chosen = order[start : start + rows]
            scores[chosen] = self._batch([contexts[i] for i in chosen], targets[chosen])
            if progress is not None:
                progress(int(lengths[chosen].sum()))
        return scores

    def rows(self, longest: int) -> int:
        """Contexts of at most so many tokens per batch: the budget over what one takes, measured by reading one.

        Longer ones are measured in steps of `STEP` tokens, so that each is once.
        """
        limit = self.reader.model.capabilities.maximum_length
        longest = longest if longest <= STEP else -(-longest // STEP) * STEP
        longest = longest if limit is None else min(longest, limit)
        if longest not in self._rows:
            self._rows[longest] = self._measured(longest)
        return self._rows[longest]

    def _measured(self, longest: int) -> int:
        model, largest = self.reader.model, 0
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        for _, prediction in self._read(torch.zeros(1, longest, dtype=torch.long, device=self.device)):
            largest = max(largest, _bytes(prediction, weights))
        # Gates and copies: about eight times what a prediction holds, and a state is held before, after and in between. A row
        # also pays for one line of logits, in three copies.
        row = 8 * largest + 4 * _bytes(self.reader.snapshot(), weights) + 12 * model.vocabulary_size
        return int(np.clip(self.memory // row, 1, MOST_ROWS))

    def _batch(self, contexts: list[np.ndarray], targets: np.ndarray) -> np.ndarray:
        """One batch, shorter contexts padded at their end, where a causal reader cannot see it."""
        lengths = torch.tensor([len(c) for c in contexts], device=self.device)
        padded = np.zeros((len(contexts), int(lengths.max())), np.int64)
        for row, context in zip(padded, contexts, strict=True):
            row[: len(context)] = context
        wanted = torch.from_numpy(targets.astype(np.int64)).to(self.device)
        scores = torch.empty(len(contexts), dtype=torch.float64, device=self.device)
        for start, prediction in self._read(torch.from_numpy(padded).to(self.device)):
            (ending,) = torch.where((lengths > start) & (lengths <= start + self._step(padded.shape[1])))
            if len(ending):
                last = prediction.select(ending, lengths[ending] - 1 - start)
                with self.reader.precision.context(self.device):
                    scores[ending] = last.log_prob(wanted[ending, None])[:, 0].double()
        return scores.cpu().numpy()

    def _read(self, tokens: Tensor) -> Iterator[tuple[int, Prediction]]:
        """Read contexts (B, T) from their beginning: where each piece of them starts, and the prediction over it."""
        length = tokens.shape[1]
        step = self._step(length)
        with torch.no_grad():
            self.reader.start(len(tokens))
            for start in range(0, length, step):
                yield start, self.reader.predict(tokens[:, start : start + step])
                if start + step < length:
                    self.reader.observe(tokens[:, start + 1 : start + step + 1])

    def _step(self, length: int) -> int:
        """Tokens of a piece; a reader whose scores depend on the cut, or who begins anew for each, reads a context in one."""
        in_one = not self.reader.capabilities.block_invariant or self.reader.model.capabilities.rereads
        return length if in_one else STEPS


def _bytes(tree: Any, weights: set[int]) -> int:
    """What the tensors of a prediction or a state take, those that share memory once, and the weights not at all."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors(tree)}
    return sum(size for place, size in storages.items() if place not in weights)


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        tree = list(tree.values())
    elif is_dataclass(tree):
        tree = [getattr(tree, field.name) for field in fields(tree)]
    for part in tree if isinstance(tree, tuple | list) else ():
        yield from _tensors(part)
