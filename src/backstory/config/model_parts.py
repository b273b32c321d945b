"""Settings of the parts of a model around its core: embedding, dual connection, head, auxiliary prediction and its gate."""

from dataclasses import dataclass, field
from typing import Literal

from backstory.config.strict import between, probability


@dataclass(frozen=True)
class EmbeddingConfig:
    """The embedding of words as vectors."""

    size: int = between(400, 1)
    """Size of a word's vector."""
    dropout: float = probability(0.1)
    """Probability that the whole vector of a word type is zero for a segment."""
    initial: float = between(0.1, 0.0, 1e30, above=True)
    """a: vectors are initialised with U(-a, a). Larger ones help a model that copies from a memory."""
    initialisation: Literal["random", "ppmi"] = "random"
    """random; or ppmi: from co-occurrence counts of the training split, with the deviation of U(-a, a)."""
    l2: float | None = between(None, 0.0)
    """lambda of lambda |w|^2 in the loss, for the weights of embedding and output; none: as `training.weight_decay`."""
    noise: float = between(0.0, 0.0)
    """Standard deviation of Gaussian noise on the embedded words in training."""
    finetune_noise: float | None = between(None, 0.0)
    """The same while fine-tuning; none: the same as before."""


@dataclass(frozen=True)
class NoDualConfig:
    """The head reads the core's output."""

    kind: Literal["none"] = "none"
    """The kind of connection between the words and the head."""


@dataclass(frozen=True)
class DualConfig:
    """A layer between core and head that reads the words as well: d_t = ReLU(W_de e_t + W_dh h_t + b_d)."""

    kind: Literal["dual"] = "dual"
    """The kind of connection between the words and the head."""
    size: int | None = between(None, 1)
    """Units; none: the size of the embedding, which a tied softmax needs."""
    direct: bool = True
    """Use W_de e_t; without it the layer is the control: an additional layer alone."""
    input_dropout: float = probability(0.5)
    """Locked dropout on e_t and on h_t as the layer reads them, after the core's own dropouts."""
    output_dropout: float = probability(0.4)
    """Locked dropout on d_t."""
    l2: float | None = between(None, 0.0)
    """lambda of lambda |w|^2 in the loss, for the weights of this layer; none: as `training.weight_decay`."""


@dataclass(frozen=True)
class SoftmaxConfig:
    """One softmax over the vocabulary."""

    kind: Literal["softmax"] = "softmax"
    """The kind of head."""
    tied: bool = True
    """Use the embedding's weights as the output weights."""
    bias: bool = True
    """Give every word of the vocabulary a bias."""
    adversarial: float = between(0.0, 0.0, 1.0)
    """AT, epsilon: train against the worst shift of the target's output weights by this share of their norm; 0 for none."""
    finetune_adversarial: float | None = between(None, 0.0, 1.0)
    """The same while fine-tuning; none: the same as before."""
    sampled: int = between(0, 0)
    """Train with a sampled softmax over the frequent words, the targets and this many random other words; 0: over all words."""
    frequent: int = between(1000, 0)
    """The most frequent words, which take part in every step of a sampled softmax."""


@dataclass(frozen=True)
class MixtureConfig:
    """A mixture of softmaxes (MoS)."""

    kind: Literal["mixture"] = "mixture"
    """The kind of head."""
    experts: int = between(15, 1)
    """Number of softmaxes."""
    latent_dropout: float = probability(0.29)
    """Locked dropout on the experts' latent vectors."""
    tied: bool = True
    """Use the embedding's weights as the output weights."""
    bias: bool = True
    """Give every word of the vocabulary a bias."""
    adversarial: float = between(0.0, 0.0, 1.0)
    """AT, epsilon: train against the worst shift of the target's output weights by this share of their norm; 0 for none."""
    finetune_adversarial: float | None = between(None, 0.0, 1.0)
    """The same while fine-tuning; none: the same as before."""
    sampled: int = between(0, 0)
    """Train with a sampled softmax over the frequent words, the targets and this many random other words; 0: over all words."""
    frequent: int = between(1000, 0)
    """The most frequent words, which take part in every step of a sampled softmax."""


@dataclass(frozen=True)
class RewardConfig:
    """The intrinsic reward r = f(min((q / p)^kappa, a) - b) of the gate, f(z) = z, or beta z below 0."""

    weight: float = between(0.0, 0.0)
    """eta, the share of -r log lambda in the loss; 0: no reward."""
    power: float = between(5.0, 0.0, above=True)
    """kappa"""
    ceiling: float = between(10.0, 0.0, above=True)
    """a, the largest (q / p)^kappa that counts."""
    baseline: float = between(1.0, 0.0)
    """b"""
    slope: float = between(3.0, 0.0)
    """beta, how much more a penalty counts."""
    floor: float = between(-10.0, -1000.0, 0.0)
    """The lowest log lambda that is penalised: below it a penalty would grow without bound."""


@dataclass(frozen=True)
class GateConfig:
    """The gate between the two predictions: (lambda, 1 - lambda) = softmax(W_g h / T)."""

    training_temperature: float = between(100.0, 1e-30)
    """T in the training loss; 1: no annealing."""
    temperature: float = between(0.1, 1e-30)
    """T in evaluation."""
    rate: float = between(1.0, 0.0)
    """Factor of the learning rate for W_g; 0: W_g is not trained, and lambda stays near one half if T is 1 or more."""
    after: int = between(0, 0)
    """Epochs before W_g begins to learn."""
    reward: RewardConfig = field(default_factory=RewardConfig)


@dataclass(frozen=True)
class NoBufferConfig:
    """One prediction, the head's."""

    kind: Literal["none"] = "none"
    """The kind of auxiliary prediction."""


@dataclass(frozen=True)
class SpanBufferConfig:
    """An auxiliary prediction from attention over spans of earlier states (the span-based neural buffer)."""

    kind: Literal["span-buffer"] = "span-buffer"
    """The kind of auxiliary prediction."""
    size: int = between(2048, 1)
    """B, words that the buffer reaches back; a multiple of `span`."""
    span: int = between(8, 1)
    """L, words of a span."""
    vectors: Literal["minus", "minus-before", "end", "words"] = "minus"
    """A span from i-L+1 to i is h_i - h_{i-L+1} (minus, as printed), h_i - h_{i-L} (minus-before), h_i (end); or every word is
    a span of its own, h_i (words)."""
    alignment: Literal["sliding", "fixed"] = "sliding"
    """sliding: spans count back from the present word; fixed: they begin at multiples of L, which takes 1/L of the memory."""
    ends: Literal["previous", "present"] = "previous"
    """End of the last span: h_{t-1}, as printed, or h_t."""
    attention: Literal["additive", "linear", "bilinear"] = "additive"
    """v tanh(W_h h + W_s s), v (W_h h + W_s s) as printed (where h has no effect), or h W s."""
    attention_size: int | None = between(None, 1)
    """Rows of W_h and W_s; none: the size of h."""
    values: Literal["spans", "last-words", "following"] = "spans"
    """Values of the attention: the spans, the vectors of their last words, or of the words that followed them."""
    prediction: Literal["softmax", "pointer"] = "softmax"
    """q is the head's softmax of the attended vector, or a pointer, in which each word has the weights of the positions whose
    value it is (for values that are words)."""
    theta: float = between(1.0, 0.0)
    """Initial scale of a bilinear pointer: W begins as theta times the identity, which is a cache with this theta. Unbounded
    states, as a dual connection's, need a smaller one: take what `backstory reader tune --reader cache` finds for the initial
    model."""
    residual: bool = False
    """Predict from xi + h, not from xi alone."""
    sentinel: bool = False
    """Show the gate how well the buffer matches: the logarithm of the mean of exp(scores) is added to the logit of lambda, so
    that the other logit is the score of a sentinel, which gets the attention if nothing matches."""
    dropout: float | None = probability(None)
    """Locked dropout on the head's input for q; none: the same rate as for p (`output_dropout` of the dual connection or the
    core). With 0.0 only p is trained with dropout, so the gate learns from a handicapped p."""
    gate: GateConfig = field(default_factory=GateConfig)


@dataclass(frozen=True)
class AuxiliarySoftmaxConfig:
    """An auxiliary prediction from tanh(W h + b): the span buffer's control, with the same gate and no memory."""

    kind: Literal["auxiliary-softmax"] = "auxiliary-softmax"
    """The kind of auxiliary prediction."""
    dropout: float | None = probability(None)
    """Locked dropout on the head's input for q; none: the same rate as for p (`output_dropout` of the dual connection or the
    core). With 0.0 only p is trained with dropout, so the gate learns from a handicapped p."""
    gate: GateConfig = field(default_factory=GateConfig)
