"""Settings of the cores, which read the embedded words."""

from dataclasses import dataclass
from typing import Literal

from backstory.config.strict import between, probability

Initialisation = Literal["pytorch", "keras"]
"""Initial weights of recurrent layers."""


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
    """Units of the last layer; none: the size of the embedding if the softmax is tied to it, else `hidden`."""
    input_dropout: float = probability(0.4)
    """Locked dropout on the embedded words."""
    layer_dropout: float = probability(0.25)
    """Locked dropout between layers."""
    output_dropout: float = probability(0.4)
    """Locked dropout on the last layer's output."""
    masks: Literal["segment", "token"] = "segment"
    """Masks of these three dropouts: one for each segment (locked dropout), or one for each token, as in Zaremba et al.
    (2014)."""
    weight_drop: float = probability(0.5)
    """Dropout on the recurrent weights, one mask per segment."""
    state_dropout: float = probability(0.0)
    """Locked dropout on h_{t-1} as the recurrent weights read it."""
    biases: Literal[2, 1] = 2
    """Biases of a gate: two, as in the published sizes of AWD-LSTM, or one."""
    input_l2: float | None = between(None, 0.0)
    """lambda of lambda |w|^2 in the loss, for the layers' input weights; none: as `training.weight_decay`."""
    recurrent_l2: float | None = between(None, 0.0)
    """The same for the recurrent weights."""
    initialisation: Initialisation = "pytorch"
    """pytorch: U(-a, a), a the inverse square root of the units; keras: Glorot uniform input weights, orthogonal recurrent
    weights, biases 0, and 1 for the forget gate."""

    def ignored_settings(self, output: int | None) -> dict[str, str]:
        """Return the settings that have no effect, and why; `output` is the size of the last layer, None if it is `hidden`."""
        between_layers = self.layer_dropout if self.layers > 1 else 0
        if self.input_dropout or between_layers or self.output_dropout:
            return _of_one_layer(self.layers, output)
        return _of_one_layer(self.layers, output) | {"masks": "without dropout; raise model.core.input_dropout"}


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
    """Units of the last layer; none: the size of the embedding if the softmax is tied to it, else `hidden`."""
    rounds: int = between(4, 0, 20)
    """Rounds of gating: odd rounds gate the input by the state, even ones the state by the input; 0: an LSTM."""
    rank: int | None = between(100, 1)
    """Each round's matrix is a product Q_l Q_r of this rank; none: a full matrix."""
    input_dropout: float = probability(0.5)
    """Locked dropout on the embedded words."""
    state_dropout: float = probability(0.5)
    """Locked dropout on h_{t-1} before the rounds, so that nothing in the cell reads the dropped units."""
    round_dropout: float = probability(0.15)
    """Locked dropout between the factors of a round's matrix, Q_l (mask * Q_r h), or on the input of a full matrix."""
    layer_dropout: float = probability(0.5)
    """Locked dropout between layers."""
    output_dropout: float = probability(0.5)
    """Locked dropout on the last layer's output."""
    input_l2: float | None = between(None, 0.0)
    """lambda of lambda |w|^2 in the loss, for the layers' input weights; none: as `training.weight_decay`."""
    recurrent_l2: float | None = between(None, 0.0)
    """The same for the recurrent weights."""
    round_l2: float | None = between(None, 0.0)
    """The same for the matrices of the rounds."""
    initialisation: Initialisation = "pytorch"
    """As in an LSTM; with keras the matrices of the rounds are Glorot uniform, too."""

    def ignored_settings(self, output: int | None) -> dict[str, str]:
        """Return the settings that have no effect, and why; `output` is the size of the last layer, None if it is `hidden`."""
        rounds = () if self.rounds else ("rank", "round_dropout", "round_l2")
        return _of_one_layer(self.layers, output) | dict.fromkeys(rounds, "with model.core.rounds 0; raise that")


def _of_one_layer(layers: int, output: int | None) -> dict[str, str]:
    """Return the settings of a stack of recurrent layers that have no effect where it is a single one."""
    if layers > 1:
        return {}
    ignored = {"layer_dropout": "with one layer; raise model.core.layers"}
    if output is not None:
        ignored["hidden"] = (
            f"with one layer: the last has model.core.output units, or the embedding's size ({output}); "
            "change these, or raise model.core.layers"
        )
    return ignored


@dataclass(frozen=True)
class ExternalMemoryConfig:
    """Settings of every controller with an external memory."""

    kind: str = ""
    """The kind of core."""
    layers: tuple[int, ...] = (1024, 512, 512)
    """Units of each layer of the controller."""
    slots: int = between(1024, 1, 1 << 24)
    """N, slots of the memory: vectors that it holds."""
    width: int = between(512, 1)
    """M, size of a slot."""
    heads: int = between(1, 1, 64)
    """R, read heads; there is one write head."""
    addressing: str = "dense"
    """Way in which content selects slots: `dense`, `localized:257` (the slots of a window, odd), `localized:257x3` (of three
    windows), `literal` (the printed formula), or `window:257` (the same by content alone); `:strict` behind a size has the
    window around the strict maximum, as printed, and not around the first cosine within 0.00001 of it."""
    reset_token: int | None = between(None, 0)
    """Id of the token that resets state and memory where a document begins (1 in synthetic tasks); none: never."""
    output: int | None = between(None, 1)
    """Units of a linear layer over all outputs and reads; none: the embedding's size if the softmax is tied to it, else no
    such layer."""
    input_dropout: float = probability(0.0)
    """Locked dropout on the embedded words."""
    layer_dropout: float = probability(0.0)
    """Locked dropout between layers."""
    output_dropout: float = probability(0.0)
    """Locked dropout on the head's input."""
    input_l2: float | None = between(None, 0.0)
    """lambda of lambda |w|^2 in the loss, for the layers' input weights; none: as `training.weight_decay`."""
    recurrent_l2: float | None = between(None, 0.0)
    """The same for the recurrent weights."""

    def ignored_settings(self, output: int | None) -> dict[str, str]:
        """Return the settings that have no effect, and why."""
        return {"layer_dropout": "with one layer; add units to model.core.layers"} if len(self.layers) == 1 else {}


@dataclass(frozen=True)
class NTMConfig(ExternalMemoryConfig):
    """A controller of LSTM layers with a neural Turing machine's memory."""

    kind: Literal["ntm"] = "ntm"
    """The kind of core."""


@dataclass(frozen=True)
class NeuralComputerConfig(ExternalMemoryConfig):
    """Settings of a memory that tracks which slots are free and in which order they were written."""

    link: bool = True
    """Heads can follow the order in which slots were written."""
    allocation: bool = True
    """The write head can write to free slots."""
    mask: bool = False
    """Heads choose which entries of a slot and of their key count."""
    deallocation: bool = False
    """Freed slots are emptied."""
    sharpness: bool = False
    """Heads sharpen the weights of the link."""
    sharpening: Literal["plain", "epsilon"] = "plain"
    """plain: an empty row of the link stays empty; epsilon: 1e-6 is added first, so that it becomes uniform, as in the code of
    Csordas and Schmidhuber (2019)."""

    def ignored_settings(self, output: int | None) -> dict[str, str]:
        """Return the settings that have no effect, and why."""
        ignored = super().ignored_settings(output)
        if not self.link:
            return ignored | dict.fromkeys(("sharpness", "sharpening"), "without a link; set model.core.link")
        return ignored if self.sharpness else ignored | {"sharpening": "without sharpness; set model.core.sharpness"}


@dataclass(frozen=True)
class DNCConfig(NeuralComputerConfig):
    """A controller of LSTM layers with a differentiable neural computer's memory."""

    kind: Literal["dnc"] = "dnc"
    """The kind of core."""


@dataclass(frozen=True)
class MDMConfig(NeuralComputerConfig):
    """The differentiable neural computer with masks, de-allocation and sharpness (Csordas and Schmidhuber 2019)."""

    kind: Literal["mdm"] = "mdm"
    """The kind of core."""
    mask: bool = True
    """As for the differentiable neural computer, but on by default."""
    deallocation: bool = True
    """Likewise."""
    sharpness: bool = True
    """Likewise."""


@dataclass(frozen=True)
class TransformerConfig:
    """A causal Transformer with attention over a window of earlier tokens."""

    kind: Literal["transformer"] = "transformer"
    """The kind of core."""
    layers: int = between(3, 1, 1000)
    """Number of layers."""
    heads: int = between(4, 1)
    """Heads of attention; must divide `hidden`."""
    hidden: int = between(256, 1)
    """Units of every layer; embedded words of another size are projected to it."""
    output: int | None = between(None, 1)
    """Size that the last layer is projected to; none: that of the embedding if the softmax is tied to it, else `hidden`."""
    feed_forward: int | None = between(None, 1)
    """Units between the two matrices of a layer's feed-forward part; none: four times `hidden`."""
    window: int = between(256, 2)
    """Tokens that a token sees in every layer, itself included."""
    chunked: bool = False
    """The window does not slide: the text is cut into chunks of `window` tokens, each read from an empty state."""
    positions: Literal["rotary", "sinusoidal"] = "rotary"
    """rotary: queries and keys are rotated by their position; sinusoidal: the position is added to the embedded words."""
    norm: Literal["pre", "post"] = "pre"
    """RMSNorm before attention, feed-forward and output, and no biases; or LayerNorm after them, and biases (the first
    Transformer)."""
    activation: Literal["gelu", "relu"] = "gelu"
    """Activation between the matrices of the feed-forward part."""
    input_dropout: float = probability(0.1)
    """Locked dropout on the embedded words."""
    attention_dropout: float = probability(0.0)
    """Dropout on the attention weights."""
    layer_dropout: float = probability(0.1)
    """Dropout on the outputs of attention and feed-forward parts."""
    output_dropout: float = probability(0.1)
    """Locked dropout on the last layer's output."""


@dataclass(frozen=True)
class TrellisConfig:
    """A trellis network: one convolution over two steps, the same at every level, with the gates of an LSTM."""

    kind: Literal["trellis"] = "trellis"
    """The kind of core."""
    levels: int = between(60, 1, 1_000)
    """Number of levels; each sees one token further back."""
    hidden: int = between(1250, 1)
    """Units of every level."""
    output: int | None = between(None, 1)
    """Number of the last level's units that are the output; none: the embedding's size if the softmax is tied to it, else
    all."""
    auxiliary: int | None = between(None, 1)
    """Distance in levels between those that are trained to predict; none: only the last one predicts."""
    auxiliary_weight: float = between(0.0, 0.0)
    """Weight of the loss of each level below the last that predicts."""
    weight_norm: bool = True
    """Weight normalisation: the direction and the length of a row of weights are trained separately."""
    input_dropout: float = probability(0.1)
    """Locked dropout on the embedded words."""
    layer_dropout: float = probability(0.29)
    """Locked dropout on a level's input from the one below; one mask for all levels."""
    output_dropout: float = probability(0.1)
    """Locked dropout on the last level's output, and on that of each level that is trained to predict."""
    weight_drop: float = probability(0.26)
    """Dropout on the weights that read the step before, one mask per segment."""
    input_l2: float | None = between(None, 0.0)
    """lambda of lambda |w|^2 in the loss, for the layers' input weights; none: as `training.weight_decay`."""
    recurrent_l2: float | None = between(None, 0.0)
    """The same for the recurrent weights."""

    def ignored_settings(self, output: int | None) -> dict[str, str]:
        """Return the settings that have no effect, and why."""
        ignored: dict[str, str] = {}
        if self.levels == 1:
            ignored |= dict.fromkeys(("layer_dropout", "recurrent_l2"), "with one level; raise model.core.levels")
        if not self.auxiliary_weight:
            ignored["auxiliary"] = "with model.core.auxiliary_weight 0; raise that"
        return ignored


CoreConfig = LSTMConfig | MogrifierConfig | NTMConfig | DNCConfig | MDMConfig | TransformerConfig | TrellisConfig
