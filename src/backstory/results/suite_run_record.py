"""Records of one run of a suite: its training, its readings, its examinations and the effects measured in it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self

from backstory.config.options import WITH_FIELDS, Precision, ReadingOptions
from backstory.results.effective_context import ThresholdContext, Tried
from backstory.results.evaluation_record import MemoryRecord, PolicyRecord, RecencyRecord
from backstory.results.validation import (
    Amount,
    Count,
    CountFrom1,
    Json,
    JsonObject,
    Name,
    Number,
    Positive,
    Record,
    Share,
    left_out,
)

Point = tuple[CountFrom1, Positive]
"""An epoch and the validation perplexity after it."""


@dataclass(frozen=True, kw_only=True)
class PlaceRecord(Record):
    """Options of a reading of a text."""

    split: Name
    """The split that was read."""
    reader: Name
    """The reader, as for an evaluation."""
    batch_size: CountFrom1 = 1
    """Rows read side by side. Absent from older results."""
    after: Name | None = None
    """The split that was read before, or null. Absent from older results."""
    addressing: Name | None = None
    """Addressing of an external memory, if the suite sets another than that of training; else null. Absent from older
    results."""
    lengths: tuple[CountFrom1, ...] = ()
    """The lengths at which a synthetic task is read, if they were chosen. Absent from older results."""
    overrides: tuple[Name, ...] = ()
    """Settings of the model that differ from training, as `core.addressing=dense`. Absent from older results."""
    precision: Precision = "float32"
    """Precision of matrix products. Absent from older results."""
    options: Json | None = left_out()
    """Other options that are not the default, by name. Absent if there are none."""

    @cached_property
    def place(self) -> ReadingOptions:
        """The options that distinguish a reading from the others of its system."""
        values: JsonObject = {name: getattr(self, name) for name in WITH_FIELDS}
        values |= {name: tuple(v) if isinstance(v, list) else v for name, v in (self.options or {}).items()}
        return ReadingOptions(**values)

    def faults(self) -> Iterator[tuple[str, str]]:
        if not set(self.options or {}) <= {field.name for field in fields(ReadingOptions)}:
            yield "options", "options that this version knows"

    @staticmethod
    def values(reading: ReadingOptions) -> JsonObject:
        """Return the values of the fields that record a reading."""
        return {name: getattr(reading, name) for name in WITH_FIELDS} | {"options": reading.further() or None}


@dataclass(frozen=True, kw_only=True)
class ReadingRecord(PlaceRecord):
    """One reading of a run."""

    tokens: Count | None = None
    """Tokens that were scored."""
    unknown_share: Share | None = None
    """As for an evaluation. Absent from older results."""
    seconds: Amount | None = None
    """Duration in seconds. Absent from older results."""
    value: Number | None = None
    """The score, in the suite's metric."""
    audited: bool | None = None
    """True if its audit passed; null without one."""
    weights: Any = None
    """As in the provenance of the evaluation. Absent from older results."""
    policy: PolicyRecord | None = None
    """As in an evaluation. Absent from older results."""
    memory: MemoryRecord | None = None
    """As in an evaluation."""
    recency: RecencyRecord | None = None
    """As in an evaluation. Absent from older results."""


@dataclass(frozen=True, kw_only=True)
class ScoredReading(ReadingRecord):
    """One reading of a run that another reproduction may take over."""

    batch_size: CountFrom1 = field()
    tokens: Count = field()
    value: Number = field()
    audited: bool | None = field()


@dataclass(frozen=True, kw_only=True)
class ExaminedRecord(Record):
    """One examination of a run."""

    experiment: Name
    """The experiment."""
    split: Any = None
    """The split that was read."""
    targets: Any = None
    """Tokens that were predicted."""
    maximum_context: Count | None = None
    """As for an examination."""
    options: Json | None = left_out()
    """Other options of the suite that are not the default, by name. Absent where all are, and from older results."""
    tagger: str | None = left_out()
    """Source of the part-of-speech tags. Absent if none were needed, and from older results."""
    effective_context: ThresholdContext | None = None
    """Effective context, as for an examination; for `truncate` only."""

    @property
    def context_in_words(self) -> str:
        """The effective context in words, else empty."""
        return "" if self.effective_context is None else self.effective_context.in_words(self.maximum_context or 0)

    def faults(self) -> Iterator[tuple[str, str]]:
        if self.effective_context is not None and self.maximum_context is None:
            yield "maximum_context", "a number"


@dataclass(frozen=True, kw_only=True)
class MeasuredRecord(Record):
    """An effect that findings are tested on."""

    value: Number | None
    """The effect."""
    low: Number | None
    """Lower end of its interval over targets."""
    high: Number | None
    """Upper end of it."""
    best_length: Any = None
    """The best context if more context hurts."""


_LENGTH = re.compile(r"truncate-(\d{1,15})")


@dataclass(frozen=True, kw_only=True)
class RunRecord(Record):
    """One run of the suite, with its results."""

    run: Name
    """Its name and folder."""
    system: Name
    """The system that it trains."""
    seed: Count
    """Its seed."""
    state: Name
    """`done`, `failed`, or `waiting` for one that was not requested."""
    problem: Any = None
    """Why it failed."""
    settings: str | None = None
    """Fingerprint of everything it is made with: its settings with the seed, `prepare`, and those of the run that it is
    initialised from. Absent from older results."""
    known: Any = None
    """The file that it was taken over from. Absent from a run of this reproduction."""
    parameters: Count | None = None
    """As for a training."""
    epochs: Count | None = None
    """As for a training."""
    best_epoch: Count | None = None
    """As for a training."""
    valid_perplexity: Positive | None = None
    """As for a training."""
    unit: str | None = None
    """As for a training."""
    tokens_per_second: Amount | None = None
    """As for a training."""
    curve: tuple[Point, ...] = ()
    """Pairs of an epoch and the validation perplexity after it. Absent from older results."""
    commit: str | None = None
    """As in the provenance of its training."""
    device: str | None = None
    """As in the provenance of its training."""
    precision: str | None = None
    """As in the provenance of its training."""
    weights: Any = None
    """As in the provenance of its training. Absent from older results."""
    seconds: Amount = 0.0
    """Time of all its commands."""
    readings: tuple[ReadingRecord, ...] = ()
    """Its readings."""
    examinations: tuple[ExaminedRecord, ...]
    """Its examinations."""
    effect_sizes: Mapping[str, MeasuredRecord] | None = None
    """Effects that its findings are tested on, by name. Absent from older results."""

    @classmethod
    def variant(cls, data: Mapping[str, Any]) -> type[Record]:
        return ReusableRun if "settings" in data else cls

    def faults(self) -> Iterator[tuple[str, str]]:
        for name, one in (self.effect_sizes or {}).items():
            for end in ("value", "low", "high"):
                if getattr(one, end) is None and not name.startswith("effective-context"):
                    yield f"effect_sizes.{name}.{end}", "a number"

    def present(self) -> Self:
        """Return it with the effective contexts of older results by the present definition."""
        lengths, renewed = self.truncations, []
        for one in self.examinations:
            context = one.effective_context
            if lengths and context is not None:
                one = replace(one, effective_context=context.redefined(lengths, context.threshold_percent))
            renewed.append(one)
        return replace(self, examinations=tuple(renewed))

    @property
    def truncations(self) -> list[Tried]:
        """Effects on all targets of every context that was tried, the shortest first."""
        tried = [(int(m[1]), one) for name, one in (self.effect_sizes or {}).items() if (m := _LENGTH.fullmatch(name))]
        return sorted(
            Tried(n, one.value, one.low, one.high)
            for n, one in tried
            if one.value is not None and one.low is not None and one.high is not None
        )


@dataclass(frozen=True, kw_only=True)
class ReusableRun(RunRecord):
    """A run that records its settings, and that another reproduction may take over."""

    run: str
    system: str
    settings: str = field()
    parameters: Count | None = field()
    epochs: Count | None = field()
    best_epoch: Count | None = field()
    valid_perplexity: Positive | None = field()
    unit: str | None = field()
    tokens_per_second: Amount | None = field()
    commit: str | None = field()
    device: str | None = field()
    precision: str | None = field()
    seconds: Amount = field()
    readings: tuple[ScoredReading, ...] = field()
