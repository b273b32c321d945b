"""Events of a training: metrics.jsonl, cut back on resuming to what the checkpoint knew; TensorBoard, trackio and wandb."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from backstory.storage.atomic import fsync_folder, naming, write_atomically
from backstory.storage.documents import conforms, parse
from backstory.storage.run_files import TENSORBOARD
from backstory.utils.errors import FolderConflict, UserError, check_name, install_hint
from backstory.utils.small_file import read_lines

LOST = "lost"
"""Event of a repaired log: the records of so many `epochs` before its `step` are lost."""
_EPOCH = {"epoch": int, "train_nats": float, "valid_nats": float, "valid_perplexity": float, "tokens_per_second": float}
"""Fields that every epoch event has, with their types."""


def check_log(path: Path, keep: int, epochs: int, accept: bool) -> bool:
    """Return True if the first `keep` bytes of the log, its length at the checkpoint, still record so many epochs.

    Raises UserError for a link, and if epochs are missing and `accept` is False.
    """
    if path.is_symlink():
        raise UserError(f"{path} is a link, and nothing is written through links; put the file itself there")
    there = path.stat().st_size if path.is_file() else 0
    if there < keep:
        problem = "is shorter than at the checkpoint" if path.is_file() else "is missing, and was not at the checkpoint"
    elif keep and _recorded_epochs(path, keep) != epochs:
        problem = f"does not record the {epochs} epochs before the checkpoint"
    else:
        return True
    if not accept:
        raise FolderConflict(
            f"{path} {problem}",
            "restore the file to resume, or use --accept metrics to resume with what is left of it, "
            "or start again with --overwrite",
        )
    return False


def mend_log(path: Path, step: int, epochs: int) -> int:
    """Keep the whole lines of the log up to a step and record how many of `epochs` are lost. Return its length in bytes."""
    lines, last, recorded = [], 0, 0
    for line in (line.rstrip(b"\n") for line in read_lines(path, path.parent)) if path.is_file() else ():
        event = _event(line)
        if event is None or event["event"] == LOST or not event["step"] <= step:
            continue
        if event["event"] == "epoch":
            if not last < event["epoch"] <= epochs:
                continue
            last, recorded = event["epoch"], recorded + 1
        lines.append(line)
    lines.append(json.dumps({"event": LOST, "step": step, "epochs": epochs - recorded}).encode())
    write_atomically(path, b"".join(line + b"\n" for line in lines))
    return path.stat().st_size


def _event(line: bytes) -> dict[str, Any] | None:
    """Return the event of a line; None if no run can have written it."""
    try:
        event = parse(line)
    except ValueError:
        return None
    if not conforms(event, dict[str, Any]) or not conforms(event.get("event"), str):
        return None
    expected = {"step": int, **{"epoch": _EPOCH, LOST: {"epochs": int}}.get(event["event"], {})}
    return event if all(conforms(event.get(key), hint) for key, hint in expected.items()) else None


def _recorded_epochs(path: Path, keep: int) -> int | None:
    """Return the epochs that the first `keep` bytes of a log record, lost ones included; None if these are not whole events."""
    epochs, left = 0, keep
    for line in read_lines(path, path.parent):
        left -= len(line)
        event = _event(line)
        if event is None or left < 0 or not line.endswith(b"\n"):
            return None
        epochs += 1 if event["event"] == "epoch" else event["epochs"] if event["event"] == LOST else 0
        if not left:
            return epochs
    return None


class MetricsLog:
    """Appends events to a file; `position` is its length in bytes."""

    def __init__(self, path: Path, keep: int) -> None:
        """Open the log and cut it to its first `keep` bytes, so that no step stands in it twice."""
        self._path = path
        path.touch()
        fsync_folder(path.parent)
        self._file = open(path, "r+b")  # noqa: SIM115 (closed by `close`)
        self._file.truncate(keep)
        self._file.seek(0, os.SEEK_END)

    def write(self, event: str, **values: Any) -> None:
        """Append one line."""
        line = (json.dumps({"event": event, **values}, allow_nan=False) + "\n").encode()
        with naming(self._path):
            self._file.write(line)
            self._file.flush()

    def position(self) -> int:
        """Return the log's length once everything written is on the disk."""
        with naming(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def read_events(path: Path, event: str) -> list[dict[str, Any]]:
    """Return the values of the events of one kind, in order."""
    with open(path, encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    return [{k: v for k, v in record.items() if k != "event"} for record in records if record.get("event") == event]


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


class WeightsAndBiases:
    """Writes to wandb, as a run of the folder's name in the project backstory; a training that goes on is a further run of the
    group of that name. WANDB_MODE=offline keeps it on this machine.
    """

    def __init__(self, folder: Path, step: int) -> None:
        import wandb  # pyright: ignore[reportMissingImports] (an extra, of which the checks have no need)

        name = folder.resolve().name
        self._run = wandb.init(project="backstory", name=name, group=name, config={"first_step": step})

    def write(self, event: str, step: int, values: Mapping[str, float]) -> None:
        self._run.log({f"{event}/{name}": value for name, value in values.items()}, step=step)

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[Path, int], Tracker]] = {
    TENSORBOARD: TensorBoard,
    "trackio": Trackio,
    "wandb": WeightsAndBiases,
}
"""By name, which is that of the package each needs: made of a run's folder and the step it stands at."""


def check_trackers(names: Sequence[str]) -> None:
    """Raise UserError for a tracker that is unknown or not installed."""
    for name in names:
        check_name(name, TRACKERS, "tracker")
        if find_spec(name) is None:
            raise UserError(f"--track {name} needs the package {name}; {install_hint('track')}")


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
        """Return the log's length in bytes once everything written is on the disk."""
        return 0 if self._log is None else self._log.position()

    def close(self) -> None:
        with ExitStack() as closing:  # all of them, whichever fails
            for one in (*self._trackers, *filter(None, [self._log])):
                closing.callback(one.close)
