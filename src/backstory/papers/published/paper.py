"""What a paper's module holds: its citation and the figures it printed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Metric = Literal["perplexity", "bits_per_token"]


@dataclass(frozen=True)
class Figure:
    """One number of a paper."""

    value: float
    split: str
    where: str
    """The table or figure of the paper."""
    reader: str = "static"
    metric: Metric = "perplexity"


@dataclass(frozen=True)
class Paper:
    """A paper whose claims are run here."""

    title: str
    cited: str
    """Authors and year: `Merity et al. 2018`."""
    figures: Mapping[str, Figure]
    """By a name that says system, corpus and split: `ptb-test`."""
