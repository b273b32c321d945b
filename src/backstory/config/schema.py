"""Every setting of a run as plain dataclasses: the text, the model by its parts, the training."""

from dataclasses import dataclass, field
from typing import Any, Literal


def between(default: float | None, low: float, high: float = float("inf"), *, above: bool = False) -> Any:
    """A number field whose range, [low, high] or (low, high] if `above`, is checked by `strict.validate`."""
    return field(default=default, metadata={"range": (low, high, above)})


def probability(default: float) -> Any:
    """A dropout probability, in [0, 1)."""
    return field(default=default, metadata={"range": (0.0, 0.999, False)})


@dataclass(frozen=True)
class TextConfig:
    """The corpus and how it becomes numbers."""

    corpus: str = "stdlib"
    """A corpus by name (`backstory ls corpora`), or the path of a text file or of a folder of text files."""
    tokenizer: str = "auto"
    """auto (the corpus's own), words (split at spaces, <eos> per line), regex, characters, bytes, or a tokenizer.json."""
    lowercase: bool = False
    """Lower-case the text before it is split."""
    minimum_count: int = between(1, 1)
    """Words seen fewer times than this in the training split become <unk>."""
    maximum_size: int | None = between(None, 2)
    """The most types the vocabulary may hold, special ones included; the rarest others become <unk>."""


@dataclass(frozen=True)
class EmbeddingConfig:
    """Words to vectors."""

    size: int = between(400, 1)
    """Size of a word's vector."""
    dropout: float = probability(0.1)
    """Probability that all of a word type's vector is zero for a segment."""


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


@dataclass(frozen=True)
class SoftmaxConfig:
    """One softmax over the vocabulary."""

    kind: Literal["softmax"] = "softmax"
    """The kind of head."""
    tied: bool = True
    """Use the embedding's weights as the output weights."""
    bias: bool = True
    """Give every word of the vocabulary a bias."""


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


@dataclass(frozen=True)
class ModelConfig:
    """A language model by its parts."""

    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    core: LSTMConfig = field(default_factory=LSTMConfig)
    head: SoftmaxConfig | MixtureConfig = field(default_factory=SoftmaxConfig)


@dataclass(frozen=True)
class TrainingConfig:
    """Truncated backpropagation through time over contiguous rows of the training text."""

    epochs: int = between(500, 1)
    """Passes over the training text."""
    finetune_epochs: int = between(0, 0)
    """The most epochs of averaged SGD from the best weights after them; ends early when validation stops improving."""
    finetune_learning_rate: float | None = between(None, 0.0, above=True)
    """Learning rate of that stage; none: the same as before."""
    batch_size: int = between(20, 1)
    """Rows of text read side by side."""
    segment: int = between(70, 1)
    """Mean length of a segment, in tokens."""
    short_probability: float = between(0.05, 0.0, 1.0)
    """Probability that a segment is drawn around half that length."""
    segment_deviation: float = between(5.0, 0.0)
    """Standard deviation of a segment's length; 0 for fixed lengths."""
    minimum_segment: int = between(5, 1)
    """The shortest a segment may be drawn, in tokens."""
    partial_shuffle: bool = False
    """Rotate every row at a random place of its own each epoch."""
    optimizer: Literal["sgd", "adam", "nadam"] = "sgd"
    """The optimizer; with `averaging`, sgd becomes NT-ASGD."""
    learning_rate: float = between(30.0, 0.0, above=True)
    """Learning rate of a segment of mean length; scaled by the segment's own length."""
    weight_decay: float = between(1.2e-6, 0.0)
    """L2 penalty inside the gradient."""
    clip: float = between(0.25, 0.0)
    """Largest norm of the gradient; 0 for no clipping."""
    averaging: Literal["none", "triggered", "always"] = "triggered"
    """Average the weights of sgd: never, from the non-monotonic trigger on (NT-ASGD), or from the first step."""
    trigger: int = between(5, 1)
    """The trigger's n: averaging starts when validation is worse than the best of all but the last n epochs."""
    schedule: Literal["constant", "plateau", "step"] = "constant"
    """Learning rate decay: none, when validation stops improving, or after chosen epochs."""
    decay_factor: float = between(0.25, 0.0, 1.0, above=True)
    """The factor of one decay."""
    decay_patience: int = between(0, 0)
    """Epochs without improvement that the plateau schedule waits."""
    decay_epochs: tuple[int, ...] = ()
    """The epochs after which the step schedule decays."""
    activation_l2: float = between(2.0, 0.0)
    """AR, alpha: weight of the mean square of the last layer's dropped output."""
    temporal_l2: float = between(1.0, 0.0)
    """TAR, beta: weight of the mean square of the change of the last layer's output from step to step."""
    adversarial: float = between(0.0, 0.0, 1.0)
    """AT, epsilon: train with the target's output weights shifted for the worst by this share of their norm; 0 for none."""
    finetune_adversarial: float | None = between(None, 0.0, 1.0)
    """The same while fine-tuning; none: the same as before."""
    embedding_noise: float = between(0.0, 0.0)
    """Standard deviation of Gaussian noise on the embedded words in training."""
    finetune_embedding_noise: float | None = between(None, 0.0)
    """The same while fine-tuning; none: the same as before."""
    validation_rows: int = between(10, 1)
    """Rows in which the validation text is read after each epoch (1: exactly as `evaluate` reads it, and slow)."""
    save_minutes: float = between(10.0, 0.0, above=True)
    """A checkpoint is also written when this much time has passed since the last."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of matrix products; weights and sums stay in float32."""
    device: str = "auto"
    """auto, cpu or cuda."""


@dataclass(frozen=True)
class RunConfig:
    """A training run."""

    text: TextConfig = field(default_factory=TextConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seed: int = between(1, 0, 2**31 - 1)
    """Seed of the weights, the dropout masks and the segments' lengths."""
