"""Run a sweep: check all of it, bring trial after trial to its end, and keep the recipe of the best one."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from backstory.config import RunConfig, UserError, pasted, plural, recipes, validate
from backstory.config.formats import validation
from backstory.config.process import Stopped, StopRequest
from backstory.config.scores import IN_BITS
from backstory.config.small_file import read_small_text
from backstory.config.terminal import make_console
from backstory.data import Dataset, check_synthetic, prepare
from backstory.jobs.runner import JobDisplay, run_jobs
from backstory.models import choose_device
from backstory.results.result_file import write_result
from backstory.storage.atomic import write_atomically
from backstory.storage.lock import locked
from backstory.storage.provenance import command, now
from backstory.tuning import space as spaces
from backstory.tuning.space import Parameter
from backstory.tuning.study import check_installed, failing_storage, hidden, open_storage, open_study, set_pruner
from backstory.tuning.sweep_folder import Sweep, SweepFolder, new_study
from backstory.tuning.sweep_result import search_figures, sweep_provenance
from backstory.tuning.trial_jobs import COLUMNS, SweepJobs
from backstory.tuning.trial_queue import TrialQueue, best_of, first_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


@dataclass(frozen=True)
class Planned:
    """A sweep that was checked, and the folder that it is run in."""

    sweep: Sweep
    folder: SweepFolder
    space: tuple[Parameter, ...]
    url: str | None
    """Of the storage, with its password."""

    @classmethod
    def plan(
        cls, recipe_name: str, recipe: RunConfig, space_name: str, out: Path | None, storage: str | None
    ) -> "Planned":
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
        spaces.check_given(parameters, recipes.load(recipe_name), recipe)
        folder = SweepFolder(out or Path("runs") / f"sweep-{Path(recipe_name).stem}-{stem}")
        url = None if storage is None else hidden(storage)
        told = command()
        asked = Sweep(new_study(), url, Path(recipe_name).stem, stem, space, recipe, told and hidden(told))
        there = folder.check(asked)
        if there is not None and storage is None:
            storage = known_url(folder, there)
        return cls(there or asked, folder, parameters, storage)

    def run(
        self,
        trials: int,
        processes: int,
        prune_from: int | None = 1,
        keep_all: bool = False,
        data_dir: Path | None = None,
        console: Console | None = None,
    ) -> dict[str, Any]:
        """Work on the trials until so many have ended, here or in processes beside this one; return what was found.

        Raises UserError before anything is written (a corpus, a device or the storage is missing), and when the storage fails
        later; Stopped after a signal.
        """
        console, started = console or make_console(stderr=True), now()
        choose_device(self.sweep.recipe.training.device)
        dataset = prepare(self.sweep.recipe.text, data_dir)  # it is then ready for every process
        storage = None if self.url is None else open_storage(self.folder, self.url)
        sweep = self.folder.open(self.sweep)
        worker = secrets.token_hex(4)
        with failing_storage(self.folder, sweep), locked(self.folder.worker(worker), "sweep", "--out"):
            with self.folder.claims():
                study = open_study(storage or open_storage(self.folder, None, make=True), self.folder, sweep, make=True)
            set_pruner(study, prune_from)
            queue = TrialQueue(study, self.folder, self.space, sweep.recipe, worker)
            self._run_trials(queue, trials, processes, keep_all, data_dir, console, _bits_unit(sweep.recipe, dataset))
            with self.folder.claims():
                figures = search_figures(study, self.folder, sweep, self.space)
                origin = sweep_provenance(sweep, self.folder, started, figures)
                return write_result(self.folder.path, "search", self.folder.path.resolve().name, figures, origin)

    def _run_trials(
        self,
        queue: TrialQueue,
        total: int,
        processes: int,
        keep_all: bool,
        data_dir: Path | None,
        console: Console,
        unit: str | None,
    ) -> None:
        """Run trials until `total` have ended. Raises Stopped after a signal."""

        def keep_best() -> "FrozenTrial | None":
            with self.folder.claims():
                return settle(self.folder, queue.trials(), keep_all, unit)

        display, stop = JobDisplay(console, COLUMNS), StopRequest()
        keep_best()  # an earlier process may have been killed before it came to this
        done = sum(t.state.is_finished() for t in queue.trials())
        display.say(f"{self.folder.path}: {_progress(done, total, processes)}")
        title = f"{self.sweep.space_name} on {self.sweep.recipe_name}"
        jobs = SweepJobs(queue, self.folder, total, keep_best, display, title, unit)
        with stop.listening(), display.shown():
            run_jobs(jobs, processes, data_dir, stop)
        if stop.signal is not None:
            raise Stopped(
                f"{self.folder.path} is stopped and its trials are saved; the same command goes on with it", stop.signal
            )


def _progress(done: int, total: int, processes: int) -> str:
    if done > total:
        return f"{done} trials, done"
    return f"{done} of {total} {plural('trial', total)} done, {processes} at a time"


def _bits_unit(recipe: RunConfig, dataset: Dataset) -> str | None:
    """What a token is, where all are scored and a score is told in bits of each."""
    unit = dataset.vocabulary.tokenizer.unit
    return unit if unit in IN_BITS and not recipe.training.answer_loss_only else None


def known_url(folder: SweepFolder, sweep: Sweep) -> str | None:
    """The storage that a folder names. Raises UserError where its password is needed, which is not kept."""
    if sweep.storage is not None and "***" in sweep.storage:
        raise UserError(
            f"{folder.path} keeps its trials in {sweep.storage}; give the URL with its password by --storage"
        )
    return sweep.storage


def settle(
    folder: SweepFolder, trials: Sequence["FrozenTrial"], keep_all: bool, unit: str | None
) -> "FrozenTrial | None":
    """Keep the recipe of the best trial, which is returned, and the weights of no other, unless `keep_all`.

    `unit`: what a token that is scored is, where it is told in bits of each.
    """
    best = best_of(trials)
    for trial in trials:
        if trial.state.is_finished() and trial is not best and not keep_all:
            folder.drop_checkpoints(first_of(trial))
    if best is None or best.value is None:
        return None
    text = read_small_text(folder.recipe(first_of(best)), inside=folder.path)
    head = (
        f"# The best trial of the sweep {folder.path.resolve().name}, number {best.number}: "
        f"{validation(best.value, unit)}.\n#\n# command:  backstory train {pasted(folder.best)}\n"
    )
    if not folder.best.is_file() or read_small_text(folder.best, inside=folder.path) != head + text:
        write_atomically(folder.best, head + text)
    return best


def found(path: Path, storage: str | None = None) -> dict[str, Any]:
    """What a sweep has found so far, as a result of kind search; nothing is written. Raises UserError."""
    check_installed()
    folder = SweepFolder(path)
    sweep = folder.read()
    url = storage or known_url(folder, sweep)
    if url is not None and hidden(url) != sweep.storage:
        raise UserError(f"{path} keeps its trials in {sweep.storage or 'its own journal'}; leave --storage out")
    if url is None and not folder.journal.is_file():
        raise UserError(f"{folder.journal} is missing; put it back, or begin again in another folder")
    parameters = spaces.parameters(sweep.space, sweep.recipe, str(folder.path / "sweep.yaml"), draws=0)
    with failing_storage(folder, sweep):
        study = open_study(open_storage(folder, url), folder, sweep, make=False)
        figures = search_figures(study, folder, sweep, parameters)
    origin = sweep_provenance(sweep, folder, None, figures)
    return write_result(None, "search", folder.path.resolve().name, figures, origin)
