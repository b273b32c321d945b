"""Clock of long work, which stands still while the process is suspended, as by Ctrl-Z."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGCONT = getattr(signal, "SIGCONT", None)
"""None on Windows."""


class Clock:
    """Seconds for which this process has run.

    The system does not say how long a process was suspended, only when it goes on. So the time between the last reading of
    the clock and that signal is left out: read it often.
    """

    def __init__(self) -> None:
        self._left_out = 0.0
        self._read = time.perf_counter()

    def seconds(self) -> float:
        """Return the seconds since an arbitrary moment."""
        left_out = self._left_out
        self._read = time.perf_counter()
        return self._read - left_out

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Leave out the time for which the process is suspended in the block; in the main thread only."""
        if SIGCONT is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(SIGCONT)

        def note(number: int, frame: FrameType | None) -> None:
            now = time.perf_counter()
            self._left_out, self._read = self._left_out + now - self._read, now
            if callable(before):
                before(number, frame)

        signal.signal(SIGCONT, note)
        try:
            yield
        finally:
            signal.signal(SIGCONT, signal.SIG_DFL if before is None else before)


CLOCK = Clock()
"""Times readings, and the progress that a command shows."""
