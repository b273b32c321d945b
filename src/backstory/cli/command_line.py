"""Command lines from dataclasses by tyro with one-line errors, arguments that verbs share, and standard input."""

import contextlib
import dataclasses
import io
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TextIO, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from backstory.cli import help_page
from backstory.cli.flags import NONE, expanded, read_path, takes_all_settings
from backstory.cli.mistakes import explain, repetition
from backstory.config import validate
from backstory.config.options import LoadOptions, ModelOptions
from backstory.config.plugin_files import LOADED
from backstory.config.renamed import refuse_old_reader
from backstory.config.schema import SPLITS
from backstory.storage.run_files import check_run_exists, check_source_exists
from backstory.utils.errors import UserError, check_name, check_utf8, nearest, pasted
from backstory.utils.process import first_here
from backstory.utils.small_file import is_pipe, user_path
from backstory.utils.terminal import fitted, one_line, printable_json

T = TypeVar("T")

RULES = ConstructorRegistry()
"""Parsers of values that replace tyro's."""


@RULES.primitive_rule
def _no_value(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Read `none` or `None` as no value."""
    if info.type is not type(None):
        return None
    return PrimitiveConstructorSpec(1, NONE[0], lambda _: None, lambda value: value is None, lambda _: [NONE[0]], NONE)


@RULES.primitive_rule
def _path(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Read a path; not an empty one, such as an unset variable of a shell gives, which would be the current folder."""
    if info.type is not Path:
        return None
    return PrimitiveConstructorSpec(
        1,
        "PATH",
        lambda values: read_path(values[0]),
        lambda value: isinstance(value, Path),
        lambda value: [str(value)],
    )


def parse(kind: type[T], arguments: Sequence[str], verb: str, default: T | None = None) -> T:
    """Read the arguments of a verb into its dataclass; `--help` and `--help-all` print and exit. Raises UserError."""
    if (page := help_page.wanted(arguments)) is not None:
        print(help_page.page(kind, verb, default, everything=page == "all"))
        raise help_page.HelpShown(0)
    marked: Any = tyro.conf.configure(tyro.conf.AvoidSubcommands, tyro.conf.PositionalRequiredArgs)(kind)
    options: dict[str, Any] = {} if default is None else {"default": default}
    # tyro has flags of its own, which write files; a verb accepts only those in its help.
    if any(a.replace("_", "-").startswith("--tyro-") for a in arguments):
        raise UserError(explain(kind, arguments, verb, default))
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            typed = expanded(arguments) if takes_all_settings(kind) else list(arguments)
            parsed = tyro.cli(marked, args=typed, registry=RULES, **options)
    except SystemExit:
        raise UserError(explain(kind, arguments, verb, default)) from None
    # Of repeated settings of a run the last wins, as in a recipe; a text or an experiment must not be dropped silently.
    if not takes_all_settings(kind) and (problem := repetition(kind, typed, default)):
        raise UserError(problem)
    _validate(parsed)
    return parsed


def _validate(parsed: Any) -> None:
    """Check the ranges of a verb's own arguments, and of the configs in it by the names of their flags."""
    values = {f.name: getattr(parsed, f.name) for f in dataclasses.fields(parsed)}
    for value in values.values():
        for path in value if isinstance(value, tuple) else (value,):
            if isinstance(path, Path):
                check_utf8(path)
    configs = {name: value for name, value in values.items() if dataclasses.is_dataclass(value)}
    for config in configs.values():
        validate(config, "command line")
    validate(dataclasses.replace(parsed, **dict.fromkeys(configs)), "command line")


Action = tuple[str, Callable[[Sequence[str]], int]]
"""Purpose of an action of a command, in one phrase, and the function that does it."""


def dispatch(verb: str, actions: Mapping[str, Action], arguments: Sequence[str]) -> int:
    """Run the action named by the first argument. Raises UserError for no action, or an unknown one."""
    listed = ", ".join(actions)
    if not arguments:
        raise UserError(f"name an action: `backstory {verb} {{{listed}}} ...`")
    if arguments[0] in (*help_page.HELP, help_page.HELP_ALL):
        print(f"usage: backstory {verb} {{{listed}}} ...")
        print(f"       (backstory {verb} ACTION --help explains one)\n")
        print(help_page.table({name: phrase for name, (phrase, _) in actions.items()}))
        return 0
    if arguments[0] not in actions:
        meant = nearest(arguments[0], actions)
        if not meant and "show" in actions:
            meant = f" (did you mean `backstory {verb} {next(iter(actions))} {pasted(arguments[0])}`?)"
        raise UserError(f"there is no `backstory {verb} {arguments[0]}`{meant}; there is {listed}")
    return actions[arguments[0]][1](arguments[1:])


@dataclass(frozen=True, kw_only=True)
class JsonOutput:
    """The flag of a command that prints facts."""

    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the result as JSON, alone on standard output."""

    def show(self, value: Any, text: str | Callable[[], str]) -> None:
        """Print a value as JSON if requested, else its text, which may be a function that makes it."""
        if self.json:
            print_json(value)
        else:
            print(fitted(text if isinstance(text, str) else text()))


def print_json(value: Any) -> None:
    """Print a value, a result or a container of results as the JSON of `--json`."""
    print(printable_json(json.dumps(value, indent=1, allow_nan=False, default=methodcaller("to_dict"))))


def announce(
    work: str,
    *runs: Path,
    slow: str = "torch",
    readers: Sequence[str] = (),
    splits: Sequence[str | None] = (),
    experiment: str | None = None,
) -> None:
    """Say on standard error what a command does, before it loads the library that takes seconds, named by `slow`.

    Raises UserError where a run that it works on is absent; before a line is printed, for an unknown reader, split or
    experiment too.
    """
    for run in runs:
        if str(run).startswith("hf:"):
            check_source_exists(str(run).removeprefix("hf:"))
        else:
            check_run_exists(run)
    if sys.modules.get(slow) is None and first_here():
        _check_names(readers, splits, experiment)
        print(f"backstory: {work}", file=sys.stderr)


def _check_names(readers: Sequence[str], splits: Sequence[str | None], experiment: str | None) -> None:
    """Raise UserError for an unknown name, without loading the registries (and torch), which also know plugins' names."""
    for split in filter(None, splits):
        check_name(split, SPLITS, "split")
    if LOADED or not (readers or experiment):
        return
    from backstory.cli.completion import registered

    for name in re.split(r"\+(?=[a-z])", "+".join(readers)) if readers else ():
        name = re.split("[:=]", name)[0]
        refuse_old_reader(name)
        check_name(name, registered("readers"), "reader", "backstory ls readers", from_plugins=True)
    if experiment is not None:
        check_name(experiment, registered("experiments"), "experiment", "backstory ls experiments", from_plugins=True)


RUN = "The run's folder; or hf:PATH_OR_NAME, a causal language model of Hugging Face."


@dataclass(frozen=True)
class ModelArguments(LoadOptions):
    """A run, and how it is loaded."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN", help=RUN)]


@dataclass(frozen=True)
class CorpusArguments(ModelOptions, ModelArguments):
    """A run, how it is loaded, and the place of its corpus."""


def standard_input() -> TextIO:
    """Return standard input. Raises UserError if it is closed, or a device other than a terminal, which never ends."""
    if sys.stdin is None:
        raise UserError("standard input is closed; give it a text, as in `backstory ... < TEXT`")
    try:
        status = os.fstat(sys.stdin.fileno())
    except (OSError, ValueError):  # replaced by the calling program
        return sys.stdin
    if stat.S_ISCHR(status.st_mode) and not sys.stdin.isatty() and status.st_rdev != os.stat(os.devnull).st_rdev:
        raise UserError("standard input is a device, which has no end; give it a text, as in `backstory ... < TEXT`")
    return sys.stdin


def typed_text() -> BinaryIO:
    """Return standard input as bytes; at a terminal, print how to end it. Raises UserError."""
    stdin = standard_input()
    if stdin.isatty():
        print("backstory: type a text, and Ctrl-D to end", file=sys.stderr)
    return stdin.buffer


def text_source(text: str) -> Path | BinaryIO:
    """Return the text named by TEXT: a path, or standard input. Raises UserError for the name of a split."""
    if not text:
        raise UserError("the text is empty; give a file, or - for standard input")
    if text in SPLITS and not Path(text).exists():
        raise UserError(f"there is no file '{text}'; `--split {text}` reads that split of the run's corpus")
    if text == "-":
        return typed_text()
    if not Path(text).exists() and "/" not in text and "." not in text:
        from backstory.readers import READERS

        if text.partition(":")[0] in READERS:
            raise UserError(f"there is no file '{text}'; each reader follows a flag of its own: `--reader {text}`")
    if is_pipe(Path(text)):
        print(f"backstory: {one_line(text)} is a pipe; waiting until something is written into it", file=sys.stderr)
    return user_path(text)
