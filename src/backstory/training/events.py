"""Where the events of a training go: always to metrics.jsonl, and to TensorBoard or trackio where that is asked for."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from backstory.config import UserError, check_name
from backstory.runs.run_folder import TENSORBOARD
from backstory.training.metrics import MetricsLog


class Tracker(Protocol):
    """Shows the curves of a run while it trains."""

    def write(self, event: str, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Writes to RUN/tensorboard; what a killed run wrote of steps that are made again is hidden."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / TENSORBOARD), purge_step=step + 1)

    def write(self, event: str, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"{event}/{name}", value, step)

    def close(self) -> None:
        self._writer.close()


class Trackio:
    """Writes to trackio's own store, as the run of the folder's name in the project backstory.

    Steps that a killed run had made after its last checkpoint stand there twice once they are made again.
    """

    def __init__(self, folder: Path, step: int) -> None:
        import trackio  # pyright: ignore[reportMissingImports] (an extra, of which the checks have no need)

        self._run = trackio.init(project="backstory", name=folder.resolve().name, resume="allow" if step else "never")

    def write(self, event: str, step: int, values: Mapping[str, float]) -> None:
        self._run.log({f"{event}/{name}": value for name, value in values.items()}, step=step)

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[Path, int], Tracker]] = {TENSORBOARD: TensorBoard, "trackio": Trackio}
"""By name, which is that of the package each needs: made of a run's folder and the step it stands at."""


def check_trackers(names: Sequence[str]) -> None:
    """Raise UserError for a tracker that is unknown or not installed."""
    for name in names:
        check_name(name, TRACKERS, "tracker")
        if find_spec(name) is None:
            raise UserError(f"--track {name} needs the package {name}: pip install 'backstory[track]'")


class Events:
    """Passes every event on; a rank that writes nothing has no log."""

    def __init__(self, log: MetricsLog | None = None, trackers: Sequence[Tracker] = ()) -> None:
        self._log, self._trackers = log, trackers

    def write(self, event: str, **values: Any) -> None:
        """Take an event: JSON values, of which `step` is one."""
        if self._log is not None:
            self._log.write(event, **values)
        numbers = {k: float(v) for k, v in values.items() if isinstance(v, int | float) and k != "step"}
        for tracker in self._trackers:
            tracker.write(event, values["step"], numbers)

    def position(self) -> int:
        """The log's length in bytes once everything written is on the disk."""
        return 0 if self._log is None else self._log.position()

    def close(self) -> None:
        with ExitStack() as closing:  # all of them, whichever fails
            for one in (*self._trackers, *filter(None, [self._log])):
                closing.callback(one.close)
