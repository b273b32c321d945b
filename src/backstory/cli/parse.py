"""Command lines by tyro over dataclasses, with every mistake told in one line."""

import contextlib
import dataclasses
import io
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

from backstory.config import UserError, validate

T = TypeVar("T")


def parse(kind: type[T], arguments: Sequence[str], verb: str, default: T | None = None) -> T:
    """Read the arguments of a verb into its dataclass; `--help` prints and exits. Raises UserError."""
    problems = io.StringIO()
    marked: Any = tyro.conf.configure(tyro.conf.AvoidSubcommands, tyro.conf.PositionalRequiredArgs)(kind)
    given = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(problems):
            parsed = tyro.cli(marked, args=list(arguments), prog=f"backstory {verb}", **given)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UserError(_one_line(problems.getvalue(), verb)) from None
    for setting in [getattr(parsed, f.name) for f in dataclasses.fields(kind)]:  # type: ignore[arg-type]
        if dataclasses.is_dataclass(setting):
            validate(setting, "command line")
    return parsed


def _one_line(box: str, verb: str) -> str:
    """The first paragraph of tyro's boxed message, and the nearest option if it names one."""
    text = re.sub(r"[╭╮╰╯│─]+", " ", box.split("───\n", 1)[-1])
    lines = [line.strip() for line in re.sub(r"[│╰╯]", " ", box).splitlines()[1:]]
    message: list[str] = []
    for line in lines:
        if not line or set(line) <= {"─", " "}:
            break
        message.append(line)
    near = re.search(r"(--[\w.\-]+)", text.split("Perhaps you meant", 1)[1]) if "Perhaps you meant" in text else None
    hint = f" (did you mean {near[1]}?)" if near else ""
    return " ".join(message).rstrip(".") + f"{hint}; `backstory {verb} --help` explains"
