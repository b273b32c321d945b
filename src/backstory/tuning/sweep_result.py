"""The result of a sweep: its trials, the best of them, and which settings mattered."""

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from backstory.config import to_dict
from backstory.results import Result, SearchFigures, TrainingFigures, result_or_none
from backstory.results.search_record import AGAIN, COMPLETE, PRUNED, ParameterRecord, TrialRecord
from backstory.storage.provenance import RESULT, commit, versions
from backstory.tuning.space import Parameter
from backstory.tuning.sweep_folder import Sweep, SweepFolder
from backstory.tuning.trial_queue import KILLS, PROBLEM, first_of, tried_again

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

FEWEST_TRIALS = 10
"""Ended trials from which the importance of the settings is computed."""
GOOD_TRIALS = 5
"""Complete trials that count as good ones, if a tenth of all are no more."""
_STATES = {"COMPLETE": COMPLETE, "PRUNED": PRUNED, "RUNNING": "running", "WAITING": "waiting", "FAIL": "failed"}


def search_figures(study: "Study", folder: SweepFolder, sweep: Sweep, space: Sequence[Parameter]) -> SearchFigures:
    """Return the figures of a result of kind search."""
    trials = study.get_trials(deepcopy=False)
    again = tried_again(trials)
    records = tuple(_trial(t, again.get(t.number), folder) for t in trials)
    complete = [t for t in records if t.state == COMPLETE]
    best = min(complete, key=lambda t: t.valid_perplexity or math.inf, default=None)
    training = _training(folder, best)
    importance = importances(trials)
    return SearchFigures(
        recipe=sweep.recipe_name,
        space=sweep.space_name,
        title=sweep.space.title,
        unit=training.figures.unit if training else None,
        best=best and best.trial,
        valid_perplexity=best and best.valid_perplexity,
        parameters=tuple(_parameter(p, importance.get(p.name)) for p in space),
        trials=records,
    )


def importances(trials: Sequence["FrozenTrial"]) -> dict[str, float]:
    """Return the share of each parameter in what sets the good trials apart (PED-ANOVA); empty for too few trials."""
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    # Only the order of the trials counts, so pruned ones, which are not good, can be among the others.
    values = {"COMPLETE": lambda t: t.value, "PRUNED": lambda t: math.inf}
    ended = [
        optuna.create_trial(params=t.params, distributions=t.distributions, value=values[t.state.name](t))
        for t in trials
        if t.state.name in values
    ]
    if len(ended) < FEWEST_TRIALS or sum(t.value is not None and t.value < math.inf for t in ended) < GOOD_TRIALS:
        return {}
    study = optuna.create_study()
    study.add_trials(ended)
    evaluator = PedAnovaImportanceEvaluator(target_quantile=max(0.1, GOOD_TRIALS / len(ended)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about trials that are all alike
        return {k: round(float(v), 6) for k, v in get_param_importances(study, evaluator=evaluator).items()}


def sweep_provenance(sweep: Sweep, folder: SweepFolder, started: str | None, figures: SearchFigures) -> dict[str, Any]:
    """Return what is needed to repeat the sweep; device, precision and text are those of its best trial."""
    import optuna

    best = _training(folder, figures.best_trial)
    keys = ("device", "precision", "precision_reason", "corpus", "weights", "weights_file")
    of_best = best.provenance.to_dict() if best else {}
    return {
        "config": to_dict(sweep.recipe),
        "seed": sweep.recipe.seed,
        "commit": commit(),
        "versions": versions() | {"optuna": optuna.__version__},
        **({key: of_best.get(key) for key in keys} if best else {}),
        "started": started,
        "seconds": round(sum(t.seconds or 0.0 for t in figures.trials), 1),
        "command": sweep.command,
    }


def _parameter(parameter: Parameter, importance: float | None) -> ParameterRecord:
    return ParameterRecord(
        name=parameter.name,
        low=parameter.low,
        high=parameter.high,
        log=parameter.log,
        choices=parameter.choices,
        same=parameter.same,
        when=dict(parameter.when),
        importance=importance,
    )


def _trial(trial: "FrozenTrial", again: "FrozenTrial | None", folder: SweepFolder) -> TrialRecord:
    """Return the record of a trial; `again` is the trial that repeats it."""
    curve = sorted(trial.intermediate_values.items())
    kills, problem = trial.user_attrs.get(KILLS, 0), trial.user_attrs.get(PROBLEM, "")
    state = _STATES[trial.state.name] if again is None else AGAIN
    if again is not None:
        stopped = again.user_attrs.get(KILLS, 0) == kills
        problem = f"{'stopped' if stopped else 'killed'}, and tried again as {again.number}"
    elif state == "failed" and not problem:
        problem = f"killed {kills + 1} times"
    ended = trial.datetime_start is not None and trial.datetime_complete is not None
    return TrialRecord(
        trial=trial.number,
        state=state,
        run=folder.run(first_of(trial)).relative_to(folder.path).as_posix(),
        valid_perplexity=trial.value if state == COMPLETE else min((v for _, v in curve), default=None),
        epochs=curve[-1][0] if curve else 0,
        curve=tuple((epoch, round(v, 6)) for epoch, v in curve),
        seconds=trial.duration.total_seconds() if ended and trial.duration else None,
        # A trial that waits to be tried again has no parameters yet, only the fixed ones of the earlier try.
        settings=trial.params or trial.system_attrs.get("fixed_params", {}),
        problem=problem,
    )


def _training(folder: SweepFolder, trial: TrialRecord | None) -> Result[TrainingFigures] | None:
    """Return the result of a trial's training."""
    result = None if trial is None else result_or_none(folder.path / trial.run / RESULT)
    return result if result is not None and isinstance(result.figures, TrainingFigures) else None
