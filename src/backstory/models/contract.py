"""The contract of every language model and of every core.

A model is `forward(tokens, state) -> (prediction, state)`, a core `forward(embedded, state, tokens) -> CoreOutput`; both make
their state by `start`.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from torch import Tensor, nn

from backstory.config.cores import CoreConfig
from backstory.models.prediction import Prediction
from backstory.models.state import State, check_ids, check_state, check_vectors
from backstory.utils.arguments import diagnosed
from backstory.utils.errors import UserError

MOST_LINES = 10
"""Lines of the `repr` of a model."""


@dataclass(frozen=True)
class Capabilities:
    """Properties that a model declares; the contract tests check them."""

    exact_state: bool = True
    """A text gives the same prediction read whole, in chunks or token by token."""
    recurrent: bool = True
    """The state has a fixed size, however long the text."""
    maximum_length: int | None = None
    """Maximum context in tokens that the model can use; None: no limit."""
    slides: bool = False
    """A window of `maximum_length` slides over a longer text; otherwise the model restarts after that many tokens."""
    keeps: int = 0
    """Number of tokens that stay in a full window when it slides."""
    rereads: bool = False
    """Each block rereads the text before it, so few long blocks are cheaper."""
    shares_products: bool = False
    """The number of rows in a product depends on the tokens, as for experts, so other tokens change how it is rounded."""


class ParamGroup(NamedTuple):
    """Weights with settings of their own in the optimizer."""

    weights: list[nn.Parameter]
    l2: float | None = None
    """lambda of lambda |w|^2 in the loss; None: the `weight_decay` of the training."""
    rate: float = 1.0
    """Their learning rate, as a share of the model's."""
    after: int = 0
    """Epochs of training before they learn."""


def longest_list(module: nn.Module) -> list[nn.Module]:
    """Return the longest list of modules inside a module; empty if there is none."""
    return max((list(part) for part in module.modules() if isinstance(part, nn.ModuleList)), key=len, default=[])


def _check_model(model: "LanguageModel", tokens: Any = None, state: State = None) -> None:
    check_ids("tokens", tokens, model.vocabulary_size, next(model.parameters()))
    check_state(state, model.start, len(tokens), "tokens")


class LanguageModel(nn.Module, ABC):
    """A belief over the next token, given the tokens so far. Its parameters are the raw, trained weights."""

    capabilities: Capabilities = Capabilities()

    __call__ = diagnosed(_check_model)(nn.Module.__call__)

    @abstractmethod
    def start(self, batch_size: int) -> State:
        """Return the state before the first token of `batch_size` texts, on the model's device."""

    @abstractmethod
    def forward(self, tokens: Tensor, state: State) -> tuple[Prediction, State]:
        """Read tokens (B, T) from a state; the prediction at position t is of the token after tokens[:, t]."""

    @property
    @abstractmethod
    def vocabulary_size(self) -> int:
        """V, the number of types in the vocabulary."""

    def layer_stack(self) -> list[nn.Module]:
        """Return the layers, first to last: by default the longest list of modules."""
        return longest_list(self)

    def param_groups(self) -> list[ParamGroup]:
        """Return the weights with settings of their own in the optimizer; all others have those of the training."""
        return []

    def inference_overrides(self) -> dict[str, str]:
        """Return the settings that may change after training, as `core.addressing`, with their present values."""
        return {}

    def extra_repr(self) -> str:
        return f"{sum(p.numel() for p in self.parameters()):,} parameters, {self.vocabulary_size:,} types"

    def __repr__(self) -> str:
        """Return a line for the model and one per part, with the parameters not already counted in earlier parts."""
        lines, counted = [f"{type(self).__name__}({self.extra_repr()})"], set()
        for name, part in self.named_children():
            own = {id(p): p.numel() for p in part.parameters() if id(p) not in counted}
            counted |= own.keys()
            size = f": {sum(own.values()):,}" if own else ""
            lines.append(f"  ({name}) {type(part).__name__}({part.extra_repr()}){size}")
        more = len(lines) - MOST_LINES
        return "\n".join(lines if more <= 0 else [*lines[: MOST_LINES - 1], f"  ... and {more + 1} more parts"])

    def overridden(self, changes: Mapping[str, str]) -> Self:
        """Return a model with the same weights and other settings, without changing this one. Raises UserError."""
        known = self.inference_overrides()
        for name in changes:
            if name not in known:
                others = f"; those that can are {', '.join(known)}" if known else "; remove it"
                raise UserError(f"this model has no setting {name} that can change after training{others}")
        # The parameters themselves, so that no memory is duplicated and tied ones stay tied.
        other = copy.deepcopy(self, {id(p): p for p in (*self.parameters(), *self.buffers())})
        for name, value in changes.items():
            part, _, setting = name.partition(".")
            getattr(other, part).override(setting, value)
        return other


class CoreOutput(NamedTuple):
    """Output of a core for a segment of B texts and T steps."""

    layers: tuple[Tensor, ...]
    """The raw output (B, T, H_l) of each layer."""
    dropped: Tensor
    """(B, T, H): the last layer's output after its dropout, which the head reads."""
    state: State
    inner_levels: tuple[Tensor, ...] = ()
    """(B, T, H) of each inner level that predicts too, after its dropout; in training only."""


def _check_core(core: "Core", embedded: Any = None, state: State = None, *_: object, **__: object) -> None:
    check_vectors("embedded", embedded, core, core.input_size)
    check_state(state, core.start, len(embedded), "embedded")


class Core(nn.Module, ABC):
    """A core. `input_size` is E, of the embedded words, and `output_size` H, of its last layer."""

    capabilities: Capabilities = Capabilities()
    input_size: int | None = None
    output_size: int
    auxiliary_weight: float = 0.0
    """Weight in the training loss of each of the `inner_levels` of its output."""
    __call__ = diagnosed(_check_core)(nn.Module.__call__)

    @abstractmethod
    def start(self, batch_size: int) -> State:
        """Return the state before the first word."""

    def extra_repr(self) -> str:
        layers = len(self.layer_stack())
        inputs = "" if self.input_size is None else f"{self.input_size} to "
        return f"{inputs}{self.output_size}" + (f", {layers} layers" if layers > 1 else "")

    @abstractmethod
    def forward(self, embedded: Tensor, state: State, tokens: Tensor | None = None) -> CoreOutput:
        """Read embedded words (B, T, E) from a state.

        `tokens` (B, T) are their ids, for a core that starts again at the first token of a document.
        """

    def layer_stack(self) -> list[nn.Module]:
        """Return the layers, first to last: by default the longest list of modules."""
        return longest_list(self)

    def param_groups(self) -> list[ParamGroup]:
        """Return the weights with settings of their own in the optimizer; all others have those of the training."""
        return []

    def matrix_groups(self, **l2: float | None) -> list[ParamGroup]:
        """Return a group with this L2 for each word in the dotted names of matrices, as `weight_ih=1e-5`."""
        matrices = [(path.split("."), p) for path, p in self.named_parameters() if p.dim() == 2]
        return [ParamGroup([p for words, p in matrices if name in words], value) for name, value in l2.items()]

    def check_vocabulary(self, size: int) -> None:
        """Raise UserError if a setting of the core is the id of a token outside a vocabulary of this size."""

    def inference_overrides(self) -> dict[str, str]:
        """Return the settings that may change after training, by name, with their present values."""
        return {}

    def override(self, setting: str, value: str) -> None:
        """Change one of these settings. Raises UserError."""
        raise UserError(f"this core has no setting {setting} that can change after training")

    @classmethod
    def check_override(cls, config: CoreConfig, setting: str, value: str) -> None:
        """Raise UserError unless a core of this config can have another value of a setting after training."""
        raise UserError(
            f"a core of kind {config.kind} has no setting {setting} that can change after training; remove it"
        )

    @classmethod
    def memory_options(cls, config: CoreConfig) -> tuple[str, ...]:
        """Return the names of a config's enabled options that take memory, which may be turned off to save it."""
        return ()

    def extra_activations(self, steps: int) -> float:
        """Estimate the numbers that training stores for a token of a segment of `steps`, beside the outputs of matrices.

        Each stands for itself and for what is computed from it (`training.memory_estimate`).
        """
        return 0.0
