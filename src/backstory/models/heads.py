"""Heads, and the dual connection before them.

The softmax and the mixture of softmaxes (Yang et al. 2018, section 3). The dual connection (Oliva and Lago-Fernandez 2021, eqs.
4 to 7) is d_t = ReLU(W_de e_t + W_dh h_t + b_d) between any core and any head: e_t is the word's vector as the core is given
it, before `input_dropout` of the core, and h_t the core's output after its own `output_dropout`. The head, a
span buffer and its gate, and a cache read d_t in place of h_t. AR and TAR apply to the core's output.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backstory.config import DualConfig, MixtureConfig, SoftmaxConfig
from backstory.models.contract import ParamGroup
from backstory.models.dropout import locked_dropout
from backstory.models.prediction import Activations, MixtureOfSoftmaxes, Prediction, Softmax
from backstory.models.state import check_vectors
from backstory.utils.arguments import diagnosed


class Dual(nn.Module):
    """A layer of D units over a word's vector, of size E, and the core's output, of size H: d_t of eq. 6."""

    weight_de: nn.Parameter | None

    def __init__(self, config: DualConfig, embedding: int, hidden: int, size: int) -> None:
        super().__init__()
        self.config = config
        inputs = hidden + (embedding if config.direct else 0)
        bound = (6 / (inputs + size)) ** 0.5
        direct = nn.Parameter(torch.empty(size, embedding).uniform_(-bound, bound)) if config.direct else None
        self.register_parameter("weight_de", direct)
        self.weight_dh = nn.Parameter(torch.empty(size, hidden).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(size))

    def extra_repr(self) -> str:
        return f"{self.weight_dh.shape[1]} to {len(self.bias)}"

    def param_groups(self) -> list[ParamGroup]:
        return [ParamGroup([p for p in self.parameters() if p.dim() == 2], self.config.l2)]

    def forward(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return d (B, T, D) of e (B, T, E) and h (B, T, H), before the output's dropout and after it."""
        config = self.config
        summed = F.linear(locked_dropout(hidden, config.input_dropout, self.training), self.weight_dh, self.bias)
        if self.weight_de is not None:
            embedded = locked_dropout(embedded, config.input_dropout, self.training)
            summed = summed + F.linear(embedded, self.weight_de)
        output = torch.relu(summed)
        return output, locked_dropout(output, config.output_dropout, self.training)


def _check(head: "Head", hidden: Any = None, *_: object, **__: object) -> None:
    check_vectors("hidden", hidden, head, head.inputs)


class Head(nn.Module, ABC):
    """Base of the heads, which read vectors (B, T, D). Tied output weights are the embedding's (V, E)."""

    __call__ = diagnosed(_check)(nn.Module.__call__)
    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, embedding: nn.Parameter, inputs: int, tied: bool, bias: bool) -> None:
        """`inputs` is the size of the vectors that the output weights are multiplied with: E if they are tied."""
        super().__init__()
        self.inputs, self.tied = inputs, tied
        own = embedding.new_empty(embedding.shape[0], inputs)
        self.weight = embedding if tied else nn.Parameter(own.uniform_(-0.1, 0.1))
        self.bias = nn.Parameter(torch.zeros(embedding.shape[0])) if bias else None

    def extra_repr(self) -> str:
        return f"{self.inputs} to {self.weight.shape[0]}" + (", tied to the embedding" if self.tied else "")

    @abstractmethod
    def forward(self, hidden: Tensor, activations: Activations | None = None) -> Prediction:
        """Return the prediction from hidden (B, T, D), with the activations that it came from."""


class SoftmaxHead(Head):
    """softmax(W h + b). D is E if W is tied to the embedding."""

    def __init__(self, config: SoftmaxConfig, embedding: nn.Parameter, inputs: int) -> None:
        super().__init__(embedding, inputs, config.tied, config.bias)

    def forward(self, hidden: Tensor, activations: Activations | None = None) -> Softmax:
        if hidden.shape[-1] != self.inputs:  # the product comes later, when the prediction is evaluated
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


HEADS: dict[type, Callable[[Any, nn.Parameter, int], Head]] = {SoftmaxConfig: SoftmaxHead, MixtureConfig: MixtureHead}
"""Constructors of the heads, by the type of their settings."""
