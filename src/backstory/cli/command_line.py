"""Command lines by tyro over dataclasses, with every mistake told in one line."""

import contextlib
import dataclasses
import io
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TextIO, TypeVar

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from backstory.cli.mistakes import explain
from backstory.config import UserError, nearest, validate
from backstory.config.errors import check_utf8
from backstory.config.terminal import Coloured, make_console

T = TypeVar("T")


def parse(kind: type[T], arguments: Sequence[str], verb: str, default: T | None = None) -> T:
    """Read the arguments of a verb into its dataclass; `--help` prints and exits. Raises UserError."""
    marked: Any = tyro.conf.configure(tyro.conf.AvoidSubcommands, tyro.conf.PositionalRequiredArgs)(kind)
    given: dict[str, Any] = {} if default is None else {"default": default}
    # tyro has flags of its own, which write files; a verb has only those that its help lists.
    if any(a.replace("_", "-").startswith("--tyro-") for a in arguments):
        raise UserError(explain(kind, arguments, verb, default))
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(Coloured(sys.stdout)):
            parsed = tyro.cli(marked, args=list(arguments), prog=f"backstory {verb}", **given)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UserError(explain(kind, arguments, verb, default)) from None
    _validate(parsed)
    return parsed


def _validate(parsed: Any) -> None:
    """Check the ranges of a verb's own settings, and of the configs in it under the names their flags have."""
    values = {f.name: getattr(parsed, f.name) for f in dataclasses.fields(parsed)}
    for value in values.values():
        for path in value if isinstance(value, tuple) else (value,):
            if isinstance(path, Path):
                check_utf8(path)
    configs = {name: value for name, value in values.items() if dataclasses.is_dataclass(value)}
    for config in configs.values():
        validate(config, "command line")
    validate(dataclasses.replace(parsed, **dict.fromkeys(configs)), "command line")


def dispatch(verb: str, actions: Mapping[str, Callable[[Sequence[str]], int]], arguments: Sequence[str]) -> int:
    """Run the action that the first argument names. Raises UserError for none or an unknown one."""
    listed = ", ".join(actions)
    if not arguments or arguments[0] in ("-h", "--help"):
        if arguments:
            print(f"usage: backstory {verb} {{{listed}}} ...      (backstory {verb} ACTION --help explains one)")
            return 0
        raise UserError(f"say what to do: `backstory {verb} {{{listed}}} ...`")
    if arguments[0] not in actions:
        raise UserError(
            f"there is no `backstory {verb} {arguments[0]}`{nearest(arguments[0], actions)}; there is {listed}"
        )
    return actions[arguments[0]](arguments[1:])


RUN = "The run's folder; or hf:PATH_OR_NAME, a causal language model of Hugging Face."

CORPUS = "For hf:... alone: the corpus, by its name or the path of a file or folder."


@dataclass(frozen=True)
class ModelArguments:
    """A run and what it runs on."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN", help=RUN)]
    device: str = "auto"
    """auto, cpu or cuda."""


@dataclass(frozen=True)
class RunArguments(ModelArguments):
    """A run, where it is read, and where its corpus lies."""

    data_dir: Path | None = None
    """Folder that holds the corpora (else BACKSTORY_DATA)."""


@dataclass(frozen=True)
class CorpusArguments(RunArguments):
    """A run, or a model that has no corpus of its own."""

    corpus: Annotated[str | None, tyro.conf.arg(help=CORPUS)] = None


def standard_input() -> TextIO:
    """Standard input. Raises UserError where it is closed, and for a device that is no terminal, which has no end."""
    if sys.stdin is None:
        raise UserError("standard input is closed; give it a text, as in `backstory ... < TEXT`")
    try:
        found = os.fstat(sys.stdin.fileno())
    except (OSError, ValueError):  # in a program that puts something else in its place
        return sys.stdin
    if stat.S_ISCHR(found.st_mode) and not sys.stdin.isatty() and found.st_rdev != os.stat(os.devnull).st_rdev:
        raise UserError("standard input is a device, which has no end; give it a text, as in `backstory ... < TEXT`")
    return sys.stdin


def typed_text() -> BinaryIO:
    """Standard input as a whole text; a person at a terminal is told that it is waited for. Raises UserError."""
    given = standard_input()
    if given.isatty():
        print("backstory: type a text, and Ctrl-D to end", file=sys.stderr)
    return given.buffer


EVERY = 60.0
"""Seconds between two lines."""


@contextmanager
def progress_bar(description: str, unit: str = "tokens", size: int = 1) -> Iterator[Callable[[int, int], None]]:
    """A bar for the block; call what it yields with (done, total), of which `size` make a unit of those shown.

    Where there is no terminal it is a line every minute: nothing of what is over before.
    """
    console = make_console(stderr=True)
    if not console.is_terminal:
        yield _lines(console, description, unit, size)
        return
    # Not as markup: a description may hold a path, and that square brackets.
    counts = TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit, markup=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(None), counts, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=1)
        yield lambda done, total: bar.update(task, completed=done / size, total=total / size)


def _lines(console: Console, description: str, unit: str, size: int) -> Callable[[int, int], None]:
    began = told = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told < EVERY or not 0 < done < total:
            return
        told = now
        left = timedelta(seconds=round((now - began) * (total - done) / done))
        counts = f"{done / size:,.0f} of {total / size:,.0f} {unit}"
        console.print(f"{description}: {counts}, {left} left", markup=False, highlight=False, soft_wrap=True)

    return tell
