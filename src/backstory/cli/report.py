"""`backstory report DIR...`: one self-contained page of the results in run folders."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from backstory.cli.command_line import parse


@dataclass(frozen=True)
class Arguments:
    """Make one page, with nothing to load from the network, of the results in run folders."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN...", help="Run folders.")]
    out: Path = Path("report.html")
    """The page to write; one of Backstory that is there is replaced."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let --out take the place of any file."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, "report")

    from backstory.config import UserError
    from backstory.papers.paper import published_examinations
    from backstory.reports import write

    if not given.runs:
        raise UserError("name at least one run folder: `backstory report runs/demo`")
    write(given.runs, given.out, given.overwrite, published_examinations())
    print(given.out)
    return 0
