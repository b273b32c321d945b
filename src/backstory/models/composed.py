"""A language model composed of its parts: embedding -> core -> head."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backstory.config import MixtureConfig, ModelConfig, SoftmaxConfig, UserError
from backstory.models.contract import LanguageModel
from backstory.models.cores import LSTM, Core
from backstory.models.dropout import gaussian_noise, word_dropout
from backstory.models.heads import Head, MixtureHead, SoftmaxHead
from backstory.models.prediction import Activations, Prediction
from backstory.models.state import State


class WordEmbedding(nn.Module):
    """Vectors of V words of size E, uniform in [-0.1, 0.1] at first, with word dropout.

    `noise` is the standard deviation of Gaussian noise on the vectors in training; each stage of a training sets its own.
    """

    def __init__(self, types: int, size: int, dropout: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(types, size).uniform_(-0.1, 0.1))
        self.dropout, self.noise = dropout, 0.0

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) -> (B, T, E)."""
        embedded = F.embedding(tokens, self.weight)
        embedded = word_dropout(embedded, tokens, self.weight.shape[0], self.dropout, self.training)
        return gaussian_noise(embedded, self.noise, self.training)


class ComposedModel(LanguageModel):
    """Any core with any head."""

    def __init__(self, embedding: WordEmbedding, core: Core, head: Head) -> None:
        super().__init__()
        self.embedding, self.core, self.head = embedding, core, head
        self.capabilities = core.capabilities

    @property
    def vocabulary_size(self) -> int:
        return self.embedding.weight.shape[0]

    def start(self, batch_size: int) -> State:
        return self.core.start(batch_size)

    def forward(self, tokens: Tensor, state: State) -> tuple[Prediction, State]:
        embedded = self.embedding(tokens)
        output = self.core(embedded, state)
        activations = Activations(embedded, output.layers, output.dropped, output.dropped)
        return self.head(output.dropped, activations), output.state


def build_model(config: ModelConfig, vocabulary_size: int) -> ComposedModel:
    """A freshly initialised model (random numbers from torch's generator).

    Raises UserError when the parts do not fit together.
    """
    embedding = WordEmbedding(vocabulary_size, config.embedding.size, config.embedding.dropout)
    core = _build_core(config)
    if isinstance(config.head, MixtureConfig):
        head: Head = MixtureHead(config.head, embedding.weight, core.output_size)
    else:
        head = SoftmaxHead(config.head, embedding.weight, core.output_size)
    return ComposedModel(embedding, core, head)


def _build_core(config: ModelConfig) -> Core:
    size, core = config.embedding.size, config.core
    tied = isinstance(config.head, SoftmaxConfig) and config.head.tied
    output = core.output or (size if tied else core.hidden)
    if tied and output != size:
        raise UserError(
            f"the softmax is tied to the embedding, of size {size}, so model.core.output must be {size} or none, "
            f"not {output}; or set model.head.tied to false"
        )
    return LSTM(core, size, output)


def count_parameters(model: nn.Module) -> int:
    """Trained numbers in a model, tied weights counted once."""
    return sum(p.numel() for p in model.parameters())
