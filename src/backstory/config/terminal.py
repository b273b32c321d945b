"""Text that is not ours (names, words, keys, file contents), made safe to print on a terminal or into a log."""

import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1: escape sequences, bells, carriage returns
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of the text after it
    "\u2028\u2029\ud800-\udfff]"  # separators of lines that terminals disagree about; bytes that were not UTF-8
)


def printable(text: str) -> str:
    r"""The text with its control characters written out, as in `\x1b[2J`; newlines, tabs and all of Unicode's letters stay.

    What joins letters (U+200C, U+200D) stays too: Persian, Hindi and many emoji are not written without it.
    """
    return _UNSAFE.sub(lambda match: _escaped(match[0]), text)


def cell(text: str) -> str:
    r"""The text printable and in its place in a line or a table: newlines and tabs are written out too."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def printable_json(text: str) -> str:
    """JSON that `json.dumps` wrote in ASCII, printable and of the same value: of control characters it leaves DEL alone."""
    return text.replace("\x7f", "\\u007f")


def one_line(text: str) -> str:
    """The text printable and in one line: each run of white space is one space."""
    return printable(" ".join(text.split()))


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


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


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def make_console(stderr: bool = False, **options: bool) -> Console:
    """A console on standard output, or on standard error; `options` are rich's."""
    return _Console(file=plain(sys.stderr if stderr else sys.stdout), **options)  # pyright: ignore[reportArgumentType]


def say(console: Console, line: str) -> None:
    """Print one line, without markup; it is not wrapped where there is no terminal."""
    console.print(cell(line), highlight=False, markup=False, soft_wrap=not console.is_terminal)


class LiveDisplay:
    """A display that is updated in place on a terminal. Elsewhere `_live` is None, and it prints lines."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None

    @contextmanager
    def shown(self) -> Iterator[Self]:
        """Show the display for the block."""
        if self._live is None:
            yield self
        else:
            with self._live:
                yield self
