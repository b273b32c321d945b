"""Records of a training: its epochs, the steps of its log, and its figures."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from backstory.results.common import AuditRecord, Figures, OverlapRecord, UnknownTokens
from backstory.results.evaluation_record import GateRecord
from backstory.results.validation import (
    NOT_EMPTY,
    Amount,
    Count,
    CountFrom1,
    Json,
    Name,
    Number,
    Positive,
    Record,
    WrongValue,
    convert,
    left_out,
    other_keys,
)


@dataclass(frozen=True, kw_only=True)
class EpochRecord(Record):
    """One epoch of training."""

    epoch: CountFrom1
    """Its number, from 1."""
    step: Count | None = None
    """Its last step, from the start of the run."""
    train_nats: Number
    """Mean over the epoch, with dropout."""
    valid_nats: Number
    """Validation after it."""
    valid_perplexity: Positive
    """The same as a perplexity."""
    learning_rate: Number | None = None
    """The learning rate."""
    averaging: bool | None = None
    """True if the weights were being averaged."""
    finetuning: bool | None = left_out()
    """True if this was an epoch of fine-tuning. Absent from older results."""
    seconds: Amount | None = None
    """Seconds of training and validation from the start of the run to the end of the epoch."""
    tokens_per_second: Amount | None = None
    """Speed of its training steps."""
    best: bool | None = left_out()
    """True if no epoch before it was as good on the validation text. Absent from older results."""
    policy: Any = left_out()
    """The gate on the validation text, as in an evaluation; only for a model with two predictions."""
    answers: Any = left_out()
    """The answers in the validation text, as in an evaluation; only for a synthetic task."""
    means: Json = other_keys()
    """Further means of the objective over the epoch, by name."""

    @property
    def gate(self) -> GateRecord | None:
        """The gate of a model with two predictions, if the epoch recorded one that can be shown."""
        try:
            return convert(GateRecord, self.policy, "policy")
        except WrongValue:
            return None


@dataclass(frozen=True, kw_only=True)
class StepsRecord(Record):
    """Mean over some steps of the training log."""

    step: Count
    """The last of these steps, from the start of the run."""
    epoch: CountFrom1
    """The epoch it is in."""
    nats: Number
    """Mean over the steps, with dropout."""


@dataclass(frozen=True, kw_only=True)
class TrainingTokens(Record):
    """Tokens of the splits that training reads."""

    train: Count
    """Tokens of the training split."""
    valid: CountFrom1
    """Tokens of the validation split."""
    test: Count | None = left_out()
    """Tokens of the test split. Absent from older results, and if there is none."""
    more: Json = other_keys()


@dataclass(frozen=True, kw_only=True)
class TrainingFigures(Figures):
    """A training."""

    kind = "training"
    rows_in = "curve"

    parameters: Count
    """Trained parameters, with shared ones counted once."""
    epochs: Count
    """Epochs that were run."""
    best_epoch: Count
    """The epoch whose weights were kept."""
    valid_perplexity: Positive
    """Validation perplexity at that epoch."""
    valid_nats: Number
    """The same in nats."""
    unit: Name
    """See above."""
    tokens: TrainingTokens
    """Tokens of the splits; with `training.answer_loss_only` the answer tokens."""
    unknown: Mapping[str, UnknownTokens] | None = None
    """`unknown_tokens` and the fields after it of an evaluation, for all tokens of each split. Absent from older
    results."""
    overlap: tuple[OverlapRecord, ...] | None = None
    """Overlap of the held-out splits with others, [below](#overlap). Absent from older results."""
    curve: Annotated[tuple[EpochRecord, ...], NOT_EMPTY]
    """The epochs."""
    tokens_per_second: Amount | None
    """Median training speed over the epochs."""
    audit: AuditRecord | None = left_out()
    """Absent: validation during training is not audited."""

    def faults(self) -> Iterator[tuple[str, str]]:
        for path, expected in self.unknown_in("valid").unknown_faults(self.tokens.valid):
            yield f"unknown.valid.{path}", expected

    @property
    def label(self) -> str:
        return "train"

    def unknown_in(self, split: str) -> UnknownTokens:
        """Return the unknown tokens of a split, as far as they are known."""
        return (self.unknown or {}).get(split, UnknownTokens())
