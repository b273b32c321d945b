"""Record of a search for settings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from backstory.results.common import Figures
from backstory.results.suite_run_record import Point
from backstory.results.validation import NOT_EMPTY, Amount, Count, Json, Name, Number, Positive, Record, Share
from backstory.utils.scores import IN_BITS, bits, nats

COMPLETE, PRUNED, AGAIN = "complete", "pruned", "again"
"""States of a trial; there are also `failed`, `running` and `waiting`."""


@dataclass(frozen=True, kw_only=True)
class ParameterRecord(Record):
    """An entry of the space that was searched."""

    name: Name
    """The setting."""
    low: Number | None
    """Lower end of a range."""
    high: Number | None
    """Upper end of it."""
    log: bool
    """True if the range is searched on a logarithmic scale."""
    choices: tuple[Any, ...]
    """The values of a setting without a range."""
    same: Name | None
    """The setting that it copies its value from."""
    when: Mapping[str, tuple[Any, ...]]
    """The values of other settings at which it is searched."""
    importance: Share | None
    """Its share in what distinguishes good trials from the others (PED-ANOVA), or null."""

    def faults(self) -> Iterator[tuple[str, str]]:
        for name in ("low", "high"):
            if not self.same and not self.choices and getattr(self, name) is None:
                yield name, "a number"


@dataclass(frozen=True, kw_only=True)
class TrialRecord(Record):
    """One trial."""

    trial: Count
    """Its number."""
    state: Name
    """`complete`, `pruned`, `failed`, `running`, `waiting`, or `again`: killed or stopped, and tried again as another."""
    run: str
    """Its folder."""
    valid_perplexity: Positive | None
    """The best validation perplexity; null without one."""
    epochs: Count
    """Epochs that were run."""
    curve: tuple[Point, ...]
    """Pairs of an epoch and its validation perplexity."""
    seconds: Amount | None
    """Duration in seconds; null if it has not ended, or its process was lost, so that its end is unknown."""
    settings: Json
    """The settings that were tried."""
    problem: str
    """Its error; empty without one."""

    def faults(self) -> Iterator[tuple[str, str]]:
        if self.state == COMPLETE and self.valid_perplexity is None:
            yield "valid_perplexity", "a number above 0"

    @property
    def value(self) -> float:
        """Its validation perplexity; infinite without one."""
        return float("inf") if self.valid_perplexity is None else self.valid_perplexity

    @property
    def has_value(self) -> bool:
        """True if it ended with a value: complete trials, and pruned ones at their best."""
        return self.valid_perplexity is not None and self.state in (COMPLETE, PRUNED)


@dataclass(frozen=True, kw_only=True)
class SearchFigures(Figures):
    """Trials of settings from a space, as `backstory sweep run` writes them at its end and `backstory sweep show --json`
    prints them at any time."""

    kind = "search"
    rows_in = "trials"
    recipe: Name
    """The recipe that was searched."""
    space: Name
    """The space of settings."""
    title: str
    """The space's title, or empty."""
    unit: Name | None
    """Unit of the scores; null while no trial is complete."""
    best: Count | None
    """The complete trial with the lowest validation perplexity."""
    valid_perplexity: Positive | None
    """Its perplexity."""
    parameters: Annotated[tuple[ParameterRecord, ...], NOT_EMPTY]
    """The entries of the space."""
    trials: tuple[TrialRecord, ...]
    """The trials."""

    def faults(self) -> Iterator[tuple[str, str]]:
        numbers = [trial.trial for trial in self.trials]
        if len(set(numbers)) < len(numbers):
            yield "trials", "trials of numbers that differ"
        complete = [trial.trial for trial in self.trials if trial.state == COMPLETE]
        if self.best not in (complete or [None]):
            yield "best", "a trial that is complete"

    @property
    def label(self) -> str:
        return f"sweep {self.recipe} over {self.space}"

    def scored(self) -> "SearchFigures":
        """Return it with the values of its trials as displayed: bits per character or byte, else perplexities."""
        if self.unit not in IN_BITS:
            return self
        trials = [
            replace(t, valid_perplexity=None if t.valid_perplexity is None else bits(nats(t.valid_perplexity)),
                    curve=tuple((epoch, bits(nats(value))) for epoch, value in t.curve))
            for t in self.trials
        ]  # fmt: skip
        return replace(self, trials=tuple(trials))

    @property
    def best_trial(self) -> TrialRecord | None:
        """The complete trial with the lowest perplexity."""
        return next((trial for trial in self.trials if trial.trial == self.best), None)

    @property
    def valued(self) -> list[TrialRecord]:
        """The trials that ended with a value."""
        return [trial for trial in self.trials if trial.has_value]

    @property
    def ranked(self) -> list[TrialRecord]:
        """The complete trials, the best first."""
        complete = [trial for trial in self.trials if trial.state == COMPLETE]
        return sorted(complete, key=lambda trial: (trial.value, trial.trial))
