"""Safe output: printable text, streams that survive a closed pipe or a full disk, consoles, and progress of long work."""

import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment

from backstory.utils.clock import CLOCK

if TYPE_CHECKING:
    from rich.progress import Progress


_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1: escape sequences, bells, carriage returns
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # changes of the direction of the text that follows
    "\u2028\u2029\ud800-\udfff]"  # separators of lines that terminals disagree about; bytes that were not UTF-8
)


def printable(text: str) -> str:
    r"""Return the text with control characters written out, as `\x1b[2J`; newlines, tabs and all letters of Unicode stay.

    The joiners of letters (U+200C, U+200D) stay too: Persian, Hindi and many emoji need them.
    """
    return _UNSAFE.sub(lambda match: _escaped(match[0]), text)


def cell(text: str) -> str:
    r"""Return printable text for one line or one cell of a table: newlines and tabs are written out too."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def padded(text: str, width: int, right: bool = False) -> str:
    """Fill text with spaces to a width in columns of a terminal, where a character takes none, one or two.

    With `right` the text is right-aligned.
    """
    spaces = " " * (width - cell_len(text))
    return spaces + text if right else text + spaces


def shortened(text: str, width: int) -> str:
    """Return text for a cell of at most so many columns of a terminal."""
    clean = cell(text)
    return clean if cell_len(clean) <= width else set_cell_size(clean, width - 1).rstrip() + "…"


def printable_json(text: str) -> str:
    """Return JSON from `json.dumps` with DEL escaped, the only control character that it leaves in."""
    return text.replace("\x7f", "\\u007f")


def one_line(text: str) -> str:
    """Return printable text in one line: each run of white space becomes one space."""
    return printable(" ".join(text.split()))


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


class Tolerant:
    """Stream that never raises: after the first failed write it discards everything, and keeps the error in `failure`."""

    def __init__(self, stream: Any) -> None:
        """`stream` is a text stream, or None for a closed one."""
        self.stream = _Nowhere() if stream is None else stream
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        self._quietly(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._quietly(self.stream.flush)

    def write_bytes(self, data: bytes) -> None:
        """Write bytes as they are, after the text before them."""
        self.flush()
        self._quietly(self.stream.buffer.write, data)
        self._quietly(self.stream.buffer.flush)

    def _quietly(self, call: Callable[..., object], *arguments: str | bytes) -> None:
        if self.failure is not None:
            return
        try:
            call(*arguments)
        except OSError as error:
            self.failure = error
            with suppress(OSError), open(os.devnull, "wb") as nowhere:  # a flush of the buffer would fail again
                os.dup2(nowhere.fileno(), self.stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Printed:
    """Tolerant stream that makes all text printable; `make_console`, whose text has styles, writes to `styled` directly."""

    def __init__(self, stream: Any) -> None:
        self.styled = Tolerant(stream)

    def write(self, text: str) -> int:
        self.styled.write(printable(text))
        return len(text)

    def flush(self) -> None:
        self.styled.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.styled, name)


class _Nowhere(io.TextIOBase):
    """Stream that discards everything, in place of a closed one."""

    @property
    def buffer(self) -> io.BytesIO:
        return io.BytesIO()

    def write(self, text: str, /) -> int:
        return len(text)


@contextmanager
def printing() -> Iterator[None]:
    """Make standard output and error printable and tolerant for the block; characters they cannot encode are replaced."""
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
    """Return the error that closed standard output (BrokenPipeError if nobody reads it), or None."""
    return getattr(sys.stdout, "failure", None)


def plain(stream: Any) -> Tolerant:
    """Return the stream behind `Printed` ones, for writers that style their text and make it printable themselves."""
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
    """Open /dev/null in place of closed standard streams, so that no file gets their descriptors and the output of C code."""
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
    """Return a console on standard output or standard error; `options` are those of rich.

    In a notebook it prints plain lines, although the stream says that it is a terminal.
    """
    stream = sys.stderr if stderr else sys.stdout
    if type(stream).__module__.startswith("ipykernel."):
        options = {"force_terminal": False, "force_jupyter": False, **options}
    # Programs without a screen set COLUMNS to 0 for an unknown width; rich would print tables of no width, so nothing.
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES") or v.strip("0")}
    return _Console(file=plain(stream), _environ=environment, **options)  # pyright: ignore[reportArgumentType]


def say(console: Console, line: str) -> None:
    """Print one line, without markup; it is not wrapped where there is no terminal."""
    console.print(cell(line), highlight=False, markup=False, soft_wrap=not console.is_terminal)


TABLE_WIDTH = 80
"""Characters of a line of a table, where the terminal is not narrower."""


def terminal_width() -> int:
    """Return the width to which tables are folded: TABLE_WIDTH, or that of a narrower terminal."""
    return min(TABLE_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else TABLE_WIDTH


def fitted(text: str) -> str:
    """Return text for standard output; on a terminal, lines that are too long are broken between words, in `hanging` form."""
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(part for line in text.split("\n") for part in hanging(line, width))


def hanging(line: str, width: int) -> list[str]:
    """Break a line between words, and put what follows under its text, behind the label; a command in backticks stays whole."""
    if len(line) <= width:
        return [line]
    label = re.match(r" *(?:\S+(?: \S+)* {2,})?", line)
    indent = label.end() if label and label.end() <= width // 2 else len(line) - len(line.lstrip())
    joined = re.sub("`[^`]*`", lambda command: command[0].replace(" ", "\0"), line)
    wrapper = textwrap.TextWrapper(width, subsequent_indent=" " * indent, expand_tabs=False, replace_whitespace=False,
                                   break_long_words=False, break_on_hyphens=False)  # fmt: skip
    return [part.replace("\0", " ") for part in wrapper.wrap(joined)]


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


ProgressCallback = Callable[[int, int], None]
"""Receives how much is done, and how much there is to do."""

EVERY = 60.0
"""Seconds between two lines of progress."""
ANNOUNCED = 1_000_000
"""Without a terminal, texts of this many bytes or more are announced before they are prepared."""


@dataclass(frozen=True)
class _Display:
    """The console of a block that shows progress, and its bars if it is a terminal."""

    console: Console
    bars: "Progress | None"


_DISPLAY: ContextVar[_Display | None] = ContextVar("display", default=None)


@contextmanager
def shown_progress(console: Console | None = None) -> Iterator[None]:
    """Show the progress of the texts that the block prepares, on standard error by default.

    Time for which the process is suspended is left out of the time that is left, and of readings.
    """
    if _DISPLAY.get() is not None:
        yield
        return
    console = console or make_console(stderr=True)
    bars = _bars(console) if console.is_terminal and not console.quiet else None
    token = _DISPLAY.set(_Display(console, bars))
    try:
        with CLOCK.listening(), bars or nullcontext():
            yield
    finally:
        _DISPLAY.reset(token)


@contextmanager
def progress_bar(description: str, unit: str = "tokens", size: int = 1) -> Iterator[ProgressCallback]:
    """Show a progress bar for the block; call the yielded function with (done, total), where `size` make one shown unit.

    Without a terminal it prints a line every minute, and nothing if the work ends before.
    """
    with shown_progress():
        display = _DISPLAY.get()
        assert display is not None
        if display.bars is None:
            yield _lines(display.console, description, unit, size)
            return
        # Until the work says how much there is, as while a model is loaded, the bar moves and nothing is counted.
        bars, task = display.bars, display.bars.add_task(description, total=None, counts="")

        def update(done: int, total: int) -> None:
            CLOCK.seconds()  # often, so that little work is left out with a suspension
            counts = f"{done / size:,.0f} of {total / size:,.0f} {unit}"
            bars.update(task, completed=done / size, total=total / size, counts=counts)

        try:
            yield update
        finally:
            bars.remove_task(task)


@contextmanager
def part_of_work(description: str, progress: ProgressCallback | None) -> Iterator[ProgressCallback | None]:
    """Show a part of long work in a bar of its own, in a block that shows progress; elsewhere `progress` is told."""
    if _DISPLAY.get() is None:
        yield progress
        return
    with progress_bar(description) as shown:
        yield shown


@contextmanager
def preparing(name: str, size: int, verb: str = "preparing") -> Iterator[ProgressCallback]:
    """Show that something is done with a text of `size` bytes, in a block that shows progress; elsewhere nothing is shown."""
    display = _DISPLAY.get()
    if display is None:
        yield lambda done, total: None
        return
    description = f"{verb} {name} ({shown_size(size)})"
    if display.bars is None and size >= ANNOUNCED:
        say(display.console, description)
    unit = ("MB", 1_000_000) if size >= 10_000_000 else ("kB", 1_000)  # of a small text no part would be a MB
    with progress_bar(description, *unit) as progress:
        yield progress


def shown_size(size: int) -> str:
    """Return a number of bytes in words: `30 MB`."""
    for unit, bytes_ in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= bytes_:
            return f"{size / bytes_:.0f} {unit}" if size >= 10 * bytes_ else f"{size / bytes_:.1f} {unit}"
    return f"{size} bytes"


def _bars(console: Console) -> "Progress":
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    # No markup: a description may hold a path with square brackets.
    counts = TextColumn("{task.fields[counts]}", markup=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(None), counts, TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)


def _lines(console: Console, description: str, unit: str, size: int) -> ProgressCallback:
    started = printed = CLOCK.seconds()
    first = last = 0

    def show(done: int, total: int) -> None:
        nonlocal started, printed, first, last
        now = CLOCK.seconds()
        if done < last:  # the next part of the work begins
            started, first = now, done
        last = done
        if now - printed < EVERY or not first < done < total:
            return
        printed = now
        left = timedelta(seconds=round((now - started) * (total - done) / (done - first)))
        counts = f"{done / size:,.0f} of {total / size:,.0f} {unit}"
        console.print(f"{description}: {counts}, {left} left", markup=False, highlight=False, soft_wrap=True)

    return show
