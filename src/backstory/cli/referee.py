"""`backstory referee MODULE:FACTORY --text FILE`: score and audit any predictor."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from backstory.cli.command_line import JsonOutput, announce, parse, typed_text
from backstory.config.options import part_of
from backstory.config.plugin_files import load_factory
from backstory.config.referee_options import RefereeOptions
from backstory.utils.errors import UserError
from backstory.utils.terminal import one_line, progress_bar


@dataclass(frozen=True)
class RefereeArguments(JsonOutput, RefereeOptions):
    """Score any predictor on a text, byte by byte, and audit how the score is made.

    The predictor is a Python object with `predict` and `observe`, or a process that speaks a line protocol
    (docs/referee.md). The exit code is 0 if it passes, 1 if a condition fails, and 2 if it cannot be refereed.
    """

    predictor: Annotated[
        tyro.conf.Positional[str | None],
        tyro.conf.arg(
            metavar="[PREDICTOR]", help="module:name or file.py:name of the class or function that makes it."
        ),
    ] = None
    text: Path | None = None
    """The text, read as bytes; - for standard input."""
    process: str | None = None
    """The command line of a process, in place of PREDICTOR."""


def main(arguments: Sequence[str]) -> int:
    """Referee; return exit code 1 if a condition fails."""
    args = parse(RefereeArguments, arguments, "referee")
    if (args.predictor is None) == (args.process is None):
        raise UserError("name a predictor, as in my_model.py:Model, or give --process 'COMMAND'; one of them")
    if args.text is None:
        raise UserError("there is no text to score; give one with --text FILE")
    args.claims()
    name = args.predictor or args.process or ""
    announce(f"refereeing {one_line(name)} on {args.text}")
    from backstory.evaluation.refereed_text import RefereedText
    from backstory.evaluation.refereeing import referee
    from backstory.reports.sections.referee_section import describe

    typed = str(args.text) == "-"
    text = RefereedText.of_file(typed_text(), "standard input") if typed else RefereedText.of_path(args.text)
    options = part_of(args, RefereeOptions).checked()
    with progress_bar(f"refereeing on {args.text}", unit="bytes") as progress, contextlib.redirect_stdout(sys.stderr):
        # What the code of others prints is no part of the answer.
        make = None if args.predictor is None else load_factory(args.predictor)
        result = referee(make, text, options, process=args.process, name=name, progress=progress)
    args.show(result, lambda: describe(result))
    passed = result.figures.audit.passed
    if not passed and args.json:
        print(f"backstory: {result.figures.audit.in_words()}", file=sys.stderr)
    return 0 if passed else 1
