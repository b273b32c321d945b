"""Scorers: from (context, target) pairs to log p(target | context), whatever the model."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch

from backstory.models import LanguageModel, Precision
from backstory.reading import evaluating

STEPS = 64
"""Time steps of a batch of contexts that are run at once."""
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


class ModelScorer:
    """A language model that starts from its initial state before every context.

    Contexts of like length run side by side, as many as fit the memory budget; the output layer runs on the last position
    of each alone.
    """

    def __init__(self, model: LanguageModel, precision: Precision, memory: int = 1 << 30) -> None:
        """`memory` is the budget of a batch, in bytes."""
        self.model, self.precision = model, precision
        self.device = next(model.parameters()).device
        self.rows = self._rows(memory)

    def _rows(self, memory: int) -> int:
        """Contexts per batch: the budget over what one row of activations takes, measured on a short text."""
        tokens = torch.zeros(1, STEPS, dtype=torch.long, device=self.device)
        with evaluating(self.model), self.precision.context(self.device):
            prediction, _ = self.model(tokens, self.model.start(1))
        activations = prediction.activations
        held = [] if activations is None else [activations.embedded, *activations.layers, activations.head_input]
        # Gates and copies: about eight times the outputs. A row also pays for one line of logits, in three copies.
        row = 8 * sum(t.numel() * 4 for t in held) + 12 * self.model.vocabulary_size
        return int(np.clip(memory // row, 1, MOST_ROWS))

    def score(
        self, contexts: Sequence[np.ndarray], targets: np.ndarray, progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        lengths = np.array([len(c) for c in contexts])
        if len(lengths) and not lengths.min():
            raise ValueError("a context must hold at least one token")
        scores = np.empty(len(contexts))
        for chosen in self._batches(lengths):
            scores[chosen] = self._batch([contexts[i] for i in chosen], targets[chosen])
            if progress is not None:
                progress(int(lengths[chosen].sum()))
        return scores

    def _batches(self, lengths: np.ndarray) -> Iterator[np.ndarray]:
        order = np.argsort(lengths, kind="stable")
        while len(order):
            rows = self.rows
            if not self.model.capabilities.exact_state:  # read in one piece, so a row costs as much as it is long
                rows = max(1, rows * STEPS // max(STEPS, int(lengths[order[:rows]].max())))
            yield order[:rows]
            order = order[rows:]

    def _batch(self, contexts: list[np.ndarray], targets: np.ndarray) -> np.ndarray:
        """One batch, shorter contexts padded at their end, where a causal model cannot see it."""
        lengths = torch.tensor([len(c) for c in contexts], device=self.device)
        padded = np.zeros((len(contexts), int(lengths.max())), np.int64)
        for row, context in zip(padded, contexts, strict=True):
            row[: len(context)] = context
        tokens, wanted = (
            torch.from_numpy(padded).to(self.device),
            torch.from_numpy(targets.astype(np.int64)).to(self.device),
        )
        scores = torch.empty(len(contexts), dtype=torch.float64, device=self.device)
        step = STEPS if self.model.capabilities.exact_state else tokens.shape[1]
        with evaluating(self.model), self.precision.context(self.device):
            state = self.model.start(len(contexts))
            for start in range(0, tokens.shape[1], step):
                prediction, state = self.model(tokens[:, start : start + step], state)
                (ending,) = torch.where((lengths > start) & (lengths <= start + step))
                if len(ending):
                    last = prediction.select(ending, lengths[ending] - 1 - start)
                    scores[ending] = last.log_prob(wanted[ending, None])[:, 0].double()
        return scores.cpu().numpy()
