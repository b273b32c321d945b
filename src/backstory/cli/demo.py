"""`backstory demo`: train, read, examine and report a small model on the documentation of your own Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from backstory.cli.parse import parse
from backstory.config import UserError, recipes


@dataclass(frozen=True)
class Arguments:
    """Train a small AWD-LSTM, read its test split, measure its use of context, and write a report (about 5 minutes)."""

    out: Path = Path("runs/demo")
    """The run's folder."""
    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """Go on with a demo that was stopped."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Start again in a folder that holds a run."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, "demo")
    if given.resume and given.overwrite:
        raise UserError("--resume and --overwrite exclude each other; give one of them")

    from rich.console import Console

    from backstory.cli import evaluate as evaluating
    from backstory.cli import examine as examining
    from backstory.cli.progress import progress_bar
    from backstory.cli.train import run_training
    from backstory.context import examine_run
    from backstory.explanations import Place, explain_run
    from backstory.reading import evaluate, generate
    from backstory.reports import write

    console, out = Console(), given.out
    console.rule("[bold]1. train[/] a language model on the documentation of your Python", align="left")
    mode = "resume" if given.resume else "overwrite" if given.overwrite else "new"
    if (code := run_training(recipes.load("demo"), out, mode)) != 0:
        return code
    console.rule("[bold]2. read[/] the test split once, every word scored, audited", align="left")
    with progress_bar("reading test") as progress:
        evaluation = evaluate(out, "test", progress=progress)
    print(evaluating.describe(evaluation))
    console.rule("[bold]3. examine[/] how much context the model uses", align="left")
    with progress_bar("examining truncate") as progress:
        examination = examine_run(out, "truncate", targets=TARGETS, progress=progress)
    print(examining.describe(examination))
    console.rule("[bold]4. write[/]: how the model goes on with a sentence", align="left")
    for text in generate(out, PROMPT, tokens=40, temperature=0.7, echo=True, save=True):
        print(text, end="", flush=True)
    print()
    console.rule("[bold]5. report[/]", align="left")
    explain_run(out, place=Place(at=PASSAGE))
    page = out / "report.html"
    write([out], page)
    print(
        f"{page} shows it all; open it in a browser.\n\n"
        "Where to look next:\n" + "\n".join(f"  {command:<52} {what}" for command, what in NEXT).format(out=out)
    )
    return 0


NEXT = (
    ("backstory evaluate {out} --split valid --json", "the figures as JSON"),
    ("backstory explain surprisal {out} --at 5000", "how surprising each word of a passage is"),
    ("backstory generate {out} --prompt 'This module'", "how the model goes on with your words"),
    ("backstory ls", "models, recipes, corpora, experiments"),
    ("backstory train demo --corpus my.txt --out runs/my", "the same on a text of your own"),
    ("backstory recipe copy ptb-awd-lstm mine.yaml", "a published model, every setting in a file"),
)
PROMPT = "Return a list of"
PASSAGE = 1000
"""Token of the test text at which the passage of the report begins."""
TARGETS = 1000
"""Enough for an interval of the effective context that means something, in some twenty seconds."""
