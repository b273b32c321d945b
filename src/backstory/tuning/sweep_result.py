"""What a sweep has found: trials, the best of them, and which settings mattered, as the figures of a result."""

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backstory.config import to_dict
from backstory.reports.results import MutableRecord, Result, result_or_none
from backstory.storage.provenance import RESULT, commit, versions
from backstory.tuning.space import Parameter
from backstory.tuning.sweep_folder import Sweep, SweepFolder
from backstory.tuning.trial_queue import KILLS, PROBLEM, first_of, tried_again

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

ENOUGH = 10
"""Trials that ended from which on it is said which settings mattered."""
_OF_BEST = ("device", "precision", "precision_reason", "corpus", "weights", "weights_file")
GOOD = 5
"""Complete trials that count as good ones, if a tenth of all are no more."""


def figures(study: "Study", folder: SweepFolder, sweep: Sweep, space: Sequence[Parameter]) -> MutableRecord:
    """The figures of a result of kind search, as docs/results.md describes them."""
    everything = study.get_trials(deepcopy=False)
    again = tried_again(everything)
    trials = [_trial(t, again.get(t.number), folder) for t in everything]
    complete = [t for t in trials if t["state"] == "complete"]
    best = min(complete, key=lambda t: t["valid_perplexity"], default=None)
    found = _result(folder, best)
    important = importances(everything)
    return {
        "recipe": sweep.recipe_name,
        "space": sweep.space_name,
        "title": sweep.space.title,
        "unit": found.figures.get("unit") if found else None,
        "best": best and best["trial"],
        "valid_perplexity": best and best["valid_perplexity"],
        "parameters": [_parameter(p, important.get(p.name)) for p in space],
        "trials": trials,
    }


def importances(trials: Sequence["FrozenTrial"]) -> dict[str, float]:
    """The share of each parameter in what sets the good trials apart (PED-ANOVA); empty of too few trials."""
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    # Which trials are good is all that counts, so that pruned ones, which are not, can be among the others.
    values = {"COMPLETE": lambda t: t.value, "PRUNED": lambda t: math.inf}
    ended = [
        optuna.create_trial(params=t.params, distributions=t.distributions, value=values[t.state.name](t))
        for t in trials
        if t.state.name in values
    ]
    if len(ended) < ENOUGH or sum(t.value is not None and t.value < math.inf for t in ended) < GOOD:
        return {}
    study = optuna.create_study()
    study.add_trials(ended)
    evaluator = PedAnovaImportanceEvaluator(target_quantile=max(0.1, GOOD / len(ended)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of trials that are all alike
        return {k: round(float(v), 6) for k, v in get_param_importances(study, evaluator=evaluator).items()}


def provenance(sweep: Sweep, folder: SweepFolder, started: str | None, figures: MutableRecord) -> MutableRecord:
    """What is needed to make the sweep again; device, precision and text are those of its best trial."""
    import optuna

    best = _result(folder, next((t for t in figures["trials"] if t["trial"] == figures["best"]), None))
    of_best = {key: best.provenance.get(key) for key in _OF_BEST} if best else {}
    return {
        "config": to_dict(sweep.recipe),
        "seed": sweep.recipe.seed,
        "commit": commit(),
        "versions": versions() | {"optuna": optuna.__version__},
        **of_best,
        "started": started,
        "seconds": round(sum(t["seconds"] or 0.0 for t in figures["trials"]), 1),
        "command": sweep.command,
    }


def _parameter(parameter: Parameter, importance: float | None) -> MutableRecord:
    return {
        "name": parameter.name,
        "low": parameter.low,
        "high": parameter.high,
        "log": parameter.log,
        "choices": list(parameter.choices),
        "same": parameter.same,
        "when": {name: list(values) for name, values in parameter.when},
        "importance": importance,
    }


def _trial(trial: "FrozenTrial", again: "FrozenTrial | None", folder: SweepFolder) -> MutableRecord:
    state = {"COMPLETE": "complete", "PRUNED": "pruned", "RUNNING": "running", "WAITING": "waiting"}
    curve = sorted(trial.intermediate_values.items())
    problem = trial.user_attrs.get(PROBLEM, "")
    told = "again" if again is not None else state.get(trial.state.name, "failed")
    if told == "again" and again is not None:
        stopped = again.user_attrs.get(KILLS, 0) == trial.user_attrs.get(KILLS, 0)
        problem = f"{'stopped' if stopped else 'killed'}, and tried again as {again.number}"
    elif told == "failed" and not problem:
        problem = f"killed {trial.user_attrs.get(KILLS, 0) + 1} times"
    first = first_of(trial)
    ended = trial.datetime_start is not None and trial.datetime_complete is not None
    value = trial.value if told == "complete" else min((v for _, v in curve), default=None)
    # Of one that waits to be tried again nothing is drawn yet.
    settings = trial.params or trial.system_attrs.get("fixed_params", {})
    return {
        "trial": trial.number,
        "state": told,
        "run": folder.run(first).relative_to(folder.path).as_posix(),
        "valid_perplexity": value,
        "epochs": curve[-1][0] if curve else 0,
        "curve": [[epoch, round(v, 6)] for epoch, v in curve],
        "seconds": trial.duration.total_seconds() if ended and trial.duration else None,
        "settings": settings,
        "problem": problem,
    }


def _result(folder: SweepFolder, trial: MutableRecord | None) -> Result | None:
    """The result of a trial's training."""
    return None if trial is None else result_or_none(folder.path / trial["run"] / RESULT)
