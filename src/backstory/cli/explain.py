"""`backstory explain NAME RUN`: what a model makes of a passage, word by word, in the terminal or as a page."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from backstory.cli.explanations import tell
from backstory.cli.parse import parse
from backstory.cli.run_arguments import CorpusArguments
from backstory.config import UserError
from backstory.config.fields import between


@dataclass(frozen=True)
class Named:
    """Which explanation; apart, so that it comes before the run."""

    name: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(metavar="NAME", help="What is explained; `backstory ls explanations`."),
    ]


@dataclass(frozen=True)
class Arguments(CorpusArguments, Named):
    """Show a passage with what the model made of every word: surprisal, what it expected, what another reader gains.

    `backstory explain reading --help` tells of the comparison of readers along a whole stretch of text.
    """

    text: str | None = None
    """A text file of your own to read, or - for standard input, in place of a split."""
    split: str | None = None
    """train, valid or test (else test)."""
    at: int = between(0, 0)
    """The token at which the passage begins; what comes before it is read too."""
    words: int | None = between(None, 1)
    """Words of the passage, 2000 at most (else 200; with --find as many as the cache can hold)."""
    find: Literal["success", "failure", "both"] | None = None
    """Of `cache`: look for its most peaked success or its flattest failure from --at on, and show what led up to it."""
    context: int | None = between(None, 0)
    """The most tokens before the passage that are read (else all)."""
    reader: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """How it is read: `backstory ls readers`; may be given more than once."""
    against: str | None = None
    """A reader, or another run's folder: show what is gained over it."""
    top: int = between(5, 0, 100)
    """The most candidates of a word."""
    layer: str | None = None
    """What colours the words at first: surprisal, entropy, ..."""
    word_score: Literal["corrected", "sum"] = "corrected"
    """How smaller tokens become a word's score: corrected for where it begins and ends, or their plain sum."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """Precision of matrix products."""
    html: Path | None = None
    """A page to write, in place of the text in the terminal; one of Backstory that is there is replaced."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let --html take the place of any file."""
    out: Path | None = None
    """Where result.json goes (else RUN/explain-NAME)."""
    allow_unknown: tyro.conf.FlagCreatePairsOff[bool] = False
    """Read a text even where most of it is outside the vocabulary."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the result as JSON."""


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["reading"]:
        from backstory.cli import explain_reading

        return explain_reading.main(arguments[1:])
    given = parse(Arguments, arguments, "explain")
    if given.name == "reading":
        raise UserError("`reading` has flags of its own; write it right after `backstory explain`")

    from backstory.cli.evaluate import source
    from backstory.cli.progress import progress_bar
    from backstory.explanations import CASES, Place, explain_run
    from backstory.reports import check_page

    if given.html is not None:
        check_page(given.html, given.overwrite)
    text = None if given.text is None else source(given.text)
    cases = CASES if given.find == "both" else (given.find,)
    if len(cases) > 1 and (given.html or given.out or given.text == "-"):
        raise UserError("--html, --out and --text - are for one passage; give --find success or --find failure")
    for case in cases:
        with progress_bar(f"explaining {given.name}") as progress:
            result = explain_run(
                given.run,
                given.name,
                Place(given.split, given.at, given.words, given.context, text),
                reader=given.reader,
                against=given.against,
                top=given.top,
                layer=given.layer,
                find=case,
                precision=given.precision,
                device=given.device,
                data_dir=given.data_dir,
                corpus=given.corpus,
                word_score=given.word_score,
                out=given.out,
                allow_unknown=given.allow_unknown,
                progress=progress,
            )
        tell(result, given.html, given.json, write_view, show)
    return 0


def write_view(result: dict[str, Any], page: Path) -> None:
    """Write a result of `explain_run` as a page."""
    from backstory.reports import render_passage, result_from, write_page

    write_page(page, render_passage(result_from(json.dumps(result), "the result")))


def show(result: dict[str, Any]) -> None:
    """Print a result of `explain_run` for a person."""
    from backstory.config.console import make_console
    from backstory.reports import passage_terminal, result_from, to_text
    from backstory.reports.memory_weights import heads, older
    from backstory.reports.passage import from_json
    from backstory.reports.phrases import passage_summary

    console, read = make_console(), result_from(json.dumps(result), "the result")
    passage_terminal.show(from_json(read.figures["passage"], read.source), console)
    if (means := heads(read)) is not None:
        print(f"\n{to_text(means)}\n{older(read)}")
    print(f"\n{passage_summary(read)}")
