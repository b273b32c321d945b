"""`backstory explain NAME RUN`: explain a passage word by word, in the terminal or as a page.

`backstory explain reading RUN` shows the gains and losses of a reader against others along a stretch of text.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import tyro

from backstory.cli.command_line import RUN, JsonOutput, announce, parse, print_json, text_source
from backstory.config.explanation_options import EXPLANATION_SUMMARIES, CompareOptions, ExplainOptions
from backstory.storage.atomic import check_apart
from backstory.utils.errors import UserError, check_name
from backstory.utils.terminal import fitted, make_console, progress_bar

if TYPE_CHECKING:
    from backstory.results import Result

_Run = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN", help=RUN)]


@dataclass(frozen=True, kw_only=True)
class Output(JsonOutput):
    """The text of an explanation, and where it is shown."""

    text: str | None = None
    """A text file of your own to read, or - for standard input, in place of a split."""
    html: Path | None = None
    """A page to write, in place of the text in the terminal; an earlier page of Backstory is replaced."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let --html replace any file."""


@dataclass(frozen=True, kw_only=True)
class ExplainArguments(Output, ExplainOptions):
    """Explain a passage word by word: surprisal, expected words, gain of another reader.

    `backstory explain reading --help` describes the comparison of readers along a stretch of text.
    """

    name: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(
            metavar="NAME",
            help="The explanation; "
            + "; ".join(f"{name}: {shows}" for name, shows in EXPLANATION_SUMMARIES.items())
            + ".",
        ),
    ]
    run: _Run
    find: Literal["success", "failure", "both"] | None = None  # type: ignore[assignment]
    """For `cache`: find its most peaked success or its flattest failure after --at, and show the words before it."""


@dataclass(frozen=True, kw_only=True)
class CompareReadersArguments(Output, CompareOptions):
    """Read a stretch of text with two or more readers and show what each gains over the others, block by block."""

    run: _Run


def main(arguments: Sequence[str]) -> int:
    return explain_reading(arguments[1:]) if arguments[:1] == ["reading"] else explain_passage(arguments)


def explain_passage(arguments: Sequence[str]) -> int:
    """Explain a passage; with `--find both` the best case of a cache, then the worst."""
    first = arguments[0] if arguments else ""
    is_run = first.startswith("hf:") or Path(first).exists()
    if not arguments or (is_run and first not in EXPLANATION_SUMMARIES):
        names = ", ".join(EXPLANATION_SUMMARIES)
        raise UserError(f"name the explanation first: `backstory explain NAME RUN`; NAME is one of {names}")
    args = parse(ExplainArguments, arguments, "explain")
    if args.name == "reading":
        raise UserError("`reading` has flags of its own; write it right after `backstory explain`")

    check_name(args.name, EXPLANATION_SUMMARIES, "explanation", "backstory ls explanations")
    announce(f"explaining {args.name} of {args.run}", args.run, readers=args.reader, splits=(args.split,))
    from backstory import explanations
    from backstory.reports import render_passage
    from backstory.reports.phrases import passage_summary

    text = _text(args)
    cases = explanations.CASES if args.find == "both" else (args.find,)
    if len(cases) > 1 and (args.html or args.out or args.text == "-"):
        raise UserError("--html, --out and --text - are for one passage; give --find success or --find failure")
    for case in cases:
        options: ExplainOptions = dataclasses.replace(args, find=case)
        with progress_bar(f"explaining {args.name}") as progress:
            result = explanations.explain_passage(args.run, args.name, options, text=text, progress=progress)
        show(result, args, render_passage, passage_summary)
    return 0


def explain_reading(arguments: Sequence[str]) -> int:
    """Compare readers along a stretch of text."""
    args = parse(CompareReadersArguments, arguments, "explain reading")

    announce(f"comparing readers of {args.run}", args.run, readers=args.reader, splits=(args.split,))
    from backstory import explanations
    from backstory.reports import render_comparison

    text = _text(args)
    with progress_bar("comparing readers") as progress:
        result = explanations.compare_readers(args.run, args, text=text, progress=progress)
    show(result, args, render_comparison)
    return 0


def _text(output: Output) -> Path | BinaryIO | None:
    """Open the user's text, if one is given, after checking that the page can be written."""
    from backstory.reports import check_page

    if output.html is not None:
        check_page(output.html, output.overwrite)
        check_apart([output.html], output.text)
    return None if output.text is None else text_source(output.text)


def show(
    result: "Result",
    output: Output,
    page: Callable[["Result"], str],
    summary: Callable[["Result"], str] | None = None,
) -> None:
    """Write the page, if one is wanted, and print the result as JSON, the page's path, or the result for a person."""
    from backstory.reports import sections, write_page

    if output.html is not None:
        write_page(output.html, page(result))
    if output.json:
        print_json(result)
    elif output.html is not None:
        print(output.html)
    else:
        sections.show(result, make_console())
        if summary is not None:
            print(fitted(f"\n{summary(result)}"))
