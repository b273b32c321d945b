"""Where the commands of jobs run: in child processes of this one, or on the workers of a Dask cluster.

A cluster takes the same commands as one machine does, and its workers write to the same folder, which all machines see (a
network file system). Dask brings a scheduler that workers join and leave at any time, by SSH, under SLURM or on a cloud.
"""

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from backstory.jobs import child
from backstory.storage.provenance import versions
from backstory.utils.errors import UserError, install_hint
from backstory.utils.small_file import resolved

if TYPE_CHECKING:
    from distributed import Client, Future

CHECK_SECONDS = 0.5
"""Seconds between checks of a worker whether its command has ended or is to be stopped."""
SAVE_SECONDS = 10.0
"""Seconds in which the command of a lost worker, which ends with it, has saved its work and freed its folder."""
CONNECT_SECONDS = 10.0


class RunningCommand(Protocol):
    """A command that was started; as much of `subprocess.Popen` as is needed."""

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        ...

    def terminate(self) -> None:
        """Ask it to save its work and end."""
        ...

    def wait(self) -> int:
        """Wait for its end and return its exit code."""
        ...


class Launcher(Protocol):
    """Place where commands run."""

    @property
    def slots(self) -> int:
        """Commands that can run side by side at the moment."""
        ...

    def start(self, arguments: Sequence[str], log: Path) -> RunningCommand:
        """Start `backstory ARGUMENTS`, whose output is appended to the log. Raises OSError and UserError."""
        ...


class LocalProcesses:
    """Child processes of this one, at most `slots` at a time."""

    def __init__(self, slots: int, data_dir: Path | None = None) -> None:
        self.slots, self._data_dir = slots, data_dir

    def start(self, arguments: Sequence[str], log: Path) -> RunningCommand:
        with child.open_log(log) as file:  # the child has its own descriptor
            return child.start(arguments, file, self._data_dir)


@contextmanager
def launcher(processes: int, data_dir: Path | None, cluster: str | None) -> Iterator[Launcher]:
    """Yield so many local processes, or the workers of the Dask cluster with this address.

    Raises UserError if the cluster cannot be reached, or its workers do not have this version of Backstory.
    """
    if cluster is None:
        yield LocalProcesses(processes, data_dir)
        return
    with _connected(cluster) as client:
        yield DaskWorkers(client, data_dir)


class DaskWorkers:
    """The workers of a Dask cluster: each runs as many commands at a time as it has threads."""

    def __init__(self, client: "Client", data_dir: Path | None) -> None:
        self._client, self._last_loss = client, -SAVE_SECONDS
        data = os.environ.get("BACKSTORY_DATA") if data_dir is None else str(resolved(data_dir))
        self._environment = {"OMP_NUM_THREADS": str(child.threads())} | (
            {} if data is None else {"BACKSTORY_DATA": data}
        )

    @property
    def slots(self) -> int:
        return sum(cast(dict[str, int], self._client.nthreads()).values())

    def start(self, arguments: Sequence[str], log: Path) -> RunningCommand:
        recently = time.monotonic() - self._last_loss < SAVE_SECONDS
        name = f"backstory-{secrets.token_hex(8)}"
        delay = SAVE_SECONDS if recently else 0.0
        future = self._client.submit(
            _run, [*arguments], str(log.resolve()), os.getcwd(), self._environment, name, delay, key=name, pure=False
        )
        return DaskCommand(self._client, future, name, self._note_loss)

    def _note_loss(self) -> None:
        self._last_loss = time.monotonic()


class DaskCommand:
    """A command on a worker of a Dask cluster; its exit code is `child.LOST` if the worker is gone."""

    def __init__(self, client: "Client", future: "Future", name: str, on_loss: Callable[[], None]) -> None:
        self._future, self._on_loss = future, on_loss
        self._started, self._stop = _event(name, "started", client), _event(name, "stop", client)

    def poll(self) -> int | None:
        return self.wait() if self._future.done() else None

    def terminate(self) -> None:
        self._stop.set()
        if not self._started.is_set():  # it waits for a worker, which may never come
            self._future.cancel()

    def wait(self) -> int:
        from distributed import KilledWorker

        if self._future.cancelled():
            return -signal.SIGTERM
        try:
            code = self._future.result()
        except KilledWorker:
            code = None
        if code is None:
            self._on_loss()
            return child.LOST
        return code


def _event(name: str, kind: str, client: "Client | None" = None) -> Any:
    from distributed import Event

    return Event(f"{name}-{kind}", client=client)


def _run(
    arguments: list[str], log: str, folder: str, environment: dict[str, str], name: str, delay: float
) -> int | None:
    """Run a command on a worker and return its exit code; None if an earlier worker began it and is gone.

    The command ends, its work saved, when it is to be stopped, and when the process that started it is gone.
    """
    from distributed import get_worker

    started, stop = _event(name, "started"), _event(name, "stop")
    if started.is_set():  # Dask runs the task of a lost worker again, but a training has to be resumed
        return None
    started.set()
    worker = get_worker()

    def is_over() -> bool:
        """Return True if nobody waits for the command any more."""
        task = worker.state.tasks.get(name)
        try:
            return task is None or task.state == "cancelled" or stop.is_set()
        except OSError:  # the scheduler is gone
            return True

    if not Path(folder).is_dir() or not Path(log).parent.is_dir():
        raise UserError(f"the worker {worker.address} does not see {folder}; run workers where that folder is mounted")
    for _ in range(int(delay / CHECK_SECONDS)):
        if is_over():
            return -signal.SIGTERM
        time.sleep(CHECK_SECONDS)
    with child.open_log(Path(log)) as file:
        process = child.start(arguments, file, None, folder, environment)
    while (code := process.poll()) is None:
        if is_over():
            process.terminate()
            return process.wait()
        time.sleep(CHECK_SECONDS)
    return code


@contextmanager
def _connected(address: str) -> "Iterator[Client]":
    """Yield a client of a cluster whose workers all run this version of Backstory and PyTorch."""
    try:
        from distributed import Client
    except ImportError:
        raise UserError(f"--cluster needs the package distributed; {install_hint('cluster')}") from None
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UserError(
            f"no Dask scheduler answers at {address} ({type(error).__name__}); start one with `dask scheduler`, and "
            "workers with `dask worker ADDRESS --nthreads N`"
        ) from None
    with client:
        _check_versions(client, address)
        yield client


def _check_versions(client: "Client", address: str) -> None:
    """Raise UserError if the cluster has no worker, or one with other versions, whose figures may differ."""
    ours = versions()
    try:
        theirs = cast(dict[str, dict[str, str]], client.run(versions))
    except ImportError:
        raise UserError(f"a worker of {address} has no backstory; install the same version there") from None
    if not theirs:
        raise UserError(f"the cluster at {address} has no worker; start some with `dask worker {address} --nthreads N`")
    for worker, installed in theirs.items():
        if installed != ours:
            described = [", ".join(f"{k} {v}" for k, v in each.items()) for each in (installed, ours)]
            raise UserError(
                f"the worker {worker} has {described[0]}, and this process {described[1]}; install the same"
            )
