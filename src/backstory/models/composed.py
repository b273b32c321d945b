"""A language model composed of its parts: embedding -> core -> dual connection -> head -> auxiliary prediction."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backstory.config import (
    DualConfig,
    MixtureConfig,
    ModelConfig,
    NoBufferConfig,
    SoftmaxConfig,
    SpanBufferConfig,
    UserError,
)
from backstory.config.arguments import checked
from backstory.config.errors import off
from backstory.config.strict import conforming
from backstory.models.auxiliary import AuxiliarySoftmax, Gated, GatedState
from backstory.models.contract import LanguageModel
from backstory.models.cores import CORES, Core
from backstory.models.dropout import gaussian_noise, word_dropout
from backstory.models.dual import Dual
from backstory.models.heads import Head, MixtureHead, SoftmaxHead
from backstory.models.prediction import Activations, Prediction
from backstory.models.span_buffer import SpanBuffer
from backstory.models.state import State


class WordEmbedding(nn.Module):
    """Vectors of V words of size E, uniform in [-initial, initial] at first, with word dropout.

    `noise` is the standard deviation of Gaussian noise on the vectors in training; each stage of a training sets its own.
    """

    def __init__(self, types: int, size: int, dropout: float, initial: float = 0.1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(types, size).uniform_(-initial, initial))
        self.dropout, self.noise = dropout, 0.0

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) -> (B, T, E)."""
        embedded = F.embedding(tokens, self.weight)
        embedded = word_dropout(embedded, tokens, self.weight.shape[0], self.dropout, self.training)
        return gaussian_noise(embedded, self.noise, self.training)


class ComposedModel(LanguageModel):
    """Any core with any head, and perhaps a dual connection between them and an auxiliary prediction beside the head's."""

    def __init__(
        self,
        embedding: WordEmbedding,
        core: Core,
        head: Head,
        gated: Gated | None = None,
        dual: Dual | None = None,
    ) -> None:
        super().__init__()
        self.embedding, self.core, self.dual, self.head, self.gated = embedding, core, dual, head, gated
        self.capabilities = core.capabilities

    @property
    def head_size(self) -> int:
        """D, of the vectors that the head reads."""
        return self.core.output_size if self.dual is None else len(self.dual.bias)

    @property
    def vocabulary_size(self) -> int:
        return self.embedding.weight.shape[0]

    @property
    def span_buffer(self) -> SpanBuffer | None:
        """What makes the auxiliary prediction, where that is a span buffer."""
        second = None if self.gated is None else self.gated.second
        return second if isinstance(second, SpanBuffer) else None

    def inference_overrides(self) -> dict[str, str]:
        return {f"core.{name}": value for name, value in self.core.inference_overrides().items()}

    @checked(batch_size=1)
    def start(self, batch_size: int) -> State:
        core = self.core.start(batch_size)
        return core if self.gated is None else GatedState(core, self.gated.second.start(batch_size))

    def forward(self, tokens: Tensor, state: State, foreign: bool = False) -> tuple[Prediction, State]:
        """With `foreign` the buffer of every row is another row's: what it gains then is no memory of the text."""
        embedded = self.embedding(tokens)
        begins = {} if self.core.reset_token is None else {"fresh": tokens == self.core.reset_token}
        output = self.core(embedded, state if self.gated is None else state.core, **begins)
        auxiliary = tuple(self.head(self._connected(embedded, level, level)[1]) for level in output.auxiliary)
        raw, read = self._connected(embedded, output.layers[-1], output.dropped)
        p = self.head(read, Activations(embedded, output.layers, output.dropped, read, raw, auxiliary))
        if self.gated is None:
            return p, output.state
        blend, second = self.gated(p, self.head, tokens, self.embedding.weight, state.second, foreign)
        return blend, GatedState(output.state, second)

    def _connected(self, embedded: Tensor, raw: Tensor, dropped: Tensor) -> tuple[Tensor, Tensor]:
        """What the head reads of the core's output, before the last dropout and after it."""
        return (raw, dropped) if self.dual is None else self.dual(embedded, dropped)


@checked(vocabulary_size=1)
def build_model(config: ModelConfig, vocabulary_size: int) -> ComposedModel:
    """A freshly initialised model (random numbers from torch's generator).

    Raises UserError when the parts do not fit together.
    """
    config = conforming(config, "settings")
    begin = getattr(config.core, "reset_token", None)
    if begin is not None and begin >= vocabulary_size:
        raise UserError(
            f"model.core.reset_token is {begin}, and the ids of {vocabulary_size:,} types end at {vocabulary_size - 1}; "
            "give the id of the token that begins a document, or None"
        )
    words = config.embedding
    embedding = WordEmbedding(vocabulary_size, words.size, words.dropout, words.initial)
    core = _build_core(config)
    dual = _build_dual(config, core.output_size)
    size = core.output_size if dual is None else len(dual.bias)
    if isinstance(config.head, MixtureConfig):
        head: Head = MixtureHead(config.head, embedding.weight, size)
    else:
        head = SoftmaxHead(config.head, embedding.weight, size)
    return ComposedModel(embedding, core, head, _build_gated(config, size), dual)


def check_overrides(config: ModelConfig, changes: Mapping[str, str]) -> None:
    """Raise UserError unless a model of this config can have these settings after training (`inference_overrides`)."""
    for name, value in changes.items():
        part, _, setting = name.partition(".")
        if part != "core":
            raise UserError(f"there is no setting {name} that can change after training; one is core.addressing")
        core: Any = CORES[type(config.core)]
        core.check_override(config.core, setting, value)


def outline(config: ModelConfig, vocabulary_size: int) -> ComposedModel | None:
    """The model with parameters that take no memory; none where no tensor can be so large.

    Raises UserError when the parts do not fit together.
    """
    try:
        with torch.device("meta"):
            return build_model(config, vocabulary_size)
    except (RuntimeError, TypeError, ValueError, OverflowError):
        return None


def _build_gated(config: ModelConfig, size: int) -> Gated | None:
    buffer = config.buffer
    if isinstance(buffer, NoBufferConfig):
        return None
    second = (
        SpanBuffer(buffer, size, config.embedding.size)
        if isinstance(buffer, SpanBufferConfig)
        else AuxiliarySoftmax(size)
    )
    return Gated(buffer, second, size, config.second_dropout)


def _build_core(config: ModelConfig) -> Core:
    size, core = config.embedding.size, config.core
    output = core.output or (size if _tied(config) else None)
    if output is not None and not isinstance(config.dual, DualConfig):
        _check_tied(config, "core.output", output)
    made = CORES[type(core)](core, size, output)
    made.input_size = size
    return made


def _build_dual(config: ModelConfig, hidden: int) -> Dual | None:
    if not isinstance(config.dual, DualConfig):
        return None
    size = config.dual.size or config.embedding.size
    _check_tied(config, "dual.size", size)
    return Dual(config.dual, config.embedding.size, hidden, size)


def _tied(config: ModelConfig) -> bool:
    """Whether the head multiplies what it reads with the embedding's weights."""
    return isinstance(config.head, SoftmaxConfig) and config.head.tied


def _check_tied(config: ModelConfig, setting: str, found: int) -> None:
    size = config.embedding.size
    if _tied(config) and found != size:
        raise UserError(
            f"the softmax is tied to the embedding, of size {size}, so model.{setting} must be {size} or none, "
            f"not {found}; or set {off('model.head.tied')}"
        )


def count_parameters(model: nn.Module) -> int:
    """Trained numbers in a model, tied weights counted once."""
    return sum(p.numel() for p in model.parameters())
