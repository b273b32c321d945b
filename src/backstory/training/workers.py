"""Workers: processes of this machine that share the batches of a training, started by the training itself.

The first of them is the program that trains; the others are its children (`worker.py`) and end with it.
"""

import json
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import torch.distributed as dist

from backstory.config import UserError
from backstory.config.process import Launched, Stopped, launched
from backstory.jobs import child
from backstory.runs.run_folder import RunFolder
from backstory.storage.checkpoint import DamagedCheckpoint, newest_checkpoint
from backstory.training.distributed import HERE, Meeting, RankEnded

MOST_WORKERS = 1024
MODULE = "backstory.training.worker"
HOST = "127.0.0.1"
POLL_SECONDS, REASON_SECONDS, END_SECONDS = 0.02, 2.0, 30.0
"""Seconds between looks at children that start; longest wait for the end of one that broke off; and for those that are done."""


def processes(workers: int | None, threads: int | None, out: Path, resumed: bool) -> tuple[int, int | None]:
    """Return the processes to train with, and the threads of each, None for a number still to be chosen.

    These are the requested ones, or those of the run that is resumed, or one process; several have a thread each. Raises
    UserError where torchrun has started another number of processes.
    """
    ranks = launched().world
    if ranks > 1 and workers not in (None, ranks):
        raise UserError(f"torchrun has started {ranks} ranks; leave --workers out")
    if ranks > 1:
        return ranks, threads
    recorded = _recorded(out) if resumed else (1, 1)
    count = workers or recorded[0]
    return count, threads if count == 1 else threads or recorded[1]


def _recorded(out: Path) -> tuple[int, int]:
    """Return the processes of the run's newest checkpoint and the threads of each; 1 where it does not say."""
    try:
        with warnings.catch_warnings(action="ignore"):  # resuming, which reads it again, reports what is wrong with it
            newest = newest_checkpoint(RunFolder(out).checkpoints, "last", frozenset({"progress"}))
        saved = {} if newest is None else newest.documents["progress"]
        numbers = [saved.get(key, 1) for key in ("ranks", "threads")]
    except (DamagedCheckpoint, KeyError, AttributeError):
        return 1, 1
    count, threads = (n if type(n) is int and 1 <= n <= MOST_WORKERS else 1 for n in numbers)
    return count, threads


@contextmanager
def hosted(count: int, threads: int, out: Path, arguments: dict[str, Any]) -> Iterator[Meeting]:
    """Start the other workers of `count` for the block, each with so many threads; yield where all of them meet.

    `arguments` are those of `train`, as JSON. Where there is one worker, or torchrun has started the ranks, nothing is started.
    Raises UserError, with its reason, when a worker has ended before its time.
    """
    if count == 1 or launched().world > 1:
        yield Meeting(launched())
        return
    if dist.is_initialized():
        raise UserError("this program has a process group of torch.distributed already; train with workers in another")
    store = dist.TCPStore(HOST, 0, count, is_master=True, wait_for_workers=False)
    with ExitStack() as cleared:
        team = _Team(Path(cleared.enter_context(TemporaryDirectory())))
        cleared.callback(team.kill)
        try:
            for rank in range(1, count):
                team.start(rank, count, store.port, threads, arguments)
            team.wait_for(store)
            yield Meeting(Launched(0, count, 0, count), store)
            team.join()
        except Stopped:
            team.join()
            raise
        except RankEnded as error:
            saved = "go on with the same command and --resume" if RunFolder(out).config.is_file() else "start again"
            raise UserError(f"{team.reason() or error}; {saved}") from None


@dataclass
class _Team:
    """The children, and the folder of their logs."""

    folder: Path
    processes: list[subprocess.Popen] = field(default_factory=list)

    def start(self, rank: int, count: int, port: int, threads: int, arguments: dict[str, Any]) -> None:
        """Start a worker, which reads its arguments from standard input."""
        meeting = {"MASTER_ADDR": HOST, "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": count}
        here = {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": count, "OMP_NUM_THREADS": threads}
        environment = child.environment() | {name: str(value) for name, value in {**meeting, **here}.items()}
        with TemporaryFile() as stdin, child.open_log(self._log(rank)) as log:
            stdin.write(json.dumps(arguments).encode())
            stdin.seek(0)
            self.processes.append(child.spawn(MODULE, (), log, environment, stdin))

    def wait_for(self, store: dist.Store) -> None:
        """Wait until every child can be met. Raises RankEnded if one ends before."""
        names = [HERE.format(rank) for rank in range(1, len(self.processes) + 1)]
        while not store.check(names):
            if any(process.poll() is not None for process in self.processes):
                raise RankEnded("a worker has ended")
            time.sleep(POLL_SECONDS)

    def reason(self) -> str | None:
        """Return why a child ended; None if none has ended with an error."""
        deadline = time.monotonic() + REASON_SECONDS
        while time.monotonic() < deadline:
            for rank, process in enumerate(self.processes, 1):
                if process.poll():
                    return child.exit_reason(process.returncode, f"worker {rank}", self._log(rank), 0)
            time.sleep(POLL_SECONDS)
        return None

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

    def _log(self, rank: int) -> Path:
        return self.folder / f"{rank}.log"
