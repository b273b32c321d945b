"""Call the command line in this process, and describe faults in how a call ended."""

import contextlib
import io
import signal
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from backstory.cli.main import main

WARNING = "backstory: warning: "


class Hung(BaseException):
    """A call exceeded its time limit. Not an Exception, so that no error handler catches it."""


@dataclass(frozen=True)
class Ended:
    """Outcome of a call: `code` is None after an exception, which is then in `raised`."""

    code: int | None
    out: str
    err: str
    raised: str = ""

    def problem(self, codes: Sequence[int] = (0, 2)) -> str:
        """Empty where the exit code is one of these and any but 0 came with one line (3: at the end), warnings aside."""
        if self.code is None:
            return self.raised
        lines = [line for line in self.err.split("\n")[:-1] if not line.startswith(WARNING)]
        if self.code not in codes:
            return f"exit code {self.code}: {self.err[-200:]!r}"
        if self.code == 3:  # a run that had begun, and had said so
            return (
                ""
                if lines and lines[-1].startswith(("backstory: step", "backstory: epoch", "backstory: the score"))
                else f"exit code 3: {self.err[-300:]!r}"
            )
        if self.code and not (len(lines) == 1 and lines[0].startswith("backstory: ") and len(lines[0]) < 2000):
            return f"exit code {self.code} with {len(lines)} lines: {self.err[:300]!r}"
        return ""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise Hung in the block if it takes longer (of the main thread alone)."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def call(arguments: Sequence[str], seconds: float = 30) -> Ended:
    """Run a command line as a shell would, its output as strict as a terminal's."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", e) for e in ("strict", "backslashreplace"))
    code, raised = None, ""
    with warnings.catch_warnings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        warnings.simplefilter("always")
        try:
            with within(seconds):
                code = main(arguments)
        except Hung:
            raised = f"not done after {seconds:g} s"
        except Exception as error:
            raised = f"{type(error).__name__}: {str(error)[:200]!r}, {_place(error)}"
    return Ended(code, *(_text(stream) for stream in (out, err)), raised)


def _place(error: BaseException) -> str:
    """Return the innermost location in the package's own code."""
    found, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        found = f"{Path(name).name}:{trace.tb_lineno}" if "/backstory/" in name else found
        trace = trace.tb_next
    return found


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined]


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything below a folder, with size and time of the last change."""
    found = {str(p.relative_to(folder)): p.lstat() for p in sorted(folder.rglob("*"))}
    return {name: (s.st_size, s.st_mtime_ns) for name, s in found.items() if s}
