"""Command lines by tyro over dataclasses, with every mistake told in one line."""

import contextlib
import dataclasses
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

from backstory.cli.mistakes import explain
from backstory.config import UserError, validate
from backstory.config.errors import check_utf8
from backstory.config.output import Coloured

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
