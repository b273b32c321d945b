"""`backstory demo`: a small language model with and without a memory, trained on the documentation of your own Python."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from backstory.cli import train
from backstory.cli.command_line import announce, parse
from backstory.config import recipes
from backstory.utils.errors import FolderConflict, pasted
from backstory.utils.formats import count, perplexity, signed_percent
from backstory.utils.process import Interrupted, Stopped
from backstory.utils.scores import bounded
from backstory.utils.terminal import fitted, make_console, progress_bar

if TYPE_CHECKING:
    from backstory.results import EvaluationFigures
    from backstory.runs.run_folder import Mode


@dataclass(frozen=True)
class DemoArguments:
    """Train a small LSTM with and without a pointer and a cache, measure their use of context, and report (a few minutes)."""

    out: Path = Path("runs/demo")
    """The run's folder; the model with a pointer gets the same name with -pointer."""
    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """Resume a demo that was stopped."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace the runs in these folders."""


def main(arguments: Sequence[str]) -> int:
    args = parse(DemoArguments, arguments, "demo")
    mode = train.run_mode(args.resume, args.overwrite)
    with _explained_interruption(args):
        _run(args, mode)
    return 0


def _run(args: DemoArguments, mode: "Mode") -> None:
    announce(f"training, reading and examining a small model in {args.out}; this takes a few minutes")
    from backstory.config.examination_options import ExamineOptions
    from backstory.config.explanation_options import ExplainOptions
    from backstory.context import examine_run
    from backstory.evaluation import evaluate, generate
    from backstory.explanations import explain_passage
    from backstory.papers.paper import published_examinations
    from backstory.readers.registry import parse_stack
    from backstory.reports import write
    from backstory.tuning.preparation import tune_reader

    console, out = make_console(), args.out
    named = out.resolve() if out.name in ("", "..") else out
    pointer = named.parent / f"{named.name}-pointer"
    systems = (("LSTM", out, "static"), ("LSTM + cache", out, "cache"), ("LSTM + pointer", pointer, "static"))
    with _flags_of_its_own():
        _train(console, mode, out, pointer)
    console.rule("[bold]2. read[/] the test split, audited: without a memory, and with two", align="left")
    with progress_bar("tuning the cache") as progress:
        tune_reader(out, parse_stack(CACHE), "valid", None, CACHE_GRID, progress)
    read = []
    for name, folder, reader in systems:
        with progress_bar(f"reading test, {name}") as progress:
            figures = evaluate(folder, split="test", reader=reader, progress=progress).figures
        if not read:
            print(fitted(_words_read(figures)))
        print(fitted(_perplexity(name, figures)))
        read.append(figures)
    print(fitted(_gains(read)))
    console.rule("[bold]3. examine[/] how much context each of them uses", align="left")
    examined = []
    for name, folder, reader in systems:
        with progress_bar(f"examining {name}") as progress, _flags_of_its_own():
            options = ExamineOptions.of(reader=reader, targets=TARGETS, maximum_context=LONGEST)
            examined.append(examine_run(folder, options, progress=progress).figures)
    print(fitted(_contexts([name for name, _, _ in systems], examined)))
    console.rule("[bold]4. write[/]: how the model continues a prompt", align="left")
    for text in generate(out, PROMPT, tokens=40, temperature=0.7, echo=True, save=True):
        print(text, end="", flush=True)
    print()
    console.rule("[bold]5. report[/]", align="left")
    explain_passage(out, options=ExplainOptions(at=PASSAGE))
    page = out / "report.html"
    write([out, pointer], page, published=published_examinations())
    print(f"{page} shows it all; open it in a browser.\n\nWhere to look next:")
    for command, purpose in NEXT:
        print(fitted(f"  {command.format(out=pasted(out)):<51}  {purpose}"))


@contextmanager
def _explained_interruption(args: DemoArguments) -> Iterator[None]:
    """Make the message of a signal name the command that continues the demo. Raises Stopped."""
    try:
        yield
    except (KeyboardInterrupt, Stopped) as stop:
        from backstory.runs.run_folder import RunFolder

        number = stop.signal if isinstance(stop, Interrupted | Stopped) else signal.SIGINT
        if not RunFolder(args.out).config.is_file():
            raise Stopped("interrupted before anything was saved; start again", number) from None
        out = "" if args.out == DemoArguments.out else f" --out {pasted(args.out)}"
        raise Stopped(f"interrupted; `backstory demo{out} --resume` goes on", number) from None


@contextmanager
def _flags_of_its_own() -> Iterator[None]:
    """Make errors of the block name flags of `demo` instead of those of `train` and `examine`."""
    try:
        yield
    except FolderConflict as error:
        raise FolderConflict(error.problem, "use --overwrite to start again, or another --out") from None


def _train(console: Any, mode: "Mode", out: Path, pointer: Path) -> None:
    """Train the LSTM, and the same one with a pointer."""
    from backstory.runs.run_folder import RunFolder, check_folder

    alone = recipes.load_recipe("demo")
    memory = replace(alone, model=replace(alone.model, buffer=recipes.load_recipe("own-text").model.buffer))
    # A demo that was stopped before the second run had a checkpoint starts it.
    second: Mode = "overwrite" if mode == "resume" and not RunFolder(pointer).resumable else mode
    check_folder(pointer, memory, second)  # before a minute goes into the first
    console.rule("[bold]1. train[/] a language model on the documentation of your Python", align="left")
    train.run_training(alone, out, mode)
    print("with a pointer to earlier words, from the first step:")
    train.run_training(memory, pointer, second)


def _words_read(figures: "EvaluationFigures") -> str:
    unknown = figures.unknown_among(figures.tokens).phrase()
    return f"  perplexity per {figures.unit} over {figures.tokens:,} {figures.unit}s{unknown and f', {unknown}'}:"


def _perplexity(name: str, figures: "EvaluationFigures") -> str:
    assert figures.audit is not None
    return f"  {name:<18}  {bounded(figures.perplexity):>6}, audit {figures.audit.in_words()}"


def _gains(results: Sequence["EvaluationFigures"]) -> str:
    """Return the gain of each memory over the same LSTM without it, trained as long."""
    alone, cache, pointer = (figures.perplexity for figures in results)
    cached, pointed = (signed_percent(100 * (ours / alone - 1)) for ours in (cache, pointer))
    return f"  perplexity against the LSTM alone, trained as long: {cached} with the cache, {pointed} with the pointer"


def _contexts(names: Sequence[str], examinations: Sequence[Any]) -> str:
    """Return a table of the perplexity by length of context, a line for each system."""
    from backstory.reports.tables import Table, columns, to_text

    shown = [[c for c in f.conditions if c.context in SHOWN] for f in examinations]
    rows = tuple(
        (name, *(perplexity(c.perplexity) for c in conditions), f.context_in_words())
        for name, conditions, f in zip(names, shown, examinations, strict=True)
    )
    head = columns("", *(f"{count(c.context)}#" for c in shown[0]), "effective context")
    table = to_text(Table(head, rows)).splitlines()
    first = examinations[0]
    heading = f"perplexity of {first.targets:,} words of {first.split} with only so many words before them:"
    return "\n".join(f"  {line}" for line in (heading, *table))


NEXT = (
    ("backstory evaluate {out} --split valid --json", "the figures as JSON"),
    ("backstory explain surprisal {out} --at 5000", "how surprising words are"),
    ("backstory generate {out} --prompt 'This module'", "continue your own prompt"),
    ("backstory ls", "models, recipes, corpora"),
    ("backstory train own-text --corpus my.txt", "train on your own text"),
    ("backstory recipe copy ptb-awd-lstm mine.yaml", "a published model to edit"),
)
"""Commands to try after the demo, and what they are for."""
CACHE = "cache:window=500"
"""About as many words as the pointer reaches."""
CACHE_GRID = ("theta=0.7,1,1.5,2", "weight=0.1,0.2,0.3,0.4")
PROMPT = "Return a list of"
PASSAGE = 1000
"""First token of the passage in the report, in the test text."""
TARGETS = 300
"""Enough targets for useful intervals, but not more time than the training."""
LONGEST = 500
"""Words of the longest context: as many as the memories hold. With 1,000, twice as many would be read."""
SHOWN = (5, 20, 50, 100, 200, 300, LONGEST)
"""The contexts shown in the terminal."""
