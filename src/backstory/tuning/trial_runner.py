"""Runs trials side by side: each is a training in a process and a run folder of its own, watched epoch by epoch."""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from backstory.config import UserError
from backstory.config.errors import as_argument
from backstory.jobs import child
from backstory.reports.results import read_log, result_or_none
from backstory.storage.provenance import RESULT
from backstory.training.stopping import StopRequest
from backstory.tuning.sweep_folder import Folder
from backstory.tuning.trial_queue import Claim, Queue

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

PAUSE = 0.05
"""Seconds between looks at the processes."""
LOOK = 0.5
"""Seconds between looks at what they wrote."""
ASK = 2.0
"""Seconds between looks for a trial to take, where none was left."""
BROKEN_DOWN = 3
"""Exit code of a training whose loss stopped being a finite number."""
HOPELESS = 5
"""Trials in a row that fail before the sweep is given up."""


@dataclass
class Work:
    """A trial whose training runs."""

    claim: Claim
    process: subprocess.Popen
    log: IO[bytes]
    begins: int
    """Where in the log its own lines begin."""
    curve: dict[int, float] = field(default_factory=dict)
    """Validation perplexity after each epoch that was told."""
    pruned: bool = False

    @property
    def number(self) -> int:
        return self.claim.trial.number

    @property
    def epochs(self) -> int:
        """The most there may be."""
        training = self.claim.config.training
        return training.epochs + training.finetune_epochs


@dataclass(frozen=True)
class Ended:
    """How a trial ended, to be told."""

    number: int
    first: int
    state: str
    """complete, pruned, failed, or again."""
    value: float | None = None
    problem: str = ""


class Runner:
    """Takes trials from a queue and brings them to their ends."""

    def __init__(
        self,
        queue: Queue,
        folder: Folder,
        processes: int,
        data_dir: Path | None,
        ended: Callable[[Ended], None],
    ) -> None:
        self._queue, self._folder, self._processes, self._data_dir = queue, folder, processes, data_dir
        self._ended = ended
        self._failures = 0
        self.working: list[Work] = []

    def run(self, most: int, stop: StopRequest, show: Callable[[Sequence["FrozenTrial"]], None]) -> None:
        """Work until so many trials have ended, here or in other processes; return early on a stop.

        What is under way at a stop, or at an error, is given back.
        """
        looked = asked = -ASK
        try:
            while not stop.requested:
                for work in [w for w in self.working if w.process.poll() is not None]:
                    self.working.remove(work)
                    self._finish(work)
                    asked = -ASK
                if len(self.working) < self._processes and time.monotonic() - asked > ASK:
                    while len(self.working) < self._processes and (claim := self._queue.claim(most)):
                        self._start(claim)
                    asked = time.monotonic()
                if time.monotonic() - looked > LOOK:
                    for work in self.working:
                        self._look(work)
                    trials = self._queue.trials()
                    show(trials)
                    if not self.working and sum(t.state.is_finished() for t in trials) >= most:
                        return
                    looked = time.monotonic()
                time.sleep(PAUSE)
        finally:
            self._give_back()

    def _start(self, claim: Claim) -> None:
        try:
            self.working.append(self._work(claim))
        except BaseException:  # there is no room for its log: the trial is not spent
            self._queue.give_back(claim, killed=False)
            raise

    def _work(self, claim: Claim) -> Work:
        place, resume = self._folder.run(claim.first), ["--resume"] if self._folder.begun(claim.first) else []
        log = child.open_log(self._folder.log(claim.first))
        begins = log.tell()
        arguments = ["train", as_argument(self._folder.recipe(claim.first)), "--out", as_argument(place), *resume]
        return Work(claim, child.start(arguments, log, self._data_dir), log, begins)

    def _look(self, work: Work) -> None:
        """Tell the storage of new epochs, and end a training that is to be pruned."""
        try:
            log = read_log(self._folder.run(work.claim.first) / "metrics.jsonl")
        except UserError:  # damaged: the training itself tells of it
            return
        for record in log:
            epoch, value = record.get("epoch"), record.get("valid_perplexity")
            if record.get("event") != "epoch" or not isinstance(epoch, int) or not isinstance(value, int | float):
                continue
            if epoch not in work.curve:
                work.curve[epoch] = float(value)
                work.claim.trial.report(float(value), epoch)
        last = max(work.curve, default=0)
        if not work.pruned and 0 < last < work.epochs and work.process.poll() is None:
            work.pruned = work.claim.trial.should_prune()
            if work.pruned:
                work.process.terminate()

    def _finish(self, work: Work) -> None:
        """Say how a trial ended whose process has ended. Raises NoDisk, with the trial given back, for lack of a disk."""
        work.log.close()
        self._look(work)
        claim, code = work.claim, work.process.returncode
        value = self._value(work) if code == 0 else None
        if value is not None:
            self._queue.end(claim, value)
            self._tell(Ended(work.number, claim.first, "complete", value))
        elif code == 0:
            problem = f"train ended well, but {self._folder.run(claim.first) / RESULT} is damaged"
            self._fail(work, problem)
        elif work.pruned:
            self._queue.end(claim, None, pruned=True)
            self._tell(Ended(work.number, claim.first, "pruned", min(work.curve.values())))
        elif code == BROKEN_DOWN:
            # Told as pruned, from which the sampler learns to keep away; of failed trials it learns nothing.
            problem = self._why(work)
            self._queue.end(claim, None, problem, pruned=True)
            self._tell(Ended(work.number, claim.first, "pruned", None, problem))
        elif code == child.NO_DISK:
            self._queue.give_back(claim, killed=False)
            child.check_disk(code, f"trial {work.number} of {self._folder.path}", self._why(work))
        elif code in child.KILLED:
            problem = self._why(work)
            again = self._queue.give_back(claim, killed=True, problem=problem)
            self._tell(Ended(work.number, claim.first, "again" if again else "failed", None, problem))
        else:
            self._fail(work, self._why(work))

    def _fail(self, work: Work, problem: str) -> None:
        self._queue.end(work.claim, None, problem)
        self._tell(Ended(work.number, work.claim.first, "failed", None, problem))

    def _tell(self, trial: Ended) -> None:
        """Pass on how a trial ended. Raises UserError where one after the other fails."""
        self._ended(trial)
        self._failures = self._failures + 1 if trial.state == "failed" else 0
        if self._failures == HOPELESS:
            raise UserError(
                f"{HOPELESS} trials in a row failed, the last because {trial.problem}; correct the recipe or the space, "
                "and begin in another folder with --out"
            )

    def _why(self, work: Work) -> str:
        return child.why_ended(work.process.returncode, "train", self._folder.log(work.claim.first), work.begins)

    def _value(self, work: Work) -> float | None:
        """The best validation perplexity of a finished run; None where its result cannot be read."""
        result = result_or_none(self._folder.run(work.claim.first) / RESULT)
        return None if result is None else float(result.figures["valid_perplexity"])

    def _give_back(self) -> None:
        """End what runs, each with its work saved, and have it tried again."""
        for work in self.working:
            if work.process.poll() is None:
                work.process.terminate()
        for work in self.working:
            work.process.wait()
            work.log.close()
        while self.working:
            work = self.working.pop()
            if work.process.returncode == 0 and (value := self._value(work)) is not None:
                self._queue.end(work.claim, value)
            else:
                self._queue.give_back(work.claim, killed=False)
