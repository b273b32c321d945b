"""Text files read block by block, decoded, normalised and checked, and where to cut a file in three."""

import codecs
import hashlib
import io
import os
import re
import select
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from backstory.config.errors import UserError
from backstory.config.small_file import open_regular

BLOCK = 1 << 20
"""Bytes read at once."""


@dataclass(frozen=True)
class Source:
    """A stretch of a file: the bytes from `start` up to `end` (None: the end of the file), and its title."""

    path: Path
    title: str = ""
    start: int = 0
    end: int | None = None


def raw_blocks(source: Source) -> Iterator[bytes]:
    """The bytes of a stretch. Raises UserError for a file that cannot be read."""
    left = float("inf") if source.end is None else source.end - source.start
    with open_file(source.path) as file:
        try:
            if source.start:  # a pipe cannot be asked
                file.seek(source.start)
            while left > 0 and (block := file.read(int(min(BLOCK, left)))):
                left -= len(block)
                yield block
        except OSError as error:
            raise unreadable(source.path, error) from None


def text_blocks(source: Source, as_is: bool = False) -> Iterator[str]:
    """The text of a stretch of a UTF-8 file, in blocks: `decoded`, with offsets counted in the file."""
    return decoded(raw_blocks(source), str(source.path), as_is, source.start)


def decoded(blocks: Iterable[bytes], name: str, as_is: bool = False, position: int = 0) -> Iterator[str]:
    """UTF-8 text that comes in blocks of bytes, in blocks; the first byte is number `position` of what is called `name`.

    A byte-order mark at position 0 is dropped, CRLF and lone CR become a newline, U+2028 and the like are kept. Raises
    UserError for bytes that are not UTF-8 and for NUL, with their offset. `as_is` accepts any bytes and changes nothing;
    those that are not UTF-8 come as surrogate escapes (PEP 383).
    """
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape" if as_is else "strict")
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    first = position == 0
    for block in _ended(blocks):
        waiting = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name} is not UTF-8 text (byte {position - waiting + error.start:,}); "
                "convert it to UTF-8, or use the tokenizer bytes"
            ) from None
        if not as_is:
            if "\x00" in text:
                where = position - waiting + len(text[: text.index("\x00")].encode())
                raise UserError(
                    f"{name} is binary (a NUL at byte {where:,}); give a text file, or use the tokenizer bytes"
                )
            mark = first and text.startswith("\ufeff")
            first = first and not text  # a block may end inside the first character
            text = newlines.decode(text[1:] if mark else text, final=not block)
        position += len(block)
        if text:
            yield text


def _ended(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks, then an empty one that tells the decoders to finish."""
    yield from blocks
    yield b""


def digest(source: Source) -> str:
    """SHA-256 (hex) of the bytes of a stretch. Raises UserError for a file that cannot be read."""
    sha = hashlib.sha256()
    for block in raw_blocks(source):
        sha.update(block)
    return sha.hexdigest()


def size(path: Path) -> int:
    """Bytes of a regular file. Raises UserError for anything else."""
    try:
        regular, count = path.is_file(), path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from None
    if not regular:
        raise UserError(f"{path} is not a regular file; give a text file or a folder of text files")
    return count


def open_file(path: Path) -> BinaryIO:
    """A regular file or a pipe, opened for reading bytes. Raises UserError for a device and what else cannot be read."""
    try:
        # Whoever names a pipe, as `<(zcat text.gz)` does, waits for its writer.
        return path.open("rb") if is_pipe(path) else open_regular(path)
    except OSError as error:
        raise unreadable(path, error) from None


def is_pipe(path: Path) -> bool:
    """Whether a path is that of a named pipe, or of one end of a pipe."""
    try:
        return stat.S_ISFIFO(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def unreadable(path: Path, error: OSError) -> UserError:
    """The error that says a file cannot be read, and why."""
    return UserError(f"cannot read {path}: {error.strerror or error}; check its path and its permissions")


# --- three stretches of one file ---

# Where a file may be cut, best first: after a line end, after a space, before any character (not inside its bytes).
_PLACES = (re.compile(rb"\n|\r(?!\n)"), re.compile(rb"[ \t]"), re.compile(rb"[\x00-\xff](?=[\x00-\x7f\xc0-\xff])"))


def cuts(path: Path) -> tuple[int, int]:
    """Two byte offsets that cut a file into about 90, 5 and 5 percent, each part contiguous.

    At the line ends nearest to 90 and 95 percent; where lines are too long for that, at spaces, and else between
    characters. Raises UserError for a file that cannot be read or is too short for three parts.
    """
    length = size(path)
    with open_file(path) as file:
        for place in _PLACES:
            # From the right, so that a file of few lines still leaves one for each part.
            second = _nearest(file, place, 0.95 * length, 0.6 * length, 0.99 * length)
            first = second and _nearest(file, place, 0.9 * length, 0.3 * length, second - 0.01 * length)
            if first and second:
                return first, second
    if not length:
        raise UserError(f"{path} is empty; give a file that holds text")
    raise UserError(f"{path} is too short ({length} bytes) to be cut into train, valid and test; give more text")


def _nearest(file: BinaryIO, place: re.Pattern[bytes], target: float, low: float, high: float) -> int | None:
    """The place in [low, high], within a block of the target, that is nearest to the target."""
    first = max(int(low), int(target) - BLOCK, 0)
    file.seek(first)
    data = file.read(min(int(target) + BLOCK, int(high)) + 1 - first)  # one byte more, to see a CRLF whole
    found = [first + m.end() for m in place.finditer(data)]
    return min((f for f in found if 0 < f <= high and f >= low), key=lambda f: abs(f - target), default=None)


PATIENCE, LOOK = 0.1, 0.25
"""Seconds without anything new after which what has come is all for now; seconds between two looks at whether to stop."""
PIECE = 1 << 16
"""Bytes asked for at once."""
LONGEST = 1 << 20
"""Bytes of a line that is given out in pieces."""


def arriving(descriptor: int, idle: Callable[[], None], stopped: Callable[[], bool]) -> Iterator[bytes]:
    """The lines, each with its end, of a file that is open by its number; the last may have none.

    `idle` is called each time before a wait of more than a tenth of a second, and the lines end where `stopped` says so. What
    comes without a pause is never cut by one, however slowly its lines are taken.
    """
    rest = b""
    while not stopped():
        if not _ready(descriptor, PATIENCE):
            idle()
            while not _ready(descriptor, LOOK):
                if stopped():
                    return
        came = os.read(descriptor, PIECE)
        *lines, rest = (rest + came).split(b"\n")
        for line in lines:
            if stopped():
                return
            yield line + b"\n"
        if rest and (not came or len(rest) >= LONGEST):
            yield rest
            rest = b""
        if not came:
            return


def _ready(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])
