"""Records of a reproduction: its systems, claims, findings and runs."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Annotated, Any, Self

from backstory.config.options import WITH_FIELDS, Precision, ReadingOptions
from backstory.results.common import Figures
from backstory.results.effective_context import ThresholdContext, Tried
from backstory.results.evaluation_record import MemoryRecord, PolicyRecord, RecencyRecord
from backstory.results.validation import (
    NOT_EMPTY,
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
    """Rows read side by side; absent from results of before there was a choice."""
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
        """The options that tell a reading from the others of its system."""
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
        """Return it with the effective contexts of older results by today's definition."""
        lengths, renewed = self.truncations, []
        for one in self.examinations:
            context = one.effective_context
            if lengths and context is not None:
                one = replace(one, effective_context=context.redefined(lengths, context.threshold_percent))
            renewed.append(one)
        return replace(self, examinations=tuple(renewed))

    @property
    def truncations(self) -> list[Tried]:
        """Effects of every context that was tried on all targets, the shortest first, from what findings are tested on."""
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

    @classmethod
    def variant(cls, data: Mapping[str, Any]) -> type[Record]:
        return cls


@dataclass(frozen=True, kw_only=True)
class ProtocolRecord(Record):
    """Settings that a system was trained with."""

    corpus: str
    """The corpus."""
    epochs: Count
    """The epochs that were planned."""
    finetune_epochs: Count
    """Epochs of fine-tuning after them."""
    minutes: Number | None = None
    """Minutes that the epochs were scaled to, or null."""
    optimizer: str
    """The optimizer."""
    learning_rate: Number
    """Its learning rate."""
    batch_size: Count
    """Batch size."""
    segment: Count
    """Tokens per segment."""
    init_from: str | None
    """The system whose weights it began with, or null."""


@dataclass(frozen=True, kw_only=True)
class SystemRecord(PlaceRecord):
    """One reading of a system, over its seeds."""

    system: Name
    """Name of the system."""
    note: str
    """A note for the reader."""
    published: Number | None
    """The paper's figure."""
    published_deviation: Number | None = None
    """Standard deviation over the paper's runs, if it is printed."""
    source: str | None
    """Where it is printed, or null."""
    mean: Number | None
    """Our mean over `seeds`."""
    deviation: Number | None
    """Sample standard deviation of it; null for one seed."""
    seeds: tuple[Any, ...]
    """The seeds that are finished."""
    planned_seeds: tuple[Any, ...]
    """The seeds that are planned."""
    tokens: Count | None
    """Tokens that were scored."""
    unknown_share: Share | None = None
    """Share of `<unk>` among them. Absent from older results."""
    audited: bool | None
    """True if every reading passed its audit."""
    parameters: Count | None
    """As for a training."""
    protocol: ProtocolRecord | None = None
    """Settings that the system was trained with. Absent from older results."""


@dataclass(frozen=True, kw_only=True)
class SideRecord(PlaceRecord):
    """One side of a claim: a reading of a system, by the fields of `systems`."""

    system: Name
    """The system."""
    split: Name = "test"
    """The split that was read."""
    reader: Name = "static"
    """The reader."""


@dataclass(frozen=True, kw_only=True)
class ClaimRecord(Record):
    """A claim of a paper: one system is better than another."""

    sentence: str
    """The claim."""
    better: SideRecord | None = None
    """The reading that is claimed to be better."""
    than: SideRecord | None = None
    """The reading that it is compared with, likewise."""
    published_gain: Number | None
    """Gain of `better` in the paper that makes the claim; lower scores are better. Null for a claim of our own."""
    gain: Number | None
    """Our gain."""
    low: Number | None
    """Lower end of its 95% interval over seeds."""
    high: Number | None
    """Upper end of it."""
    paired: Any = None
    """True if the interval is of differences seed by seed."""
    p_value: Share | None = None
    """Two-sided p-value of no gain. Absent from older results."""
    holm_p_value: Share | None = None
    """The same by Holm's method, over all claims of the suite at this scale. Absent from older results."""
    seeds: tuple[Any, ...]
    """Number of seeds on each side."""
    verdict: str
    """`yes`, `no, the opposite`, `not decided`, `one seed: no claim`, `runs are missing: no claim`, `an audit failed: no
    claim`, or `confounded: no verdict`."""
    confounded: str = ""
    """Differences between the sides beyond the claim; empty if there are none. Absent from older results."""


@dataclass(frozen=True, kw_only=True)
class MeasureRecord(Record):
    """A number that a finding is judged by."""

    measure: Any = None
    """Its name."""
    label: str
    """Its name in words."""
    unit: str
    """`nats` per token, `tokens`, or `share` (of the text's tokens, from 0 to 1)."""
    value: Number | None
    """The number; for `tokens` over several seeds the median; null if a context was not reached."""
    low: Number | None
    """Lower end of its 95% interval, over seeds and targets; for `tokens` the smallest over the seeds."""
    high: Number | None
    """Upper end of it; for `tokens` the largest over the seeds."""
    above: Number | None
    """The bound that it must be above; null without one."""
    below: Number | None
    """The bound that it must be below; null without one."""
    best_lengths: tuple[Count, ...] | None = None
    """Best length of each seed for which more context hurts; for `tokens` only. Absent if it hurts none."""


@dataclass(frozen=True, kw_only=True)
class FindingRecord(Record):
    """A finding of a paper, judged of the suite's runs."""

    paper: Any = None
    """The paper."""
    finding: Any = None
    """Its name there."""
    sentence: str
    """The finding."""
    published: str
    """The printed value."""
    source: str
    """Where it is printed."""
    figures: Any = None
    """The numbers in it, by name."""
    system: str
    """The system on which it is judged."""
    baseline: str | None
    """The system that it is compared with, or null."""
    seeds: tuple[Any, ...]
    """The seeds that are examined."""
    planned_seeds: tuple[Any, ...]
    """The seeds that are planned."""
    about: Any = None
    """The expected effective context, or null."""
    measures: tuple[MeasureRecord, ...]
    """The numbers that it is judged by."""
    verdict: str
    """`yes`, `no`, `not decided`, `not run`, `runs are missing: no claim` or `not measured`."""

    def present(self) -> Self:
        """Return it as not measured where an older result judged it by classes that a cache's window does not bound."""
        outdated = ("hurt", "without-cache of class")
        if any(str(one.measure).startswith(outdated) for one in self.measures):
            return replace(self, measures=(), verdict="not measured")
        return self


@dataclass(frozen=True, kw_only=True)
class ReproductionFigures(Figures):
    """The runs of a suite, beside what was published."""

    kind = "reproduction"
    rows_in = "systems"

    suite: Name
    """Name of the suite."""
    scale: Name
    """`small` or `full`."""
    title: str
    """Title of the suite."""
    note: str | None = None
    """A note for the reader."""
    papers: tuple[str, ...] = ()
    """The papers it reproduces."""
    metric: Name
    """The score that is compared, `perplexity` or `bits_per_token`; lower is better."""
    unit: Name | None
    """Unit of the scores; null while no run is finished."""
    planned: Count
    """Runs planned at this scale."""
    finished: Count
    """Runs that have all their results."""
    failed: Count
    """Runs that failed this time."""
    core_hours: Amount
    """Time of all commands of all runs, times the threads of a process, in hours; on a GPU the time of processes that share
    it."""
    threads: Any = None
    """CPU threads of a process."""
    systems: Annotated[tuple[SystemRecord, ...], NOT_EMPTY]
    """One object for each reading of each system of the suite."""
    claims: tuple[ClaimRecord, ...]
    """The claims."""
    findings: tuple[FindingRecord, ...] = ()
    """The findings of papers. Absent from older results."""
    runs: Annotated[tuple[RunRecord, ...], NOT_EMPTY]
    """The runs."""

    @property
    def label(self) -> str:
        return f"reproduce {self.suite} ({self.scale})"

    def readings_of(self, system: SystemRecord) -> list[ReadingRecord]:
        """Return the readings of a line of the table, of the seeds that have them."""
        readings = [reading for run in self.runs if run.system == system.system for reading in run.readings]
        return [reading for reading in readings if reading.place == system.place]
