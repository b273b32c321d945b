"""Run jobs side by side, each a sequence of commands in processes of their own, and show their progress.

The runs of a suite (`backstory reproduce`), the trials of a sweep (`backstory sweep run`) and the seeds of a training are
such jobs. What stops the runner stops its children, and each saves its work.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from backstory.jobs import child
from backstory.jobs.launchers import Launcher, RunningCommand
from backstory.utils.errors import AGAIN, NoDisk
from backstory.utils.process import StopRequest
from backstory.utils.terminal import LiveDisplay, say

WAITING, DONE, FAILED, STOPPED = "waiting", "done", "failed", "stopped"
"""States that every kind of job has in a display."""
STYLES = {DONE: "green", FAILED: "red", WAITING: "dim"}
"""Styles of rows by state."""
POLL_SECONDS = 0.05
"""Seconds between checks whether a child has ended."""
WATCH_SECONDS = 1.0
"""Seconds between two reads of the children's output."""
TAKE_SECONDS = 2.0
"""Seconds until the queue is polled again after it had no job."""


@dataclass(frozen=True)
class CommandExit:
    """The end of a command: its exit code and, if that is not 0, the reason in one line."""

    code: int
    reason: str = ""

    @property
    def disk_full(self) -> bool:
        return self.code == child.NO_DISK

    @property
    def lost(self) -> bool:
        """True if its machine is gone, so that its job continues elsewhere."""
        return self.code == child.LOST

    @property
    def killed(self) -> bool:
        """True if a signal or a lack of memory ended the command, so that the same command may succeed later."""
        return self.code in child.KILLED


class Job(ABC):
    """Commands that run one after the other, with their progress."""

    name: str
    """Name in messages."""

    @property
    @abstractmethod
    def log(self) -> Path:
        """File that the output of its commands is appended to."""

    @abstractmethod
    def next_command(self) -> Sequence[str] | None:
        """Return the arguments of the next `backstory` command; None when the job is over."""

    @abstractmethod
    def watch(self) -> None:
        """Read what the running command has written so far; also called once after its end."""

    def ends_early(self) -> bool:
        """Return True if the running command should be terminated."""
        return False

    @abstractmethod
    def command_ended(self, ending: CommandExit) -> None:
        """Record how the command ended. May raise UserError, which stops all jobs."""

    @abstractmethod
    def interrupted(self, ending: CommandExit | None) -> None:
        """Leave the job to be resumed: the runner stops, and terminated its command.

        None if the command was never started, or if its end is unknown.
        """


class JobQueue(Protocol):
    """Source of jobs, which other processes may take jobs from too."""

    def take(self) -> Job | None:
        """Return a job that can start now; None if there is none at the moment."""
        ...

    def finished(self) -> bool:
        """Return True if no job is left to wait for, neither here nor in another process."""
        ...

    def show(self, running: Sequence[Job]) -> None:
        """Show the progress of all jobs."""
        ...


@dataclass
class _Running:
    """A job whose command runs."""

    job: Job
    verb: str
    command: RunningCommand
    log_start: int
    """Position in the log where the output of this command begins."""
    ending: CommandExit | None = None
    """How it ended after it was terminated; None if that is unknown."""


def run_jobs(queue: JobQueue, launcher: Launcher, stop: StopRequest) -> None:
    """Run the jobs of a queue, as many at a time as the launcher takes, until it is finished; return early on a stop.

    A failed command ends its own job alone. Raises NoDisk when a command could not write to the disk, as no other could.
    On a stop and on any error the commands are terminated, and their jobs left to be resumed. Of several errors the first is
    raised.
    """
    running: list[_Running] = []
    try:
        _run_until_finished(queue, launcher, stop, running)
    except BaseException:
        _interrupt(running)
        raise
    if errors := _interrupt(running):
        raise errors[0]


def _run_until_finished(queue: JobQueue, launcher: Launcher, stop: StopRequest, running: list[_Running]) -> None:
    """Run the jobs until the queue is finished or a stop is requested; `running` holds every command that runs."""
    last_take = last_watch = -math.inf
    while not stop.requested:
        # One by one: whatever raises, every running command is in the list, for `_interrupt`.
        for work in [w for w in running if w.command.poll() is not None]:
            code = work.command.wait()
            running.remove(work)
            _conclude(work, code)
            running += _start(work.job, launcher)
            last_take = last_watch = -math.inf
        if time.monotonic() - last_take > TAKE_SECONDS and len(running) < (slots := launcher.slots):
            while len(running) < slots and (job := queue.take()):
                running += _start(job, launcher)
            last_take = time.monotonic()
        if time.monotonic() - last_watch > WATCH_SECONDS:
            for work in running:
                work.job.watch()
                if work.command.poll() is None and work.job.ends_early():
                    work.command.terminate()
            queue.show([work.job for work in running])
            if not running and queue.finished():
                return
            last_watch = time.monotonic()
        time.sleep(POLL_SECONDS)


def _start(job: Job, launcher: Launcher) -> list[_Running]:
    """Start the next command of a job; return nothing if the job is over."""
    try:
        arguments = job.next_command()
        if arguments is None:
            return []
        log_start = job.log.stat().st_size if job.log.exists() else 0
        return [_Running(job, arguments[0], launcher.start(arguments, job.log), log_start)]
    except BaseException:
        job.interrupted(None)
        raise


def _conclude(work: _Running, code: int) -> None:
    """Record the end of a command. Raises NoDisk if it could not write to the disk."""
    work.job.watch()
    ending = CommandExit(code, child.exit_reason(code, work.verb, work.job.log, work.log_start) if code else "")
    work.job.command_ended(ending)
    if ending.disk_full:
        raise NoDisk(f"{work.job.name} is stopped: {ending.reason}", f"{AGAIN} to resume it")


def _interrupt(running: Sequence[_Running]) -> list[Exception]:
    """Terminate the commands, wait until their work is saved, and return the errors; one command's stops no other."""
    errors: list[Exception] = []
    terminated: list[_Running] = []
    for work in running:
        with _noted(errors):
            if work.command.poll() is None:
                work.command.terminate()
            terminated.append(work)
    for work in terminated:  # another one might never end
        with _noted(errors):
            work.ending = CommandExit(work.command.wait())
    for work in running:
        with _noted(errors):
            work.job.interrupted(work.ending)
    return errors


@contextmanager
def _noted(errors: list[Exception]) -> Iterator[None]:
    """Append the error of the block."""
    try:
        yield
    except Exception as error:
        errors.append(error)


_LEFT = ("run", "state", "settings")
"""Columns of text, aligned left; numbers are aligned right."""


@dataclass(frozen=True)
class JobRow:
    """One job in the display."""

    cells: tuple[str, ...]
    style: str | None = None
    line: str = ""
    """Line printed whenever it changes, if the output is no terminal."""


class JobDisplay(LiveDisplay):
    """Progress of jobs: a table on a terminal; elsewhere a line whenever a job has moved on."""

    def __init__(self, console: Console, columns: Sequence[str]) -> None:
        super().__init__(console)
        self._columns = columns
        self._said: set[str] = set()

    def say(self, line: str) -> None:
        """Print a line, above the table on a terminal."""
        say(self.console, line)

    def show(self, title: str, rows: Sequence[JobRow]) -> None:
        """Update the table, or print the lines that have changed."""
        if self._live is not None:
            self._live.update(self._table(title, rows))
            return
        lines = [row.line for row in rows if row.line]
        for line in lines:
            if line not in self._said:
                self.say(line)
        self._said = set(lines)

    def _table(self, title: str, rows: Sequence[JobRow]) -> Group:
        table = Table()
        for heading in self._columns:
            table.add_column(heading, justify="left" if heading in _LEFT else "right", no_wrap=heading == "settings")
        for row in rows:
            table.add_row(*map(Text, row.cells), style=row.style)
        return Group(Text(title), table)
