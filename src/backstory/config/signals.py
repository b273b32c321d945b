"""Signals that end a program (SIGINT, SIGTERM, SIGHUP): as an exception, or as a request to save and stop. The first counts."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
TOGETHER = 5.0
"""Seconds after a signal in which further ones are ignored, while unfinished work is cleared away."""


class Interrupted(KeyboardInterrupt):
    """Raised by a signal; `signal` is the number of the first one."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = number


class Interrupts:
    """Signal handler that raises Interrupted, with the number of the first signal, until `ends` is set."""

    def __init__(self) -> None:
        self.ends = False
        self._first: int | None = None
        self._since = 0.0

    def heard(self, number: int) -> bool:
        """Note a signal. Return True if the program should act on it, False if it only repeats one."""
        if self.ends or (self._first is not None and time.monotonic() - self._since < TOGETHER):
            return False
        self._first, self._since = self._first or number, time.monotonic()
        return True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.heard(number):
            raise Interrupted(self._first or number)


@contextmanager
def interruptible(last: bool) -> Iterator[Interrupts]:
    """Make these signals raise Interrupted in the block, except those that are ignored or handled already.

    Only in the main thread. `last` says that nothing comes after the block but the end of the program: they are ignored then.
    """
    made = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield made
        return
    usual = (signal.SIG_DFL, signal.default_int_handler)
    before = {number: there for number in STOPS if (there := signal.getsignal(number)) in usual}
    for number in before:
        signal.signal(number, made)
    try:
        yield made
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if last else handler)


SIGHUP = getattr(signal, "SIGHUP", None)
"""None on Windows."""


class Stopped(Exception):
    """Work was saved and stopped by a signal. The message says where it was saved and how to resume it."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number

    @property
    def exit_code(self) -> int:
        """Exit code of a program ended by the signal."""
        return 128 + self.signal


class StopRequest:
    """A request to stop: the number of the first signal, None before it. `heard` is called once when it arrives."""

    def __init__(self, heard: Callable[[], None] = lambda: None) -> None:
        self.signal: int | None = None
        # Called in a thread of its own, as what was interrupted may be writing to the same terminal just now.
        self._telling = threading.Thread(target=heard, daemon=True)

    @property
    def requested(self) -> bool:
        return self.signal is not None

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Handle the signals for the block, in the main thread only; SIGHUP stays ignored if it was (nohup)."""
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
