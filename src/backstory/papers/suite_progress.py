"""Where every run of a reproduction stands, read from its folder, and how long the rest will take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backstory.config import UserError
from backstory.papers.plan import Run
from backstory.papers.suite_folder import Folder
from backstory.reports.results import MutableRecord, read_log

WAITING, DONE, FAILED, STOPPED = "waiting", "done", "failed", "stopped"


@dataclass(frozen=True)
class Known:
    """A finished run of another reproduction of the grid."""

    record: MutableRecord
    """The run as that result holds it, with `known`, the name of the file."""
    provenance: MutableRecord
    """`device`, `precision`, `precision_reason` and `corpus` of its training, as far as the result tells them."""


@dataclass
class Standing:
    """A run on its way."""

    run: Run
    state: str = WAITING
    """waiting, running, preparing, reading, examining, done, failed or stopped."""
    problem: str = ""
    """Why it failed, in one line."""
    epoch: int = 0
    """Epochs done."""
    epochs: int = 1
    """The most there may be."""
    valid: float | None = None
    """The best validation perplexity so far."""
    minutes: float = 0.0
    """What the whole run is expected to take, or took."""
    known: Known | None = None
    """Where its figures come from if it was done elsewhere."""

    @property
    def minutes_left(self) -> float:
        """Of an expected time, what is left once these epochs are done."""
        if self.state in (DONE, FAILED):
            return 0.0
        return self.minutes * (1 - min(1.0, self.epoch / self.epochs))

    def look(self, folder: Folder) -> None:
        """Read the run's training log. A damaged one is no news: the run's own commands tell of it."""
        settings = self.run.config.training
        self.epochs = settings.epochs + settings.finetune_epochs
        try:
            log = read_log(folder.run(self.run) / "metrics.jsonl")
        except UserError:
            return
        keys = ("valid_perplexity", "seconds")
        epochs = [e for e in log if e.get("event") == "epoch" and all(isinstance(e.get(k), int | float) for k in keys)]
        self.epoch = len(epochs)
        self.valid = min((e["valid_perplexity"] for e in epochs), default=None)
        if epochs and self.state == "running":
            self.minutes = epochs[-1]["seconds"] / 60 * self.epochs / len(epochs)


def standings(folder: Folder, runs: Sequence[Run], known: Mapping[str, Known]) -> list[Standing]:
    """Where the runs stand before anything is started, with the time each is expected to take."""
    found = [Standing(run, DONE if folder.finished(run) else WAITING) for run in runs]
    for standing in found:
        standing.look(folder)
        if standing.state == WAITING and (there := known.get(standing.run.name)):
            standing.state, standing.known, standing.valid = DONE, there, there.record["valid_perplexity"]
    here = {s.run.name: minutes_taken(folder, s.run) for s in found if s.state == DONE and not s.known}
    # Other machines have other speeds: their times are a guess where there are none from here.
    measured = here or {s.run.name: s.known.record["seconds"] / 60 for s in found if s.known}
    for standing in found:
        standing.minutes = expected_minutes(standing.run, runs, measured)
    return found


def minutes_taken(folder: Folder, run: Run) -> float:
    """The time that a finished run's commands took, in minutes."""
    seconds = (result.provenance.get("seconds") for result in folder.results(run))
    return sum(s for s in seconds if isinstance(s, int | float)) / 60


def expected_minutes(run: Run, runs: Sequence[Run], measured: Mapping[str, float]) -> float:
    """What a run took, or else the finished ones of its row, or else what is stated, scaled as those of other rows were."""
    if run.name in measured:
        return measured[run.name]
    known = [r for r in runs if r.name in measured]
    if alike := [measured[r.name] for r in known if r.row == run.row]:
        return sum(alike) / len(alike)
    stated = sum(r.minutes for r in known)
    return run.minutes * (sum(measured.values()) / stated if stated else 1.0)


def minutes_to_go(found: Sequence[Standing], processes: int) -> float:
    """Minutes until all is done, with so many processes side by side.

    That is no shorter than the longest run that is left, after the one it begins with.
    """
    by_name = {standing.run.name: standing for standing in found}

    def until_done(standing: Standing) -> float:
        first = by_name.get(standing.run.begin or "")
        return standing.minutes_left + (until_done(first) if first else 0.0)

    return max([sum(s.minutes_left for s in found) / processes, *map(until_done, found)], default=0.0)
