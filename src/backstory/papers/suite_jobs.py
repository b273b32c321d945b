"""The runs of a suite as jobs: their order, progress and time left."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from backstory.jobs.launchers import Launcher
from backstory.jobs.runner import DONE, FAILED, STOPPED, STYLES, WAITING, CommandExit, Job, JobDisplay, JobRow
from backstory.papers.paper import Metric
from backstory.papers.plan import SuiteRun
from backstory.papers.suite_folder import SuiteCommand, SuiteFolder
from backstory.results.common import ProvenanceRecord
from backstory.results.run_results import read_pace
from backstory.results.suite_run_record import RunRecord
from backstory.storage.lock import held
from backstory.storage.run_files import RESULT
from backstory.utils.formats import MISSING, decimal, duration, perplexity

COLUMNS = ("run", "seed", "state", "validation", "time left")
MOST_LOST_MACHINES = 3
"""Number of times that a run continues elsewhere after losing its machine."""


@dataclass(frozen=True)
class KnownRun:
    """A finished run of another reproduction of the suite."""

    record: RunRecord
    """The run as that result has it, with `known`, the name of the file."""
    provenance: ProvenanceRecord
    """Device, precision and corpus of its training, as far as the result has them."""
    path: Path
    """The file of that result."""


@dataclass
class RunJob(Job):
    """A run and its progress. A run that fails leaves the others alone, and is tried again by the next `reproduce`."""

    run: SuiteRun
    folder: SuiteFolder
    state: str = WAITING
    """waiting, running, preparing, reading, examining, done, failed or stopped."""
    problem: str = ""
    """Why it failed, in one line."""
    epoch: int = 0
    """Epochs done."""
    epochs: int | None = 1
    """The most epochs there can be; None for a training of so many minutes or steps."""
    trained: float = 0.0
    """Share of the training that is done; while it runs, relative to its maximum epochs, before which it may end."""
    training_left: bool = True
    """False once the training has its result."""
    to_read: float = 0.0
    """Share of its commands that are left once it is trained: preparations, readings and examinations."""
    valid: float | None = None
    """The best validation perplexity so far."""
    minutes: float = 0.0
    """Time that the whole run is expected to take, or took."""
    paced: float | None = None
    """Time that it takes at the pace of its training so far; None before the first epoch."""
    known: KnownRun | None = None
    """The run of another reproduction that its figures are taken from."""
    lost_machines: int = 0
    """Number of times that it lost its machine."""
    _command: SuiteCommand | None = None

    @property
    def name(self) -> str:
        return f"{self.run.name} of {self.folder.path}"

    @property
    def log(self) -> Path:
        return self.folder.log(self.run)

    @property
    def minutes_left(self) -> float:
        """Return the expected time that is left: of the training, or of what follows, each command for an equal part."""
        left = 1 - self.trained if self.trained < 1 else self.to_read
        return 0.0 if self.state in (DONE, FAILED) else self.minutes * left

    @property
    def status(self) -> str:
        """Return the state in words."""
        if self.state == "running":
            last = "" if self.epochs is None else f" of {self.epochs}"
            return f"running, epoch {min(self.epoch + 1, self.epochs or math.inf)}{last}"
        return f"{self.state}: {self.problem}" if self.problem else self.state

    def next_command(self) -> Sequence[str] | None:
        if self.state == FAILED:
            return None
        self._command = next(iter(self.unfinished()), None)
        if self._command is None:
            self.watch()
            self.state, self.minutes = DONE, minutes_taken(self.folder, self.run)
            return None
        self.state = self._command.state
        return self._command.arguments

    def unfinished(self) -> list[SuiteCommand]:
        """Return the commands that have no result yet, in order, and note their share and whether the training is one."""
        commands = self.folder.commands(self.run)
        left = [command for command in commands if not command.done()]
        self.to_read = len(left) / len(commands)
        self.training_left = any(command.kind == "training" for command in left)
        return left

    def watch(self) -> None:
        """Read the training's log; a damaged one changes nothing."""
        training = self.run.config.training
        self.epochs = training.most_epochs
        pace = read_pace(self.folder.run(self.run), training)
        if pace is None:
            return
        self.epoch = pace.epochs
        if pace.valid_perplexity is None:
            return
        self.valid = pace.valid_perplexity
        self.trained = pace.share if self.training_left else 1.0
        if training.minutes is None:
            self.paced = pace.minutes / self.trained
            self.minutes = self.minutes if self.state in (WAITING, DONE, FAILED, STOPPED) else self.paced

    def command_ended(self, ending: CommandExit) -> None:
        assert self._command is not None
        if ending.code == 1 and self._command.done():
            return  # an audit failed, and the claims about this system will say so
        if ending.code == 0 and not self._command.done():
            verb, result = self._command.arguments[0], self._command.out / RESULT
            self.fail(f"{verb} ended well, but {result} is damaged; remove that file")
        elif ending.lost and self.lost_machines < MOST_LOST_MACHINES:
            self.lost_machines += 1  # the next command resumes it
        elif ending.code != 0:
            self.fail(ending.reason)

    def interrupted(self, ending: CommandExit | None) -> None:
        self.watch()
        self.state = STOPPED

    def fail(self, problem: str) -> None:
        self.state, self.problem = FAILED, problem

    def row(self, metric: Metric) -> JobRow:
        """Return what is shown of the run, its validation in the metric of the suite."""
        value = _valid_figure(self.valid, metric)
        left = duration(60 * self.minutes_left) if self.minutes_left else MISSING
        line = "" if self.status == WAITING else f"{self.run.name}: {self.status}"
        if line and self.valid is not None and not self.problem:
            line += f", validation {metric.replace('_', ' ')} {value}"
        cells = (self.run.system, str(self.run.seed), self.status, value, left)
        return JobRow(cells, STYLES.get(self.state), line)


class SuiteJobs:
    """The queue of a suite's runs, for `run_jobs`: the longest first, so that none is left alone at the end.

    A run that another process trains at the moment (one left by a killed `reproduce`, about to end) waits. So does one
    that begins with another run, until that one is done.
    """

    def __init__(
        self, jobs: Sequence[RunJob], display: JobDisplay, title: str, launcher: Launcher, metric: Metric
    ) -> None:
        self._jobs, self._display, self._title = jobs, display, title
        self._launcher = launcher
        self._metric: Metric = metric
        self._by_name = {job.run.name: job for job in jobs}

    def take(self) -> RunJob | None:
        waiting = sorted((job for job in self._jobs if job.state == WAITING), key=lambda job: -job.minutes)
        return next((job for job in waiting if self._can_start(job)), None)

    def finished(self) -> bool:
        return not any(job.state == WAITING for job in self._jobs)

    def show(self, running: Sequence[Job] = ()) -> None:
        estimate_minutes(self._jobs)
        done = sum(job.state == DONE for job in self._jobs)
        left = duration(60 * minutes_to_go(self._jobs, max(1, self._launcher.slots)))
        title = f"{self._title}: {done} of {len(self._jobs)} runs done, about {left} left"
        self._display.show(title, [job.row(self._metric) for job in self._jobs])

    def _can_start(self, job: RunJob) -> bool:
        """Return True if a waiting run may start now. It fails if the run that it begins with has failed."""
        first = self._by_name.get(job.run.init_from or "")  # a run that is not here was finished before
        if first is not None and first.state == FAILED:
            job.fail(f"it begins with {first.run.name}, which failed")
            return False
        return (first is None or first.state == DONE) and not held(job.folder.run(job.run))


def run_jobs_of(folder: SuiteFolder, runs: Sequence[SuiteRun], known: Mapping[str, KnownRun]) -> list[RunJob]:
    """Return the runs as jobs, with their progress before anything is started and the time each is expected to take."""
    jobs = [RunJob(run, folder) for run in runs]
    for job in jobs:
        if not job.unfinished():
            job.state = DONE
        job.watch()
        if job.state == WAITING and (known_run := known.get(job.run.name)):
            job.state, job.known, job.valid = DONE, known_run, known_run.record.valid_perplexity
        if job.state == DONE:
            job.minutes = job.known.record.seconds / 60 if job.known else minutes_taken(folder, job.run)
    estimate_minutes(jobs)
    return jobs


def estimate_minutes(jobs: Sequence[RunJob]) -> None:
    """Set the time that each waiting run is expected to take, by those that are finished or begun."""
    here = {job.run.name: job.minutes for job in jobs if job.state == DONE and not job.known}
    here |= {job.run.name: job.paced for job in jobs if job.state != DONE and job.paced}
    # Other machines have other speeds: their times are a guess if none was measured here.
    measured = here or {job.run.name: job.minutes for job in jobs if job.known}
    runs = [job.run for job in jobs]
    for job in jobs:
        if job.state == WAITING:
            job.minutes = expected_minutes(job.run, runs, measured)


def minutes_taken(folder: SuiteFolder, run: SuiteRun) -> float:
    """Return the minutes that a finished run's commands took."""
    return sum(result.provenance.seconds or 0.0 for result in folder.results(run)) / 60


def expected_minutes(run: SuiteRun, runs: Sequence[SuiteRun], measured: Mapping[str, float]) -> float:
    """Return the minutes that a run took, else the mean of its system's finished runs, else the stated ones, scaled as the
    stated minutes of the finished runs were.
    """
    if run.name in measured:
        return measured[run.name]
    finished = [r for r in runs if r.name in measured]
    if same_system := [measured[r.name] for r in finished if r.system == run.system]:
        return sum(same_system) / len(same_system)
    stated = sum(r.minutes for r in finished)
    return run.minutes * (sum(measured.values()) / stated if stated else 1.0)


def minutes_to_go(jobs: Sequence[RunJob], processes: int) -> float:
    """Return the minutes until all is done with so many processes side by side.

    It is at least the time of the longest run that is left, added to that of the run it begins with.
    """
    by_name = {job.run.name: job for job in jobs}

    def until_done(job: RunJob) -> float:
        first = by_name.get(job.run.init_from or "")
        return job.minutes_left + (until_done(first) if first else 0.0)

    return max([sum(job.minutes_left for job in jobs) / processes, *map(until_done, jobs)], default=0.0)


def _valid_figure(valid: float | None, metric: Metric) -> str:
    """Return a validation perplexity in the metric."""
    if valid is None or metric == "perplexity":
        return perplexity(valid)
    return decimal(math.log2(valid), 3)
