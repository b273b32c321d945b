"""`backstory explain NAME RUN`: what a model makes of a passage, word by word, in the terminal or as a page.

`backstory explain reading RUN` shows what one reader gains on others along a stretch of text, and where it loses.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from backstory.cli.command_line import RUN, parse
from backstory.config import UserError
from backstory.config.options import CompareOptions, ExplainOptions

_Run = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN", help=RUN)]


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where an explanation is read from and shown."""

    text: str | None = None
    """A text file of your own to read, or - for standard input, in place of a split."""
    html: Path | None = None
    """A page to write, in place of the text in the terminal; one of Backstory that is there is replaced."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let --html take the place of any file."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the result as JSON."""


@dataclass(frozen=True, kw_only=True)
class ExplainArguments(Output, ExplainOptions):
    """Show a passage with what the model made of every word: surprisal, what it expected, what another reader gains.

    `backstory explain reading --help` tells of the comparison of readers along a whole stretch of text.
    """

    name: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(metavar="NAME", help="What is explained; `backstory ls explanations`."),
    ]
    run: _Run
    find: Literal["success", "failure", "both"] | None = None  # type: ignore[assignment]
    """Of `cache`: look for its most peaked success or its flattest failure from --at on, and show what led up to it."""


@dataclass(frozen=True, kw_only=True)
class CompareReadersArguments(Output, CompareOptions):
    """Read a stretch of text with two or more readers and show what each gains on the others, block by block."""

    run: _Run


def main(arguments: Sequence[str]) -> int:
    return explain_reading(arguments[1:]) if arguments[:1] == ["reading"] else explain_passage(arguments)


def explain_passage(arguments: Sequence[str]) -> int:
    """Explain a passage; with `--find both` one after the other, the best and the worst case of a cache."""
    parsed = parse(ExplainArguments, arguments, "explain")
    if parsed.name == "reading":
        raise UserError("`reading` has flags of its own; write it right after `backstory explain`")

    from backstory import explanations
    from backstory.cli.command_line import progress_bar

    text = _text(parsed)
    cases = explanations.CASES if parsed.find == "both" else (parsed.find,)
    if len(cases) > 1 and (parsed.html or parsed.out or parsed.text == "-"):
        raise UserError("--html, --out and --text - are for one passage; give --find success or --find failure")
    for case in cases:
        options: ExplainOptions = dataclasses.replace(parsed, find=case)
        with progress_bar(f"explaining {parsed.name}") as progress:
            result = explanations.explain_passage(parsed.run, parsed.name, options, text=text, progress=progress)
        _put_out(result, parsed, write_view, show)
    return 0


def explain_reading(arguments: Sequence[str]) -> int:
    """Compare readers along a stretch of text."""
    parsed = parse(CompareReadersArguments, arguments, "explain reading")

    from backstory import explanations
    from backstory.cli.command_line import progress_bar

    text = _text(parsed)
    with progress_bar("comparing readers") as progress:
        result = explanations.compare_readers(parsed.run, parsed, text=text, progress=progress)
    _put_out(result, parsed, write_comparison, show_comparison)
    return 0


def _text(output: Output) -> Any:
    """Open the text that is explained, if it is one's own, after the page that is to be written was checked."""
    from backstory.cli.evaluate import source
    from backstory.reports import check_page

    if output.html is not None:
        check_page(output.html, output.overwrite)
    return None if output.text is None else source(output.text)


def _put_out(
    result: dict[str, Any],
    output: Output,
    write: Callable[[dict[str, Any], Path], None],
    show: Callable[[dict[str, Any]], None],
) -> None:
    """Write the page if one is wanted, and print the result as JSON, the page's path, or the result for a person."""
    if output.html is not None:
        write(result, output.html)
    if output.json:
        from backstory.evaluation.evaluation import as_json

        print(as_json(result))
    elif output.html is not None:
        print(output.html)
    else:
        show(result)


def write_view(result: dict[str, Any], page: Path) -> None:
    """Write a result of `explain_passage` as a page."""
    from backstory.reports import render_passage, write_page
    from backstory.results.result_file import result_of

    write_page(page, render_passage(result_of(result, "the result")))


def show(result: dict[str, Any]) -> None:
    """Print a result of `explain_passage` for a person."""
    from backstory.config.terminal import make_console
    from backstory.reports import sections
    from backstory.reports.phrases import passage_summary
    from backstory.results.result_file import result_of

    record = result_of(result, "the result")
    sections.show(record, make_console())
    print(f"\n{passage_summary(record)}")


def write_comparison(result: dict[str, Any], page: Path) -> None:
    """Write a result of `compare_readers` as a page."""
    from backstory.reports import render_comparison, write_page
    from backstory.results.result_file import result_of

    write_page(page, render_comparison(result_of(result, "the result")))


def show_comparison(result: dict[str, Any]) -> None:
    """Print a result of `compare_readers` for a person."""
    from backstory.config.terminal import make_console
    from backstory.reports import sections
    from backstory.results.result_file import result_of

    sections.show(result_of(result, "the result"), make_console())
