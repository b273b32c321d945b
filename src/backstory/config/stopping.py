"""SIGINT, SIGTERM and SIGHUP ask for a stop at the next step boundary, where a checkpoint is saved; nothing is torn."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from backstory.config.interrupts import STOPS, Interrupts

SIGHUP = getattr(signal, "SIGHUP", None)
"""There is none on Windows."""


class Stopped(Exception):
    """Work was stopped by a signal, and saved; the message says where, and how to go on. `signal` is its number."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number

    @property
    def exit_code(self) -> int:
        """What a shell calls an end by that signal."""
        return 128 + self.signal


class StopRequest:
    """Whether a stop was asked for, and by which signal, the first of them; `heard` is called once when it comes."""

    def __init__(self, heard: Callable[[], None] = lambda: None) -> None:
        self.signal: int | None = None
        # Called in a thread of its own, as what was interrupted may be writing to the same terminal just now.
        self._telling = threading.Thread(target=heard, daemon=True)

    @property
    def requested(self) -> bool:
        return self.signal is not None

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Take over the signals for the block (only the main thread can), but SIGHUP where it is ignored (nohup)."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {s: signal.getsignal(s) for s in STOPS}
        if before.get(SIGHUP) == signal.SIG_IGN:
            del before[SIGHUP]
        for number in before:
            signal.signal(number, self._note)
        try:
            yield self
        finally:
            for number, handler in before.items():
                if self.signal is not None and isinstance(handler, Interrupts):
                    handler.heard(self.signal)
                signal.signal(number, handler)
            if self._telling.ident is not None:
                self._telling.join()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
            self._telling.start()
