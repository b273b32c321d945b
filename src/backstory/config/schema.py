"""All settings of a run as plain dataclasses: the text, the model by its parts, the training."""

from dataclasses import dataclass, field
from typing import Literal

from backstory.config.cores import CoreConfig, LSTMConfig
from backstory.config.model_parts import (
    AuxiliarySoftmaxConfig,
    DualConfig,
    EmbeddingConfig,
    MixtureConfig,
    NoBufferConfig,
    NoDualConfig,
    SoftmaxConfig,
    SpanBufferConfig,
)
from backstory.config.strict import between
from backstory.utils.errors import UserError

SPLITS = ("train", "valid", "test")
"""The splits of a corpus, in the order in which they are prepared."""


@dataclass(frozen=True)
class RecallConfig:
    """The synthetic corpus `recall`: things come back long after they were mentioned."""

    entities: int = between(200, 1, 500_000)
    """Number of entities."""
    cast: int = between(12, 1, 10_000)
    """Entities in a document."""
    mentions: float = between(0.15, 0.0, 0.999)
    """Probability of a mention of one of the cast."""
    facts: float = between(0.0, 0.0, 0.999)
    """Probability of a fact: NAME is VALUE, and later in the document NAME ? VALUE."""
    names: int = between(8, 1, 10_000)
    """Names that facts are about."""
    values: int = between(16, 1, 100_000)
    """Possible values of a name."""
    words: int = between(200, 1, 4_000)
    """Filler words, each drawn given the one before it."""
    length: int = between(2000, 2, 1_000_000)
    """Tokens of a document, including the <eos> at its end."""
    documents: int = between(400, 1)
    """Training documents."""
    held_out: int = between(40, 1)
    """Documents in valid and in test."""
    new_each_epoch: bool = False
    """Draw new training documents for every epoch."""
    seed: int = between(0, 0, 2**31 - 1)
    """Seed of the documents and of the transitions between filler words."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """The synthetic corpora `copy`, `repeat-copy`, `associative-recall` and `priority-sort`."""

    bits: int | None = between(None, 1, 12)
    """Bits of a symbol; none: 8, associative-recall 6."""
    shortest: int | None = between(None, 1, 100_000)
    """Shortest sequence in symbols, or list in items; none: 1, associative-recall 2, priority-sort 20."""
    longest: int | None = between(None, 1, 100_000)
    """Longest sequence; none: 20, repeat-copy 10, associative-recall 6."""
    repeats: int = between(10, 1, 1000)
    """Largest number of repeats in repeat-copy."""
    levels: int = between(64, 1, 10_000)
    """Priorities of priority-sort."""
    sorted_share: float = between(0.8, 0.0, 1.0, above=True)
    """Share of the symbols, those of the highest priorities, that must be sorted in priority-sort."""
    documents: int = between(10_000, 1)
    """Training documents."""
    held_out: int = between(1000, 1)
    """Documents in valid and in test."""
    new_each_epoch: bool = True
    """Draw new training documents for every epoch."""
    seed: int = between(0, 0, 2**31 - 1)
    """Seed of the documents."""


@dataclass(frozen=True)
class TextConfig:
    """The corpus, its tokenizer and its vocabulary."""

    corpus: str = "stdlib"
    """A corpus by name (`backstory ls corpora`), or the path of a file or folder of texts (docs/corpora.md lists formats)."""
    tokenizer: str = "auto"
    """auto (the corpus's own), words (split at spaces, <eos> per line), regex, characters, marked-characters, bytes, a
    tokenizer.json, or bpe:8000 or unigram:8000, which train that many sub-word pieces on the training split."""
    lowercase: bool = False
    """Lower-case the text before it is split."""
    minimum_count: int = between(1, 1)
    """Words seen less often than this in the training split become <unk>."""
    maximum_size: int | None = between(None, 2)
    """Largest size of the vocabulary, including special types; the rarest words become <unk>."""
    recall: RecallConfig = field(default_factory=RecallConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    # Last, as it hides `dataclasses.field`.
    field: str = "text"
    """Field or column that holds the texts of a .jsonl, .csv, .tsv or .parquet file, or of a saved dataset."""


@dataclass(frozen=True)
class ModelConfig:
    """A language model by its parts."""

    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    core: CoreConfig = field(default_factory=LSTMConfig)
    dual: NoDualConfig | DualConfig = field(default_factory=NoDualConfig, kw_only=True)
    head: SoftmaxConfig | MixtureConfig = field(default_factory=SoftmaxConfig)
    buffer: NoBufferConfig | SpanBufferConfig | AuxiliarySoftmaxConfig = field(default_factory=NoBufferConfig)
    initial: float | None = between(None, 0.0, 1e30, above=True)
    """a: all weights and biases are initialised with U(-a, a); none: each part as its own settings say."""

    @property
    def tied(self) -> bool:
        """True if the output weights must have the embedding's size, as they are the embedding's."""
        return isinstance(self.head, SoftmaxConfig) and self.head.tied

    @property
    def core_output(self) -> int | None:
        """Size of the core's output; None if the core chooses it."""
        return self.core.output or (self.embedding.size if self.tied else None)

    @property
    def head_dropout(self) -> float:
        """Dropout on the vectors from which the head predicts p."""
        return (self.dual if isinstance(self.dual, DualConfig) else self.core).output_dropout

    @property
    def auxiliary_dropout(self) -> float:
        """Dropout on the vectors from which the head predicts q; 0 if there is no q."""
        if isinstance(self.buffer, NoBufferConfig) or getattr(self.buffer, "prediction", "softmax") == "pointer":
            return 0.0
        return self.head_dropout if self.buffer.dropout is None else self.buffer.dropout


@dataclass(frozen=True)
class TrainingConfig:
    """Truncated backpropagation through time over contiguous rows of the training text."""

    epochs: int = between(500, 1)
    """Passes over the training text."""
    finetune_epochs: int = between(0, 0)
    """Largest number of epochs of averaged SGD from the best weights after that; ends early when validation stops improving."""
    finetune_learning_rate: float | None = between(None, 0.0, above=True)
    """Learning rate of that stage; none: the same as before."""
    minutes: float | None = between(None, 0.0, above=True)
    """Train for about this long. After a quarter of the time the number of steps that fit is fixed, and the recipe's epochs,
    decay and fine-tuning are scaled to it."""
    steps: int | None = between(None, 1)
    """Train for this many steps, with epochs, decay and fine-tuning scaled to it. The number that
    `minutes` fixed repeats its result, if the first decay or the end of the first stage came after it was fixed."""
    batch_size: int = between(20, 1)
    """Batch size: rows of text read side by side."""
    segment: int = between(70, 1)
    """Mean length of a segment, in tokens."""
    short_probability: float = between(0.05, 0.0, 1.0)
    """Probability that a segment is drawn around half that length."""
    segment_deviation: float = between(5.0, 0.0)
    """Standard deviation of a segment's length; 0 for fixed lengths."""
    minimum_segment: int = between(5, 1)
    """Shortest segment, in tokens."""
    partial_shuffle: bool = False
    """Rotate every row of the batch at a random position each epoch."""
    accumulate: int = between(1, 1)
    """Parts of a batch that are computed one after another, their gradients added: less memory for the same batch size."""
    optimizer: Literal["sgd", "adam", "adamw", "nadam"] = "sgd"
    """The optimizer; with `averaging`, sgd becomes NT-ASGD."""
    learning_rate: float = between(30.0, 0.0, above=True)
    """Learning rate of a segment of mean length; scaled by the segment's own length."""
    weight_decay: float = between(1.2e-6, 0.0)
    """L2 penalty inside the gradient; for adamw the decay of the weights at each step, times the learning rate."""
    clip: float = between(0.25, 0.0)
    """Largest norm of the gradient; 0 for no clipping."""
    averaging: Literal["none", "triggered", "always"] = "triggered"
    """Average the weights of sgd: never, after the non-monotonic trigger (NT-ASGD), or from the first step."""
    trigger: int = between(5, 1)
    """The trigger's n: averaging starts when validation is worse than the best of all but the last n epochs."""
    early_stopping: int | None = between(None, 1)
    """End the epochs before fine-tuning once validation has not improved for this many epochs; none: train them all."""
    warmup_steps: int = between(0, 0)
    """Steps over which the learning rate rises to its value."""
    schedule: Literal["constant", "plateau", "step", "cosine", "linear"] = "constant"
    """Learning rate decay: none, when validation stops improving, after chosen epochs, or along a cosine or linearly to 0 at
    the end of the epochs before fine-tuning."""
    decay_start: float = between(0.0, 0.0, 1.0)
    """Share of the epochs before fine-tuning after which the linear decay begins; the rate is constant until then."""
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
    answer_loss_only: bool = False
    """Train and validate only on the answers of a synthetic task (such as copy); everything else there is random."""
    keep: Literal["best", "last"] = "best"
    """Weights that the run keeps to read with: those of the epoch with the best validation, or of the last epoch."""
    validation_batch_size: int = between(10, 1)
    """Batch size of the validation after each epoch (1: exactly as `evaluate` reads, but slow)."""
    save_minutes: float = between(10.0, 0.0, above=True)
    """Minutes between checkpoints within an epoch."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of matrix products; weights and sums stay in float32."""
    device: str = "auto"
    """auto, cpu or cuda."""

    @property
    def has_length(self) -> bool:
        """True if the training ends after so many minutes or steps, not epochs."""
        return self.minutes is not None or self.steps is not None

    @property
    def most_epochs(self) -> int | None:
        """The most epochs there can be; None if the training ends after so many minutes or steps."""
        return None if self.has_length else self.epochs + self.finetune_epochs

    def check(self) -> None:
        """Raise UserError for settings that contradict each other: averaged SGD without SGD, two lengths, and others."""
        if self.minutes is not None and self.steps is not None:
            raise UserError(
                f"training.minutes {self.minutes:g} and training.steps {self.steps} cannot be combined; set one of them "
                "to none (a resumed run has the settings it began with)"
            )
        if self.optimizer == "sgd":
            return
        if self.finetune_epochs:
            raise UserError(
                "training.finetune_epochs, epochs of averaged SGD, need training.optimizer sgd, "
                f"not {self.optimizer}; set them to 0 or take sgd"
            )
        if self.averaging == "always":
            raise UserError(
                f"training.averaging always, averaged SGD, needs training.optimizer sgd, not {self.optimizer}; "
                "set it to none or take sgd"
            )


@dataclass(frozen=True)
class RunConfig:
    """A training run."""

    text: TextConfig = field(default_factory=TextConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seed: int = between(1, 0, 2**31 - 1)
    """Seed of the weights, the dropout masks and the segments' lengths."""
