"""`backstory sweep run RECIPE --space SPACE`: search settings; `backstory sweep show FOLDER`: show the trials."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from backstory.cli.command_line import JsonOutput, announce, dispatch, parse, print_json
from backstory.cli.flags import typed_settings
from backstory.cli.train import parse_with_recipe
from backstory.config import RunConfig
from backstory.config.plugin_files import plugin_flags
from backstory.config.strict import between
from backstory.utils.errors import UserError, pasted
from backstory.utils.terminal import make_console


@dataclass(frozen=True)
class SweepArguments(JsonOutput):
    """Train a recipe many times, each trial with settings sampled from a space, and keep the recipe of the best.

    The sampler (Optuna's TPE) learns from earlier trials. A trial that is worse than the median of the others after as many
    epochs is pruned. The same command resumes a sweep, and may run several times on one folder. Flags change settings of the
    recipe, as in `backstory train`.

    The exit code is 1 when no trial is complete.
    """

    space: str = ""
    """A space (`backstory ls spaces`), or a YAML file."""
    trials: int = between(20, 1)
    """Trials in all."""
    out: Path | None = None
    """The sweep's folder (else runs/sweep-RECIPE-SPACE)."""
    storage: str | None = None
    """URL of a database for the trials' figures, as sqlite:///sweeps.db (else a journal in the folder)."""
    processes: int = between(1, 1)
    """Trials in parallel; each takes one core (OMP_NUM_THREADS overrides)."""
    cluster: str | None = None
    """Run them on the workers of the Dask scheduler at this address (tcp://HOST:8786) instead."""
    prune_from: int | None = between(1, 1)
    """First epoch after which a trial may be pruned; none: never."""
    keep_all: tyro.conf.FlagCreatePairsOff[bool] = False
    """Keep the weights of all trials, not only of the best."""
    corpus: str | None = None
    """Short for --text.corpus: a corpus by name, or a file or folder of texts."""
    data_dir: Path | None = None
    """Folder that holds the corpora (else BACKSTORY_DATA)."""
    config: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=RunConfig)


@dataclass(frozen=True)
class ShowSweepArguments(JsonOutput):
    """Show the best trials of a sweep, which settings mattered, and every trial; also while it runs."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER", help="The sweep's folder.")]
    best: int = between(5, 1)
    """Number of best trials shown with their settings."""
    html: Path | None = None
    """A page to write, with pictures; an earlier page of Backstory is replaced."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let --html replace any file."""
    storage: str | None = None
    """The URL of the sweep's storage, if it has a password."""


def main(arguments: Sequence[str]) -> int:
    return dispatch("sweep", ACTIONS, arguments)


def run(arguments: Sequence[str]) -> int:
    """Run the sweep; return exit code 1 if no trial is complete."""
    recipe, args = parse_with_recipe(SweepArguments, arguments, "sweep run", " --space SPACE")
    if not args.space:
        raise UserError(
            f"name a space: `backstory sweep run {pasted(recipe)} --space SPACE`; "
            "`backstory ls spaces` lists them; a YAML file works too"
        )

    announce(f"planning a sweep of {recipe} over {args.space}")
    from backstory.jobs.launchers import launcher
    from backstory.reports.phrases import search_summary
    from backstory.tuning.space import warn_ignored
    from backstory.tuning.sweeps import PlannedSweep

    planned = PlannedSweep.plan(recipe, args.config, args.space, args.out, args.storage)
    warn_ignored(planned.space, args.config, typed_settings(arguments))
    with launcher(args.processes, args.data_dir, args.cluster) as workers:
        result = planned.run(args.trials, workers, args.prune_from, args.keep_all, args.data_dir)
    folder, figures = planned.folder, result.figures
    args.show(result, lambda: search_summary(figures))
    if figures.best is None:
        problem = next((trial.problem for trial in reversed(figures.trials) if trial.problem), "all were pruned")
        print(f"backstory: no trial of {folder.path} is complete: {problem}", file=sys.stderr)
        return 1
    if folder.best.is_file() and not args.json:
        print(
            f"`backstory train {pasted(folder.best)}{plugin_flags()}` trains the best, "
            f"`backstory sweep show {pasted(folder.path)}{plugin_flags()}` shows what mattered"
        )
    return 0


def show(arguments: Sequence[str]) -> int:
    """Print the trials of a sweep, or write a page."""
    args = parse(ShowSweepArguments, arguments, "sweep show")

    announce(f"reading the trials of {args.folder}", slow="optuna")
    from backstory.reports import check_page, render_search, write_page
    from backstory.tuning.sweeps import read_sweep

    if args.html is not None:
        check_page(args.html, args.overwrite)
    result = read_sweep(args.folder, args.storage)
    if args.html is not None:
        write_page(args.html, render_search(result))
    if args.json:
        print_json(result)
    elif args.html is not None:
        print(args.html)
    else:
        from backstory.reports.sections.search_section import show_search

        show_search(result, make_console(), args.best)
    return 0


ACTIONS = {
    "run": ("search the settings of a recipe, or resume a search", run),
    "show": ("show the trials of a sweep and which settings mattered, also while it runs", show),
}
