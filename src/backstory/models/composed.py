"""A language model composed of its parts: embedding -> core -> dual connection -> head -> auxiliary predictor."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from backstory.config import DualConfig, ModelConfig, NoBufferConfig, SpanBufferConfig
from backstory.config.strict import conforming
from backstory.models.auxiliary import AuxiliarySoftmax, GatedPredictor, GatedState
from backstory.models.contract import LanguageModel, ParamGroup
from backstory.models.cores import CORES, Core
from backstory.models.dropout import gaussian_noise, word_dropout
from backstory.models.heads import HEADS, Dual, Head
from backstory.models.kernels.factored_gradients import embedding as lookup
from backstory.models.prediction import Activations, Prediction
from backstory.models.span_buffer import SpanBuffer
from backstory.models.state import State
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError, off


class WordEmbedding(nn.Module):
    """Vectors of V words of size E, initialised from U(-initial, initial), with word dropout.

    `noise` is the standard deviation of Gaussian noise on the vectors in training; each stage of training sets it. `l2` is the
    L2 of the vectors and of the output weights.
    """

    def __init__(self, types: int, size: int, dropout: float, initial: float = 0.1, l2: float | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(types, size).uniform_(-initial, initial))
        self.dropout, self.noise, self.l2 = dropout, 0.0, l2

    def extra_repr(self) -> str:
        types, size = self.weight.shape
        return f"{types} x {size}"

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) -> (B, T, E)."""
        embedded = lookup(tokens, self.weight)
        embedded = word_dropout(embedded, tokens, self.weight.shape[0], self.dropout, self.training)
        return gaussian_noise(embedded, self.noise, self.training)


class ComposedModel(LanguageModel):
    """Any core with any head, and optionally a dual connection between them and an auxiliary predictor after them."""

    def __init__(
        self,
        embedding: WordEmbedding,
        core: Core,
        head: Head,
        gated: GatedPredictor | None = None,
        dual: Dual | None = None,
    ) -> None:
        super().__init__()
        self.embedding, self.core, self.dual, self.head, self.gated = embedding, core, dual, head, gated
        self.capabilities = core.capabilities
        if gated is not None and isinstance(gated.auxiliary, SpanBuffer):  # which may reach farther than the core
            self.capabilities = replace(core.capabilities, maximum_length=None)

    @property
    def head_size(self) -> int:
        """D, the size of the vectors that the head reads."""
        return self.core.output_size if self.dual is None else len(self.dual.bias)

    @property
    def vocabulary_size(self) -> int:
        return self.embedding.weight.shape[0]

    def layer_stack(self) -> list[nn.Module]:
        return self.core.layer_stack()

    def param_groups(self) -> list[ParamGroup]:
        words = {id(p): p for p in (self.embedding.weight, self.head.weight)}  # one where they are tied
        groups = [ParamGroup(list(words.values()), self.embedding.l2), *self.core.param_groups()]
        return groups + [group for part in (self.dual, self.gated) if part is not None for group in part.param_groups()]

    def inference_overrides(self) -> dict[str, str]:
        return {f"core.{name}": value for name, value in self.core.inference_overrides().items()}

    @checked(batch_size=1)
    def start(self, batch_size: int) -> State:
        core = self.core.start(batch_size)
        return core if self.gated is None else GatedState(core, self.gated.auxiliary.start(batch_size))

    def forward(self, tokens: Tensor, state: State) -> tuple[Prediction, State]:
        if self.gated is None:
            return self.head_prediction(tokens, state)
        p, core = self.head_prediction(tokens, state.core)
        prediction, auxiliary = self.gated(p, self.head, tokens, self.embedding.weight, state.auxiliary)
        return prediction, GatedState(core, auxiliary)

    def head_prediction(self, tokens: Tensor, core_state: State) -> tuple[Prediction, State]:
        """Return the head's prediction for tokens (B, T), and the core's state after them."""
        embedded = self.embedding(tokens)
        output = self.core(embedded, core_state, tokens)
        inner = tuple(self.head(self._head_input(embedded, level, level)[1]) for level in output.inner_levels)
        raw, dropped = self._head_input(embedded, output.layers[-1], output.dropped)
        activations = Activations(embedded, output.layers, output.dropped, dropped, raw, inner)
        return self.head(dropped, activations), output.state

    def _head_input(self, embedded: Tensor, raw: Tensor, dropped: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors that the head reads, before the last dropout and after it."""
        return (raw, dropped) if self.dual is None else self.dual(embedded, dropped)


@checked(vocabulary_size=1)
def build_model(config: ModelConfig, vocabulary_size: int) -> ComposedModel:
    """Build a model with random weights, from torch's generator.

    Raises UserError if the parts do not fit together, or do not fit the vocabulary.
    """
    config = conforming(config, "settings")
    words = config.embedding
    embedding = WordEmbedding(vocabulary_size, words.size, words.dropout, words.initial, words.l2)
    core = _build_core(config)
    core.check_vocabulary(vocabulary_size)
    dual = _build_dual(config, core.output_size)
    size = core.output_size if dual is None else len(dual.bias)
    head = HEADS[type(config.head)](config.head, embedding.weight, size)
    model = ComposedModel(embedding, core, head, _build_gated(config, size), dual)
    if config.initial is not None:
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -config.initial, config.initial)
    return model


def check_overrides(config: ModelConfig, changes: Mapping[str, str]) -> None:
    """Raise UserError unless a model of this config can have these settings after training (`inference_overrides`)."""
    for name, value in changes.items():
        part, _, setting = name.partition(".")
        if part != "core":
            raise UserError(f"there is no setting {name} that can change after training; one is core.addressing")
        core: Any = CORES[type(config.core)]
        core.check_override(config.core, setting, value)


def outline(config: ModelConfig, vocabulary_size: int) -> ComposedModel | None:
    """Build the model on the meta device, where it takes no memory; None if its core is a plug-in that cannot be built there.

    Raises UserError if the parts do not fit together, and OverflowError if one is too large for any tensor.
    """
    try:
        with torch.device("meta"):
            return build_model(config, vocabulary_size)
    except UserError:
        raise
    except Exception as error:
        # PyTorch raises errors of several kinds for sizes that no number of 64 bits holds.
        if "overflow" in f"{type(error).__name__} {error}".lower():
            raise OverflowError(str(error)) from None
        if type(config.core).__module__.startswith("backstory."):
            raise
        return None  # it may inspect its weights, which have no values there


def check_parts(config: ModelConfig) -> ComposedModel | None:
    """Return the outline of the model, with a vocabulary of two.

    Raises UserError if the parts do not fit together, or one is too large for any tensor.
    """
    try:
        return outline(config, vocabulary_size=2)  # parts that fit together do so with any vocabulary
    except OverflowError:
        raise UserError("it needs more memory than can be counted; use smaller sizes") from None


def _build_gated(config: ModelConfig, size: int) -> GatedPredictor | None:
    buffer = config.buffer
    if isinstance(buffer, NoBufferConfig):
        return None
    spans = isinstance(buffer, SpanBufferConfig)
    auxiliary = SpanBuffer(buffer, size, config.embedding.size) if spans else AuxiliarySoftmax(size)
    return GatedPredictor(buffer, auxiliary, size, config.auxiliary_dropout)


def _build_core(config: ModelConfig) -> Core:
    size, core = config.embedding.size, config.core
    output = config.core_output
    if output is not None and not isinstance(config.dual, DualConfig):
        _check_tied(config, "core.output", output)
    built = CORES[type(core)](core, size, output)
    built.input_size = size
    return built


def _build_dual(config: ModelConfig, hidden: int) -> Dual | None:
    if not isinstance(config.dual, DualConfig):
        return None
    size = config.dual.size or config.embedding.size
    _check_tied(config, "dual.size", size)
    return Dual(config.dual, config.embedding.size, hidden, size)


def _check_tied(config: ModelConfig, setting: str, value: int) -> None:
    size = config.embedding.size
    if config.tied and value != size:
        raise UserError(
            f"the softmax is tied to the embedding, of size {size}, so model.{setting} must be {size} or none, "
            f"not {value}; or set {off('model.head.tied')}"
        )


def count_parameters(model: nn.Module) -> int:
    """Return the number of trained numbers in a model, with tied weights counted once."""
    return sum(p.numel() for p in model.parameters())
