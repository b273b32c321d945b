"""The policy between the head's prediction p and a second one q (eqs. 9, 10 and 14): a blend of the two."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from backstory.config import AuxiliarySoftmaxConfig, SpanBufferConfig
from backstory.models.dropout import locked_dropout
from backstory.models.heads import Head
from backstory.models.prediction import Blend, Pointer, Prediction
from backstory.models.state import State


class GatedState(NamedTuple):
    """Of a model with an auxiliary prediction."""

    core: State
    second: State


class SecondVectors(NamedTuple):
    """What the auxiliary prediction is of, at B x T positions."""

    vectors: Tensor | None
    """(B, T, D), for the head; or none: q points to words."""
    there: Tensor | None
    """(B, T) bool: where there is anything to predict from; none: everywhere."""
    weights: Tensor | None
    """(B, T, N): the attention, in the order that `SpanBuffer.covered` tells; none where there is none."""
    state: State
    words: Tensor | None = None
    """(B, T, N) int64: the words to point to."""
    evidence: Tensor | None = None
    """(B, T): what is added to the logit of lambda."""


class Second(nn.Module, ABC):
    """Makes vectors from which the head predicts a second time."""

    @abstractmethod
    def start(self, batch_size: int) -> State:
        """The state before the first word."""

    @abstractmethod
    def forward(self, hidden: Tensor, tokens: Tensor, embedding: Tensor, state: State, foreign: bool) -> SecondVectors:
        """From the raw states h (B, T, D) of tokens (B, T), and the embedding (V, E).

        With `foreign` every row remembers what another row read, and nothing of its own.
        """


class AuxiliarySoftmax(Second):
    """tanh(W h + b): an auxiliary prediction of the present state, without any memory."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.projection = nn.Linear(size, size)

    def start(self, batch_size: int) -> None:
        return None

    def forward(self, hidden: Tensor, tokens: Tensor, embedding: Tensor, state: State, foreign: bool) -> SecondVectors:
        return SecondVectors(torch.tanh(self.projection(hidden)), None, None, None)


class Gated(nn.Module):
    """(1 - lambda) p + lambda q with (lambda, 1 - lambda) = softmax(W_g h / T); T is another in training than in evaluation."""

    def __init__(
        self, config: SpanBufferConfig | AuxiliarySoftmaxConfig, second: Second, size: int, dropout: float = 0.0
    ) -> None:
        """`dropout` is on the vectors from which the head makes q, in training."""
        super().__init__()
        self.config, self.second, self.dropout = config, second, dropout
        self.policy = nn.Linear(size, 2, bias=False)

    def forward(
        self, p: Prediction, head: Head, tokens: Tensor, embedding: Tensor, state: State, foreign: bool = False
    ) -> tuple[Blend, Any]:
        """The blend for a head's prediction p over the embedding's words, and the second's state."""
        assert p.activations is not None
        hidden, gate = p.activations.head_raw, self.config.gate
        found = self.second(hidden, tokens, embedding, state, foreign)
        # Not rounded: divided by a small temperature, a rounded logit is another.
        with torch.autocast(hidden.device.type, enabled=False):
            logits = self.policy(hidden.to(self.policy.weight.dtype))
        to_q, to_p = logits.unbind(2)
        if found.evidence is not None:
            to_q = to_q + found.evidence
        if found.there is not None:
            to_q = to_q.masked_fill(~found.there, -torch.inf)  # exactly nothing comes of a buffer that holds nothing
        logits = torch.stack([to_q, to_p], 2)
        temperature = gate.training_temperature if self.training else gate.temperature
        attention = None if found.weights is None else found.weights.detach()
        q = self._second(found, head, embedding)
        return Blend(p.activations, p, q, logits, temperature, attention), found.state

    def _second(self, found: SecondVectors, head: Head, embedding: Tensor) -> Prediction:
        if found.vectors is not None:
            return head(locked_dropout(found.vectors, self.dropout, self.training))
        assert found.weights is not None and found.words is not None
        return Pointer(None, found.weights, found.words, len(embedding))
