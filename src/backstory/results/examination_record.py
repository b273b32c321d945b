"""Records of the experiments on context."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from backstory.results.common import Figures, UnknownTokens
from backstory.results.effective_context import ContextRecord, ThresholdContext, Tried
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
    left_out,
    other_keys,
)
from backstory.utils.formats import count, quantity

SMALL = 1.0
"""Smallest effect that counts, in percent of perplexity."""
SMALLEST_GROUP = 20
"""Fewest targets of a group whose effective context is given."""


@dataclass(frozen=True, kw_only=True)
class BaselineRecord(Record):
    """Score that effects are measured from."""

    context: Count | None = None
    """Tokens that are read; null: all there are."""
    nats: Number
    """Mean nats per token."""
    perplexity: Positive
    """Their exponential."""
    deviation: Any = left_out()
    """Standard deviation of the nats over [several models](#several-models); only for several models."""


@dataclass(frozen=True, kw_only=True)
class EffectRecord(Record):
    """Effect of a change of the context on the targets."""

    name: Name = ""
    """Its name, unique in the experiment."""
    method: Name | None = None
    """The perturbation, in a word."""
    context: Count | None = None
    """Number of tokens that are perturbed, or kept; null: all there are."""
    targets: Count | None = None
    """Targets that it is a mean over."""
    nats: Number
    """Mean nats per token."""
    perplexity: Positive
    """Their exponential."""
    effect: Number
    """Mean increase of the negative log-likelihood over the baseline, in nats per token."""
    low: Number | None
    """Lower end of the 95% interval of the effect (paired bootstrap over the targets; with a cache over documents, or
    blocks of 500 tokens; widened by Student's t, but not in results from before November 27, 2026); null for a single
    target, but the effect itself in results from before November 28, 2026."""
    high: Number | None
    """Upper end of it."""
    effect_percent: Number
    """The same effect as an increase of perplexity, `100 (exp(effect) - 1)`."""
    deviation: Amount | None = left_out()
    """Standard deviation of the effect over [several models](#several-models); only for several models."""
    effects: tuple[Any, ...] | None = left_out()
    """Effect of each model; only for several models."""
    parameters: Json = other_keys()
    """Parameters of an experiment that is not known here, by name."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the 95% interval; None for a single target."""
        return None if self.low is None or self.high is None or self.targets == 1 else (self.low, self.high)

    @property
    def spread(self) -> tuple[float, float] | None:
        """Ends of the condition's band: a standard deviation either way of several models, else its 95% interval."""
        if self.deviation is None:
            return self.interval
        return self.effect - self.deviation, self.effect + self.deviation


@dataclass(frozen=True, kw_only=True)
class TruncationEffect(EffectRecord):
    """Condition of `truncate`."""

    context: Count = field()
    """Tokens that are kept, ascending."""


@dataclass(frozen=True, kw_only=True)
class NamedEffect(EffectRecord):
    """Condition of `drop-target`, and base of the others."""

    name: Name = field()
    """Its name, unique in the experiment."""
    targets: Count = field()
    """Targets that it is a mean over."""


@dataclass(frozen=True, kw_only=True)
class SpanEffect(NamedEffect):
    """Condition of `shuffle`, `reverse` and `replace`."""

    span: Name
    """`local` (20 tokens) or `global` (all farther ones)."""
    boundary: Count
    """The nearest tokens, left as they are."""


@dataclass(frozen=True, kw_only=True)
class DropEffect(NamedEffect):
    """Condition of `drop`."""

    words: Name
    """`content` or `function`."""
    control: bool
    """True if as many random words were dropped instead."""
    boundary: Count
    """The nearest tokens, left as they are."""
    dropped: Number | None = left_out()
    """Mean number of tokens that were dropped."""


@dataclass(frozen=True, kw_only=True)
class DistantEffect(NamedEffect):
    """Condition of `drop-distant`."""

    boundary: Count | None = None
    """The nearest tokens, which are kept."""


@dataclass(frozen=True, kw_only=True)
class ReplacementEffect(NamedEffect):
    """Condition of `replace-target`."""

    replacement: Name
    """`unknown` (`<unk>`) or `similar` (a word of the same tag and of similar frequency)."""


@dataclass(frozen=True, kw_only=True)
class CacheEffect(NamedEffect):
    """Condition of `cache`, whose baseline is with the cache."""

    method: Name = field()
    """`without-cache`."""
    hurt: Amount | None = left_out()
    """Share of the targets that the cache makes worse."""
    outside_window: Amount | None = left_out()
    """Share of the split's tokens that the cache's window does not hold when they occur. Absent from older results."""


@dataclass(frozen=True, kw_only=True)
class PicturedEffect(NamedEffect):
    """Condition of an experiment that describes its own [picture](#picture)."""

    series: Name
    """The line, or the colour of bars, that it belongs to: a noun phrase for the change."""
    boundary: Count | None = left_out()
    """The nearest tokens, left as they are."""


@dataclass(frozen=True, kw_only=True)
class PictureRecord(Record):
    """Description of an experiment's picture and sentence; reports need to know nothing else of the experiment."""

    title: Name
    """Heading of the figure."""
    sentence: Name
    """The change, as the beginning of a sentence that ends with the effects: `Perplexity after ...`."""
    by: Name | None = None
    """Split of the targets whose groups are drawn side by side, with a bar for each series; null: a line for each
    series, against the boundary."""


C = TypeVar("C", bound=EffectRecord)


@dataclass(frozen=True, kw_only=True)
class GroupRecord(Record, Generic[C]):
    """A part of the targets. A group without targets is left out."""

    rows_in = "conditions"
    by: Name
    """The split of the targets, below."""
    group: Name
    """Name of the group in it."""
    targets: CountFrom1
    """Targets in it."""
    share: Share
    """Their share of all targets."""
    baseline: BaselineRecord
    """As above, for these targets only."""
    conditions: Annotated[tuple[C, ...], NOT_EMPTY]
    """As above, for these targets only."""


@dataclass(frozen=True, kw_only=True)
class TruncationGroup(GroupRecord[TruncationEffect]):
    """A part of the targets of `truncate`."""

    effective_context: ContextRecord
    """As below, for these targets only."""

    def is_small(self) -> bool:
        """Return True if resamples of so few targets say little: those of a single one are all alike, a certain answer."""
        return self.targets < SMALLEST_GROUP


@dataclass(frozen=True, kw_only=True)
class ExaminedModel(Record):
    """One of several models that were examined together."""

    name: str
    """Its name."""
    seed: Any = None
    """The seed that it was trained with."""
    nats: Number
    """Its nats of the baseline."""


@dataclass(frozen=True, kw_only=True)
class ExaminationFigures(UnknownTokens, Figures, Generic[C]):
    """One experiment on one model, or on several that differ in their seed: the same targets under every condition, against
    a baseline."""

    kind = "examination"
    rows_in = "conditions"
    experiment: Name
    """`truncate`, `shuffle`, `reverse`, `replace`, `mask`, `drop`, `drop-target`, `drop-distant`, `replace-target`, `cache`
    ([context.md](context.md))."""
    split: Name
    """As for an evaluation."""
    unit: Name
    """As for an evaluation."""
    reader: Name | None = None
    """As for an evaluation; every context is read from an empty state (absent: static)."""
    readers: tuple[Json, ...] | None = None
    """As for an evaluation."""
    seed: Number | None = None
    """Seed of the sample of targets, the perturbations and the bootstrap."""
    targets: CountFrom1
    """Tokens that were predicted, the same ones under every condition."""
    maximum_context: Count
    """Only tokens with at least this many before them are targets."""
    context: Count | None = None
    """Number of tokens that are perturbed and that the baseline reads; null if that is all of them (`truncate`,
    `cache`)."""
    within_documents: bool | None = None
    """True if a context ends where the target's document begins."""
    start_token: bool = False
    """True if contexts that do not reach the beginning of the text begin with the start token. Absent from older results."""
    near: Count = 50
    """Largest distance that counts as near, for the groups `near`, `far` and `none`."""
    tagger: str | None = None
    """Source of the part-of-speech tags; null if none were needed."""
    unknown_tag_share: Share | None = None
    """Share of the split's tokens that are `<unk>`, neither content nor function words."""
    pieces_per_word: Amount | None = None
    """Mean number of pieces per word, if the tokens are pieces and targets and contexts are words (null: they are
    tokens). Absent from older results."""
    word_score: Literal["corrected", "sum"] | None = None
    """How a word is scored from its pieces: `corrected` for where the word begins and ends, or the plain `sum` over its
    pieces ([huggingface.md](huggingface.md)); null: targets are tokens. Absent from older results, which have sums."""
    window: Amount | None = None
    """Largest number of tokens that the model reads; null: no limit. Absent from older results."""
    cut_contexts: Amount | None = None
    """Targets whose context in words, unperturbed, has more tokens than `window` and is cut to it. Absent from older
    results."""
    baseline: BaselineRecord
    """The baseline of the effects."""
    conditions: Annotated[tuple[C, ...], NOT_EMPTY]
    """The conditions, below."""
    groups: tuple[GroupRecord[C], ...] = ()
    """The same for each group of the targets, below; empty without a split."""
    batch_size: CountFrom1 = 1
    """Rows in which the text was read for the infinite context; with more than one, that context is at least
    `maximum_context`."""
    models: tuple[ExaminedModel, ...] = left_out(())
    """Only for a set of models, [below](#several-models)."""

    @property
    def label(self) -> str:
        reader = "" if self.read_by == "static" else f" ({self.read_by})"
        return f"examine {self.experiment} on {self.split}{reader}"

    @property
    def read_by(self) -> str:
        return self.reader or "static"

    @property
    def counted_in(self) -> str:
        """Unit of contexts: words where the tokens are pieces of words, else tokens."""
        return "word" if self.pieces_per_word else "token"

    def faults(self) -> Iterator[tuple[str, str]]:
        yield from self.unknown_faults(self.targets)

    def groups_by(self, split: str) -> dict[str, GroupRecord[C]]:
        """Return the groups of one split of the targets by name; empty without this split."""
        return {group.group: group for group in self.groups if group.by == split}


@dataclass(frozen=True, kw_only=True)
class TruncationFigures(ExaminationFigures[TruncationEffect]):
    """The experiment `truncate`."""

    groups: tuple[TruncationGroup, ...] = ()
    effective_context: ThresholdContext
    """The effective context, [below](#truncate)."""

    def context_in_words(self, group: "TruncationGroup | None" = None) -> str:
        """Return the effective context, of all targets or of a group, in words."""
        of = group or self
        if group is not None and group.is_small():
            return f"effective context not known: too few targets ({count(group.targets)})"
        if self.undecided(group):
            longest = quantity(self.maximum_context, self.counted_in)
            full = "all" if of.baseline.context is None else count(of.baseline.context)
            return f"effective context not decided: no better with {full} than with {longest}"
        return of.effective_context.in_words(self.maximum_context, self.counted_in, of.baseline.context)

    def is_lower_bound(self, group: "TruncationGroup | None" = None) -> bool:
        """Return True if the effective context is the longest that was read, which stands for all there is."""
        of = group or self
        return of.effective_context.is_lower_bound(of.baseline.context)

    def undecided(self, group: "TruncationGroup | None" = None) -> bool:
        """Return True if the longest context beats the full one insignificantly, so neither is known to suffice."""
        of = group or self
        context, last = of.effective_context, of.conditions[-1]
        return context.context is None and context.best is None and last.effect < 0

    def present(self) -> Self:
        threshold = self.effective_context.threshold_percent
        groups = [
            replace(
                group,
                conditions=_complete(group.conditions, group.targets),
                effective_context=group.effective_context.redefined(_tried(group.conditions), threshold),
            )
            for group in self.groups
        ]
        whole = self.effective_context.redefined(_tried(self.conditions), threshold)
        conditions = _complete(self.conditions, self.targets)
        return replace(self, conditions=conditions, effective_context=whole, groups=tuple(groups))


def _complete(conditions: Sequence[TruncationEffect], targets: int) -> tuple[TruncationEffect, ...]:
    """Return the conditions with their names, method and number of targets, which the first results lack."""
    return tuple(
        replace(c, name=c.name or f"{TRUNCATE}-{c.context}", method=c.method or TRUNCATE, targets=c.targets or targets)
        for c in conditions
    )


def _tried(conditions: Sequence[TruncationEffect]) -> list[Tried]:
    return [Tried(c.context, c.effect, *(c.interval or (-math.inf, math.inf))) for c in conditions]


@dataclass(frozen=True, kw_only=True)
class PicturedFigures(ExaminationFigures[PicturedEffect]):
    """An experiment that describes its own picture."""

    picture: PictureRecord
    """Its picture."""


TRUNCATE, CACHE = "truncate", "cache"
EFFECTS: dict[str, type[EffectRecord]] = {
    TRUNCATE: TruncationEffect,
    "shuffle": SpanEffect,
    "reverse": SpanEffect,
    "replace": SpanEffect,
    "drop": DropEffect,
    "drop-target": NamedEffect,
    "drop-distant": DistantEffect,
    "replace-target": ReplacementEffect,
    CACHE: CacheEffect,
}
"""The conditions of the paper's experiments, in display order. Others come after them."""
EXPERIMENTS: dict[str, Any] = {name: ExaminationFigures[effect] for name, effect in EFFECTS.items()} | {
    TRUNCATE: TruncationFigures
}
"""The figures of these experiments. Others have pictures (`PicturedFigures`) or only conditions."""


def conditions_with(conditions: Sequence[C], **parameters: object) -> list[C]:
    """Return the conditions that have these parameters, in their order."""
    return [c for c in conditions if all(getattr(c, key, None) == value for key, value in parameters.items())]
