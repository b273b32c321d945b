"""Records of an evaluation, and of its measures besides the score."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from backstory.results.common import AuditRecord, Figures, OverlapRecord, UnknownTokens
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
    Share,
    in_range,
    left_out,
    other_keys,
)
from backstory.utils.formats import percent
from backstory.utils.scores import perplexity


@dataclass(frozen=True, kw_only=True)
class GateRecord(Record):
    """The gate of a model with two predictions after an epoch of training."""

    utilization: Share
    """Share of tokens at which q has half the weight or more (PoU)."""
    win_share: Share
    """Share of tokens for which q is better than p."""
    mean_lambda: Share
    """Mean weight of q."""
    p_perplexity: Positive
    """Perplexity of p by itself."""
    q_perplexity: Positive
    """Perplexity of q by itself; a word that a pointer gives no probability counts as 80 nats."""


@dataclass(frozen=True, kw_only=True)
class PolicyRecord(GateRecord):
    """Scores of the gate of a model with two predictions (p of the head, q of its buffer), and of other gates, from the same
    reading. Perplexities are over all tokens that were scored."""

    mean_reward: Number | None = None
    """Mean intrinsic reward."""
    win_share: Share | None = None
    """Share of tokens for which q is better than p."""
    oracle_perplexity: Positive
    """Perplexity with the better of the two for each token, which no gate can know: a bound, not a result."""
    best_constant_lambda: Number | None = None
    """The best weight that is the same for all tokens, in steps of 0.02; chosen on this very text."""
    best_constant_perplexity: Positive
    """The perplexity with that weight."""
    temperatures: Mapping[str, Positive]
    """The perplexity with the gate at other temperatures: `0.01`, `0.1`, `1`, `10`, `100`."""

    def faults(self) -> Iterator[tuple[str, str]]:
        for temperature in ("0.1", "1"):
            if temperature not in self.temperatures:
                yield f"temperatures.{temperature}", "a number above 0"


@dataclass(frozen=True, kw_only=True)
class CostRecord(Record):
    """Costs of some tokens, all means per token."""

    tokens: Count
    """Their number."""
    nats: Number
    """Cost with this reader."""
    exact: Number
    """Cost with perfect memory."""
    excess: Number
    """Their difference."""


Distance = Annotated[float, in_range(1e-9, 2**53, "a number above 0")]


@dataclass(frozen=True, kw_only=True)
class DistanceRange(Record):
    """Range of distances in tokens, both ends included."""

    from_: Count
    """The nearest."""
    to: Count | None
    """The farthest; null in the last range, which has no end."""
    distance: Distance
    """Their mean."""

    @property
    def ends(self) -> tuple[int, int | None]:
        """First and last distance."""
        return self.from_, self.to


def _in_order(ranges: Sequence[DistanceRange]) -> bool:
    ends = [end for one in ranges for end in (one.from_, math.inf if one.to is None else one.to)]
    return ends == sorted(ends)


@dataclass(frozen=True, kw_only=True)
class MemoryRange(CostRecord, DistanceRange):
    """Costs of tokens that recur at such a distance."""


@dataclass(frozen=True, kw_only=True)
class KindCosts(CostRecord):
    """Costs of one kind of token."""

    kind: Name
    """`filler word`, `new entity`, `old entity`, `name`, ..."""


@dataclass(frozen=True, kw_only=True)
class CurveRecord(Record):
    """Costs of one kind that comes back, by distance."""

    kind: Name
    """`old entity`, `queried value`."""
    forgotten: Number
    """Cost in nats above `exact` to a reader that knows the statistics but nothing of the document."""
    bins: tuple[MemoryRange, ...]
    """The costs in each range of distances that occurs, the nearest first."""

    def faults(self) -> Iterator[tuple[str, str]]:
        if not _in_order(self.bins):
            yield "bins", "ranges of distances, the nearest first"


@dataclass(frozen=True, kw_only=True)
class MemoryRecord(Record):
    """Cost above the exact one, for texts whose exact cost is known
    ([`recall`](corpora.md#recall))."""

    exact_nats_per_token: Number
    """The entropy of the text: the cost to a reader that knows the source and has perfect memory."""
    exact_perplexity: Positive
    """The same as a perplexity."""
    excess_nats_per_token: Number
    """Cost of this reader above the entropy, over all tokens."""
    kinds: Annotated[tuple[KindCosts, ...], NOT_EMPTY]
    """The costs of each kind of token."""
    curves: tuple[CurveRecord, ...]
    """The costs by distance, for each kind that recurs."""


@dataclass(frozen=True, kw_only=True)
class NewTokens(Record):
    """Tokens without an earlier occurrence."""

    tokens: Count
    """Their number."""
    nats: Number | None
    """Mean cost per token; null if there are none."""

    def faults(self) -> Iterator[tuple[str, str]]:
        if (self.nats is None) != (self.tokens == 0):
            yield "nats", "null where there are no tokens, else a number"


@dataclass(frozen=True, kw_only=True)
class RecencyRange(DistanceRange):
    """Tokens whose last occurrence is at such a distance."""

    tokens: Count
    """Their number."""
    nats: Number
    """Mean cost per token."""


@dataclass(frozen=True, kw_only=True)
class RecencyRecord(Record):
    """Cost of a token by the distance to its last occurrence, which shows a memory of what was read so far."""

    new: NewTokens
    """Tokens without an earlier occurrence."""
    bins: tuple[RecencyRange, ...]
    """The others, in each range of distances that occurs, the nearest first."""

    def faults(self) -> Iterator[tuple[str, str]]:
        if not _in_order(self.bins):
            yield "bins", "ranges of distances, the nearest first"


@dataclass(frozen=True, kw_only=True)
class AnswerCounts(Record):
    """Accuracy of the answers in some documents."""

    documents: Count
    """Documents."""
    answer_tokens: Count
    """Answer tokens in them."""
    nats_per_answer_token: Number
    """Mean negative log-likelihood of these tokens."""
    token_accuracy: Share
    """Share of these tokens that are right."""
    bit_accuracy: Share
    """Share of their bits that are right; if the most probable token is not a symbol, all are wrong."""
    document_accuracy: Share
    """Share of documents in which every answer token is right."""

    def in_words(self) -> str:
        """Return the accuracy in a few words."""
        shares = (percent(100 * share) for share in (self.token_accuracy, self.bit_accuracy, self.document_accuracy))
        return "{} of the answer tokens, {} of the bits and {} of the documents are right".format(*shares)


@dataclass(frozen=True, kw_only=True)
class LengthAnswers(AnswerCounts):
    """The answers in documents of one length."""

    length: Count
    """Symbols of a sequence, items of a list."""


@dataclass(frozen=True, kw_only=True)
class AnswersRecord(AnswerCounts):
    """Answers to a synthetic [task](corpora.md#tasks), whose answers are known: the most probable token against the
    right one."""

    task: Name
    """`copy`, `repeat-copy`, `associative-recall` or `priority-sort`."""
    lengths: Annotated[tuple[LengthAnswers, ...], NOT_EMPTY]
    """The same for the documents of each length."""


@dataclass(frozen=True, kw_only=True)
class ReaderScore(Record):
    """Score of one reader of a stack."""

    name: Name
    """Its name."""
    nats_per_token: Number
    """Its score, of the tokens of the evaluation."""
    perplexity: Positive
    """Its exponential."""

    @staticmethod
    def of_nats(name: str, nats: float) -> "ReaderScore":
        return ReaderScore(name=name, nats_per_token=nats, perplexity=perplexity(nats))


@dataclass(frozen=True, kw_only=True)
class ProofRecord(Record):
    """The code of the tokens that were scored ([codec.md](codec.md))."""

    file: Name
    """Name of its file."""
    bytes: CountFrom1
    """Size of the file."""
    sha256: Name
    """SHA-256 of the file."""
    nats_per_token: Number
    """Length of the code of the tokens: the score, proved on every token."""
    uncounted_share: Amount | None = left_out()
    """Share that the last tokens of rows add to the code; they are not counted. Above 1%, `verify` does not accept the
    file as a proof."""


@dataclass(frozen=True, kw_only=True)
class EvaluationFigures(UnknownTokens, Figures):
    """A text that was read once by a reader."""

    kind = "evaluation"

    split: Name
    """The part of the corpus that was read: `test`, `valid`, `train`; `text` for your own text."""
    reader: Name
    """The reader: `static`, or readers as they were requested, the innermost first: `dynamic+cache`."""
    readers: tuple[Json, ...] | None = None
    """The readers of the stack: `name`, all `settings`, and their `origin` (`default`, `tuned on ...`, `given`, `theta
    given, others default`; `default: the tuned settings are for the model as trained`); for a reader that moves
    weights, how many (`moving`), the `bytes` held for that and the text of the `statistics`; for a meta-learner, the
    `base` and how it was `trained`."""
    gains: tuple[ReaderScore, ...] | None = None
    """`name`, `nats_per_token` and `perplexity` on the same tokens for the static reader and for each reader of the
    stack in turn; the last is the result."""
    after: Name | None = None
    """The split that was read before, which an adaptive reader has learned from."""
    unit: Name
    """See above."""
    tokens: CountFrom1
    """Tokens that were scored."""
    batch_size: CountFrom1 | None = None
    """Rows read side by side; `1` reads the text once from end to end."""
    addressing: Name | None = None
    """Addressing of an [external memory](external-memory.md), which may differ from training; null for a model without
    one. Absent from older results."""
    lengths: Annotated[tuple[Count, ...], NOT_EMPTY] | None = None
    """The lengths at which a synthetic [task](corpora.md#tasks) was read, if they were chosen. Absent from older
    results."""
    options: Json | None = left_out()
    """Other options of the evaluation that are not the default, by name. Absent if there are none."""
    window: Count | None = None
    """Largest number of tokens that the model reads, if the text was longer and a window slid over it
    ([huggingface.md](huggingface.md)); else null. Absent from older results."""
    window_keeps: Count | None = left_out()
    """Tokens that stayed in a full window when it slid: every later token has at least this many before it. Absent if
    `window` is null, and from older results."""
    lines: CountFrom1 | None = left_out()
    """Lines that were scored, each by itself from the model's start ([reading.md](reading.md#line-by-line)). Absent if
    the text was read from end to end."""
    empty_lines: Count | None = left_out()
    """Blank lines, which were left out. Absent if `lines` is."""
    nats_per_token: Number
    """The score."""
    perplexity: Positive
    """Its exponential."""
    bits_per_token: Number
    """The score divided by ln 2."""
    bits_per_character: Number | None = None
    """The same loss spread over the text's characters; of `marked-characters`, over its symbols."""
    bits_per_byte: Number | None = None
    """The same loss spread over the text's bytes."""
    open_bits_per_byte: Number | None = left_out()
    """The loss plus the cost of spelling out what the tokens do not say, per byte of the file: compares models of all
    vocabularies ([codec.md](codec.md#what-a-code-length-is)). Absent if the file is missing, or over 16 MiB."""
    words: Count | None = None
    """Words of the text, see below."""
    nats_per_word: Number | None = None
    """The same loss spread over these words."""
    perplexity_per_word: Number | None = None
    """Its exponential."""
    policy: PolicyRecord | None = None
    """The gate between two predictions, [below](#policy); null for a model with one."""
    memory: MemoryRecord | None = None
    """Cost above the exact cost, [below](#memory); null if the exact cost is unknown, as for any text but `recall`."""
    answers: AnswersRecord | None = None
    """Accuracy of the answers, [below](#answers); null for any text but a synthetic [task](corpora.md#tasks). Absent from
    older results."""
    recency: RecencyRecord | None = None
    """Cost of a token by the distance to its last occurrence, [below](#recency). Absent from older results."""
    overlap: tuple[OverlapRecord, ...] | None = None
    """Overlap of the text with the splits that the model was trained and selected on, [below](#overlap); null if it
    cannot be measured. Absent from older results."""
    audit: AuditRecord | None = None
    """The audit of the reader; null if it was not audited."""
    proof: ProofRecord | None = left_out()
    """The code of the text, [below](#proof). Absent if none was written."""
    sections: Json = other_keys()
    """The sections of metrics from outside ([extending.md](extending.md)), by their names."""

    @property
    def label(self) -> str:
        return f"evaluate {self.split}{', line by line' if self.lines else ''} ({self.reader})"

    @property
    def read_by(self) -> str:
        return self.reader

    def faults(self) -> Iterator[tuple[str, str]]:
        yield from self.unknown_faults(self.tokens)


@dataclass(frozen=True, kw_only=True)
class SampleFigures(Figures):
    """A text that a model wrote."""

    kind = "sample"

    prompt: str
    """The text that it continued; may be empty."""
    text: str
    """The text that it wrote."""
    settings: Mapping[str, Any]
    """Sampling settings: `temperature`, `top_k`, `seed`, ..."""
