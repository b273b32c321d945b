"""Records of an explained passage, and of a comparison of readers along a stretch of text."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from backstory.results.common import Figures, UnknownTokens
from backstory.results.passage import Passage
from backstory.results.validation import (
    NOT_EMPTY,
    Count,
    CountFrom1,
    Json,
    JsonObject,
    Name,
    Number,
    Positive,
    Record,
    Weight,
    left_out,
    other_keys,
)


@dataclass(frozen=True, kw_only=True)
class CaseRecord(Record):
    """A case of the cache that was looked for."""

    case: str | None = None
    """`success` or `failure`."""
    target: Count | None = None
    """Its token in the text."""
    word: str
    """The word."""
    share: Number
    """Share of the cache's mass on it."""
    entropy: Number
    """Entropy of that mass over places, in nats."""


Rows = Annotated[tuple[Annotated[tuple[Weight, ...], NOT_EMPTY], ...], NOT_EMPTY]


@dataclass(frozen=True, kw_only=True)
class MemoryWeights(Record):
    """Weights of an external memory: a list for each slot that is shown, of a weight for each token."""

    slots: Annotated[tuple[Count, ...], NOT_EMPTY]
    """The slots that are shown."""
    of: Count
    """Slots of the memory."""
    heads: Count
    """Heads that read."""
    tokens: Annotated[tuple[str, ...], NOT_EMPTY]
    """The tokens."""
    write: Rows
    """Weights of the head that writes."""
    read: Rows
    """Weights of the heads that read, in the mean."""

    def faults(self) -> Iterator[tuple[str, str]]:
        for name, weights in (("write", self.write), ("read", self.read)):
            if [len(row) for row in weights] != [len(self.tokens)] * len(self.slots):
                yield name, "a list for each slot, of a number for each token"


@dataclass(frozen=True, kw_only=True)
class ExplanationFigures(UnknownTokens, Figures):
    """A passage of a text, word by word."""

    kind = "explanation"
    explanation: Name
    """The kind of explanation: `surprisal`, `cache`, `buffer`, `memory`."""
    text: str = "unknown text"
    """The split, or the name of the text file."""
    at: Count | None = None
    """First token of the passage."""
    context: Count | None = None
    """Tokens before it that were read."""
    tokens: Count | None = None
    """Its tokens."""
    unit: str = "token"
    """As for an evaluation."""
    word_score: Literal["corrected", "sum"] | None = None
    """Way in which smaller tokens make a word's score, as for an examination; null: words are tokens."""
    reader: str | None = None
    """As for an evaluation."""
    against: str | None = None
    """The reader or model that it was compared with."""
    against_weights: Any = left_out()
    """SHA-256 of its weights ([above](#stale-results)). Absent without one, and from older results."""
    settings: Any = left_out()
    """Settings of the cache, buffer or memory that is explained; for these only."""
    nats_per_token: Number | None = None
    """Score of the passage alone."""
    perplexity: Number | None = None
    """Its exponential."""
    against_nats_per_token: Number | None = left_out()
    """Score of the passage by the reader or model that it was compared with."""
    helped_percent: Number | None = left_out()
    """Share of the words that the cache or buffer makes likelier, in percent; for these only."""
    gate_percent: Number | None = left_out()
    """Mean share of the buffer's prediction, in percent; for `explain buffer` only."""
    found: CaseRecord | None = left_out()
    """The case of the cache that was looked for."""
    weights: MemoryWeights | None = left_out()
    """Weights over time; for `explain memory` only."""
    passage: Passage
    """`title`, `note`, `words` and `layers` ([reports.md](reports.md#a-passage-as-json))."""

    @property
    def label(self) -> str:
        return f"explain {self.explanation} of {self.text}"

    @property
    def read_by(self) -> str:
        return self.reader or "static"

    def frame_rows(self) -> list[JsonObject]:
        return self.passage.frame_rows()

    @classmethod
    def variant(cls, data: Mapping[str, Any]) -> type[Record]:
        return MemoryExplanation if "entropy_bits" in data else cls

    def faults(self) -> Iterator[tuple[str, str]]:
        yield from self.unknown_faults(self.tokens or 0)


@dataclass(frozen=True, kw_only=True)
class HeadMeans(Record):
    """Means over a passage for the heads of a memory; null if there is nothing to average."""

    write: Number | None
    """Mean for the write head."""
    read: Annotated[tuple[Number | None, ...], NOT_EMPTY]
    """Mean for each read head."""


@dataclass(frozen=True, kw_only=True)
class MemorySettings(Record):
    """Size of an external memory, among its settings."""

    slots: CountFrom1
    """Slots of the memory."""
    more: Json = other_keys()


@dataclass(frozen=True, kw_only=True)
class MemoryExplanation(ExplanationFigures):
    """Passage of `explain memory`, with statistics of the memory's heads."""

    settings: MemorySettings = field()
    """The memory's settings, `slots` among them."""
    window: Count
    """Slots of a window."""
    windows: Count | None = None
    """Number of windows. Absent from older results, which have one."""
    older_percent: Number
    """Share of the reads that comes from words before those shown, in percent."""
    entropy_bits: HeadMeans
    """Entropy of the weights, in bits."""
    largest_percent: HeadMeans
    """The largest weight, in percent."""
    window_percent: HeadMeans
    """Weight in the window, in percent."""
    fall_back_percent: HeadMeans
    """Share of reads at which all cosines are negative, in percent."""

    def faults(self) -> Iterator[tuple[str, str]]:
        yield from super().faults()
        for name in ("largest_percent", "window_percent", "fall_back_percent"):
            if len(getattr(self, name).read) != len(self.entropy_bits.read):
                yield f"{name}.read", "a number or null for each head that reads"


@dataclass(frozen=True, kw_only=True)
class GainRecord(Record):
    """Gain of one reader on another, in nats per token."""

    gain: Number
    """Mean surprisal with the other reader minus that with this one."""
    low: Number | None
    """Lower end of its 95% interval (bootstrap over documents, or blocks of 500 tokens of a text that is one document; widened
    by Student's t, but not in results from before November 27, 2026); null where there are fewer than eight."""
    high: Number | None
    """Upper end of it."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the interval; None if there were too few documents."""
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class ComparedReader(Record):
    """A reader that is compared."""

    name: Name
    """Its name."""
    layers: Any = None
    """Its parts: `name`, `settings` and `origin` of each, as in an evaluation."""
    nats_per_token: Number
    """Its score of the stretch."""
    perplexity: Positive
    """The exponential of it."""
    weights: Any = left_out()
    """As in the provenance, of the run that it reads with. Absent from older results."""
    weights_file: Any = left_out()
    """Likewise."""


@dataclass(frozen=True, kw_only=True)
class PairRecord(GainRecord):
    """A pair of readers."""

    reader: Name
    """The reader that gains."""
    over: Name
    """The reader that it gains on."""
    perplexity_gain: Number
    """The perplexity with `over` minus that with `reader`."""
    blocks: Annotated[tuple[Number, ...], NOT_EMPTY]
    """The gain in each block."""
    perplexity_blocks: Annotated[tuple[Number, ...], NOT_EMPTY]
    """The gain in perplexity in each block."""

    @property
    def name(self) -> str:
        """Name of the comparison: `dynamic over static`."""
        return f"{self.reader} over {self.over}"


@dataclass(frozen=True, kw_only=True)
class DocumentRecord(Record):
    """A document, as far as it lies in the stretch."""

    document: Count | None = None
    """Its number in the text."""
    title: str
    """Its title, or empty."""
    start: Count
    """Its first token in the text."""
    tokens: CountFrom1
    """Its tokens."""
    nats: Annotated[tuple[Number, ...], NOT_EMPTY]
    """The score of every reader."""
    gains: Annotated[tuple[Number, ...], NOT_EMPTY]
    """The gain of every pair."""

    def title_at(self, index: int) -> str:
        """Return its title, or its number in the stretch if it has none."""
        return self.title or f"document {index + 1:,}"


@dataclass(frozen=True, kw_only=True)
class PositionRecord(Record):
    """Gains at places in a document."""

    from_: Count
    """First token, counted from the document's beginning."""
    to: Count
    """The token after the last."""
    tokens: Count
    """Tokens there."""
    documents: Count
    """Documents that reach there."""
    nats: tuple[Any, ...] | None = None
    """The score of every reader."""
    gains: Annotated[tuple[GainRecord, ...], NOT_EMPTY]
    """`gain`, `low` and `high` of every pair."""


@dataclass(frozen=True, kw_only=True)
class ExcerptRecord(Record):
    """A passage of the stretch."""

    why: str
    """Why it is shown."""
    at: Count
    """Its first token."""
    tokens: Count
    """Its tokens."""
    gains: Annotated[tuple[Number, ...], NOT_EMPTY]
    """The gain of every pair."""
    passage: Passage
    """The passage ([reports.md](reports.md#a-passage-as-json))."""


@dataclass(frozen=True, kw_only=True)
class ComparisonFigures(UnknownTokens, Figures):
    """Readers along a stretch of text. All gains are in nats per token, the mean of the surprisals with the other reader
    minus those with this one, so above zero where this one does better."""

    kind = "comparison"
    rows_in = "readers"
    comparison: Name
    """`reading`."""
    title: str
    """Description of the text."""
    text: str
    """The split, or the name of the text file."""
    at: Count
    """First token of the stretch."""
    context: Count | None = None
    """Tokens before it that were read."""
    tokens: CountFrom1
    """Its tokens."""
    unit: Name
    """See above."""
    word_score: Literal["corrected", "sum"] | None = None
    """As for an examination."""
    block: CountFrom1
    """Tokens of a block; the last may have fewer."""
    smooth: Count
    """Blocks of the picture's moving average."""
    readers: Annotated[tuple[ComparedReader, ...], NOT_EMPTY]
    """The readers, in the order given."""
    comparisons: Annotated[tuple[PairRecord, ...], NOT_EMPTY]
    """The pairs that are compared."""
    documents: Annotated[tuple[DocumentRecord, ...], NOT_EMPTY]
    """The documents."""
    positions: Annotated[tuple[PositionRecord, ...], NOT_EMPTY]
    """The gains by position in a document."""
    passages: Annotated[tuple[ExcerptRecord, ...], NOT_EMPTY]
    """The passages that are shown."""

    @property
    def label(self) -> str:
        return f"explain {self.comparison} of {self.text}"

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield lists of unequal length, unknown readers, and documents that do not add up to the stretch."""
        yield from self.unknown_faults(self.tokens)
        blocks, pairs = math.ceil(self.tokens / self.block), len(self.comparisons)
        sizes = {("comparisons", "blocks"): blocks, ("comparisons", "perplexity_blocks"): blocks,
                 ("documents", "gains"): pairs, ("positions", "gains"): pairs, ("passages", "gains"): pairs,
                 ("documents", "nats"): len(self.readers)}  # fmt: skip
        for (part, name), size in sizes.items():
            for i, one in enumerate(getattr(self, part)):
                if len(getattr(one, name)) != size:
                    yield f"{part}[{i}].{name}", f"a list of {size}"
        names = [reader.name for reader in self.readers]
        if not all(name in names for pair in self.comparisons for name in (pair.reader, pair.over)):
            yield "comparisons", "between readers that are named"
        end = self.at
        for i, document in enumerate(self.documents):
            if document.start != end:
                yield f"documents[{i}].start", "where the document before it ends"
            end += document.tokens
        if end != self.at + self.tokens:
            yield "documents", "all of the stretch"
