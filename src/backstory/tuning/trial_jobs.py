"""The trials of a sweep as jobs: each is a training in its own process and run folder, pruned if it falls behind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from backstory.config import UserError
from backstory.config.errors import as_argument
from backstory.config.formats import MISSING, figure, perplexity, validation
from backstory.config.scores import nats
from backstory.jobs.runner import CommandExit, Job, JobDisplay, JobRow
from backstory.results import TrainingFigures, result_or_none
from backstory.results.run_results import read_epochs
from backstory.storage.provenance import RESULT
from backstory.tuning.sweep_folder import SweepFolder
from backstory.tuning.trial_queue import ClaimedTrial, TrialQueue, best_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

BROKEN_DOWN = 3
"""Exit code of a training whose loss is no longer finite."""
MOST_FAILURES = 5
"""Trials in a row that may fail before the sweep is given up."""
COLUMNS = ("trial", "epoch", "validation", "settings")


@dataclass(frozen=True)
class TrialOutcome:
    """How a trial ended."""

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
    """A trial that this process has claimed: one training."""

    def __init__(
        self, trial: ClaimedTrial, queue: TrialQueue, folder: SweepFolder, report: Callable[[TrialOutcome], None]
    ) -> None:
        self.trial, self._queue, self._folder, self._report = trial, queue, folder, report
        self.name = f"trial {trial.number} of {folder.path}"
        self.curve: dict[int, float] = {}
        """Validation perplexity by epoch, as far as it was reported to the storage."""
        self._run_folder = folder.run(trial.first)
        self._started = self._pruned = False

    @property
    def log(self) -> Path:
        return self._folder.log(self.trial.first)

    @property
    def epochs(self) -> int:
        """The most epochs there can be."""
        training = self.trial.config.training
        return training.epochs + training.finetune_epochs

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
        if self._pruned or not 0 < max(self.curve, default=0) < self.epochs:
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
        elif ending.code == BROKEN_DOWN:
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
        """Return what is shown while it runs; `unit` as in `SweepJobs`."""
        last = self.curve.get(max(self.curve, default=0))
        epoch = f"{min(len(self.curve) + 1, self.epochs)} of {self.epochs}"
        value = MISSING if last is None else perplexity(last) if unit is None else figure(nats(last), unit)
        settings = (f"{name.rpartition('.')[2]} {_short(v)}" for name, v in self.trial.optuna.params.items())
        return JobRow((str(self.trial.number), epoch, value, ", ".join(settings)))

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
        settle: Callable[[], "FrozenTrial | None"],
        display: JobDisplay,
        title: str,
        unit: str | None = None,
    ) -> None:
        """`settle` keeps what the best trial left, and returns that trial; it is called after every trial.

        `unit`: the token of a text whose scores are shown in bits per token; None to show perplexities.
        """
        self._queue, self._folder, self._total, self._settle = queue, folder, total, settle
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
        """Say how a trial ended. Raises UserError after too many failures in a row."""
        best = self._settle()
        self._display.say(outcome.line(best is not None and best.number == outcome.number, self._unit))
        self._failures = self._failures + 1 if outcome.state == "failed" else 0
        if self._failures == MOST_FAILURES:
            raise UserError(
                f"{MOST_FAILURES} trials in a row failed, the last because {outcome.problem}; correct the recipe or the "
                "space, and begin in another folder with --out"
            )


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
