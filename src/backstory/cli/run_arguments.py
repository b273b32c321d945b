"""What every verb that reads with a trained run takes."""

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, TextIO

import tyro

from backstory.config import UserError

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
