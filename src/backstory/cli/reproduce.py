"""`backstory reproduce SUITE`: run the systems of a paper and test its claims and findings."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from backstory.cli import help_page
from backstory.cli.command_line import JsonOutput, announce, parse, print_json
from backstory.cli.reader import StatisticsArguments, TrainReaderArguments, TuneReaderArguments
from backstory.config.strict import between
from backstory.storage.run_files import RESULT
from backstory.utils.errors import UserError, pasted
from backstory.utils.formats import duration
from backstory.utils.terminal import fitted

if TYPE_CHECKING:
    from backstory.papers.reproduction import Reproduction

PREPARATIONS = {"statistics": StatisticsArguments, "tune": TuneReaderArguments, "train": TrainReaderArguments}
"""Arguments of the commands of `backstory reader` that a suite's `prepare` may name."""


@dataclass(frozen=True)
class ReproduceArguments(JsonOutput):
    """Train, evaluate and examine every system of a suite, seed by seed, and test the claims and findings of its paper.

    The cost is shown first. Finished runs are not repeated; the same command resumes stopped and failed ones.
    The exit code is 1 when a run failed.
    """

    suite: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(metavar="SUITE", help="A suite (`backstory ls suites`), or a YAML file."),
    ]
    scale: Literal["small", "full"] = "small"
    """small (hours on two cores), or full: the published sizes."""
    out: Path | None = None
    """The folder (else runs/SUITE-SCALE)."""
    processes: int = between(1, 1)
    """Runs in parallel; each takes one core (OMP_NUM_THREADS overrides)."""
    cluster: str | None = None
    """Run them on the workers of the Dask scheduler at this address (tcp://HOST:8786) instead."""
    minutes: float | None = between(None, 0.0, above=True)
    """Train each run for this many minutes, with its schedule scaled to them (else for the suite's epochs)."""
    only: tuple[str, ...] = ()
    """Names of systems to run; the others are left for later."""
    seeds: tuple[int, ...] = ()
    """Seeds to run, including seeds that the suite lacks (else the suite's)."""
    known: tuple[Path, ...] = ()
    """Results (result.json) of this suite from elsewhere; runs finished there with the same settings are taken over."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Show the runs and their cost, and write nothing."""
    data_dir: Path | None = None
    """Folder that holds the corpora (else BACKSTORY_DATA)."""


def main(arguments: Sequence[str]) -> int:
    """Run the suite; return exit code 1 if a run failed."""
    args = parse(ReproduceArguments, arguments, "reproduce")

    announce(f"planning {args.suite}, {args.scale} scale")
    from backstory.jobs.launchers import launcher
    from backstory.papers.reproduction import Reproduction, failures

    planned = Reproduction.plan(
        args.suite, args.scale, args.out, args.only, args.known, args.minutes, args.seeds, args.dry_run
    )
    _check_preparations(planned)
    if args.dry_run:
        jobs = planned.jobs()
        selected, budget = planned.selected(jobs), planned.budget(jobs, args.processes)
        if args.json:
            runs = [{"run": j.run.name, "state": j.state, "minutes_left": j.minutes_left} for j in selected]
            print_json({"budget": budget, "runs": runs})
            return 0
        print(fitted("\n".join([*planned.known_lines, budget, *planned.undecided()])))
        width = max(len(job.run.name) for job in selected)
        for job in selected:
            print(f"  {job.run.name:<{width}} {job.state:<8} {duration(60 * job.minutes_left):>14}")
        return 0
    with launcher(args.processes, args.data_dir, args.cluster) as workers:
        planned.run(workers, args.data_dir)

    from backstory.reports import to_text
    from backstory.reports.sections.reproduction_section import claims_table, findings_table, gates_table, systems_table
    from backstory.results import result_at

    path = planned.folder.path / RESULT
    figures = result_at(path).figures
    if args.json:
        print(path.read_text(encoding="utf-8"))
    else:
        for table in (systems_table, gates_table, claims_table, findings_table):
            if (made := table(figures)).rows:
                print(f"\n{to_text(made)}")
        print(f"\n{path}; `backstory report {pasted(planned.folder.path)}` makes a page of it")
    failed = failures(figures)
    for line in failed:
        print(f"backstory: failed: {line}", file=sys.stderr)
    return 1 if failed else 0


def _check_preparations(planned: "Reproduction") -> None:
    """Raise UserError for a command of `prepare` with flags that it does not take, before anything is trained."""
    from backstory.papers.reader_commands import preparation

    for system in planned.suite.systems:
        for text in system.prepare:
            step = preparation(text)
            try:
                if help_page.wanted(step.arguments):
                    raise UserError("it prints a page of help; leave it out")
                parse(PREPARATIONS[step.action], ["RUN", *step.arguments], f"reader {step.action}")
            except UserError as error:
                raise UserError(f"{planned.name}: system {system.name}: prepare '{text}': {error}") from None
