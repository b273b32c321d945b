"""The runs of a suite as jobs: folder, commands (train, prepare, read, examine), progress and time left."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backstory.config import RunConfig, UserError, to_yaml
from backstory.config.errors import as_argument
from backstory.config.formats import MISSING, decimal, duration, perplexity
from backstory.config.renamed import current_provenance
from backstory.config.small_file import read_small
from backstory.config.strict import from_file
from backstory.jobs.launchers import Launcher
from backstory.jobs.runner import CommandExit, Job, JobDisplay, JobRow
from backstory.papers.paper import Metric
from backstory.papers.plan import SuiteRun, preparation
from backstory.papers.suite import PlannedExamination, PlannedReading, Suite
from backstory.readers.registry import parse_stack, stack_name
from backstory.results import Result, result_or_none
from backstory.results.common import ProvenanceRecord
from backstory.results.run_results import is_stale, read_epochs
from backstory.results.suite_run_record import RunRecord
from backstory.runs.run import CONFIG
from backstory.runs.run_folder import RunFolder
from backstory.storage.atomic import TEMPORARY, sweep_temporaries, within, write_atomically
from backstory.storage.documents import parse
from backstory.storage.lock import LOCK, held
from backstory.storage.provenance import RESULT, check_place
from backstory.training.resuming import INIT_FROM

# --- folder and commands ---

AGAIN = "--again"
"""Flag with which an examination replaces one that was made with other options."""
SUITE, EARLIER_SUITE = "suite.yaml", "grid.yaml"
"""The suite as it is run, by which the folder of a reproduction is known."""


@dataclass(frozen=True)
class SuiteCommand:
    """One command of a run."""

    state: str
    """State of the run meanwhile: running, preparing, reading, examining."""
    arguments: tuple[str, ...]
    kind: str
    """Kind of its result."""
    out: Path
    """Folder of its result."""
    flags: tuple[str, ...] = ()
    """Flags that its result depends on; those of a training are in its settings file, which `SuiteFolder.check` compares."""
    output: Path | None = None
    """The file that shows that it is done, of a command that writes no result."""
    reading: PlannedReading | None = None
    """The reading of the suite that it makes."""
    examination: PlannedExamination | None = None
    """The examination of the suite that it makes."""

    def result(self) -> Result[Any] | None:
        """Return its result; None if that is missing, damaged, or of a command with other flags or of other weights."""
        if self.output is not None:
            return None
        result = result_or_none(self.out / RESULT)
        if result is None or result.kind != self.kind:
            return None
        try:
            # The recorded command, from after `backstory VERB RUN` up to `--out FOLDER`.
            flags = shlex.split(str(result.provenance.command))[3:-2]
        except ValueError:
            return None
        if self.flags and [flag for flag in flags if flag != AGAIN] != [*self.flags]:
            return None
        return result if result.kind == "training" or not is_stale(result, self.out.parent) else None

    def done(self) -> bool:
        """Return True if its result is there."""
        return self.result() is not None if self.output is None else self.output.is_file()


@dataclass(frozen=True)
class SuiteFolder:
    """Paths of a reproduction."""

    path: Path

    def run(self, run: SuiteRun) -> Path:
        return within(self.path, "runs", run.name)

    def recipe(self, run: SuiteRun) -> Path:
        return within(self.path, "recipes", f"{run.system}.yaml")

    def log(self, run: SuiteRun) -> Path:
        """Return the file with the output of a run's commands."""
        return within(self.path, "logs", f"{run.name}.log")

    def seeds(self) -> list[tuple[str, int]]:
        """Return the runs that were begun here, as (system, seed)."""
        names = sorted(path.parent.name for path in self.path.glob(f"runs/*/{CONFIG}"))
        pairs = (name.rpartition("-seed")[::2] for name in names)
        return [(system, int(seed)) for system, seed in pairs if seed.isdecimal()]

    def commands(self, run: SuiteRun) -> list[SuiteCommand]:
        """Return the commands of a run: train, prepare, read, examine. A training that was begun is resumed."""
        folder = self.run(run)
        train = ("train", as_argument(self.recipe(run)), "--seed", str(run.seed), "--out", as_argument(folder))
        commands = [SuiteCommand("running", (*train, *self._start_flags(run)), "training", folder)]
        for text in run.prepare:
            step = preparation(text)
            arguments = ("reader", step.action, as_argument(folder), *step.arguments)
            commands.append(SuiteCommand("preparing", arguments, "", folder, output=folder / step.output))
        commands += [_evaluate(folder, reading) for reading in run.readings]
        commands += [_examine(folder, examination) for examination in run.examinations]
        return commands

    def _start_flags(self, run: SuiteRun) -> list[str]:
        """Return how its training starts: anew, with another run's weights, or resumed."""
        folder = self.run(run)
        init = ["--init-from", as_argument(self.path / "runs" / run.init_from)] if run.init_from else []
        if not (folder / CONFIG).is_file():
            return init
        # A training that was killed before its first checkpoint has nothing yet of the run it starts from.
        resumable = not init or RunFolder(folder).resumable
        return ["--resume"] if resumable else ["--overwrite", *init]

    def finished_commands(self, run: SuiteRun) -> list[tuple[SuiteCommand, Result[Any]]]:
        """Return the commands that have a result, with it; training first. Other files in the run's folder are ignored."""
        return [(command, result) for command in self.commands(run) if (result := command.result())]

    def results(self, run: SuiteRun) -> list[Result[Any]]:
        """Return the results so far, training first."""
        return [result for _, result in self.finished_commands(run)]

    def finished(self, run: SuiteRun) -> bool:
        """Return True if all results of a run are there."""
        return all(command.done() for command in self.commands(run))

    def check(self, runs: Sequence[SuiteRun]) -> None:
        """Raise UserError unless the runs can begin or go on here; nothing is written."""
        check_place(self.path, "reproduction")
        others = [p for p in self.path.glob("*") if p.name != LOCK and not p.name.startswith(TEMPORARY)]
        if others and not any((self.path / name).is_file() for name in (SUITE, EARLIER_SUITE)):
            raise UserError(f"{self.path} holds something other than a reproduction; choose another folder with --out")
        for run in runs:
            saved = self.run(run) / CONFIG
            if saved.is_file() and from_file(RunConfig, saved, self.run(run)) != run.config:
                raise UserError(
                    f"{self.run(run)} was trained with other settings than the suite now has for it; "
                    "remove that folder to train it again, or choose another with --out"
                )
            if saved.is_file() and (first := self._initial_run(run)) != run.init_from:
                raise UserError(
                    f"{self.run(run)} began with {first or 'weights of its own'}, and the suite now has it begin with "
                    f"{run.init_from or 'weights of its own'}; remove that folder to train it again, or "
                    "choose another with --out"
                )

    def _initial_run(self, run: SuiteRun) -> str | None:
        """Return the run that it started from, as its training recorded; as long as nothing is recorded, the planned one."""
        path = RunFolder(self.run(run)).provenance
        try:
            recorded = current_provenance(parse(read_small(path, inside=path.parent)))
        except (OSError, ValueError):
            return run.init_from
        first = recorded.get(INIT_FROM) if isinstance(recorded, dict) else None
        return first.get("run") if isinstance(first, dict) else None

    def open(self, suite: Suite, runs: Sequence[SuiteRun]) -> None:
        """Create the folder, or continue in it, after `check`."""
        self.path.mkdir(parents=True, exist_ok=True)
        sweep_temporaries(self.path)
        write_atomically(self.path / SUITE, to_yaml(suite))  # first, as it makes this the folder of a reproduction
        for name in ("runs", "recipes", "logs"):
            folder = within(self.path, name)
            folder.mkdir(exist_ok=True)
            sweep_temporaries(folder)
        for run in {
            run.system: run for run in reversed(runs)
        }.values():  # with the first seed; commands name each run's own
            write_atomically(self.recipe(run), to_yaml(run.config))


def _evaluate(folder: Path, reading: PlannedReading) -> SuiteCommand:
    out, flags = within(folder, reading.folder_name()), reading.flags()
    arguments = ("evaluate", as_argument(folder), *flags, "--out", as_argument(out))
    return SuiteCommand("reading", arguments, "evaluation", out, flags, reading=reading)


def _examine(folder: Path, examination: PlannedExamination) -> SuiteCommand:
    reader = stack_name(parse_stack(examination.reader or "static"))
    out, flags = within(folder, examination.folder_name(examination.split, reader)), tuple(examination.flags())
    # A result that is there and not done has other options; the folder belongs to the suite, which replaces it.
    again = (AGAIN,) if (out / RESULT).is_file() else ()
    arguments = ("examine", as_argument(folder), *flags, *again, "--out", as_argument(out))
    return SuiteCommand("examining", arguments, "examination", out, flags, examination=examination)


# --- jobs ---

WAITING, DONE, FAILED, STOPPED = "waiting", "done", "failed", "stopped"
COLUMNS = ("run", "seed", "state", "validation", "time left")
LOSSES = 3
"""Times that a run goes on elsewhere after its machine was lost."""
_STYLES = {DONE: "green", FAILED: "red", WAITING: "dim"}


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
    """Share of the training that is done; of one that runs, of its most epochs, before which it may end."""
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
    losses: int = 0
    """Times that the machine it ran on was lost."""
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
        records = read_epochs(self.folder.run(self.run))
        if records is None:
            return
        epochs = [(r.valid_perplexity, r.seconds) for r in records if r.seconds is not None]
        steps = max((r.step for r in records if r.step is not None), default=0)
        self.epoch = len(epochs)
        self.valid = min((value for value, _ in epochs), default=None)
        if not epochs:
            return
        minutes = epochs[-1][1] / 60
        if training.minutes is not None:
            share = minutes / training.minutes
        else:
            share = len(epochs) / self.epochs if self.epochs is not None else steps / (training.steps or 1)
        self.trained = min(1.0, share) if self.training_left else 1.0
        if training.minutes is None:
            self.paced = minutes / self.trained
            self.minutes = self.minutes if self.state in (WAITING, DONE, FAILED, STOPPED) else self.paced

    def command_ended(self, ending: CommandExit) -> None:
        assert self._command is not None
        if ending.code == 1 and self._command.done():
            return  # an audit failed, and the claims about this system will say so
        if ending.code == 0 and not self._command.done():
            verb, result = self._command.arguments[0], self._command.out / RESULT
            self.fail(f"{verb} ended well, but {result} is damaged; remove that file")
        elif ending.lost and self.losses < LOSSES:
            self.losses += 1  # the next command resumes it
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
        return JobRow(cells, _STYLES.get(self.state), line)


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
        expect(self._jobs)
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
    expect(jobs)
    return jobs


def expect(jobs: Sequence[RunJob]) -> None:
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
    if same_row := [measured[r.name] for r in finished if r.system == run.system]:
        return sum(same_row) / len(same_row)
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
