"""What a paper's module holds: its citation and the figures it printed."""

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Paper:
    """A paper whose claims are run here."""

    title: str
    cited: str
    """Authors and year: `Merity et al. 2018`."""
    figures: Mapping[str, Figure]
    """By a name that says system, corpus and split: `ptb-test`."""
