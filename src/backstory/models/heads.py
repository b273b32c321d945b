"""The softmax head and the mixture-of-softmaxes head (Yang et al. 2018, eqs. of section 3)."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from backstory.config import MixtureConfig, SoftmaxConfig
from backstory.config.arguments import diagnosed
from backstory.models.dropout import locked_dropout
from backstory.models.prediction import Activations, MixtureOfSoftmaxes, Prediction, Softmax
from backstory.models.shape_checks import check_vectors


def _check(head: "Head", hidden: Any = None, *_: object, **__: object) -> None:
    check_vectors("hidden", hidden, head, head.inputs)


class Head(nn.Module, ABC):
    """Reads vectors (B, T, D). The output weights are the embedding's (V, E) where tied."""

    __call__ = diagnosed(_check)(nn.Module.__call__)
    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, embedding: nn.Parameter, inputs: int, tied: bool, bias: bool) -> None:
        """`inputs` is the size of the vectors that the output weights are multiplied with; E where tied."""
        super().__init__()
        self.inputs = inputs
        own = embedding.new_empty(embedding.shape[0], inputs)
        self.weight = embedding if tied else nn.Parameter(own.uniform_(-0.1, 0.1))
        self.bias = nn.Parameter(torch.zeros(embedding.shape[0])) if bias else None

    @abstractmethod
    def forward(self, hidden: Tensor, activations: Activations | None = None) -> Prediction:
        """The prediction from hidden (B, T, D), carrying the activations that it came from."""


class SoftmaxHead(Head):
    """softmax(W h + b); where W is tied to the embedding, D equals E."""

    def __init__(self, config: SoftmaxConfig, embedding: nn.Parameter, inputs: int) -> None:
        super().__init__(embedding, inputs, config.tied, config.bias)

    def forward(self, hidden: Tensor, activations: Activations | None = None) -> Softmax:
        if hidden.shape[-1] != self.inputs:  # nothing is multiplied before the prediction is asked
            _check(self, hidden)
        return Softmax(activations, hidden, self.weight, self.bias)


class MixtureHead(Head):
    """sum_k softmax(W_pi h)_k softmax(W tanh(W_k h + b_k) + b), with locked dropout on the latent vectors."""

    def __init__(self, config: MixtureConfig, embedding: nn.Parameter, inputs: int) -> None:
        super().__init__(embedding, embedding.shape[1], config.tied, config.bias)
        self.inputs = inputs
        self.latent_dropout = config.latent_dropout
        self.latent = nn.Linear(inputs, config.experts * embedding.shape[1])
        self.prior = nn.Linear(inputs, config.experts, bias=False)

    def forward(self, hidden: Tensor, activations: Activations | None = None) -> MixtureOfSoftmaxes:
        latents = locked_dropout(torch.tanh(self.latent(hidden)), self.latent_dropout, self.training)
        logits = self.prior(hidden)
        log_prior = torch.log_softmax(logits, 2, dtype=torch.promote_types(logits.dtype, torch.float32))
        latents = latents.unflatten(2, (-1, self.weight.shape[1]))
        return MixtureOfSoftmaxes(activations, latents, log_prior, self.weight, self.bias)
