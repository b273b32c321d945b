"""Workers: further processes of this machine that share a piece of work with the one that starts them.

The first rank is the program that does the work; the others are its children (`worker.py`) and end with it.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from backstory.jobs import child
from backstory.utils.errors import UserError
from backstory.utils.free_memory import open_files
from backstory.utils.process import Launched, Stopped, launched

if TYPE_CHECKING:
    import torch.distributed as dist

    from backstory.jobs.ranks import Meeting

MOST_WORKERS = 1024
HOST = "127.0.0.1"
FILES, FILES_EACH = 24, 2
"""Open files of the first process, and more for each worker: a training that saves opens no fewer."""
POLL_SECONDS = 0.02
"""Seconds between two checks of the workers."""
REASON_SECONDS = 2.0
"""Longest wait for the reason of a worker that failed."""
END_SECONDS = 30.0
"""Longest wait for the end of workers that have finished."""


def started_ranks(workers: int | None) -> int:
    """Return the number of ranks, 1 without torchrun. Raises UserError where it has started another number than `workers`."""
    ranks = launched().world
    if ranks > 1 and workers not in (None, ranks):
        raise UserError(f"torchrun has started {ranks} ranks; leave --workers out")
    return ranks


@contextmanager
def hosted(
    count: int, threads: int, module: str, arguments: dict[str, Any], remedy: Callable[[], str]
) -> Iterator["Meeting"]:
    """Start the other workers of `count` for the block, each with so many threads; yield where all of them meet.

    Each runs `python -m MODULE`, whose function gets the arguments, plain values. Where there is one worker, or torchrun has
    started the ranks, nothing is started. Raises UserError, with the reason and the remedy, when a worker has ended before its
    time, and where so many cannot open the files they need.
    """
    if count == 1 or launched().world > 1:
        from backstory.jobs.ranks import Meeting

        yield Meeting(launched())
        return
    needed, limit = FILES + FILES_EACH * count, open_files()
    if limit is not None and limit < needed:  # torch would wait for ever, or end with a trace of its own
        raise UserError(
            f"{count} workers need {needed} open files, and the limit is {limit}; raise it (ulimit -n), or take 1 worker"
        )
    with TemporaryDirectory() as folder:
        team = _Team(Path(folder))
        try:
            for rank in range(1, count):
                team.start(rank, threads, module)
            # Workers and this process load torch at the same time.
            from backstory.jobs.ranks import Meeting, RankEnded

            try:
                yield Meeting(Launched(0, count, 0, count), team.meet(count, arguments), team.lost)
                team.join()
            except Stopped:
                team.join()
                raise
            except RankEnded as error:
                raise UserError(f"{team.reason() or error}; {remedy()}") from None
        finally:
            team.kill()


@dataclass
class _Team:
    """The children, and the folder of their logs."""

    folder: Path
    processes: list[subprocess.Popen] = field(default_factory=list)

    def start(self, rank: int, threads: int, module: str) -> None:
        """Start a worker, which waits for its arguments."""
        environment = child.environment() | {"OMP_NUM_THREADS": str(threads)}
        with child.open_log(self._log(rank)) as log:
            self.processes.append(child.spawn(module, (), log, environment, subprocess.PIPE))

    def meet(self, count: int, arguments: dict[str, Any]) -> "dist.Store":
        """Send the workers their arguments, and wait until all are ready. Raises RankEnded if one ends before.

        Raises UserError where no port can be opened.
        """
        import torch.distributed as dist

        from backstory.jobs.ranks import HERE, RankEnded, cannot_meet

        if dist.is_initialized():
            raise UserError("this program has a process group of torch.distributed already; use workers in another")
        try:
            store = dist.TCPStore(HOST, 0, count, is_master=True, wait_for_workers=False)
        except (dist.DistError, RuntimeError) as error:
            raise cannot_meet(error, count) from error
        meeting = {"MASTER_ADDR": HOST, "MASTER_PORT": store.port, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        for rank, process in enumerate(self.processes, 1):
            variables = {name: str(value) for name, value in {**meeting, "RANK": rank, "LOCAL_RANK": rank}.items()}
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin as stdin:  # one that has ended is seen below
                stdin.write(json.dumps({"environment": variables, "arguments": arguments}).encode())
        while not store.check([HERE.format(rank) for rank in range(1, count)]):
            if self.lost():
                raise RankEnded("a worker has ended")
            time.sleep(POLL_SECONDS)
        return store

    def lost(self) -> bool:
        """Return True if a child has ended."""
        return any(process.poll() is not None for process in self.processes)

    def reason(self) -> str | None:
        """Return why a child ended, of several the one that the others ended with; None if none has ended with an error."""
        from backstory.jobs.ranks import WITH_ANOTHER

        deadline, reason = time.monotonic() + REASON_SECONDS, None
        while time.monotonic() < deadline:
            for rank, process in enumerate(self.processes, 1):
                if process.poll():
                    reason = child.exit_reason(process.returncode, f"worker {rank}", self._log(rank), 0)
                    if WITH_ANOTHER not in reason:
                        return reason
            time.sleep(POLL_SECONDS)
        return reason

    def join(self) -> None:
        """Wait for the children, which are done."""
        deadline = time.monotonic() + END_SECONDS
        while any(process.poll() is None for process in self.processes) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """End every child that still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()
            if process.stdin is not None:
                with suppress(BrokenPipeError):
                    process.stdin.close()

    def _log(self, rank: int) -> Path:
        return self.folder / f"{rank}.log"
