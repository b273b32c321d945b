"""`backstory explain reading RUN`: what one reader gains on others along a sequence of articles, and where it loses."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from backstory.cli.explanations import tell
from backstory.cli.parse import parse
from backstory.cli.run_arguments import CorpusArguments
from backstory.config.fields import between


@dataclass(frozen=True)
class Arguments(CorpusArguments):
    """Read a stretch of text with two or more readers and show what each gains on the others, block by block."""

    text: str | None = None
    """A text file of your own to read, or - for standard input, in place of a split."""
    split: str | None = None
    """train, valid or test (else test)."""
    at: int = between(0, 0)
    """The token at which the stretch begins; what comes before it is read too."""
    tokens: int = between(20_000, 1)
    """Tokens of the stretch."""
    context: int | None = between(None, 0)
    """The most tokens before the stretch that are read (else all)."""
    reader: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """How it is read: `backstory ls readers`; given more than once, readers go around each other."""
    against: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A reader, or another run's folder, to compare with (else static); may be given more than once, best first."""
    block: int = between(100, 1)
    """Tokens of a block."""
    smooth: int = between(10, 0)
    """Blocks of the moving average in the picture; 0 for none."""
    passage: tyro.conf.UseAppendAction[tuple[int, ...]] = ()
    """A token at which a passage to show begins; may be given more than once (else passages are chosen)."""
    words: int = between(100, 1)
    """Words of a passage, 2000 at most."""
    word_score: Literal["corrected", "sum"] = "corrected"
    """How smaller tokens become a word's score: corrected for where it begins and ends, or their plain sum."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """Precision of matrix products."""
    html: Path | None = None
    """A page to write, in place of the text in the terminal; one of Backstory that is there is replaced."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let --html take the place of any file."""
    out: Path | None = None
    """Where result.json goes (else RUN/explain-reading)."""
    allow_unknown: tyro.conf.FlagCreatePairsOff[bool] = False
    """Read a text even where most of it is outside the vocabulary."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the result as JSON."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, "explain reading")

    from backstory.cli.evaluate import source
    from backstory.cli.progress import progress_bar
    from backstory.explanations import Detail, Stretch, compare_readers
    from backstory.reports import check_page

    if given.html is not None:
        check_page(given.html, given.overwrite)
    text = None if given.text is None else source(given.text)
    with progress_bar("comparing readers") as progress:
        result = compare_readers(
            given.run,
            Stretch(given.split, given.at, given.tokens, given.context, text),
            Detail(given.block, given.smooth, given.passage, given.words),
            reader=given.reader,
            against=given.against or ("static",),
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
    """Write a result of `compare_readers` as a page."""
    from backstory.reports import render_comparison, result_from, write_page

    write_page(page, render_comparison(result_from(json.dumps(result), "the result")))


def show(result: dict[str, Any]) -> None:
    """Print a result of `compare_readers` for a person."""
    from backstory.config.console import make_console
    from backstory.reports import comparison_terminal, result_from

    comparison_terminal.show(result_from(json.dumps(result), "the result"), make_console())
