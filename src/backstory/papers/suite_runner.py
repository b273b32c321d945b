"""Runs the commands of a grid in processes side by side; what stops it stops them, each with its work saved."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from backstory.jobs import child
from backstory.papers.suite_folder import Command, Folder
from backstory.papers.suite_progress import DONE, FAILED, STOPPED, WAITING, Standing, minutes_taken
from backstory.storage.lock import held
from backstory.storage.provenance import RESULT
from backstory.training.stopping import StopRequest

PAUSE = 0.1
"""Seconds between looks at the processes."""
LOOK = 2.0
"""Seconds between looks at what they wrote."""


@dataclass
class Work:
    """A command of a run in a process of its own."""

    standing: Standing
    command: Command
    process: subprocess.Popen
    log: IO[bytes]
    begins: int
    """Where in the log its own lines begin."""


def run_all(
    folder: Folder,
    standings: Sequence[Standing],
    processes: int,
    data_dir: Path | None,
    stop: StopRequest,
    show: Callable[[Sequence[Standing]], None],
) -> None:
    """Bring every run to its end, or to a failure, which leaves the others alone; return early on a stop.

    The standings are kept up to date and shown. A run that another process trains at the moment (a left-over of a
    killed reproduction, which is about to end) waits. So does one that begins with another, until that one is done.
    """
    working: list[Work] = []
    by_name = {standing.run.name: standing for standing in standings}
    looked = 0.0
    try:
        while not stop.requested:
            for work in [w for w in working if w.process.poll() is not None]:
                # Out and in one by one: what is at work is always listed, whatever is raised, and is ended below.
                working.remove(work)
                working += _advance(work, folder, data_dir)
            # The longest first, so that no process is left alone with it in the end.
            for standing in sorted(standings, key=lambda s: -s.minutes):
                if len(working) < processes and standing.state == WAITING and _may_begin(standing, by_name, folder):
                    working += _start(standing, folder, data_dir)
            if time.monotonic() - looked > LOOK or not working:
                for work in working:
                    work.standing.look(folder)
                show(standings)
                looked = time.monotonic()
            if not working and not any(s.state == WAITING for s in standings):
                return
            time.sleep(PAUSE)
    finally:
        _end(working, folder)
        show(standings)


def _may_begin(standing: Standing, by_name: Mapping[str, Standing], folder: Folder) -> bool:
    """Whether a waiting run may start now; one whose beginning failed has failed with it."""
    # A run that is not among them was finished before.
    first = by_name.get(standing.run.begin or "")
    if first is not None and first.state == FAILED:
        standing.state, standing.problem = FAILED, f"it begins with {first.run.name}, which failed"
    return standing.state == WAITING and (first is None or first.state == DONE) and not held(folder.run(standing.run))


def _start(standing: Standing, folder: Folder, data_dir: Path | None) -> list[Work]:
    """The next command of a run, started; none where all are done."""
    command = next((c for c in folder.commands(standing.run) if not c.done()), None)
    if command is None:
        standing.look(folder)
        standing.state, standing.minutes = DONE, minutes_taken(folder, standing.run)
        return []
    standing.state = command.state
    log = child.open_log(folder.log(standing.run))
    begins = log.tell()
    process = child.start(command.arguments, log, data_dir)
    return [Work(standing, command, process, log, begins)]


def _advance(work: Work, folder: Folder, data_dir: Path | None) -> list[Work]:
    """The run's next command, started, after one whose process has ended; none when the run has ended."""
    work.log.close()
    if work.process.returncode == 0 and work.command.done():
        return _start(work.standing, folder, data_dir)
    work.standing.look(folder)
    work.standing.state, work.standing.problem = FAILED, _problem(work, folder)
    child.check_disk(work.process.returncode, f"{work.standing.run.name} of {folder.path}", work.standing.problem)
    return []


def _problem(work: Work, folder: Folder) -> str:
    """Why a command failed: its last line, or the signal that ended it."""
    code, verb = work.process.returncode, work.command.arguments[0]
    if code == 0:
        return f"{verb} ended well, but {work.command.out / RESULT} is damaged; remove that file"
    return child.why_ended(code, verb, folder.log(work.standing.run), work.begins)


def _end(working: Sequence[Work], folder: Folder) -> None:
    """Ask the processes to end, and wait until their work is saved."""
    for work in working:
        if work.process.poll() is None:
            work.process.terminate()
    for work in working:
        work.process.wait()
        work.log.close()
        work.standing.look(folder)
        work.standing.state = STOPPED
