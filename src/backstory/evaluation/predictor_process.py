"""A predictor that is a process: one JSON object on a line of its standard input, one on a line of its standard output.

    {"start": {"types": 256, "batch_size": 1}}   ->   {}
    {"predict": [10, 72, 101]}                   ->   {"log_probs": [[...], [...], [...]]}
    {"observe": [72, 101, 108]}                  ->   {}

With several rows the lists of ids, and the table, have one more level. The text ends where standard input ends.
"""

import json
import os
import select
import shlex
import signal
import subprocess
import tempfile
import time
from typing import Any

import numpy as np

from backstory.utils.errors import UserError, shown
from backstory.utils.terminal import one_line

LAST_WORDS = 1.0
"""Seconds for a process that closed its output to end."""
PIECE = 1 << 16
"""Bytes that are read or written at once."""
NUMBER = 40
"""Most characters of a number in an answer; a longer line is no table."""


class ProcessPredictor:
    """A predictor that speaks the protocol above; it is started at once, and ended by `close`.

    By default it is fed one token at a time: it then never holds a later one, and every token is decoded. Raises UserError if
    it cannot be started, ends, answers with anything else, or takes longer than `timeout` seconds.
    """

    block = 1

    def __init__(self, command: str, types: int, batch_size: int = 1, timeout: float = 60.0) -> None:
        self._types, self._timeout = types, timeout
        self._closed = False
        self._read = b""
        """Output after its last answer."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        try:
            words = shlex.split(command)
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
                bufsize=0,
            )
        except (OSError, ValueError, IndexError) as error:
            self._errors.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError(f"cannot start {shown(command)}: {reason}; give the command line of a program") from None
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        try:
            self._ask("start", {"types": types, "batch_size": batch_size}, 0)
        except BaseException:
            self.close()
            raise

    def predict(self, tokens: np.ndarray) -> Any:
        answer = self._ask("predict", tokens.tolist(), tokens.size * self._types)
        if "log_probs" not in answer:
            raise UserError('the process answered {"predict": ...} without "log_probs"; see docs/referee.md')
        return answer["log_probs"]

    def observe(self, targets: np.ndarray) -> None:
        self._ask("observe", targets.tolist(), 0)

    def close(self) -> None:
        """End the process and those that it started."""
        if self._closed:
            return
        self._closed = True
        self._kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            try:
                assert pipe is not None
                pipe.close()
            except BrokenPipeError:  # what it was still to read
                pass

    def _ask(self, what: str, content: Any, numbers: int) -> dict[str, Any]:
        """Send a request and return the answer, which holds at most so many numbers."""
        longest = 10_000 + NUMBER * numbers
        line = self._exchanged(json.dumps({what: content}).encode() + b"\n", longest)
        if line is None:
            self._kill()
            raise UserError(
                f"the process did not answer {what} in {self._timeout:g} seconds; allow more with --timeout"
            )
        if not line.endswith(b"\n"):
            if len(line) >= longest:
                raise UserError(f"the process answered {what} with more than {longest:,} characters; {_PLEASE}")
            raise UserError(f"the process ended before it answered {what} ({self._last_words()}); correct it")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            written = line[:200].decode("utf-8", "replace").strip()
            raise UserError(f"the process answered {what} with {shown(written)}, which is not a JSON object; {_PLEASE}")
        return answer

    def _exchanged(self, request: bytes, longest: int) -> bytes | None:
        """Write a line and return the next one that comes, or what there is where it is too long or the output ends.

        None after `timeout` seconds, even if another process holds the pipes open.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        deadline = time.monotonic() + self._timeout
        # The answer is put together once: a table may be hundreds of megabytes.
        pieces, size, ended = [self._read], len(self._read), b"\n" in self._read
        while request or not ended:
            left = deadline - time.monotonic()
            readable, writable, _ = select.select([stdout], [stdin] if request else [], [], max(0.0, left))
            if left <= 0 and not readable and not writable:
                return None
            if writable:
                try:
                    request = request[os.write(stdin.fileno(), request[:PIECE]) :]
                except BlockingIOError:
                    pass
                except OSError:  # it reads no more
                    request = b""
            if readable:
                piece = os.read(stdout.fileno(), PIECE)
                pieces.append(piece)
                size, ended = size + len(piece), ended or b"\n" in piece
                if not piece or (not ended and size >= longest):
                    break
        line, newline, self._read = b"".join(pieces).partition(b"\n")
        return line[:longest] if len(line) >= longest else line + newline

    def _last_words(self) -> str:
        """Return the exit code of the process, and the last line that it wrote to standard error."""
        try:
            code: int | None = self._process.wait(timeout=LAST_WORDS)
        except subprocess.TimeoutExpired:  # it closed its output, and goes on
            code = None
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 4000))
        lines = self._errors.read().decode("utf-8", "replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        end = "it closed its standard output" if code is None else f"exit code {code}"
        return f"{end}{last and f': {one_line(last.strip())}'}"

    def _kill(self) -> None:
        """Kill the process, if it still runs, with all of its session."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (OSError, AttributeError):  # it has ended, or the system has no sessions
            if self._process.poll() is None:
                self._process.kill()


_PLEASE = "standard output is for answers alone, one line each (docs/referee.md)"
