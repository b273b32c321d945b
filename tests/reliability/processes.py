"""Real processes of the command line, forked in milliseconds from one that has loaded the library."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Call = tuple[str, str, dict[str, Any]]
"""Call of a process before its command: module (of this folder), function, options."""


def newest_step(checkpoints: Path) -> int:
    """The largest step that has a folder, whole or not; 0 if there is none."""
    return max((int(path.name.split("-")[1]) for path in checkpoints.glob("last-*")), default=0)


class Running:
    """A command that was started; it has ended once `code` is a number."""

    def __init__(self, zygote: "Zygote", number: int, output: Path) -> None:
        self._zygote, self.number, self._output = zygote, number, output
        self.code: int | None = None
        """Its exit code, or minus the signal that ended it."""

    def ended(self, within: float) -> bool:
        """Return True if it has ended, or does so within so many seconds."""
        if self.code is None and select.select([self._zygote.answers], [], [], max(within, 0.0))[0]:
            self.code = int(self._zygote.answer())
        return self.code is not None

    def wait(self, seconds: float = 120.0) -> int:
        """Its exit code. Raises TimeoutError, after killing it, if it takes longer."""
        if not self.ended(seconds):
            self.send(signal.SIGKILL)
            self.ended(60.0)
            raise TimeoutError(f"a command did not end within {seconds} s: {self.said()}")
        assert self.code is not None
        return self.code

    def reach(self, checkpoints: Path, step: int) -> None:
        """Wait until it has saved that step, or a later one, or has ended."""
        while newest_step(checkpoints) < step and not self.ended(0.001):
            pass

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it is known to have ended."""
        if self.code is None:
            os.kill(self.number, number)

    def said(self) -> str:
        """All that it has written to standard output and standard error so far."""
        return self._output.read_text(encoding="utf-8", errors="replace")


class Zygote:
    """Starts commands, one at a time."""

    def __init__(self, folder: Path) -> None:
        script = Path(__file__).with_name("zygote.py")
        paths = [str(script.parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        # A command whose disk is full would leave damaged .pyc files in src.
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        # Buffered nowhere on this side, so that `select` sees every answer that was not read.
        self._process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self.answers = self._process.stdin, self._process.stdout
        self._output, self._started = folder / "said", 0

    def start(self, *arguments: object, before: Sequence[Call] = (), **environment: str) -> Running:
        """Start `backstory ARGUMENTS`; the one before must have ended."""
        self._output.unlink(missing_ok=True)
        request = {
            "arguments": [str(a) for a in arguments],
            "output": str(self._output),
            "environment": environment,
            "before": before,
        }
        self._requests.write((json.dumps(request) + "\n").encode())
        return Running(self, int(self.answer()), self._output)

    def answer(self) -> bytes:
        """The next line that it says. Raises EOFError when it has died."""
        line = self.answers.readline()
        if not line:
            raise EOFError("the zygote has died")
        return line

    def close(self) -> None:
        self._requests.close()
        self._process.wait(60)
        self.answers.close()


@contextmanager
def zygote(folder: Path) -> Iterator[Zygote]:
    """One for the block; what its commands say goes into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    opened = Zygote(folder)
    try:
        yield opened
    finally:
        opened.close()
