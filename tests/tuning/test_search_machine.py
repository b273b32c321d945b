"""Faults of the machine spend no trial: full disks stop a sweep, which goes on with the same trial."""

import errno
import io
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from optuna.trial import TrialState
from rich.console import Console
from test_search_queue import claimed, queue

from backstory.jobs import child, runner
from backstory.jobs.launchers import LocalProcesses
from backstory.jobs.runner import CommandExit, Job, JobDisplay
from backstory.storage.lock import locked
from backstory.tuning.sweep_storage import SweepFolder, open_storage
from backstory.tuning.trials import COLUMNS, TRIES, SweepJobs
from backstory.utils.errors import NoDisk, UserError, refused
from backstory.utils.process import StopRequest

FULL = "backstory: cannot write to x: No space left on device; make room on that disk, and go on with --resume"
SAYS = {
    FULL: "cannot write to x: No space left on device; make room on that disk",
    "": "it said nothing; make room on the disk, or raise the limit on the size of files (ulimit -f)",  # log on it, too
    f"backstory: {refused(OSError(errno.EFBIG, 'File too large'), 'a; b')}: what was saved before is whole": (
        "cannot write to a; b: File too large; raise the limit on the size of files (ulimit -f)"
    ),
    f"backstory: {refused(OSError(errno.EIO, 'Input/output error'), 'x')}": (
        "cannot write to x: Input/output error; check the disk"
    ),
    "backstory: cannot write a temporary folder either (File too large); set BACKSTORY_CACHE": (
        "cannot write a temporary folder either (File too large); set BACKSTORY_CACHE"
    ),
}
"""Last lines of a training that could not write, and what the sweep says of them."""


def ends_with(code: int, says: str) -> Callable[..., subprocess.Popen]:
    """In the place of a training: a process that says this and ends so."""
    told = f"import sys; print({says!r}, file=sys.stderr); sys.exit({code})"
    return lambda arguments, log, *_: subprocess.Popen([sys.executable, "-c", told], stderr=log)


def run(path: Path, worker: str) -> list[str]:
    """Run two trials, and return a line on the end of each."""
    console = Console(file=io.StringIO(), width=200)
    with locked(path / "workers" / worker, "test", "--out"):
        jobs = SweepJobs(queue(path, worker), SweepFolder(path), 2, lambda: None, JobDisplay(console, COLUMNS), "test")
        runner.run_jobs(jobs, LocalProcesses(1), StopRequest())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.full
@pytest.mark.parametrize("says", SAYS)
def test_a_full_disk_stops_the_sweep_and_spends_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    path = tmp_path / "sweep"
    monkeypatch.setattr(child, "start", ends_with(child.NO_DISK, says))
    for _ in range(TRIES + 1):
        with pytest.raises(NoDisk, match=r"^trial \d of ") as told:
            run(path, "a")
        stopped = f"{path} is stopped: train ended with an error of the disk: {SAYS[says]}"
        assert str(told.value).endswith(f"{stopped}, and give the same command again to resume it")
    with locked(path / "workers" / "b", "test", "--out"):
        mine = queue(path, "b")
        assert [t.state for t in mine.trials()] == [TrialState.WAITING]
        again = claimed(mine.claim(2))
        assert (again.first, again.kills) == (0, 0)


@pytest.mark.full
def test_a_trial_without_memory_is_tried_again_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "start", ends_with(child.NO_MEMORY, "backstory: there is not enough memory"))
    monkeypatch.setattr(runner, "TAKE_SECONDS", 0.0)
    lines = run(tmp_path / "sweep", "a")
    assert ["it is tried again" in line for line in lines] == [True, True, False] * 2
    assert "failed: train ended for lack of memory" in lines[-1]


@pytest.mark.full
def test_a_trial_that_cannot_even_be_started_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sweep"

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    for place in ("backstory.tuning.sweep_storage.SweepFolder.log", "backstory.tuning.trials.write_atomically"):
        with monkeypatch.context() as disk:
            disk.setattr(place, full)
            with pytest.raises(OSError, match="No space"):
                run(path, "a")
        with locked(path / "workers" / "b", "test", "--out"):
            mine = queue(path, "b")
            assert [(t.state, t.user_attrs["kills"]) for t in mine.trials()] == [(TrialState.WAITING, 0)]


@pytest.mark.full
def test_garbage_at_the_end_of_a_journal_is_cut_off(tmp_path: Path) -> None:
    path, journal = tmp_path / "sweep", tmp_path / "sweep" / "journal.log"
    with locked(path / "workers" / "a", "test", "--out"):
        mine = queue(path, "a")
        mine.end(claimed(mine.claim(9)), 3.0)
        whole = journal.read_bytes()
        for garbage in (b"garbage\n", b"{]\n[]\n\n", b"x" * 9000 + b"\n" + b"y" * 5000, b"\xff\x00\n3\n{"):
            journal.write_bytes(whole + garbage)
            with pytest.warns(UserWarning, match=r"journal\.log had [\d,]+ damaged bytes at its end"):
                open_storage(SweepFolder(path), None, make=True)
            assert journal.read_bytes() == whole
        journal.write_bytes(whole + b"garbage\n")  # while it is worked on
        with pytest.warns(UserWarning, match="damaged"):
            mine.end(claimed(mine.claim(9)), 2.0)
        assert [t.value for t in queue(path, "a").trials()] == [3.0, 2.0]


def test_a_journal_of_nothing_but_garbage_is_left_alone(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    folder.journal.write_bytes(b"my notes\nand more of them\n")
    with pytest.raises(UserError, match=r"cannot open .*journal\.log: .*; put it back as it was"):
        open_storage(folder, None, make=True)
    assert folder.journal.read_bytes() == b"my notes\nand more of them\n"


class LostCommand:
    """A command of a cluster: it runs until it is terminated, or what `poll` and `wait` say of it is an error."""

    def __init__(self, error: str) -> None:
        self.error, self.code = error, None if not error else 0

    def poll(self) -> int | None:
        return None if self.code is None else self.wait()

    def terminate(self) -> None:
        self.code = -15

    def wait(self) -> int:
        if self.error:
            raise RuntimeError(self.error)
        assert self.code is not None
        return self.code


class CommandJob(Job):
    def __init__(self, error: str) -> None:
        self.command, self.name, self.endings = LostCommand(error), error, []

    @property
    def log(self) -> Path:
        return Path("missing.log")

    def next_command(self) -> Sequence[str] | None:
        return [self.name or "runs"]

    def watch(self) -> None:
        pass

    def command_ended(self, ending: CommandExit) -> None:
        raise AssertionError

    def interrupted(self, ending: CommandExit | None) -> None:
        self.endings.append(ending)


def test_a_command_whose_end_is_an_error_leaves_no_other_running() -> None:
    jobs = [CommandJob(error) for error in ("", "first", "second", "")]
    by_name = iter(jobs)

    class Cluster:
        slots = len(jobs)

        def start(self, arguments: Sequence[str], log: Path) -> LostCommand:
            return next(by_name).command

    waiting = list(jobs)

    class Queue:
        def take(self) -> Job | None:
            return waiting.pop(0) if waiting else None

        def finished(self) -> bool:
            return False

        def show(self, running: Sequence[Job]) -> None:
            pass

    with pytest.raises(RuntimeError, match=r"^first$"):
        runner.run_jobs(Queue(), Cluster(), StopRequest())
    assert [job.endings for job in jobs] == [[CommandExit(-15)], [None], [None], [CommandExit(-15)]]
