"""A real Dask scheduler and workers on localhost, each a process of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass
class Cluster:
    """A scheduler's address and the processes of its workers."""

    address: str
    folder: Path
    workers: list[subprocess.Popen]

    def add_worker(self) -> None:
        """Start a worker that runs one command at a time; it joins by itself."""
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
        with open(self.folder / f"worker-{len(self.workers)}.log", "w") as log:
            self.workers.append(_dask("worker", self.address, *options, log=log))


@contextmanager
def cluster(folder: Path, count: int) -> Iterator[Cluster]:
    """Yield a cluster with this many workers. Its processes end with the block and leave their logs in the folder."""
    place = folder / "scheduler.json"
    with open(folder / "scheduler.log", "w") as log:
        options = ["--port", "0", "--no-dashboard", "--host", "127.0.0.1", "--scheduler-file", str(place)]
        scheduler = _dask("scheduler", *options, log=log)
    workers: list[subprocess.Popen] = []
    try:
        made = Cluster(_address(place, scheduler), folder, workers)
        for _ in range(count):
            made.add_worker()
        _wait_for_workers(made, count)
        yield made
    finally:
        for process in (scheduler, *workers):
            process.kill()
            process.wait()


def _dask(kind: str, *arguments: str, log: IO[str]) -> subprocess.Popen:
    command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *arguments]
    return subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ))


def _address(place: Path, scheduler: subprocess.Popen) -> str:
    deadline = time.monotonic() + 120
    while not place.exists() or not place.read_text():
        assert scheduler.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    return json.loads(place.read_text())["address"]


def _wait_for_workers(made: Cluster, workers: int) -> None:
    from distributed import Client

    with Client(made.address, set_as_default=False, timeout=60) as client:
        client.wait_for_workers(workers, timeout=120)
