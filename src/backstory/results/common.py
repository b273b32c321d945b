"""Records that several kinds of result share: provenance, audit, unknown words, and overlap of splits."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from backstory.config.plugin_files import plugin_hashes
from backstory.results.validation import (
    Amount,
    Count,
    Json,
    Name,
    Record,
    Share,
    WrongValue,
    convert,
    left_out,
    other_keys,
)
from backstory.storage.provenance import command, commit, now, versions
from backstory.utils.formats import plain, quantity
from backstory.utils.process import world
from backstory.utils.scores import SplitOverlap, UnknownShare


@dataclass(frozen=True, kw_only=True)
class Figures(Record):
    """Base of the figures of each kind of result."""

    kind: ClassVar[str]

    @property
    def label(self) -> str:
        """The command that measures them, in a few words: `evaluate test (static)`."""
        return self.kind

    @property
    def read_by(self) -> str:
        """The reader of the text, `static` if none is named."""
        return "static"

    def caption(self) -> str:
        return self.label


@dataclass(frozen=True, kw_only=True)
class RecordedText(Record):
    """Settings of the text that advice on unknown words names, as far as a result recorded them."""

    minimum_count: Count = 1
    maximum_size: Count | None = None


@dataclass(frozen=True, kw_only=True)
class RecordedConfig(Record):
    """Settings of a run, as far as a report reads them."""

    text: RecordedText | None = None


OWN_TEXT = "text"
"""The split of a text that is no split of a corpus."""


@dataclass(frozen=True, kw_only=True)
class CorpusRecord(Record):
    """Text that was read."""

    name: str | None = left_out()
    """Name of the corpus, or of its file or folder."""
    fingerprint: str | None = left_out()
    """SHA-256 of the text and of the settings that tokenized it. Results compare only if it is the same."""
    types: Count | None = left_out()
    """Size of the vocabulary."""
    provenance: str | None = left_out()
    """Origin of the text."""
    more: Json = other_keys()

    def title(self, default: str = "unnamed text") -> str:
        """Return the corpus's name, or `default` if none is recorded."""
        return self.name or default

    def part(self, split: str) -> str:
        """Return the split, or the name of a text that is no split of a corpus."""
        return self.title() if split == OWN_TEXT else split

    def text(self, split: str) -> str:
        """Return `ptb, test`, or the name of a text that is no split of a corpus."""
        return self.title() if split == OWN_TEXT else f"{self.title()}, {split}"


@dataclass(frozen=True, kw_only=True)
class ProvenanceRecord(Record):
    """Everything needed to measure a result again. A report shows `not recorded` for what is absent."""

    config: Json | None = None
    """The resolved settings of the run; for a reproduction those of the suite, for a search those of the recipe."""
    seed: Any = None
    """The seed that the model was trained with; a list for several models or runs."""
    commit: str | None = None
    """Commit of the source tree; null outside a git checkout."""
    versions: Json | None = None
    """Versions of backstory, python and torch, by name."""
    device: str | None = None
    """Device that computed the numbers."""
    ranks: Count | None = None
    """Processes that computed them together."""
    precision: str | None = None
    """Precision of the matrix products: `float32` or `bfloat16`, or the type of weights that are not in float32."""
    precision_reason: str | None = None
    """Why that precision was chosen."""
    corpus: CorpusRecord | None = None
    """The text that was read."""
    started: str | None = None
    """Time at which the command started."""
    seconds: Amount | None = left_out()
    """Duration in seconds."""
    command: str | None = None
    """The command to run again."""
    weights: Any = left_out()
    """SHA-256 of the weights that were measured, with their names, shapes and types: the best ones for training, those
    of the best trial for a search, a list for a set of models. Absent from older results."""
    weights_file: Any = left_out()
    """SHA-256 of the file they were read from, as in the checkpoint's manifest. Absent from older results, and for a
    model that is not a run."""
    prepared: Json | None = left_out()
    """Files that the reader took from `readers/` of the run, by name, with their SHA-256: tuned settings
    (`cache.json`), and the manifests of statistics and meta-learners. Absent if it took none."""
    ended: Any = left_out()
    """Time at which training ended; for training runs only. Absent from older results."""
    init_from: Json | None = left_out()
    """`run` and `weights` that training began with; null if it began from scratch. For training runs only; absent from
    older results."""
    taken_over: Count | None = left_out()
    """Number of conditions that were taken over from an earlier examination; for examinations only."""
    plugins: Json | None = left_out()
    """SHA-256 of each plugin, by the name of its file or module. Absent without one, and from older results."""
    more: Json = other_keys()

    @staticmethod
    def begun(config: Json, device: str, precision: str, reason: str, corpus: Json) -> "ProvenanceRecord":
        """Return the provenance at the start of the work; `seconds` is filled in at its end."""
        return ProvenanceRecord(
            config=config,
            seed=config["seed"],
            commit=commit(),
            versions=versions(),
            device=device,
            ranks=world(),
            precision=precision,
            precision_reason=reason,
            corpus=CorpusRecord.of(corpus),
            started=now(),
            command=command(),
            plugins=plugin_hashes() or None,
        )

    @property
    def settings(self) -> RecordedConfig:
        """Settings of the text, as far as they are recorded."""
        return convert(RecordedConfig, self.config or {}, "config")

    def faults(self) -> Iterator[tuple[str, str]]:
        try:
            convert(RecordedConfig, self.config or {}, "config")
        except WrongValue as wrong:
            yield wrong.path, wrong.expected


@dataclass(frozen=True, kw_only=True)
class UnknownTokens(Record):
    """Share of `<unk>` among tokens. Older results have some of these fields or none."""

    unknown_tokens: Count | None = None
    """Tokens that are `<unk>`, whether written so in the text or outside the vocabulary; null if the vocabulary has no
    `<unk>`."""
    unknown_share: Share | None = None
    """Their share of all tokens."""
    out_of_vocabulary_tokens: Count | None = None
    """Those written out in the text but outside the vocabulary, [below](#unknown-words); null if they were not
    counted."""
    out_of_vocabulary_share: Share | None = None
    """Their share of all tokens."""
    out_of_vocabulary_cause: Name | None = None
    """Why most of these are outside the vocabulary: `script` (letters of another script), `case` (known in upper or
    lower case), `words` (any other)."""

    @staticmethod
    def counted(share: UnknownShare | None) -> "UnknownTokens":
        """Return the record of a share; without values for None, as for tokens without a vocabulary."""
        if share is None:
            return UnknownTokens()
        return UnknownTokens(
            unknown_tokens=share.unknown,
            unknown_share=share.share,
            out_of_vocabulary_tokens=share.lost,
            out_of_vocabulary_share=share.lost_share,
            out_of_vocabulary_cause=share.cause,
        )

    def unknown_among(self, tokens: int) -> UnknownShare:
        """Return the `<unk>` among this number of tokens, in words."""
        cause: Any = self.out_of_vocabulary_cause
        return UnknownShare(tokens, self.unknown_tokens, self.out_of_vocabulary_tokens, cause)

    def unknown_faults(self, tokens: int) -> Iterator[tuple[str, str]]:
        """Yield a fault unless the counts are parts of this number of tokens."""
        if not (self.out_of_vocabulary_tokens or 0) <= (self.unknown_tokens or 0) <= tokens:
            yield "unknown_tokens", "a number of tokens, of which those outside the vocabulary are a part"


@dataclass(frozen=True, kw_only=True)
class OverlapRecord(Record):
    """Overlap of one split with another."""

    split: Name
    """The text that was read."""
    in_: Name
    """The other split, `train` or `valid`."""
    window: Count
    """Length of a stretch in tokens."""
    share: Share
    """Share of the stretches that occur in the other split too."""

    @staticmethod
    def measured(overlaps: Iterable[SplitOverlap] | None) -> "tuple[OverlapRecord, ...] | None":
        """Return the records of overlaps; None if they were not measured."""
        if overlaps is None:
            return None
        return tuple(OverlapRecord(split=o.split, in_=o.other, window=o.window, share=o.share) for o in overlaps)

    def warning(self, unit: str) -> str | None:
        """Return the sentence on an overlap that matters, else None."""
        return SplitOverlap(self.split, self.in_, self.window, self.share).warning(unit)


@dataclass(frozen=True, kw_only=True)
class AuditRecord(Record):
    """Findings of the audit of a reader."""

    passed: bool
    """True if all checks held."""
    places: Count | None = None
    """Blocks of the text that were audited."""
    cuts: Count | None = None
    """Cuts that were tried in these blocks: steps whose scores were compared with what is known before the cut. Absent
    from older results."""
    steps: Count | None = None
    """Steps of these blocks. Absent from older results."""
    seed: str | None = None
    """Seed of the blocks and cuts, in decimal digits; `--audit-seed` repeats the audit. Absent from older results."""
    checks: Json | None = None
    """`causal`, `distribution`, `scored_before_update`, `one_pass`, `as_reported`: true for each that held (older results
    lack the last); [honest-figures.md](honest-figures.md)."""
    failures: tuple[Any, ...] | None = None
    """Failures, each with its place; empty if the audit passed."""

    def in_words(self) -> str:
        """Return the outcome in words: `passed at 8 places, 272 cuts`, or `FAILED` with the reasons."""
        if not self.passed:
            return f"FAILED: {'; '.join(map(plain, self.failures or ()))}"
        cuts = f", {quantity(self.cuts, 'cut')}" if self.cuts else ""
        return f"passed at {quantity(self.places, 'place')}{cuts}"
