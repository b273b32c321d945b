"""Every setting of a run as plain dataclasses: the text, the model by its parts, the training."""

from dataclasses import dataclass, field
from typing import Literal

from backstory.config.cores import CoreConfig, LSTMConfig
from backstory.config.strict import between, probability


@dataclass(frozen=True)
class RecallConfig:
    """The synthetic corpus `recall`: things come back long after they were mentioned."""

    entities: int = between(200, 1, 500_000)
    """Entities there are."""
    cast: int = between(12, 1, 10_000)
    """How many of them a document is about."""
    mentions: float = between(0.15, 0.0, 0.999)
    """Probability that one of the cast is mentioned."""
    facts: float = between(0.0, 0.0, 0.999)
    """Probability of a fact: NAME is VALUE, and later in the document NAME ? VALUE."""
    names: int = between(8, 1, 10_000)
    """Names that facts are about."""
    values: int = between(16, 1, 100_000)
    """Values that a name may have."""
    words: int = between(200, 1, 4_000)
    """Filler words, each drawn by the one before it."""
    length: int = between(2000, 2, 1_000_000)
    """Tokens of a document, the <eos> at its end included."""
    documents: int = between(400, 1)
    """Documents to train on."""
    held_out: int = between(40, 1)
    """Documents of valid, and of test."""
    new_each_epoch: bool = False
    """Train on other documents in every epoch."""
    seed: int = between(0, 0, 2**31 - 1)
    """Seed of the documents, and of how filler words follow each other."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """The synthetic corpora `copy`, `repeat-copy`, `associative-recall` and `priority-sort`."""

    bits: int | None = between(None, 1, 12)
    """Bits of a symbol; none: 8, of associative-recall 6."""
    shortest: int | None = between(None, 1, 100_000)
    """The least length of a sequence in symbols, of a list in items; none: 1, of associative-recall 2, of priority-sort 20."""
    longest: int | None = between(None, 1, 100_000)
    """The largest; none: 20, of repeat-copy 10, of associative-recall 6."""
    repeats: int = between(10, 1, 1000)
    """The most times that repeat-copy asks for."""
    levels: int = between(64, 1, 10_000)
    """Priorities of priority-sort."""
    sorted_share: float = between(0.8, 0.0, 1.0, above=True)
    """The share of its symbols that priority-sort asks for: those of the highest priorities."""
    documents: int = between(10_000, 1)
    """Documents to train on."""
    held_out: int = between(1000, 1)
    """Documents of valid, and of test."""
    new_each_epoch: bool = True
    """Train on other documents in every epoch."""
    seed: int = between(0, 0, 2**31 - 1)
    """Seed of the documents."""


@dataclass(frozen=True)
class TextConfig:
    """The corpus and how it becomes numbers."""

    corpus: str = "stdlib"
    """A corpus by name (`backstory ls corpora`), or the path of a text file or of a folder of text files."""
    tokenizer: str = "auto"
    """auto (the corpus's own), words (split at spaces, <eos> per line), regex, characters, marked-characters, bytes, or a
    tokenizer.json."""
    lowercase: bool = False
    """Lower-case the text before it is split."""
    minimum_count: int = between(1, 1)
    """Words seen fewer times than this in the training split become <unk>."""
    maximum_size: int | None = between(None, 2)
    """The most types the vocabulary may hold, special ones included; the rarest others become <unk>."""
    recall: RecallConfig = field(default_factory=RecallConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)


@dataclass(frozen=True)
class EmbeddingConfig:
    """Words to vectors."""

    size: int = between(400, 1)
    """Size of a word's vector."""
    dropout: float = probability(0.1)
    """Probability that all of a word type's vector is zero for a segment."""
    initial: float = between(0.1, 0.0, 1e30, above=True)
    """Vectors begin uniform between minus this and this; what is copied from a memory is learned sooner from larger ones."""


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
    """Units; none: the embedding's size, which the head needs where it is a softmax tied to it."""
    direct: bool = True
    """W_de e_t is there; without it the layer is the control that shows what an additional layer does by itself."""
    input_dropout: float = probability(0.5)
    """Locked dropout on e_t and on h_t as the layer reads them, after the core's own dropouts."""
    output_dropout: float = probability(0.4)
    """Locked dropout on d_t."""


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
class GateConfig:
    """The policy between the two predictions: (lambda, 1 - lambda) = softmax(W_g h / T)."""

    training_temperature: float = between(100.0, 0.0, above=True)
    """T of the likelihood in training; 1: no annealing."""
    temperature: float = between(0.1, 0.0, above=True)
    """T in evaluation."""
    rate: float = between(1.0, 0.0)
    """Learning rate of W_g, times the model's; 0: it stays as it was made, and lambda near one half at a T of 1 or more."""
    after: int = between(0, 0)
    """Epochs before W_g begins to learn."""


@dataclass(frozen=True)
class NoBufferConfig:
    """One prediction, the head's."""

    kind: Literal["none"] = "none"
    """The kind of auxiliary prediction."""


@dataclass(frozen=True)
class SpanBufferConfig:
    """An auxiliary prediction from an attention over spans of the states before (the span-based neural buffer)."""

    kind: Literal["span-buffer"] = "span-buffer"
    """The kind of auxiliary prediction."""
    size: int = between(2048, 1)
    """B, how many words back the buffer reaches; a multiple of `span`."""
    span: int = between(8, 1)
    """L, words of a span."""
    vectors: Literal["minus", "minus-before", "end", "words"] = "minus"
    """A span from i-L+1 to i is h_i - h_{i-L+1} (minus, as printed), h_i - h_{i-L} (minus-before), h_i (end); or every word is
    a span of its own, h_i (words)."""
    alignment: Literal["sliding", "fixed"] = "sliding"
    """Spans are counted back from the present word, or begin at multiples of L from the start of the text, which takes an
    L-th of the memory."""
    ends: Literal["previous", "present"] = "previous"
    """The last span ends at h_{t-1}, as printed, or at h_t."""
    attention: Literal["additive", "linear", "bilinear"] = "additive"
    """v tanh(W_h h + W_s s), v (W_h h + W_s s) as printed (then h has no say), or h W s."""
    attention_size: int | None = between(None, 1)
    """Rows of W_h and W_s; none: the size of h."""
    values: Literal["spans", "last-words", "following"] = "spans"
    """What is attended to: the spans, the vectors of their last words, or of the words that followed them."""
    prediction: Literal["softmax", "pointer"] = "softmax"
    """q is the head's softmax of what is attended to; or a word has the weight of the places where it is the value (a pointer,
    for values that are words)."""
    theta: float = between(1.0, 0.0)
    """Of a bilinear pointer: W begins as theta times the identity, which is a cache with this theta. States without bounds, as
    a dual connection's, need a smaller one: what `backstory reader tune --reader cache` finds for the model it begins with."""
    residual: bool = False
    """The auxiliary prediction is of xi + h, not of xi alone."""
    sentinel: bool = False
    """The gate knows how well something was found: the logarithm of the mean of exp(scores) is added to the logit of lambda, so
    that the other logit is the score of a sentinel, which is attended to where nothing is worth it."""
    dropout: float | None = probability(None)
    """Locked dropout on what the head makes q of; none: the rate with which it reads for p (`output_dropout` of the dual
    connection or the core). With 0.0 p alone is trained with dropout, and the gate learns from a handicapped p."""
    gate: GateConfig = field(default_factory=GateConfig)


@dataclass(frozen=True)
class AuxiliarySoftmaxConfig:
    """An auxiliary prediction from tanh(W h + b): the span buffer's control, with the same gate and no memory."""

    kind: Literal["auxiliary-softmax"] = "auxiliary-softmax"
    """The kind of auxiliary prediction."""
    dropout: float | None = probability(None)
    """Locked dropout on what the head makes q of; none: the rate with which it reads for p (`output_dropout` of the dual
    connection or the core). With 0.0 p alone is trained with dropout, and the gate learns from a handicapped p."""
    gate: GateConfig = field(default_factory=GateConfig)


@dataclass(frozen=True)
class ModelConfig:
    """A language model by its parts."""

    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    core: CoreConfig = field(default_factory=LSTMConfig)
    dual: NoDualConfig | DualConfig = field(default_factory=NoDualConfig, kw_only=True)
    head: SoftmaxConfig | MixtureConfig = field(default_factory=SoftmaxConfig)
    buffer: NoBufferConfig | SpanBufferConfig | AuxiliarySoftmaxConfig = field(default_factory=NoBufferConfig)

    @property
    def head_dropout(self) -> float:
        """Dropout on the vectors from which the head makes p."""
        return (self.dual if isinstance(self.dual, DualConfig) else self.core).output_dropout

    @property
    def second_dropout(self) -> float:
        """Dropout on the vectors from which the head makes q; 0 where there are none."""
        if isinstance(self.buffer, NoBufferConfig) or getattr(self.buffer, "prediction", "softmax") == "pointer":
            return 0.0
        return self.head_dropout if self.buffer.dropout is None else self.buffer.dropout


@dataclass(frozen=True)
class RewardConfig:
    """The intrinsic reward r = f(min((q / p)^kappa, a) - b) of the gate, f(z) = z, or beta z below 0."""

    weight: float = between(0.0, 0.0)
    """eta, the share of -r log lambda in the loss; 0: no reward."""
    power: float = between(5.0, 0.0, above=True)
    """kappa"""
    ceiling: float = between(10.0, 0.0, above=True)
    """a, the largest ratio that counts."""
    baseline: float = between(1.0, 0.0)
    """b"""
    slope: float = between(3.0, 0.0)
    """beta, how much more a penalty counts."""
    floor: float = between(-10.0, -1000.0, 0.0)
    """The lowest log lambda that is penalised: below it a penalty would grow without bound."""


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
    embedding_l2: float | None = between(None, 0.0)
    """lambda of lambda |w|^2 in the loss, for the weights of the embedding and the output; none: as `weight_decay` has it."""
    input_l2: float | None = between(None, 0.0)
    """The same for the weights that the core's layers read their input with."""
    recurrent_l2: float | None = between(None, 0.0)
    """The same for the core's recurrent weights."""
    mogrifier_l2: float | None = between(None, 0.0)
    """The same for the matrices of a Mogrifier's rounds."""
    dual_l2: float | None = between(None, 0.0)
    """The same for the weights of a dual connection."""
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
    auxiliary: float = between(0.0, 0.0)
    """Weight of the loss of each level below the last that a trellis has to predict (`core.auxiliary`)."""
    answer_loss_only: bool = False
    """Train on, and validate by, only the answers of a synthetic task (copy and its like); all else there is random."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    adversarial: float = between(0.0, 0.0, 1.0)
    """AT, epsilon: train with the target's output weights shifted for the worst by this share of their norm; 0 for none."""
    finetune_adversarial: float | None = between(None, 0.0, 1.0)
    """The same while fine-tuning; none: the same as before."""
    embedding_noise: float = between(0.0, 0.0)
    """Standard deviation of Gaussian noise on the embedded words in training."""
    finetune_embedding_noise: float | None = between(None, 0.0)
    """The same while fine-tuning; none: the same as before."""
    validation_batch_size: int = between(10, 1)
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
