"""Standard output and standard error for a program whose work matters more than what it says of it."""

import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from backstory.config.printable import printable

_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


class Tolerant:
    """A stream that goes silent where it cannot be written any more, and keeps why in `failure`; it raises nothing."""

    def __init__(self, stream: Any) -> None:
        """`stream`: text, or None for one that is closed."""
        self.stream = _Nowhere() if stream is None else stream
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        self._quietly(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._quietly(self.stream.flush)

    def _quietly(self, call: Callable[..., object], *arguments: str) -> None:
        if self.failure is not None:
            return
        try:
            call(*arguments)
        except OSError as error:
            self.failure = error
            with suppress(OSError), open(os.devnull, "wb") as nowhere:  # what is buffered still would fail once more
                os.dup2(nowhere.fileno(), self.stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Printed:
    """The same of printable text alone; what styles its text itself writes to `styled` (`make_console`)."""

    def __init__(self, stream: Any) -> None:
        self.styled = Tolerant(stream)

    def write(self, text: str) -> int:
        self.styled.write(printable(text))
        return len(text)

    def flush(self) -> None:
        self.styled.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.styled, name)


class Coloured(Printed):
    """The same of text that others have coloured, which on a terminal it stays."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.styled = plain(stream)

    def write(self, text: str) -> int:
        parts = _COLOUR.split(text) if self.styled.isatty() else [text]
        self.styled.write("".join(part if _COLOUR.fullmatch(part) else printable(part) for part in parts))
        return len(text)


class _Nowhere(io.TextIOBase):
    """Where a closed stream writes to."""

    def write(self, text: str, /) -> int:
        return len(text)


@contextmanager
def printing() -> Iterator[None]:
    """Make both streams of the program printable and tolerant for the block, characters that they lack replaced."""
    before = sys.stdout, sys.stderr
    _occupy()
    with ExitStack() as restored:
        for stream in before:
            if isinstance(stream, io.TextIOWrapper):
                restored.callback(_reconfigure, stream, stream.errors)
                _reconfigure(stream, "replace" if stream is sys.stdout else "backslashreplace")
        sys.stdout, sys.stderr = (Printed(stream) for stream in before)  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            sys.stdout, sys.stderr = before


def failure() -> OSError | None:
    """Why standard output cannot be written any more; a BrokenPipeError where nobody reads it. None while it can."""
    return getattr(sys.stdout, "failure", None)


def plain(stream: Any) -> Tolerant:
    """The stream behind those that make text printable: for what styles its text, and makes it printable itself."""
    while not isinstance(stream, Tolerant):
        inner = stream.styled if isinstance(stream, Printed) else getattr(stream, "rich_proxied_file", None)
        if inner is None:
            return Tolerant(stream)
        stream = inner
    return stream


def _reconfigure(stream: io.TextIOWrapper, errors: str | None) -> None:
    with suppress(OSError, ValueError):
        stream.reconfigure(errors=errors)


def _occupy() -> None:
    """Let the numbers of closed standard streams lead nowhere: else a file that is opened takes one, and what C code says."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
