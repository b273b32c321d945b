"""The queue of a sweep's trials in its storage: each is claimed by one process, and given back if that process is lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from backstory.config import RunConfig, to_yaml
from backstory.storage.atomic import write_atomically
from backstory.tuning.space import Parameter, Value, draw
from backstory.tuning.study import set_sampler
from backstory.tuning.sweep_folder import SweepFolder

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

TRIES = 3
"""How often a trial may be killed before it counts as failed."""
# Attributes of a trial in the storage.
WORKER, FIRST, AFTER, KILLS, PROBLEM = "worker", "first", "after", "kills", "problem"
"""The process that works on it, the number of its first try, the try before it, the times it was killed, what went wrong."""


@dataclass
class ClaimedTrial:
    """A trial that this process works on."""

    optuna: "Trial"
    first: int
    """Number of its first try, which names its run folder."""
    kills: int
    config: RunConfig

    @property
    def number(self) -> int:
        return self.optuna.number


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
            number = len(self._study.get_trials(deepcopy=False))
            set_sampler(self._study, int(np.random.SeedSequence([self._recipe.seed, number]).generate_state(1)[0]))
            trial = self._study.ask()
            trial.set_user_attr(WORKER, self._worker)
            attributes = trial.user_attrs
            config = draw(self._space, self._recipe, lambda p: _suggest(trial, p))
            claimed = ClaimedTrial(trial, attributes.get(FIRST, trial.number), attributes.get(KILLS, 0), config)
            try:
                write_atomically(self._folder.recipe(claimed.first), to_yaml(config))
            except OSError:  # no room for the recipe: the trial does not count
                self._try_again(trial.number, trial.params, claimed.first, claimed.kills)
                raise
            return claimed

    def end(self, trial: ClaimedTrial, value: float | None, problem: str = "", pruned: bool = False) -> None:
        """Record the end of a trial: its value, or that it was pruned or failed."""
        from optuna.trial import TrialState

        with self._folder.claims():
            if problem:
                trial.optuna.set_user_attr(PROBLEM, problem)
            if value is not None:
                self._study.tell(trial.optuna, value)
            else:
                self._study.tell(trial.optuna, state=TrialState.PRUNED if pruned else TrialState.FAIL)

    def give_back(self, trial: ClaimedTrial, killed: bool, problem: str = "") -> bool:
        """Queue a trial again that was stopped or killed. Return False if it was killed too often, and has failed."""
        with self._folder.claims():
            if killed and trial.kills + 1 >= TRIES:
                trial.optuna.set_user_attr(PROBLEM, problem)
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
                self._try_again(trial.number, trial.params, first_of(trial), trial.user_attrs.get(KILLS, 0) + 1)
                if isinstance(worker, str):
                    self._folder.drop_worker(worker)

    def _try_again(self, number: int, params: dict[str, Any], first: int, kills: int) -> bool:
        from optuna.trial import TrialState

        # A process may have been killed here before, after the first of these two steps.
        queued = number in tried_again(self._study.get_trials(deepcopy=False))
        if not queued and kills < TRIES:
            self._study.enqueue_trial(params, user_attrs={FIRST: first, AFTER: number, KILLS: kills})
        self._study.tell(number, state=TrialState.FAIL)
        return kills < TRIES


def _suggest(trial: "Trial", parameter: Parameter) -> Value:
    if parameter.low is None or parameter.high is None:
        return trial.suggest_categorical(parameter.name, parameter.choices)
    if parameter.whole:
        return trial.suggest_int(parameter.name, int(parameter.low), int(parameter.high), log=parameter.log)
    return trial.suggest_float(parameter.name, parameter.low, parameter.high, log=parameter.log)
