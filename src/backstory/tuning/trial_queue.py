"""Who does which trial: trials are taken, ended and given back by one process at a time, and none is lost with its process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from backstory.config import RunConfig, to_yaml
from backstory.storage.atomic import write_atomically
from backstory.tuning.space import Parameter, Value, draw
from backstory.tuning.study import set_sampler
from backstory.tuning.sweep_folder import Folder

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

TRIES = 3
"""How often a trial may be killed before it counts as failed."""
# What is noted with a trial in the storage.
WORKER, FIRST, AFTER, KILLS, PROBLEM = "worker", "first", "after", "kills", "problem"
"""The process that works on it; the number of its first try; the try before it; how many were killed; what went wrong."""


@dataclass
class Claim:
    """A trial that this process has taken."""

    trial: "Trial"
    first: int
    """The number of its first try, by which its run folder is called."""
    kills: int
    config: RunConfig


def first_of(trial: "FrozenTrial") -> int:
    """The number of a trial's first try."""
    return trial.user_attrs.get(FIRST, trial.number)


def tried_again(trials: Sequence["FrozenTrial"]) -> Mapping[int, "FrozenTrial"]:
    """The trials that others are tried again in, by the number of those."""
    return {t.user_attrs[AFTER]: t for t in trials if AFTER in t.user_attrs}


def best_of(trials: Sequence["FrozenTrial"]) -> "FrozenTrial | None":
    """The complete trial with the lowest value."""
    complete = [t for t in trials if t.state.name == "COMPLETE" and t.value is not None]
    return min(complete, key=lambda t: t.value or 0.0, default=None)


class Queue:
    """The trials of a sweep, as one process sees them."""

    def __init__(
        self, study: "Study", folder: Folder, space: tuple[Parameter, ...], recipe: RunConfig, worker: str
    ) -> None:
        self._study, self._folder, self._space, self._recipe, self._worker = study, folder, space, recipe, worker

    def trials(self) -> Sequence["FrozenTrial"]:
        """All trials that count: those that were tried again do in their last try."""
        everything = self._study.get_trials(deepcopy=False)
        again = tried_again(everything)
        return [t for t in everything if t.number not in again]

    def claim(self, most: int) -> Claim | None:
        """Take the next trial, unless that many are done or under way; None then."""
        from optuna.trial import TrialState

        with self._folder.claims():
            self._take_back()
            trials = self.trials()
            if sum(t.state != TrialState.WAITING for t in trials) >= most:
                return None
            number = len(self._study.get_trials(deepcopy=False))
            set_sampler(self._study, int(np.random.SeedSequence([self._recipe.seed, number]).generate_state(1)[0]))
            trial = self._study.ask()
            trial.set_user_attr(WORKER, self._worker)
            noted = trial.user_attrs
            config = draw(self._space, self._recipe, lambda p: _suggested(trial, p))
            claim = Claim(trial, noted.get(FIRST, trial.number), noted.get(KILLS, 0), config)
            try:
                write_atomically(self._folder.recipe(claim.first), to_yaml(config))
            except OSError:  # no room for it: the trial is not spent
                self._again(trial.number, trial.params, claim.first, claim.kills)
                raise
            return claim

    def end(self, claim: Claim, value: float | None, problem: str = "", pruned: bool = False) -> None:
        """Say how a trial ended: with a value, pruned, or by itself with a problem."""
        from optuna.trial import TrialState

        with self._folder.claims():
            if problem:
                claim.trial.set_user_attr(PROBLEM, problem)
            if value is not None:
                self._study.tell(claim.trial, value)
            else:
                self._study.tell(claim.trial, state=TrialState.PRUNED if pruned else TrialState.FAIL)

    def give_back(self, claim: Claim, killed: bool, problem: str = "") -> bool:
        """Have a trial tried again that was stopped or killed; False where it was killed too often, and counts as failed."""
        with self._folder.claims():
            if killed and claim.kills + 1 >= TRIES:
                claim.trial.set_user_attr(PROBLEM, problem)
            return self._again(claim.trial.number, claim.trial.params, claim.first, claim.kills + killed)

    def _take_back(self) -> None:
        """Give back the trials of processes that are gone."""
        from optuna.trial import TrialState

        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            # Trials are taken under the same lock: one without a worker was taken by a process that is gone.
            worker = trial.user_attrs.get(WORKER)
            if worker == self._worker:
                continue
            if not self._folder.alive(worker, first_of(trial)):
                self._again(trial.number, trial.params, first_of(trial), trial.user_attrs.get(KILLS, 0) + 1)
                if isinstance(worker, str):
                    self._folder.drop_worker(worker)

    def _again(self, number: int, params: dict[str, Any], first: int, kills: int) -> bool:
        from optuna.trial import TrialState

        # A process may have been killed just here, after the first of the two.
        waiting = number in tried_again(self._study.get_trials(deepcopy=False))
        if not waiting and kills < TRIES:
            self._study.enqueue_trial(params, user_attrs={FIRST: first, AFTER: number, KILLS: kills})
        self._study.tell(number, state=TrialState.FAIL)
        return kills < TRIES


def _suggested(trial: "Trial", parameter: Parameter) -> Value:
    if parameter.low is None or parameter.high is None:
        return trial.suggest_categorical(parameter.name, parameter.choices)
    if parameter.whole:
        return trial.suggest_int(parameter.name, int(parameter.low), int(parameter.high), log=parameter.log)
    return trial.suggest_float(parameter.name, parameter.low, parameter.high, log=parameter.log)
