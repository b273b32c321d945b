"""Helpers of the tests of the command line: running one, and looking at what it left on the disk."""

import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

SMALL = [
    "--model.embedding.size=7",
    "--model.core.hidden=9",
    "--training.epochs=1",
    "--training.batch-size=3",
    "--training.segment=10",
    "--training.precision=float32",
    "--training.device=cpu",
]
"""Flags that make of the demo recipe a run of half a second."""


@dataclass(frozen=True)
class Outcome:
    """How a command line ended."""

    code: int
    out: str
    err: str

    def mistake(self) -> str:
        """The one line that says what is wrong, without its beginning; fails where that is not all there is."""
        assert self.code == 2, f"exit code {self.code}: {self.err}"
        assert self.out == ""
        assert self.err.startswith("backstory: ") and self.err.endswith("\n") and self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err.removeprefix("backstory: ").rstrip("\n")


Command = Callable[..., Outcome]


def tree(folder: Path) -> dict[str, str]:
    """Every file and folder below a folder, with the hash of its content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in folder.rglob("*")
    }


def piped(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Give the command line, called in this process, these bytes as standard input."""
    file = io.BytesIO(content)
    file.name = "<stdin>"  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))


def process(*arguments: str) -> subprocess.Popen:
    """The command line in a process of its own, its output in pipes."""
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-m", "backstory", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
