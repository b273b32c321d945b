"""A child process that runs one command and ends with its parent: `python -m backstory.jobs.child PID VERB ...`."""

import ctypes
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO

import backstory
from backstory.utils.errors import REMEDIES, NoDisk, NoMemory
from backstory.utils.process import signals
from backstory.utils.small_file import resolved

_SET_PARENT_DEATH_SIGNAL = 1
MODULE = "backstory.jobs.child"
NO_DISK, NO_MEMORY = 74, 71
"""Exit codes, in place of 2, for a full disk or no memory: the log may have had no room for the message."""
ROOM = "make room on the disk, or raise the limit on the size of files (ulimit -f)"
"""Remedy for a child that could not write its message."""
_SIGNALS = signals("SIGTERM", "SIGINT", "SIGKILL", "SIGHUP")
LOST = -signal.NSIG
"""Exit code, of no process, of a command whose machine is gone."""
KILLED = {-number for number in _SIGNALS} | {128 + number for number in _SIGNALS} | {NO_MEMORY, LOST}
"""Exit codes of a process that something outside ended; other programs may have taken the memory."""


def end_with(parent: int) -> None:
    """Ask Linux for SIGTERM, on which a training saves, when the parent ends in any way; do nothing elsewhere."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != parent:  # the parent ended before the request
        sys.exit(128 + signal.SIGTERM)


def threads() -> int:
    """Return the CPU threads of a child: one, so that its figures do not depend on its neighbours, or OMP_NUM_THREADS."""
    text = os.environ.get("OMP_NUM_THREADS", "1")
    return int(text) if text.isdecimal() and int(text) else 1


def start(
    arguments: Sequence[str],
    log: IO[bytes],
    data_dir: Path | None,
    folder: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen:
    """Start `backstory ARGUMENTS` in a child process that ends with this one and writes its output to the log.

    `folder` is its working directory (else this process's), and `variables` are added to its environment. The child has a
    session of its own: Ctrl-C reaches this process alone, which then ends its children one by one.
    """
    return spawn(MODULE, arguments, log, environment(data_dir) | dict(variables or {}), folder=folder)


def spawn(
    module: str,
    arguments: Sequence[str],
    log: IO[bytes],
    variables: dict[str, str],
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    folder: str | None = None,
) -> subprocess.Popen:
    """Start `python -m MODULE PID ARGUMENTS`, with the id of this process, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, str(os.getpid()), *arguments],
        stdin=stdin,
        stdout=log,
        stderr=log,
        cwd=folder,
        env=variables,
        start_new_session=True,
    )


def open_log(path: Path) -> BinaryIO:
    """Open a log to append to, and create it if need be. Follows no link and waits for no pipe. Raises OSError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    return open(os.open(path, flags, 0o666), "ab")


def exit_reason(code: int, verb: str, log: Path, log_start: int) -> str:
    """Return why a child ended with an exit code other than 0: its signal, or the last line of its log after `log_start`."""
    if code == LOST:
        return f"the machine that ran {verb} is gone"
    if code < 0:
        likely = ", probably for lack of memory" if -code in signals("SIGKILL") else ""
        return f"{verb} was ended by {signal.Signals(-code).name}{likely}"
    with open(log, "rb") as file:
        file.seek(log_start)
        lines = file.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    last = last.removeprefix("backstory: ")
    if code == NO_DISK:
        return f"{verb} ended with an error of the disk: {_problem_and_remedy(last)}"
    if code == NO_MEMORY:
        return f"{verb} ended for lack of memory: {last.partition(';')[0]}"
    return f"{verb} ended with exit code {code}: {last}"


def _problem_and_remedy(message: str) -> str:
    """Return a child's message on its disk without its end, which says how its own command continues."""
    for remedy in REMEDIES.values():
        problem, known, _ = message.rpartition(f"; {remedy}")
        if known:
            return f"{problem}; {remedy}"
    return message if ";" in message else f"{message}; {ROOM}"


def environment(data_dir: Path | None = None) -> dict[str, str]:
    """Return a child's environment: this package, its threads, and the data folder, which the recorded commands leave out."""
    package = str(Path(backstory.__file__).resolve().parent.parent)
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads())}
    return variables if data_dir is None else {**variables, "BACKSTORY_DATA": str(resolved(data_dir))}


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    del sys.argv[1]
    NoDisk.exit_code, NoMemory.exit_code = NO_DISK, NO_MEMORY
    runpy.run_module("backstory", run_name="__main__", alter_sys=True)
