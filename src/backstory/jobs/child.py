"""A command in a process that ends with the one that started it: `python -m backstory.jobs.child PID VERB ...`."""

import ctypes
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, BinaryIO

import backstory
from backstory.config.machine import NoDisk, NoMemory

_SET_PARENT_DEATH_SIGNAL = 1
MODULE = "backstory.jobs.child"
NO_DISK, NO_MEMORY = 74, 71
"""Exit codes, in place of 2, of a process that the machine failed: there may have been no room for what it had to say."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGHUP)
KILLED = {-number for number in _SIGNALS} | {128 + number for number in _SIGNALS} | {NO_MEMORY}
"""Exit codes of a process that something else ended; other programs may have taken the memory."""


def end_with(parent: int) -> None:
    """Ask Linux for SIGTERM, on which a training saves, when the parent is gone, however it ended; elsewhere nothing."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != parent:  # it went before we asked
        sys.exit(128 + signal.SIGTERM)


def threads() -> int:
    """CPU threads of a process: one, whatever runs beside it, so that figures are the same; OMP_NUM_THREADS overrides."""
    named = os.environ.get("OMP_NUM_THREADS", "1")
    return int(named) if named.isdecimal() and int(named) else 1


def start(arguments: Sequence[str], log: IO[bytes], data_dir: Path | None) -> subprocess.Popen:
    """Start `backstory ARGUMENTS` in a process that ends with this one; what it says goes into the log.

    In a session of its own: Ctrl-C reaches this program alone, which then ends its processes one by one.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, str(os.getpid()), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=_environment(data_dir),
        start_new_session=True,
    )


def open_log(path: Path) -> BinaryIO:
    """A log to append to, made if need be; not through a link, nor into a pipe that nobody reads. Raises OSError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    return open(os.open(path, flags, 0o666), "ab")


def why_ended(code: int, verb: str, log: Path, begins: int) -> str:
    """Why a process ended with an exit code that is not 0: the last line of its log from that place on, or the signal."""
    if code < 0:
        likely = ", probably for lack of memory" if -code == signal.SIGKILL else ""
        return f"{verb} was ended by {signal.Signals(-code).name}{likely}"
    with open(log, "rb") as file:
        file.seek(begins)
        lines = file.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing").removeprefix(
        "backstory: "
    )
    for lacking, what in ((NO_DISK, "room on the disk"), (NO_MEMORY, "memory")):
        if code == lacking:
            return f"{verb} ended for lack of {what}: {last.partition(';')[0]}"
    return f"{verb} ended with exit code {code}: {last}"


def check_disk(code: int, what: str, problem: str) -> None:
    """Raise NoDisk where a process ended for lack of a disk: whatever is started after it would end so, too."""
    if code == NO_DISK:
        raise NoDisk(
            f"{what} is stopped: {problem}; make room, and give the same command again: it goes on with what is left"
        )


def _environment(data_dir: Path | None) -> dict[str, str]:
    """Of a process: this package, its threads, and the corpora without a path in the commands that results record."""
    package = str(Path(backstory.__file__).resolve().parent.parent)
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads())}
    return found if data_dir is None else {**found, "BACKSTORY_DATA": str(data_dir.resolve())}


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    del sys.argv[1]
    NoDisk.exit_code, NoMemory.exit_code = NO_DISK, NO_MEMORY
    runpy.run_module("backstory", run_name="__main__", alter_sys=True)
