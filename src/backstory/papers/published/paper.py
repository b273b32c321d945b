"""What a paper's module holds: its citation, the figures it printed, and what it found of a system that is examined."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Metric = Literal["perplexity", "bits_per_token"]
Printed = Literal["perplexity", "bits_per_token", "effect_percent", "tokens", "share_percent"]
"""What else a paper prints: increases of perplexity in percent, context in tokens, shares of the tokens in percent."""


@dataclass(frozen=True)
class Figure:
    """One number of a paper."""

    value: float
    split: str
    where: str
    """The table or figure of the paper."""
    reader: str = "static"
    metric: Printed = "perplexity"
    rows: int | None = 1
    """Rows that it was read in side by side; None where that is not said."""
    deviation: float | None = None
    """Over the runs that it is the mean of, where that is printed."""
    parameters: str = ""
    """Of the model, as printed: `18.3 M`; nothing where that is not printed, or is printed wrongly."""


EFFECTIVE_CONTEXT, OUTSIDE_WINDOW = "effective-context-two-sided", "outside-window"
"""What an examination finds besides the costs of its conditions: tokens of context, and the share of the text's tokens that the
window of a cache does not hold. Where a definition changes its name does, so that older results are not taken for it."""
Unit = Literal["nats", "tokens", "share"]


@dataclass(frozen=True)
class Cost:
    """What a condition of an experiment on context costs the targets of some groups, or what else the experiment finds."""

    experiment: str
    condition: str
    """Its name; or EFFECTIVE_CONTEXT of `truncate`, or OUTSIDE_WINDOW of `cache`."""
    by: str = ""
    """A split of the targets."""
    groups: tuple[str, ...] = ()
    """Groups of it, taken together."""

    def __str__(self) -> str:
        return f"{self.condition} of {self.by} {', '.join(self.groups)}" if self.by else self.condition


@dataclass(frozen=True)
class Measure:
    """A number that every examined run has: costs in nats per token, less other costs; or tokens; or a share of the text.

    Costs of one group are compared target by target; groups that differ hold different targets.
    """

    told: str
    """What it is called in a table."""
    plus: tuple[Cost, ...]
    minus: tuple[Cost, ...] = ()
    above: float | None = None
    """The finding holds where it is above this, in percent of perplexity, or of the tokens."""
    below: float | None = None
    """Likewise below this, or between both; a measure with neither is shown and decides nothing."""

    @property
    def key(self) -> str:
        """Its name in a result, the same wherever the same is measured."""
        return " - ".join([" + ".join(map(str, self.plus)), *map(str, self.minus)])

    @property
    def unit(self) -> Unit:
        kinds: dict[str, Unit] = {EFFECTIVE_CONTEXT: "tokens", OUTSIDE_WINDOW: "share"}
        return kinds.get(self.plus[0].condition, "nats")


@dataclass(frozen=True)
class Finding:
    """What a paper says of a system that it examined, and what decides whether that holds of another."""

    sentence: str
    published: str
    """What it printed of it, in a few words."""
    where: str
    """Section and figure."""
    measures: tuple[Measure, ...] = ()
    """It holds where each is where it should be."""
    about: float | None = None
    """Tokens: it holds where the effective context is between half and twice of this."""
    beside: bool = False
    """Whether it speaks of a row beside another one, about whose effective context the row's should be."""
    figures: tuple[str, ...] = ()
    """Names of the printed figures in it."""


@dataclass(frozen=True)
class Paper:
    """A paper whose claims are run here."""

    title: str
    cited: str
    """Authors and year: `Merity et al. 2018`."""
    figures: Mapping[str, Figure]
    """By a name that says system, corpus and split: `ptb-test`."""
    findings: Mapping[str, Finding] = field(default_factory=dict)
    """By a name of their own, in the paper's order."""
