"""Run a sweep: check all of it, bring trial after trial to its end, and keep the recipe of the best; then its result."""

import math
import secrets
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from backstory.config import RunConfig, recipes, to_dict, validate
from backstory.config.plugin_files import plugin_flags
from backstory.data import check_synthetic, prepare
from backstory.jobs.launchers import Launcher, LocalProcesses
from backstory.jobs.runner import JobDisplay, run_jobs
from backstory.models import choose_device
from backstory.results import Result, SearchFigures, TrainingFigures, result_or_none
from backstory.results.common import ProvenanceRecord
from backstory.results.result_file import write_result
from backstory.results.search_record import AGAIN, COMPLETE, PRUNED, ParameterRecord, TrialRecord
from backstory.storage.atomic import write_atomically
from backstory.storage.lock import locked
from backstory.storage.provenance import command, commit, now, versions
from backstory.storage.run_files import RESULT, SWEEP
from backstory.tuning import space as spaces
from backstory.tuning.space import Parameter
from backstory.tuning.sweep_storage import (
    Sweep,
    SweepFolder,
    check_installed,
    failing_storage,
    hidden,
    new_study,
    open_storage,
    open_study,
    set_pruner,
)
from backstory.tuning.trials import (
    COLUMNS,
    KILLS,
    PROBLEM,
    SECONDS,
    SweepJobs,
    TrialQueue,
    best_of,
    first_of,
    tried_again,
)
from backstory.utils.errors import UserError, pasted, plural
from backstory.utils.formats import validation
from backstory.utils.process import Stopped, StopRequest
from backstory.utils.scores import IN_BITS
from backstory.utils.small_file import read_small_text
from backstory.utils.terminal import make_console, shown_progress

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

FEWEST_TRIALS = 10
"""Ended trials from which the importance of the settings is computed."""
GOOD_TRIALS = 5
"""Complete trials that count as good ones, if a tenth of all are no more."""
_STATES = {"COMPLETE": COMPLETE, "PRUNED": PRUNED, "RUNNING": "running", "WAITING": "waiting", "FAIL": "failed"}


@dataclass(frozen=True)
class PlannedSweep:
    """A sweep that was checked, and its folder."""

    sweep: Sweep
    folder: SweepFolder
    space: tuple[Parameter, ...]
    url: str | None
    """URL of the storage, with its password."""

    @classmethod
    def plan(
        cls, recipe_name: str, recipe: RunConfig, space_name: str, out: Path | None, storage: str | None
    ) -> "PlannedSweep":
        """Check a space against a recipe, which flags may have changed, and the folder against both. Raises UserError.

        Nothing is written.
        """
        check_installed()
        validate(recipe, "settings")
        check_synthetic(recipe.text)
        stem = Path(space_name).stem
        space = spaces.load(space_name)
        source = space_name if space_name != stem else f"space {space_name}"
        parameters = spaces.parameters(space, recipe, source)
        spaces.check_not_searched(parameters, recipes.load(recipe_name), recipe)
        folder = SweepFolder(out or Path("runs") / f"sweep-{Path(recipe_name).stem}-{stem}")
        url, line = None if storage is None else hidden(storage), command()
        sweep = Sweep(new_study(), url, Path(recipe_name).stem, stem, space, recipe, line and hidden(line))
        existing = folder.check(sweep)
        if existing is not None and storage is None:
            storage = _saved_url(folder, existing)
        return cls(existing or sweep, folder, parameters, storage)

    def run(
        self,
        trials: int,
        launcher: Launcher,
        prune_from: int | None = 1,
        keep_all: bool = False,
        data_dir: Path | None = None,
        console: Console | None = None,
    ) -> Result[SearchFigures]:
        """Work until so many trials have ended, here or in processes beside this one; return the result.

        Raises UserError before anything is written (a corpus, a device or the storage is missing), and when the storage fails
        later; Stopped after a signal.
        """
        console, started = console or make_console(stderr=True), now()
        if isinstance(launcher, LocalProcesses):
            choose_device(self.sweep.recipe.training.device)
        with shown_progress(console):
            dataset = prepare(self.sweep.recipe.text, data_dir)  # once, before the processes need it
        storage = None if self.url is None else open_storage(self.folder, self.url)
        folder, sweep = self.folder, self.folder.open(self.sweep)
        unit: str | None = dataset.vocabulary.tokenizer.unit
        if unit not in IN_BITS or sweep.recipe.training.answer_loss_only:
            unit = None  # perplexities are shown
        worker = secrets.token_hex(4)
        with failing_storage(folder, sweep), locked(folder.worker(worker), "sweep", "--out"):
            with folder.claims():
                study = open_study(storage or open_storage(folder, None, make=True), folder, sweep, make=True)
            set_pruner(study, prune_from)
            queue = TrialQueue(study, folder, self.space, sweep.recipe, worker)

            def keep_best() -> "FrozenTrial | None":
                return _keep_best(folder, queue, keep_all, unit)

            keep_best()  # an earlier process may have been killed before it did
            display, stop = JobDisplay(console, COLUMNS), StopRequest()
            done = sum(t.state.is_finished() for t in queue.trials())
            display.say(f"{folder.path}: {_count(done, trials, launcher.slots)}")
            title = f"{sweep.space_name} on {sweep.recipe_name}"
            with stop.listening(), display.shown():
                run_jobs(SweepJobs(queue, folder, trials, keep_best, display, title, unit), launcher, stop)
            if stop.signal is not None:
                raise Stopped(
                    f"{folder.path} is stopped and its trials are saved; run the same command again to resume",
                    stop.signal,
                )
            with folder.claims():
                figures = _search_figures(study, folder, sweep, self.space)
                origin = _provenance(sweep, folder, started, figures)
                return write_result(folder.path, folder.path.resolve().name, figures, origin)


def read_sweep(path: Path, storage: str | None = None) -> Result[SearchFigures]:
    """Return the result of a sweep so far, of kind search; nothing is written. Raises UserError."""
    check_installed()
    folder = SweepFolder(path)
    sweep = folder.read()
    url = storage or _saved_url(folder, sweep)
    if url is not None and hidden(url) != sweep.storage:
        hides_password = sweep.storage is not None and "***" in sweep.storage
        remedy = "give that URL, with its password, by --storage" if hides_password else "leave --storage out"
        raise UserError(f"{path} keeps its trials in {sweep.storage or 'its own journal'}; {remedy}")
    if url is None and not folder.journal.is_file():
        raise UserError(f"{folder.journal} is missing; put it back, or begin again in another folder")
    parameters = spaces.parameters(sweep.space, sweep.recipe, str(folder.path / SWEEP), draws=0)
    with failing_storage(folder, sweep):
        study = open_study(open_storage(folder, url), folder, sweep, make=False)
        figures = _search_figures(study, folder, sweep, parameters)
    return write_result(None, path.resolve().name, figures, _provenance(sweep, folder, None, figures))


def _count(done: int, total: int, processes: int) -> str:
    if done > total:
        return f"{done} trials, done"
    return f"{done} of {total} {plural('trial', total)} done, {processes} at a time"


def _saved_url(folder: SweepFolder, sweep: Sweep) -> str | None:
    """Return the storage that a folder names. Raises UserError if its password is needed, which is not saved."""
    if sweep.storage is not None and "***" in sweep.storage:
        raise UserError(
            f"{folder.path} keeps its trials in {sweep.storage}; give the URL with its password by --storage"
        )
    return sweep.storage


def _keep_best(folder: SweepFolder, queue: TrialQueue, keep_all: bool, unit: str | None) -> "FrozenTrial | None":
    """Write the recipe of the best trial and return that trial; remove the weights of all others, unless `keep_all`.

    `unit`: the token of a text whose scores are shown in bits per token; None to show perplexities.
    """
    with folder.claims():
        trials = queue.trials()
        best = best_of(trials)
        for trial in trials:
            if trial.state.is_finished() and trial is not best and not keep_all:
                folder.drop_checkpoints(first_of(trial))
        if best is None or best.value is None:
            return None
        text = read_small_text(folder.recipe(first_of(best)), inside=folder.path)
        head = (
            f"# The best trial of the sweep {folder.path.resolve().name}, number {best.number}: "
            f"{validation(best.value, unit)}.\n#\n# command:  backstory train {pasted(folder.best)}{plugin_flags()}\n"
        )
        if not folder.best.is_file() or read_small_text(folder.best, inside=folder.path) != head + text:
            write_atomically(folder.best, head + text)
        return best


# --- the result ---


def _search_figures(study: "Study", folder: SweepFolder, sweep: Sweep, space: Sequence[Parameter]) -> SearchFigures:
    """Return the figures of a result of kind search."""
    trials = study.get_trials(deepcopy=False)
    again = tried_again(trials)
    records = tuple(_trial(t, again.get(t.number), folder) for t in trials)
    complete = [t for t in records if t.state == COMPLETE]
    best = min(complete, key=lambda t: t.valid_perplexity or math.inf, default=None)
    training, importance = _trial_result(folder, best), _importances(trials)
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


def _importances(trials: Sequence["FrozenTrial"]) -> dict[str, float]:
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


def _provenance(sweep: Sweep, folder: SweepFolder, started: str | None, figures: SearchFigures) -> ProvenanceRecord:
    """Return what is needed to repeat the sweep; device, precision and text are those of its best trial."""
    import optuna

    best = _trial_result(folder, figures.best_trial)
    keys = ("device", "precision", "precision_reason", "corpus", "weights", "weights_file")
    return ProvenanceRecord(
        config=to_dict(sweep.recipe),
        seed=sweep.recipe.seed,
        commit=commit(),
        versions=versions() | {"optuna": optuna.__version__},
        **({key: getattr(best.provenance, key) for key in keys} if best else {}),
        started=started,
        seconds=round(sum(t.seconds or 0.0 for t in figures.trials), 1),
        command=sweep.command,
    )


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
    return TrialRecord(
        trial=trial.number,
        state=state,
        run=folder.run(first_of(trial)).relative_to(folder.path).as_posix(),
        valid_perplexity=trial.value if state == COMPLETE else min((v for _, v in curve), default=None),
        epochs=curve[-1][0] if curve else 0,
        curve=tuple((epoch, round(v, 6)) for epoch, v in curve),
        seconds=trial.user_attrs.get(SECONDS),
        # A trial that waits to be tried again has no parameters yet, only the fixed ones of the earlier try.
        settings=trial.params or trial.system_attrs.get("fixed_params", {}),
        problem=problem,
    )


def _trial_result(folder: SweepFolder, trial: TrialRecord | None) -> Result[TrainingFigures] | None:
    """Return the result of a trial's training."""
    result = None if trial is None else result_or_none(folder.path / trial.run / RESULT)
    return result if result is not None and isinstance(result.figures, TrainingFigures) else None
