"""`backstory report RUN...`: write the results of run folders as one page, or as tables and figures for a paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from backstory.cli.command_line import JsonOutput, announce, parse
from backstory.utils.errors import UserError, pasted

ENDINGS = (".html", ".md", ".tex", ".csv")
"""Endings of what a report can be written to."""


@dataclass(frozen=True)
class ReportArguments(JsonOutput):
    """Write the results of run folders as one self-contained page, or as tables and figures for a paper."""

    runs: Annotated[
        tyro.conf.Positional[tuple[Path, ...]],
        tyro.conf.arg(metavar="RUN...", help="Run folders, folders of runs, or a result.json."),
    ]
    out: Path = Path("report.html")
    """The file to write: .html (a page), .md (Markdown), .tex (LaTeX tables for \\input) or .csv (a row for each figure);
    an earlier report of Backstory is replaced."""
    figures: Path | None = None
    """Save every figure into this folder too, as PDF, SVG and PNG."""
    cite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print how to cite Backstory, and do nothing else."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let --out and --figures replace any file."""


def main(arguments: Sequence[str]) -> int:
    args = parse(ReportArguments, arguments, "report")

    if args.cite:
        from backstory.reports.writers import bibtex

        print(bibtex())
        return 0
    if not args.runs:
        raise UserError("name at least one run folder: `backstory report runs/demo`")
    if page := next((run for run in args.runs if run.suffix in ENDINGS and not run.is_dir()), None):
        raise UserError(f"{page} is not a run folder; the file to write is given as `--out {pasted(page)}`")
    from backstory.storage.run_files import RESULT, check_results_exist

    folders = [path.parent if path.name == RESULT and path.is_file() else path for path in args.runs]
    for folder in folders:
        check_results_exist(folder)
    announce(f"writing {args.out}", slow="numpy")
    from backstory.papers.paper import published_examinations
    from backstory.reports import write
    from backstory.results.run_listing import reported_runs

    runs = reported_runs(folders)
    write(runs, args.out, args.overwrite, published_examinations(), args.figures)
    args.show({"page": str(args.out), "runs": list(map(str, runs))}, str(args.out))
    return 0
