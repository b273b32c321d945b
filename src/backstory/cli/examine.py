"""`backstory examine RUN [RUN ...] --experiment NAME`: measure how a model uses its context."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from backstory.cli.command_line import RUN, JsonOutput, announce, parse
from backstory.config import UserError, pasted
from backstory.config.options import ExamineOptions
from backstory.config.terminal import progress_bar

if TYPE_CHECKING:
    from backstory.results import Result


@dataclass(frozen=True, kw_only=True)
class ExamineArguments(JsonOutput, ExamineOptions):
    """Score the same tokens under changed contexts and report what the changes cost.

    Several runs are examined as one set, for models that differ in their seed only. The same command resumes a stopped
    examination.
    """

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN...", help=f"{RUN} Or several.")]


def main(arguments: Sequence[str]) -> int:
    options = parse(ExamineArguments, arguments, "examine")
    if not options.runs:
        raise UserError("name the run's folder: `backstory examine RUN`")

    if absent := next((str(run) for run in options.runs if not run.exists()), None):
        from backstory.cli.completion import registered

        if absent in registered("experiments"):
            raise UserError(f"there is no run folder {absent}; an experiment is given as `--experiment {absent}`")
    if text := next((run for run in options.runs[1:] if run.is_file()), None):
        elsewhere = str(options.runs[0]).startswith("hf:")
        corpus = (
            f"give it as --corpus {pasted(text)}" if elsewhere else "a run is examined on its own corpus; remove it"
        )
        raise UserError(f"{text} is a file, and `examine` takes runs: {corpus}")
    names = ", ".join(map(str, options.runs))
    announce(f"examining {options.experiment} of {names}", *options.runs)
    from backstory.config.process import first_here
    from backstory.context import examine_run, examine_runs
    from backstory.training.distributed import joined

    with joined() as ranks, progress_bar(f"examining {options.experiment}") as bar:
        progress = bar if ranks.first else None
        if len(options.runs) == 1:
            examination = examine_run(options.runs[0], options, ranks=ranks, progress=progress)
        else:
            examination = examine_runs(options.runs, options, ranks=ranks, progress=progress)
    if first_here():
        options.show(examination, lambda: f"{examination.table()}\n{findings(examination)}")
    return 0


def findings(result: "Result[Any]") -> str:
    """Return the findings in sentences, with the published ones."""
    from backstory.papers.paper import published_examinations
    from backstory.reports.sections.context_section import examination_sentences

    lines = examination_sentences(result, published_examinations())
    return "\n".join(f"  {line}" for line in lines)
