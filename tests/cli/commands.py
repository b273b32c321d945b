"""Run command lines in tests, and inspect the files that they leave."""

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
"""Flags that turn the demo recipe into a run of half a second."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a command line."""

    code: int
    out: str
    err: str

    def mistake(self) -> str:
        """Return the only line of the error, without its prefix. Fails if there is any other output."""
        assert self.code == 2, f"exit code {self.code}: {self.err}"
        assert self.out == ""
        assert self.err.startswith("backstory: ") and self.err.endswith("\n") and self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err.removeprefix("backstory: ").rstrip("\n")


Command = Callable[..., Outcome]


def tree(folder: Path) -> dict[str, str]:
    """Return all files and folders below a folder, with the hashes of their contents."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in folder.rglob("*")
    }


def piped(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Replace standard input by these bytes for a command line in this process."""
    file = io.BytesIO(content)
    file.name = "<stdin>"  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))


def process(*arguments: str) -> subprocess.Popen:
    """The command line in a process of its own, its output in pipes."""
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-m", "backstory", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
