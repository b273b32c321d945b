"""Safe reading of files: regular ones only, of limited size, and without links that lead out of a folder from elsewhere."""

import errno
import os
import stat
from collections.abc import Iterator
from functools import cache
from io import BufferedReader
from pathlib import Path

LARGEST = 64 << 20
"""Default limit of `read_small` in bytes."""
LONGEST_LINE, LARGEST_LOG = 1 << 20, 1 << 32
"""Limits of `read_lines` in bytes."""


def read_small(path: Path, most: int = LARGEST, inside: Path | None = None) -> bytes:
    """Return the bytes of a regular file of at most `most` bytes.

    With `inside`, the file must lie in that folder when every link below it has been followed. The folder itself may be a
    link: its user named it. Without, links are followed, as for a file that the user named.

    Raises OSError, whose `strerror` says why and whose `filename` is the path: for what is not a regular file (a pipe would be
    waited for, a device has no end), for one that is too large, and for one that lies outside `inside`.
    """
    with open_regular(path, inside) as file:
        size = os.fstat(file.fileno()).st_size
        data = (b"" if size > most else file.read(most + 1)) or b""  # None from what would be waited for
    if size > most or len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))
    return data


def resolved(path: Path | str) -> Path:
    """Return the absolute path with its links followed. Those that lead round in a circle stay: nothing is there."""
    return Path(os.path.realpath(path))  # `Path.resolve` raises RuntimeError for a circle before Python 3.13


def user_path(name: Path | str) -> Path:
    """Return a path as its user named it: a first `~` is the home folder, which a shell leaves to us in `--out=~/runs/x`."""
    return Path(os.path.expanduser(name))


def is_pipe(path: Path) -> bool:
    """Return True for the path of a named pipe, or of one end of a pipe."""
    try:
        return stat.S_ISFIFO(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def open_regular(path: Path, inside: Path | None = None) -> BufferedReader:
    """Open a regular file of any size for reading bytes, as a log or tensors. Otherwise as `read_small`. Raises OSError."""
    if inside is not None:
        check_inside(path, inside)
    # Opening a pipe without O_NONBLOCK waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        # Files of /proc call themselves regular, and reading them may block, as /proc/kmsg.
        if not stat.S_ISREG(status.st_mode) or status.st_dev == _proc():
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


@cache
def _proc() -> int | None:
    """Return the device number of /proc, or None."""
    try:
        return os.stat("/proc/self").st_dev
    except OSError:
        return None


def read_small_text(path: Path, most: int = LARGEST, inside: Path | None = None) -> str:
    """Return the text of a UTF-8 file, otherwise as `read_small`. Raises OSError, also if it is not UTF-8."""
    data = read_small(path, most, inside)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "it is not UTF-8 text", str(path)) from None


def check_inside(path: Path, folder: Path) -> None:
    """Raise OSError if a link below `folder` leads the path out of it, or round in a circle; the path need not exist."""
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
    except (RuntimeError, ValueError):  # links in a circle; a NUL in the name
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None
    if not inside:
        raise OSError(errno.ELOOP, f"a link leads out of {folder}", str(path))


def read_lines(path: Path, inside: Path | None = None) -> Iterator[bytes]:
    """Yield the lines of a log with their ends; otherwise as `read_small`.

    Raises OSError, also for a line longer than `LONGEST_LINE` and a file larger than `LARGEST_LOG`.
    """
    with open_regular(path, inside) as file:
        left = LARGEST_LOG
        while line := file.readline(LONGEST_LINE + 1):
            left -= len(line)
            if len(line) > LONGEST_LINE:
                raise OSError(errno.EFBIG, f"a line of it is longer than {LONGEST_LINE:,} bytes", str(path))
            if left < 0:
                raise OSError(errno.EFBIG, f"it is larger than {LARGEST_LOG:,} bytes", str(path))
            yield line
