"""A worker of an examination: `python -m backstory.cli.examination_worker PID` scores its share of the targets."""

import sys
from collections.abc import Sequence

from backstory.cli.command_line import parse
from backstory.cli.examine import ExamineArguments, examined
from backstory.jobs.ranks import joined
from backstory.jobs.worker import serve


def work(commands: Sequence[Sequence[str]]) -> None:
    """Take part in the examinations of these command lines, one after the other."""
    with joined() as ranks:
        for command in commands:
            examined(parse(ExamineArguments, command, "examine"), ranks)


if __name__ == "__main__":
    sys.exit(serve(work))
