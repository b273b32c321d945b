"""Text files: read in blocks, decoded, normalised and checked; cut into three splits; read line by line as they grow."""

import codecs
import hashlib
import io
import os
import re
import select
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np

from backstory.utils.errors import UserError
from backstory.utils.small_file import is_pipe, open_regular

BLOCK = 1 << 20
"""Bytes read at once."""


@dataclass(frozen=True)
class Source:
    """Range of a file: the bytes from `start` up to `end` (None: the end of the file), with a title.

    `documents` are the offsets in the file at which its documents begin; None if the range is one text. `origin` is the file
    that messages name, where the bytes were unpacked from another.
    """

    path: Path
    title: str = ""
    start: int = 0
    end: int | None = None
    documents: np.ndarray | None = field(default=None, compare=False, repr=False)
    origin: str | None = None

    @property
    def name(self) -> str:
        """The file, for messages."""
        return self.origin or str(self.path)


def raw_blocks(source: Source) -> Iterator[bytes]:
    """Yield the bytes of a range in blocks. Raises UserError for a file that cannot be read."""
    with open_file(source.path) as file:
        yield from _range(file, source)


def _range(file: BinaryIO, source: Source) -> Iterator[bytes]:
    left = float("inf") if source.end is None else source.end - source.start
    try:
        if source.start or source.documents is not None:  # a pipe cannot seek
            file.seek(source.start)
        while left > 0 and (block := file.read(int(min(BLOCK, left)))):
            left -= len(block)
            yield block
    except OSError as error:
        raise unreadable(source.path, error) from None


def text_blocks(source: Source, as_is: bool = False) -> Iterator[str]:
    """Yield the text of a range of a UTF-8 file in blocks, as `decoded` does, with offsets counted in the file."""
    return decoded(raw_blocks(source), source.name, as_is, source.start)


def documents(source: Source, as_is: bool = False) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield each document of a range: its title, and its text in blocks, to be read before the next document."""
    if source.documents is None:
        yield source.title, text_blocks(source, as_is)
        return
    end = size(source.path) if source.end is None else source.end
    first, last = np.searchsorted(source.documents, [source.start, end]).tolist()
    with open_file(source.path) as file:
        for number in range(first, last):
            begin = int(source.documents[number])
            stop = end if number + 1 == last else int(source.documents[number + 1])
            blocks = _range(file, replace(source, start=begin, end=stop))
            # Offsets are counted in the document, since the file was unpacked.
            yield (
                f"{source.title} {number + 1}".strip(),
                decoded(blocks, f"document {number + 1:,} of {source.name}", as_is),
            )


def decoded(blocks: Iterable[bytes], name: str, as_is: bool = False, position: int = 0) -> Iterator[str]:
    """Decode blocks of UTF-8 bytes; `name` is their source in messages, `position` the offset of the first byte in it.

    A byte-order mark at position 0 is dropped (that of UTF-16 or UTF-32 says that the text is so encoded), CRLF and lone CR
    become a newline, U+2028 and the like are kept. Raises UserError for bytes that are not UTF-8 and for NUL, with their
    offset. `as_is` accepts all bytes and changes nothing; bytes that are not UTF-8 become surrogate escapes (PEP 383).
    """
    blocks = iter(blocks)
    start = next(blocks, b"")
    encoding = "utf-8" if as_is or position else encoding_of(start)
    decoder = codecs.getincrementaldecoder(encoding)("surrogateescape" if as_is else "strict")
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    first = position == 0
    for block in chain([start], blocks, [b""]):  # the empty one tells the decoders to finish
        waiting = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name} is not {encoding.upper()} text (byte {position - waiting + error.start:,}); "
                "convert it to UTF-8, or use the tokenizer bytes"
            ) from None
        if not as_is:
            if "\x00" in text:
                where = position - waiting + len(text[: text.index("\x00")].encode(encoding))
                raise UserError(
                    f"{name} is binary (a NUL at byte {where:,}); give a text file, or use the tokenizer bytes"
                )
            mark = first and text.startswith("\ufeff")
            first = first and not text  # a block may end inside the first character
            text = newlines.decode(text[1:] if mark else text, final=not block)
        position += len(block)
        if text:
            yield text


def lines(blocks: Iterable[str], longest: int | None = None, path: Path | None = None) -> Iterator[str]:
    """Yield the lines of a text in blocks, with their ends; the last may have none.

    Raises UserError for a line that is longer than `longest` characters; `path` is the file, for messages.
    """
    parts: list[str] = []
    size = 0
    for block in blocks:
        *ended, rest = block.split("\n")
        for line in ended:
            yield "".join([*parts, line, "\n"])
            parts, size = [], 0
        parts.append(rest)
        size += len(rest)
        if longest is not None and size > longest:
            raise UserError(f"a line of {path} is longer than {longest:,} characters; is it in another format?")
    if size:
        yield "".join(parts)


_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Encodings by their byte-order marks; that of UTF-16 may begin that of UTF-32."""


def encoding_of(start: bytes) -> str:
    """Return the encoding of a text that begins with these bytes, by its byte-order mark; `utf-8` without one."""
    return next((name for mark, name in _MARKS.items() if start.startswith(mark)), "utf-8")


def digest(source: Source) -> str:
    """Return the SHA-256 (hex) of a range, with its documents. Raises UserError for a file that cannot be read."""
    sha = hashlib.sha256()
    for block in raw_blocks(source):
        sha.update(block)
    if source.documents is not None:
        begins = source.documents - source.start
        sha.update(begins[(begins >= 0) & (begins < (source.end or np.inf) - source.start)].astype("<i8").tobytes())
    return sha.hexdigest()


def size(path: Path) -> int:
    """Return the size of a regular file in bytes. Raises UserError for anything else."""
    try:
        regular, count = path.is_file(), path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from None
    if not regular:
        raise UserError(f"{path} is not a regular file; give a text file or a folder of text files")
    return count


def open_file(path: Path) -> BinaryIO:
    """Open a regular file or a pipe for reading bytes. Raises UserError for a device and for what cannot be read."""
    try:
        # A pipe that the user names, as in `<(zcat text.gz)`, is waited for.
        return path.open("rb") if is_pipe(path) else open_regular(path)
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError) -> UserError:
    """Return the error for a file that cannot be read."""
    return UserError(f"cannot read {path}: {error.strerror or error}; check its path and its permissions")


# --- cutting a file in three ---

# Where a file may be cut, best first: after a line end, after a space, between two characters.
_CUT_POINTS = (re.compile(rb"\n|\r(?!\n)"), re.compile(rb"[ \t]"), re.compile(rb"[\x00-\xff](?=[\x00-\x7f\xc0-\xff])"))


def cut(source: Source) -> tuple[Source, Source, Source]:
    """Cut a whole file into about 90, 5 and 5 percent.

    It is cut between documents, if it has several; else at the line ends nearest to 90 and 95 percent; if lines are too long
    for that, at spaces, and else between any characters. Raises UserError for a file that cannot be read or is too short.
    """
    length = size(source.path)
    if (bounds := _between_documents(source, length)) is not None:
        return _parts(source, *bounds)
    with open_file(source.path) as file:
        for pattern in _CUT_POINTS:
            # From the right, so that a file of few lines has one for each part.
            second = _nearest(file, pattern, 0.95 * length, 0.6 * length, 0.99 * length)
            first = second and _nearest(file, pattern, 0.9 * length, 0.3 * length, second - 0.01 * length)
            if first and second:
                return _parts(source, first, second)
    if not length:
        raise UserError(f"{source.name} is empty; give a file that holds text")
    raise UserError(f"{source.name} is too short ({length} bytes) to be cut into train, valid and test; give more text")


def _parts(source: Source, first: int, second: int) -> tuple[Source, Source, Source]:
    documents = source.documents
    if documents is not None:  # a document that is cut in two is two
        documents = np.union1d(documents, [first, second])
    ranges = ((0, first), (first, second), (second, None))
    one, two, three = (replace(source, start=start, end=end, documents=documents) for start, end in ranges)
    return one, two, three


def _between_documents(source: Source, length: int) -> tuple[int, int] | None:
    """Return the starts of documents nearest to 90 and 95 percent; None if they would leave less than half to train on."""
    begins = np.empty(0, np.int64) if source.documents is None else source.documents
    if len(begins) < 3:
        return None
    second = 2 + int(np.abs(begins[2:] - 0.95 * length).argmin())
    first = 1 + int(np.abs(begins[1:second] - 0.9 * length).argmin())
    return None if begins[first] < length / 2 else (int(begins[first]), int(begins[second]))


def _nearest(file: BinaryIO, pattern: re.Pattern[bytes], target: float, low: float, high: float) -> int | None:
    """Return the cut point in [low, high], within a block of the target, that is nearest to the target."""
    first = max(int(low), int(target) - BLOCK, 0)
    file.seek(first)
    data = file.read(min(int(target) + BLOCK, int(high)) + 1 - first)  # one byte more, to see a CRLF whole
    offsets = [first + m.end() for m in pattern.finditer(data)]
    return min((o for o in offsets if 0 < o <= high and o >= low), key=lambda o: abs(o - target), default=None)


# --- lines of a stream ---

IDLE_SECONDS, POLL_SECONDS = 0.1, 0.25
"""Silence after which a stream is idle, and time between two checks of `stopped`."""
READ_SIZE = 1 << 16
"""Bytes read from a stream at once."""
LONGEST_LINE = 1 << 20
"""Bytes of a line; a longer one is given out in parts."""


def stream_lines(descriptor: int, idle: Callable[[], None], stopped: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the lines of a pipe, a terminal or a file as they arrive, each with its end; the last may have none.

    `idle` is called before every wait of more than a tenth of a second. The lines end when `stopped` returns True. A text that
    arrives without a pause causes no call of `idle`, however slowly its lines are taken.
    """
    rest = b""
    while not stopped():
        if not _ready(descriptor, IDLE_SECONDS):
            idle()
            while not _ready(descriptor, POLL_SECONDS):
                if stopped():
                    return
        data = os.read(descriptor, READ_SIZE)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if stopped():
                return
            yield line + b"\n"
        if rest and (not data or len(rest) >= LONGEST_LINE):
            yield rest
            rest = b""
        if not data:
            return


def _ready(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])
