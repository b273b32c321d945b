"""Auxiliary prediction q next to the head's p, and the gate between them (span-based neural buffer, eqs. 8 to 10, 14).

(1 - lambda) p + lambda q with (lambda, 1 - lambda) = softmax(W_g h / T). `SpanBuffer` predicts q from memory, and its control
`AuxiliarySoftmax` without memory.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from backstory.config import AuxiliarySoftmaxConfig, SpanBufferConfig
from backstory.models.contract import ParamGroup
from backstory.models.dropout import locked_dropout
from backstory.models.heads import Head
from backstory.models.prediction import Interpolation, Pointer, Prediction
from backstory.models.state import State


class GatedState(NamedTuple):
    """State of a model with an auxiliary predictor."""

    core: State
    auxiliary: State


class AuxiliaryOutput(NamedTuple):
    """Output of an auxiliary predictor at B x T positions."""

    vectors: Tensor | None
    """(B, T, D): input of the head for q; None if q points to words."""
    present: Tensor | None
    """(B, T) bool: False where nothing is stored to predict from; None if there always is."""
    weights: Tensor | None
    """(B, T, N): the attention, in the order of `SpanBuffer.covered`; None without attention."""
    state: State
    words: Tensor | None = None
    """(B, T, N) int64: the words to point to."""
    evidence: Tensor | None = None
    """(B, T): added to the logit of lambda."""


class AuxiliaryPredictor(nn.Module, ABC):
    """An auxiliary prediction q from the same hidden states as p."""

    @abstractmethod
    def start(self, batch_size: int) -> State:
        """Return the state before the first word."""

    @abstractmethod
    def forward(self, hidden: Tensor, tokens: Tensor, embedding: Tensor, state: State) -> AuxiliaryOutput:
        """Predict from the raw states h (B, T, D) of tokens (B, T), and the embedding (V, E)."""


class AuxiliarySoftmax(AuxiliaryPredictor):
    """tanh(W h + b): an auxiliary prediction from the present state, without memory."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.projection = nn.Linear(size, size)

    def start(self, batch_size: int) -> None:
        return None

    def forward(self, hidden: Tensor, tokens: Tensor, embedding: Tensor, state: State) -> AuxiliaryOutput:
        return AuxiliaryOutput(torch.tanh(self.projection(hidden)), None, None, None)


class GatedPredictor(nn.Module):
    """An auxiliary predictor and the gate that weighs it, with one temperature T in training and another in evaluation."""

    def __init__(
        self,
        config: SpanBufferConfig | AuxiliarySoftmaxConfig,
        auxiliary: AuxiliaryPredictor,
        size: int,
        dropout: float = 0.0,
    ) -> None:
        """`dropout` applies in training to the vectors from which the head computes q."""
        super().__init__()
        self.config, self.dropout = config, dropout
        # The name of its parameters in checkpoints and in the hash of the weights.
        self.add_module("second", auxiliary)
        self.policy = nn.Linear(size, 2, bias=False)  # W_g

    @property
    def auxiliary(self) -> AuxiliaryPredictor:
        return cast(AuxiliaryPredictor, self.get_submodule("second"))

    def param_groups(self) -> list[ParamGroup]:
        return [ParamGroup(list(self.policy.parameters()), rate=self.config.gate.rate, after=self.config.gate.after)]

    def forward(
        self, p: Prediction, head: Head, tokens: Tensor, embedding: Tensor, state: State
    ) -> tuple[Interpolation, State]:
        """Return the interpolation of the head's prediction p with q, and the state of the auxiliary predictor."""
        assert p.activations is not None
        output = self.auxiliary(p.activations.head_raw, tokens, embedding, state)
        return self.interpolate(p, head, output), output.state

    def interpolate(self, p: Prediction, head: Head, auxiliary: AuxiliaryOutput) -> Interpolation:
        """Return (1 - lambda) p + lambda q (eq. 9) for the output of the auxiliary predictor."""
        assert p.activations is not None
        hidden, gate = p.activations.head_raw, self.config.gate
        # In float32: divided by a small temperature, a rounded logit would be far off.
        with torch.autocast(hidden.device.type, enabled=False):
            logits = self.policy(hidden.to(self.policy.weight.dtype))
        to_q, to_p = logits.unbind(2)
        if auxiliary.evidence is not None:
            to_q = to_q + auxiliary.evidence
        if auxiliary.present is not None:
            to_q = to_q.masked_fill(~auxiliary.present, -torch.inf)  # an empty buffer has exactly no weight
        logits = torch.stack([to_q, to_p], 2)
        temperature = gate.training_temperature if self.training else gate.temperature
        attention = None if auxiliary.weights is None else auxiliary.weights.detach()
        return Interpolation(
            p.activations, p, self._auxiliary_prediction(auxiliary, head), logits, temperature, attention
        )

    def _auxiliary_prediction(self, auxiliary: AuxiliaryOutput, head: Head) -> Prediction:
        """Return q: the head's prediction from the vectors (eq. 8), or a pointer to the words."""
        if auxiliary.vectors is not None:
            return head(locked_dropout(auxiliary.vectors, self.dropout, self.training))
        assert auxiliary.weights is not None and auxiliary.words is not None
        return Pointer(None, auxiliary.weights, auxiliary.words, len(head.weight))
