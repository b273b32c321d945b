"""Records of a reproduction: the systems of a suite with their protocols, its claims and its findings."""

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Self

from backstory.results.common import Figures
from backstory.results.suite_run_record import PlaceRecord, ReadingRecord, RunRecord
from backstory.results.validation import NOT_EMPTY, Amount, Count, Name, Number, Record, Share, left_out


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
    finetune_learning_rate: Number | None = None
    """Learning rate of the fine-tuning. This and what follows are absent from older results."""
    weight_decay: Number | None = None
    """Weight decay."""
    clip: Number | None = None
    """Largest norm of the gradient; 0 for no clipping."""
    averaging: str | None = None
    """Averaging of the weights before the fine-tuning: `none`, `triggered` or `always`."""
    trigger: Count | None = None
    """Epochs that the trigger of the averaging looks back."""
    schedule: str | None = None
    """Decay of the learning rate: `constant`, `plateau`, `step`, `cosine` or `linear`."""
    warmup_steps: Count | None = None
    """Steps over which the learning rate rises to its value."""
    decay_start: Share | None = None
    """Share of the epochs after which a linear decay begins."""
    decay_factor: Number | None = None
    """Factor of one decay, of `plateau` and `step`."""
    decay_patience: Count | None = None
    """Epochs without improvement that `plateau` waits."""
    decay_epochs: tuple[Count, ...] | None = None
    """Epochs after which `step` decays."""
    activation_l2: Number | None = None
    """Weight of AR."""
    temporal_l2: Number | None = None
    """Weight of TAR."""
    recovered: str | None = left_out()
    """Source of the settings that the result of an older version lacked. Absent if it recorded them."""

    @property
    def whole(self) -> bool:
        """False for an older version's record, which lacks regularization and decay of the learning rate."""
        optional = ("minutes", "recovered")
        later = (field.name for field in fields(self) if field.default is None and field.name not in optional)
        return all(getattr(self, name) is not None for name in later)


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
    """Sample standard deviation over them; null for one seed."""
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
    protocol: str | None = left_out()
    """How what decides departs from the paper's protocol. Absent if it does not."""

    def present(self) -> Self:
        """Mark it as not measured if an older result judged it by classes that ignore the cache's window."""
        outdated = ("hurt", "without-cache of class")
        if any(str(one.measure).startswith(outdated) for one in self.measures):
            return replace(self, measures=(), verdict="not measured")
        return self


@dataclass(frozen=True, kw_only=True)
class ReproductionFigures(Figures):
    """The runs of a suite, compared with published figures."""

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
        """Return the readings behind a row of the table, for the seeds that have them."""
        readings = [reading for run in self.runs if run.system == system.system for reading in run.readings]
        return [reading for reading in readings if reading.place == system.place]
