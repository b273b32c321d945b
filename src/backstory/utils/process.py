"""The process: its end, signals that end it, as an exception or as a request to save and stop, its cores, and its rank."""

import atexit
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from backstory.utils.errors import UserError, shown


def signals(*names: str) -> tuple[signal.Signals, ...]:
    """Return those of these signals that the system has: Windows lacks most."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


STOPS = signals("SIGINT", "SIGTERM", "SIGHUP")
TOGETHER = 5.0
"""Seconds after a signal in which further ones are ignored, while unfinished work is cleared away."""
YOUNG_OBJECTS = 50_000
"""New objects between two passes of Python's garbage collector, in place of 700.

Loading torch makes 300,000 that stay, and the passes over them took a tenth of the processor time of a short command. Training
and reading leave next to no garbage that only the collector frees."""


def run_program(main: Callable[[], int]) -> NoReturn:
    """End this process with the exit code of a program, without taking apart the modules that it has loaded.

    With torch among them that takes Python up to a second. Threads are joined first, and functions of `atexit` called; while
    there are threads to join, Ctrl-C and SIGTERM end the process.
    """
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    codes: list[int] = []
    atexit.register(lambda: codes and _end(codes[0]))  # registered before the others, and so called after them
    codes.append(main())
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        for number in (signal.SIGINT, signal.SIGTERM):  # a thread of a plugin may never end
            signal.signal(number, signal.SIG_DFL)
    sys.exit(codes[0])


def _end(code: int) -> NoReturn:
    if logging := sys.modules.get("logging"):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # it is None, broken or closed
            stream.flush()
    os._exit(code)


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
        """Note a signal. Return True if the program should act on it, False if it repeats one."""
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

    Only in the main thread. With `last` the program ends after the block, and further signals are ignored.
    """
    handler = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield handler
        return
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    before = {number: current for number in STOPS if (current := signal.getsignal(number)) in defaults}
    for number in before:
        signal.signal(number, handler)
    try:
        yield handler
    finally:
        for number, previous in before.items():
            signal.signal(number, signal.SIG_IGN if last else previous)


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
        # It runs in a thread of its own, as the interrupted code may be writing to the same terminal.
        self._notice = threading.Thread(target=heard, daemon=True)

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
        for hang_up in signals("SIGHUP"):
            if before[hang_up] == signal.SIG_IGN:
                del before[hang_up]
        for number in before:
            signal.signal(number, self._note)
        try:
            yield self
        finally:
            for number, handler in before.items():
                if self.signal is not None and isinstance(handler, Interrupts):
                    handler.heard(self.signal)
                signal.signal(number, handler)
            if self._notice.ident is not None:
                self._notice.join()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
            self._notice.start()


MEETING = ("RANK", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables by which ranks find each other."""


@dataclass(frozen=True)
class Launched:
    """Rank of this process and number of ranks; 0 of 1 without torchrun."""

    rank: int = 0
    world: int = 1
    local: int = 0
    """Rank on this machine."""
    here: int = 1
    """Ranks on this machine."""


def launched() -> Launched:
    """Return the ranks set in the environment. Raises UserError if a variable is missing, no number, or out of range."""
    ranks = world()
    if ranks == 1:
        return Launched()
    missing = next((name for name in MEETING if not os.environ.get(name)), None)
    if missing is not None:
        raise UserError(f"WORLD_SIZE is {ranks}, and {missing} is not set; start several processes with torchrun")
    _number("MASTER_PORT", 0, 1, 65535)
    here = _number("LOCAL_WORLD_SIZE", ranks, 1, ranks)
    return Launched(_number("RANK", 0, 0, ranks - 1), ranks, _number("LOCAL_RANK", 0, 0, here - 1), here)


def world() -> int:
    """Return the number of ranks, 1 without torchrun. Raises UserError if the environment has no number."""
    return _number("WORLD_SIZE", 1, 1)


def cpu_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def first_here() -> bool:
    """Return True in the first process of a distributed run on this machine, and in the only one."""
    rank = os.environ.get("LOCAL_RANK", "0")
    return not rank.isdecimal() or not rank.strip("0")


def _number(name: str, default: int, least: int, most: int = 1 << 20) -> int:
    text = os.environ.get(name) or str(default)
    if len(text) < 10 and text.isascii() and text.isdecimal() and least <= int(text) <= most:
        return int(text)
    raise UserError(
        f"{name} must be a whole number from {least} to {most}, not {shown(text)}; unset it, or start with torchrun"
    )
