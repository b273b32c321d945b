"""The trials of a sweep: a queue in its storage, and each trial as a job, a training in its own process and run folder.

One process claims a trial at a time, and a trial whose process is lost is queued again.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from backstory.config import RunConfig, to_yaml
from backstory.jobs.runner import CommandExit, Job, JobDisplay, JobRow
from backstory.results import TrainingFigures, result_or_none
from backstory.results.run_results import read_epochs
from backstory.storage.atomic import write_atomically
from backstory.storage.run_files import RESULT
from backstory.tuning.space import Parameter, Value, draw
from backstory.tuning.sweep_storage import SweepFolder, set_sampler
from backstory.utils.errors import UserError, as_argument
from backstory.utils.formats import validation, validation_cell

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

TRIES = 3
"""Number of kills after which a trial has failed."""
WORKER, FIRST, AFTER, KILLS, PROBLEM = "worker", "first", "after", "kills", "problem"
"""Attributes of a trial in the storage: its process, the numbers of its first try and of the one before, kills, problem."""
SECONDS = "seconds"
"""Attribute of a trial: its duration; without it if its process was lost.

The storage has the dates of its start and end, but clocks are set, and Optuna's dates lack the change to winter time.
"""
BROKEN_DOWN_EXIT = 3
"""Exit code of a training whose loss is no longer finite."""
MOST_FAILURES = 5
"""Trials in a row that may fail before the sweep is given up."""
COLUMNS = ("trial", "epoch", "validation", "settings")


@dataclass
class ClaimedTrial:
    """A trial that this process works on."""

    optuna: "Trial"
    first: int
    """Number of its first try, which names its run folder."""
    kills: int
    config: RunConfig
    started: float
    """Value of the monotonic clock."""

    @property
    def number(self) -> int:
        return self.optuna.number

    def note_end(self, problem: str = "") -> None:
        """Store the duration, and the problem if there is one."""
        self.optuna.set_user_attr(SECONDS, round(time.monotonic() - self.started, 3))
        if problem:
            self.optuna.set_user_attr(PROBLEM, problem)


def first_of(trial: "FrozenTrial") -> int:
    """Return the number of a trial's first try."""
    return trial.user_attrs.get(FIRST, trial.number)


def tried_again(trials: Sequence["FrozenTrial"]) -> Mapping[int, "FrozenTrial"]:
    """Return the trial that repeats another one, by the number of that other one."""
    return {t.user_attrs[AFTER]: t for t in trials if AFTER in t.user_attrs}


def best_of(trials: Sequence["FrozenTrial"]) -> "FrozenTrial | None":
    """Return the complete trial with the lowest value."""
    complete = [t for t in trials if t.state.name == "COMPLETE" and t.value is not None]
    return min(complete, key=lambda t: t.value or 0.0, default=None)


class TrialQueue:
    """The trials of a sweep, for one of the processes that work on them."""

    def __init__(
        self, study: "Study", folder: SweepFolder, space: tuple[Parameter, ...], recipe: RunConfig, worker: str
    ) -> None:
        self._study, self._folder, self._space, self._recipe, self._worker = study, folder, space, recipe, worker

    def trials(self) -> Sequence["FrozenTrial"]:
        """Return the trials that count: of one that was tried again, the last try."""
        trials = self._study.get_trials(deepcopy=False)
        again = tried_again(trials)
        return [t for t in trials if t.number not in again]

    def claim(self, total: int) -> ClaimedTrial | None:
        """Claim the next trial; None if `total` trials have ended or are under way."""
        from optuna.trial import TrialState

        with self._folder.claims():
            self._give_back_lost()
            trials = self.trials()
            if sum(t.state != TrialState.WAITING for t in trials) >= total:
                return None
            trial = self._study.ask()
            trial.set_user_attr(WORKER, self._worker)
            first, kills = trial.user_attrs.get(FIRST, trial.number), trial.user_attrs.get(KILLS, 0)
            set_sampler(self._study, self._seed(first))
            config = draw(self._space, self._recipe, lambda p: _suggest(trial, p))
            try:
                write_atomically(self._folder.recipe(first), to_yaml(config))
            except OSError:  # no room for the recipe: the trial does not count
                self._try_again(trial.number, trial.params, first, kills)
                raise
            return ClaimedTrial(trial, first, kills, config, time.monotonic())

    def _seed(self, first: int) -> int:
        """Return the seed of a trial from its place among all, tries left out: kills do not change what is sampled."""
        earlier = sum(t.number == first_of(t) < first for t in self._study.get_trials(deepcopy=False))
        return int(np.random.SeedSequence([self._recipe.seed, earlier]).generate_state(1)[0])

    def end(self, trial: ClaimedTrial, value: float | None, problem: str = "", pruned: bool = False) -> None:
        """Record the end of a trial: its value, or that it was pruned or failed."""
        from optuna.trial import TrialState

        with self._folder.claims():
            trial.note_end(problem)
            if value is not None:
                self._study.tell(trial.optuna, value)
            else:
                self._study.tell(trial.optuna, state=TrialState.PRUNED if pruned else TrialState.FAIL)

    def give_back(self, trial: ClaimedTrial, killed: bool, problem: str = "") -> bool:
        """Queue a trial again that was stopped or killed. Return False if it was killed too often, and has failed."""
        with self._folder.claims():
            trial.note_end(problem if killed and trial.kills + 1 >= TRIES else "")
            return self._try_again(trial.number, trial.optuna.params, trial.first, trial.kills + killed)

    def _give_back_lost(self) -> None:
        """Queue the trials again whose process is gone."""
        from optuna.trial import TrialState

        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            # Trials are claimed under the same lock: one without a worker was claimed by a process that is gone.
            worker = trial.user_attrs.get(WORKER)
            if worker == self._worker:
                continue
            if not self._folder.alive(worker, first_of(trial)):
                first = first_of(trial)
                # One that is tried again has its settings here until it is claimed. One that was killed while they were sampled
                # gets the same, sampled anew with the same seed.
                params = trial.system_attrs.get("fixed_params", {}) | trial.params
                params = params if self._folder.recipe(first).is_file() else {}
                self._try_again(trial.number, params, first, trial.user_attrs.get(KILLS, 0) + 1)
                if isinstance(worker, str):
                    self._folder.drop_worker(worker)

    def _try_again(self, number: int, params: dict[str, Any], first: int, kills: int) -> bool:
        from optuna.trial import TrialState

        # A process may have been killed here before, after the first of these two steps.
        is_queued = number in tried_again(self._study.get_trials(deepcopy=False))
        if not is_queued and kills < TRIES:
            attributes = {FIRST: first, AFTER: number, KILLS: kills}
            self._study.enqueue_trial(params, user_attrs=attributes)
        self._study.tell(number, state=TrialState.FAIL)
        return kills < TRIES


def _suggest(trial: "Trial", parameter: Parameter) -> Value:
    if parameter.low is None or parameter.high is None:
        return trial.suggest_categorical(parameter.name, parameter.choices)
    if parameter.whole:
        return trial.suggest_int(parameter.name, int(parameter.low), int(parameter.high), log=parameter.log)
    return trial.suggest_float(parameter.name, parameter.low, parameter.high, log=parameter.log)


@dataclass(frozen=True)
class TrialOutcome:
    """The end of a trial."""

    number: int
    first: int
    """Number of its first try."""
    state: str
    """complete, pruned, failed, or again: it will be tried again."""
    value: float | None = None
    """Validation perplexity: the last of a complete trial, the best so far of a pruned one."""
    problem: str = ""

    def line(self, best: bool, unit: str | None) -> str:
        """Return the outcome in one line, marked if no trial is better; `unit` as in `SweepJobs`."""
        again = f" ({self.first} again)" if self.first != self.number else ""
        value = "" if self.value is None else f", {validation(self.value, unit)}"
        if self.state == "again":
            outcome = f"{self.problem}; it is tried again"
        else:
            outcome = f"{self.state}: {self.problem}" if self.problem else f"{self.state}{value}"
        return f"trial {self.number}{again}: {outcome}{'  best' if best else ''}"


class TrialJob(Job):
    """The training of a claimed trial."""

    def __init__(
        self, trial: ClaimedTrial, queue: TrialQueue, folder: SweepFolder, report: Callable[[TrialOutcome], None]
    ) -> None:
        self.trial, self._queue, self._folder, self._report = trial, queue, folder, report
        self.name = f"trial {trial.number} of {folder.path}"
        self.curve: dict[int, float] = {}
        """Validation perplexity by epoch, reported to the storage."""
        self._run_folder = folder.run(trial.first)
        self._started = self._pruned = False

    @property
    def log(self) -> Path:
        return self._folder.log(self.trial.first)

    @property
    def epochs(self) -> int | None:
        """The most epochs there can be; None for a training of a given time or number of steps."""
        return self.trial.config.training.most_epochs

    def next_command(self) -> Sequence[str] | None:
        if self._started:
            return None
        self._started = True
        resume = ["--resume"] if self._folder.begun(self.trial.first) else []
        recipe = self._folder.recipe(self.trial.first)
        return ["train", as_argument(recipe), "--out", as_argument(self._run_folder), *resume]

    def watch(self) -> None:
        """Report new epochs to the storage."""
        for record in read_epochs(self._run_folder) or []:
            if record.epoch not in self.curve:
                self.curve[record.epoch] = record.valid_perplexity
                self.trial.optuna.report(record.valid_perplexity, record.epoch)

    def ends_early(self) -> bool:
        """Return True, once, if the trial is to be pruned."""
        if self._pruned or not 0 < max(self.curve, default=0) < (self.epochs or math.inf):
            return False
        self._pruned = self.trial.optuna.should_prune()
        return self._pruned

    def command_ended(self, ending: CommandExit) -> None:
        value = self._value() if ending.code == 0 else None
        if value is not None:
            self._queue.end(self.trial, value)
            self._outcome("complete", value)
        elif ending.code == 0:
            self._fail(f"train ended well, but {self._run_folder / RESULT} is damaged")
        elif self._pruned:
            self._queue.end(self.trial, None, pruned=True)
            self._outcome("pruned", min(self.curve.values()))
        elif ending.code == BROKEN_DOWN_EXIT:
            # Pruned, not failed: from pruned trials the sampler learns to keep away.
            self._queue.end(self.trial, None, ending.reason, pruned=True)
            self._outcome("pruned", problem=ending.reason)
        elif ending.disk_full:
            self._queue.give_back(self.trial, killed=False)
        elif ending.killed:
            again = self._queue.give_back(self.trial, killed=True, problem=ending.reason)
            self._outcome("again" if again else "failed", problem=ending.reason)
        else:
            self._fail(ending.reason)

    def interrupted(self, ending: CommandExit | None) -> None:
        """Give the trial back, unless its training has just finished."""
        if ending is not None and ending.code == 0 and (value := self._value()) is not None:
            self._queue.end(self.trial, value)
        else:
            self._queue.give_back(self.trial, killed=False)

    def row(self, unit: str | None) -> JobRow:
        """Return its row in the display; `unit` as in `SweepJobs`."""
        last = self.curve.get(max(self.curve, default=0))
        epoch = str(len(self.curve) + 1)
        if self.epochs is not None:
            epoch = f"{min(len(self.curve) + 1, self.epochs)} of {self.epochs}"
        settings = (f"{name.rpartition('.')[2]} {_short(v)}" for name, v in self.trial.optuna.params.items())
        return JobRow((str(self.trial.number), epoch, validation_cell(last, unit), ", ".join(settings)))

    def _value(self) -> float | None:
        """Return the best validation perplexity of the finished training; None if its result cannot be read."""
        result = result_or_none(self._run_folder / RESULT)
        return result.figures.valid_perplexity if result and isinstance(result.figures, TrainingFigures) else None

    def _fail(self, problem: str) -> None:
        self._queue.end(self.trial, None, problem)
        self._outcome("failed", problem=problem)

    def _outcome(self, state: str, value: float | None = None, problem: str = "") -> None:
        self._report(TrialOutcome(self.trial.number, self.trial.first, state, value, problem))


class SweepJobs:
    """The queue of a sweep's trials, for `run_jobs`, until `total` trials have ended here or in other processes."""

    def __init__(
        self,
        queue: TrialQueue,
        folder: SweepFolder,
        total: int,
        keep_best: Callable[[], "FrozenTrial | None"],
        display: JobDisplay,
        title: str,
        unit: str | None = None,
    ) -> None:
        """`keep_best` keeps the files of the best trial and returns it; it is called after every trial.

        `unit`: the token of a text whose scores are shown in bits per token; None to show perplexities.
        """
        self._queue, self._folder, self._total, self._keep_best = queue, folder, total, keep_best
        self._display, self._title, self._unit = display, title, unit
        self._trials: Sequence[FrozenTrial] = []
        self._failures = 0

    def take(self) -> TrialJob | None:
        trial = self._queue.claim(self._total)
        return trial and TrialJob(trial, self._queue, self._folder, self._ended)

    def finished(self) -> bool:
        return sum(t.state.is_finished() for t in self._trials) >= self._total

    def show(self, running: Sequence[Job]) -> None:
        self._trials = trials = self._queue.trials()
        best = best_of(trials)
        others = sum(t.state.name == "RUNNING" for t in trials) - len(running)
        title = (
            f"{self._title}: {sum(t.state.is_finished() for t in trials)} of {self._total} trials done"
            f"{f', {others} running elsewhere' if others > 0 else ''}"
            f"{f'; best {validation(best.value, self._unit)}' if best is not None and best.value else ''}"
        )
        self._display.show(title, [job.row(self._unit) for job in running if isinstance(job, TrialJob)])

    def _ended(self, outcome: TrialOutcome) -> None:
        """Print the end of a trial. Raises UserError after too many failures in a row."""
        best = self._keep_best()
        self._display.say(outcome.line(best is not None and best.number == outcome.number, self._unit))
        self._failures = self._failures + 1 if outcome.state == "failed" else 0
        if self._failures == MOST_FAILURES:
            raise UserError(
                f"{MOST_FAILURES} trials in a row failed, the last because {outcome.problem}; correct the recipe or the "
                "space, and begin in another folder with --out"
            )


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
