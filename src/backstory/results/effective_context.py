"""Records of effective contexts, and conversion of older results to the present definition."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple, Self

from backstory.results.validation import ABSENT, Absent, Count, Number, Record, in_range, left_out
from backstory.utils.formats import count, percent, quantity

_THRESHOLD = in_range(0, 99.9, "a number from 0 to 99.9")


@dataclass(frozen=True, kw_only=True)
class ContextRecord(Record):
    """Effective context of some targets."""

    context: Count | None
    """The shortest context such that it and all longer ones have a perplexity within `threshold_percent` of the
    baseline's, either way. Null: more than `maximum_context`, or none, because more context hurts."""
    low: Count | Absent | None = ABSENT
    """Lower end of its 95% interval, over targets, and over models if there are several (over targets alone in results from
    before November 26, 2026); null if it was not reached. Absent from older results."""
    high: Count | Absent | None = ABSENT
    """Upper end of it."""
    more_context_hurts: bool | None = None
    """True if some context is better than the baseline by more than the threshold, with an interval of the effect below
    zero. Absent from older results, which hold the first context that is less than the threshold above the baseline;
    they are read with the present definition, as far as their effects allow."""
    best_length: Count | Absent | None = ABSENT
    """The best context, if more context hurts."""
    best_effect: Number | Absent | None = ABSENT
    """Its effect in nats, below zero."""
    best_low: Number | Absent | None = ABSENT
    """Lower end of the interval of that effect."""
    best_high: Number | Absent | None = ABSENT
    """Upper end of it."""
    best_effect_percent: Number | Absent | None = ABSENT
    """The effect in percent of perplexity."""
    models: tuple[Any, ...] | Absent = ABSENT
    """Effective context of each model, if several were examined."""
    threshold_percent: Annotated[float, _THRESHOLD] | None = left_out()
    """Largest difference from the baseline's perplexity that counts as none, in percent."""

    @property
    def interval(self) -> tuple[int | None, int | None] | None:
        """The ends of the interval, each None if not reached; None if the result has no interval."""
        return None if isinstance(self.low, Absent) or isinstance(self.high, Absent) else (self.low, self.high)

    @property
    def best(self) -> tuple[int, float] | None:
        """The best context and its effect in percent of perplexity, if more context hurts."""
        if isinstance(self.best_length, int) and isinstance(self.best_effect_percent, float):
            return self.best_length, self.best_effect_percent
        return None

    def in_words(self, longest: int, unit: str = "token", full: int | None = None) -> str:
        """Return it in words: `150 tokens (95%: 100 to 200)`, `more than 1,000 tokens`.

        For the baseline's own context, which is compared with itself:
        `at least 100 words, the longest context that was read (95%: 50 to 100 or more)`. If there is none:
        `best at 5 words (22.5% better than with 100), more context hurts`. `longest` is the maximum context, `unit`
        what it is counted in, and `full` the context of the baseline (None: all there is).
        """
        if self.best is not None:
            best, percent_better = self.best[0], percent(-self.best[1])
            better = f"{percent_better} better than with {'all' if full is None else count(full)}"
            return f"best at {quantity(best, unit)} ({better}), more context hurts"
        more = f"more than {count(longest)}"
        if self.context is None:
            low = None if self.interval is None else self.interval[0]
            return f"{more} {unit}s" + ("" if low is None else f" (95%: at least {count(low)})")
        words = quantity(self.context, unit)
        if self.is_lower_bound(full):
            words = f"at least {words}, the longest context that was read"
        if self.interval is None:  # an older result, whose interval has another definition
            return words
        low, high = (more if end is None else f"{count(end)}{' or more' * (end == full)}" for end in self.interval)
        return (
            f"{words} (95%: {low})" if low == high and self.is_lower_bound(full) else f"{words} (95%: {low} to {high})"
        )

    def is_lower_bound(self, full: int | None) -> bool:
        """Return True if it is the baseline's own context, `full`, so that no longer one was compared."""
        return self.context is not None and self.context == full

    def faults(self) -> Iterator[tuple[str, str]]:
        if self.more_context_hurts:
            expected = "a number that is whole, 0 or more"
            for name in ("best_length", "best_effect", "best_low", "best_high", "best_effect_percent"):
                if not isinstance(getattr(self, name), int | float):
                    yield name, expected
                expected = "a number"
        if (self.low is ABSENT) != (self.high is ABSENT):
            yield "", "with both ends of its interval, or neither"

    def redefined(self, tried: Sequence["Tried"], threshold_percent: float) -> Self:
        """Return the effective context of an older result by today's definition, from the effects of what was tried.

        The interval is dropped if it belongs to another context.
        """
        if self.more_context_hurts is not None:
            return self
        low, high = math.log1p(-threshold_percent / 100), math.log1p(threshold_percent / 100)
        if better := [one for one in tried if one.effect < low and one.high < 0]:
            best = min(better, key=lambda one: one.effect)
            return replace(self, context=None, low=None, high=None, more_context_hurts=True, best_length=best.context,
                           best_effect=best.effect, best_low=best.low, best_high=best.high,
                           best_effect_percent=100 * math.expm1(best.effect))  # fmt: skip
        context = None
        for one in sorted(tried, key=lambda one: -one.context):
            if not low <= one.effect <= high:
                break
            context = one.context
        ends: dict[str, Any] = {} if context == self.context else {"low": ABSENT, "high": ABSENT}
        return replace(self, context=context, more_context_hurts=False, **ends)


class Tried(NamedTuple):
    """Effect of a context that was tried, with its 95% interval."""

    context: int
    effect: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class ThresholdContext(ContextRecord):
    """Effective context of all targets."""

    threshold_percent: Annotated[float, _THRESHOLD] = field()
    """Largest difference from the baseline's perplexity that counts as none, in percent."""
