"""A suite: the runs that put a paper's claims to the test, at a small scale and at the published one, as strict YAML."""

from dataclasses import dataclass, field
from typing import Literal

from backstory.config.eval_options import ReadingOptions
from backstory.config.examine_options import ExaminationSettings
from backstory.config.recipes import Packaged
from backstory.config.strict import between
from backstory.papers.paper import Metric

Scale = Literal["small", "full"]


@dataclass(frozen=True)
class Published:
    """A figure that a paper printed: one of a paper in this package, or a value with its source."""

    figure: str | None = None
    """PAPER/FIGURE, as `awd-lstm/ptb-test`."""
    value: float | None = between(None, 0.0, above=True)
    """The number itself."""
    source: str = ""
    """Where it is printed: authors, year, table."""


@dataclass(frozen=True)
class Reading(ReadingOptions):
    """A split that is read with a reader, as `backstory evaluate` reads it."""

    published: Published | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedExamination(ExaminationSettings):
    """An experiment on a system's use of context, with any option of `backstory examine` that its result depends on."""

    runs: int = between(1, 1)
    """How many of the system's runs are examined, in the order of its seeds."""


@dataclass(frozen=True)
class Setup:
    """How a system is run at one scale."""

    recipe: str
    """A packaged recipe, or the path of a YAML file."""
    minutes: float = field(metadata={"range": (0.0, float("inf"), True)})
    """What one run takes: on one CPU core at the small scale, on one GPU at the full one."""
    seeds: tuple[int, ...]
    """A run for each."""
    overrides: dict = field(default_factory=dict)
    """Settings that differ from the recipe's, nested as there."""
    init_from: str | None = None
    """A system whose run of the same seed each run begins with, as in `backstory train --init-from`."""
    examinations: tuple[PlannedExamination, ...] = ()


@dataclass(frozen=True)
class System:
    """A system: one line of a paper's table."""

    name: str
    """Letters, digits, dots and hyphens; run folders are called by it."""
    readings: tuple[Reading, ...] = (Reading(),)
    prepare: tuple[str, ...] = ()
    """What is done with each trained run before it is read, as `backstory reader` is told it: `tune --reader dynamic`."""
    note: str = ""
    small: Setup | None = None
    full: Setup | None = None

    def at(self, scale: Scale) -> Setup | None:
        """How the system is run at a scale; None where it is not."""
        return self.small if scale == "small" else self.full


@dataclass(frozen=True)
class Side(ReadingOptions):
    """A reading of a system, as a claim names it."""

    system: str = field(kw_only=True)


@dataclass(frozen=True)
class Claim:
    """That one reading scores better (lower) than another."""

    sentence: str
    better: Side
    than: Side
    confounded: str = ""
    """How the sides differ beyond the claim. Such a claim is not judged; its gain stands with this reason."""


@dataclass(frozen=True)
class FindingCheck:
    """That a system is judged by what a paper of this package found."""

    paper: str
    system: str
    baseline: str | None = None
    """Another system, for what the paper found of one system beside another; left out, for all that it found of one."""


@dataclass(frozen=True)
class Suite:
    """Rows and the claims made of them."""

    title: str
    systems: tuple[System, ...]
    claims: tuple[Claim, ...] = ()
    findings: tuple[FindingCheck, ...] = ()
    papers: tuple[str, ...] = ()
    """Papers of this package that it is about."""
    metric: Metric = "perplexity"
    """What is compared; lower is better."""
    note: str = ""
    """What the small scale shrinks, and whatever else a reader of its table must know."""


_PACKAGED = Packaged(Suite, "backstory.papers", "suites", "suite")


def names() -> list[str]:
    """The packaged suites."""
    return _PACKAGED.names()


def load(name_or_path: str) -> Suite:
    """A packaged suite by its name, or one's own by the path of its YAML file. Raises UserError; `plan` checks the rest."""
    return _PACKAGED.load(name_or_path)
