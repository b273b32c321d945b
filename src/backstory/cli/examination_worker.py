"""A worker of an examination: `python -m backstory.cli.examination_worker PID` scores its share of the targets."""

from collections.abc import Sequence

from backstory.cli.command_line import parse
from backstory.cli.examine import ExamineArguments, examined
from backstory.jobs.ranks import joined
from backstory.jobs.worker import serve
from backstory.utils.process import run_program


def work(arguments: Sequence[str]) -> None:
    """Take part in the examination of a command line."""
    with joined() as ranks:
        examined(parse(ExamineArguments, arguments, "examine"), ranks)


if __name__ == "__main__":
    run_program(lambda: serve(work))
