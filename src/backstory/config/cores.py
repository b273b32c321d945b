"""Settings of the cores: what reads the embedded words."""

from dataclasses import dataclass
from typing import Literal

from backstory.config.fields import between, probability


@dataclass(frozen=True)
class LSTMConfig:
    """A stack of LSTM layers with weight drop and locked dropout (AWD-LSTM)."""

    kind: Literal["lstm"] = "lstm"
    """The kind of core."""
    layers: int = between(3, 1, 1000)
    """Number of layers."""
    hidden: int = between(1150, 1)
    """Units of every layer but the last."""
    output: int | None = between(None, 1)
    """Units of the last layer; none: the embedding's size where the softmax is tied to it, else `hidden`."""
    input_dropout: float = probability(0.4)
    """Locked dropout on the embedded words."""
    layer_dropout: float = probability(0.25)
    """Locked dropout between layers."""
    output_dropout: float = probability(0.4)
    """Locked dropout on the last layer's output."""
    weight_drop: float = probability(0.5)
    """Dropout on the recurrent weights, one mask per segment."""
    state_dropout: float = probability(0.0)
    """Locked dropout on h_{t-1} as the recurrent weights read it."""
    biases: Literal[2, 1] = 2
    """Biases of a gate: two, as AWD-LSTM's published counts have them, or one."""


@dataclass(frozen=True)
class MogrifierConfig:
    """A stack of Mogrifier LSTM layers: input and state gate each other in rounds before every cell."""

    kind: Literal["mogrifier"] = "mogrifier"
    """The kind of core."""
    layers: int = between(2, 1, 1000)
    """Number of layers."""
    hidden: int = between(850, 1)
    """Units of every layer but the last."""
    output: int | None = between(None, 1)
    """Units of the last layer; none: the embedding's size where the softmax is tied to it, else `hidden`."""
    rounds: int = between(4, 0, 20)
    """Rounds of gating, the odd ones of the input by the state, the even ones of the state by the input; 0: an LSTM."""
    rank: int | None = between(100, 1)
    """Each round's matrix is a product Q_l Q_r of this rank; none: a full matrix."""
    input_dropout: float = probability(0.5)
    """Locked dropout on the embedded words."""
    state_dropout: float = probability(0.5)
    """Locked dropout on h_{t-1} before the rounds: nothing in the cell reads what is dropped of it."""
    round_dropout: float = probability(0.15)
    """Locked dropout between the factors of a round's matrix: Q_l (mask * Q_r h); on what a full matrix reads."""
    layer_dropout: float = probability(0.5)
    """Locked dropout between layers."""
    output_dropout: float = probability(0.5)
    """Locked dropout on the last layer's output."""


@dataclass(frozen=True)
class ExternalMemoryConfig:
    """What all controllers with an external memory have."""

    kind: str = ""
    """The kind of core."""
    layers: tuple[int, ...] = (1024, 512, 512)
    """Units of each layer of the controller."""
    rows: int = between(1024, 1, 1 << 24)
    """N, vectors that the memory holds."""
    width: int = between(512, 1)
    """M, the size of one."""
    heads: int = between(1, 1, 64)
    """R, heads that read; one writes."""
    addressing: str = "dense"
    """How content says where: `dense`, `localized:257` (the rows of a window, odd), `localized:257x3` (of three windows),
    `literal` (the printed formula), or `window:257` (the same with nothing but content to say where)."""
    output: int | None = between(None, 1)
    """Units of a linear layer of all outputs and all that was read; none: the embedding's size where the softmax is tied to it,
    else no such layer."""
    input_dropout: float = probability(0.0)
    """Locked dropout on the embedded words."""
    layer_dropout: float = probability(0.0)
    """Locked dropout between layers."""
    output_dropout: float = probability(0.0)
    """Locked dropout on what the head reads."""


@dataclass(frozen=True)
class NTMConfig(ExternalMemoryConfig):
    """A controller of LSTM layers with a neural Turing machine's memory."""

    kind: Literal["ntm"] = "ntm"
    """The kind of core."""


@dataclass(frozen=True)
class DNCConfig(ExternalMemoryConfig):
    """A controller of LSTM layers with a differentiable neural computer's memory."""

    kind: Literal["dnc"] = "dnc"
    """The kind of core."""
    link: bool = True
    """Heads can follow the order in which rows were written."""
    allocation: bool = True
    """What is written can go where the memory is free."""
    mask: bool = False
    """Heads choose which numbers of a row and of their key count."""
    deallocation: bool = False
    """Rows that are set free are emptied."""
    sharpness: bool = False
    """Heads sharpen what the link says."""


@dataclass(frozen=True)
class MDMConfig(ExternalMemoryConfig):
    """The differentiable neural computer with masks, de-allocation and sharpness (MDM-NTM)."""

    kind: Literal["mdm"] = "mdm"
    """The kind of core."""
    link: bool = True
    """Heads can follow the order in which rows were written."""
    allocation: bool = True
    """What is written can go where the memory is free."""
    mask: bool = True
    """Heads choose which numbers of a row and of their key count."""
    deallocation: bool = True
    """Rows that are set free are emptied."""
    sharpness: bool = True
    """Heads sharpen what the link says."""
