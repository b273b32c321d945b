"""The contract of every core: from embedded words and a state to the hidden vectors of every layer."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from torch import Tensor, nn

from backstory.config import UserError
from backstory.config.arguments import diagnosed
from backstory.config.cores import CoreConfig
from backstory.models.contract import Capabilities, ParamGroup, module_lists
from backstory.models.shape_checks import check_state, check_vectors
from backstory.models.state import State


class CoreOutput(NamedTuple):
    """Output of a core for a segment of B texts and T steps."""

    layers: tuple[Tensor, ...]
    """The raw output (B, T, H_l) of each layer."""
    dropped: Tensor
    """(B, T, H): the last layer's output after its dropout, which the head reads."""
    state: State
    auxiliary: tuple[Tensor, ...] = ()
    """(B, T, H) of each inner level that predicts as well, after its dropout; in training only."""


def _check(core: "Core", embedded: Any = None, state: State = None, *_: object, **__: object) -> None:
    check_vectors("embedded", embedded, core, core.input_size)
    check_state(state, core.start, len(embedded), "embedded")


class Core(nn.Module, ABC):
    """A core. `input_size` is E, of the embedded words, and `output_size` H, of its last layer."""

    capabilities: Capabilities = Capabilities()
    input_size: int | None = None
    output_size: int
    __call__ = diagnosed(_check)(nn.Module.__call__)

    @abstractmethod
    def start(self, batch_size: int) -> State:
        """Return the state before the first word."""

    @abstractmethod
    def forward(self, embedded: Tensor, state: State, tokens: Tensor | None = None) -> CoreOutput:
        """Read embedded words (B, T, E) from a state.

        `tokens` (B, T) are their ids, for a core that starts again at the first token of a document.
        """

    def layer_stack(self) -> list[nn.Module]:
        """Return the layers, first to last: by default the longest list of modules."""
        return max(module_lists(self), key=len, default=[])

    def param_groups(self) -> list[ParamGroup]:
        """Return the weights with settings of their own in the optimizer; all others have those of the training."""
        return []

    def matrices(self, name: str) -> list[nn.Parameter]:
        """Return the matrices whose dotted name has this part."""
        return [p for path, p in self.named_parameters() if name in path.split(".") and p.dim() == 2]

    def check_vocabulary(self, size: int) -> None:
        """Raise UserError if a setting of the core is the id of a token outside a vocabulary of this size."""
        return None

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

    def extra_activations(self, steps: int) -> float:
        """Estimate the numbers that training stores for a token of a segment of `steps`, beside the outputs of matrices.

        Each stands for itself and for what is computed from it (`training.memory_estimate`).
        """
        return 0.0
