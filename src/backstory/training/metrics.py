"""metrics.jsonl: one line per event, cut back on resuming to what the checkpoint knew."""

import json
import os
from pathlib import Path
from typing import Any

from backstory.config import UserError
from backstory.storage.atomic import fsync_folder
from backstory.storage.documents import conforms, parse


def check_log(path: Path, keep: int, epochs: int) -> None:
    """Raise UserError unless the first `keep` bytes of the log, which a checkpoint knew, tell of so many epochs."""
    there = path.stat().st_size if path.is_file() else 0
    if path.is_symlink():
        raise UserError(f"{path} is a link, and what it leads to is not written to; put the file itself there")
    if there < keep:
        what = "is shorter than" if path.is_file() else "is missing, and was not when"
        verb = "knew it" if path.is_file() else "was written"
        raise UserError(
            f"{path} {what} the checkpoint {verb}; restore the file to go on, or start again with --overwrite"
        )
    if keep and _epochs(path, keep) != epochs:
        raise UserError(
            f"{path} does not tell of the {epochs} epochs that the checkpoint knew; "
            "restore the file to go on, or start again with --overwrite"
        )


def _epochs(path: Path, keep: int) -> int | None:
    """Epochs that the first `keep` bytes of a log tell of; None where they are no whole lines of events."""
    with open(path, "rb") as file:
        lines = file.read(keep).split(b"\n")
    try:
        events = [parse(line) for line in lines[:-1]]
    except ValueError:
        return None
    whole = not lines[-1] and all(conforms(e, dict[str, Any]) and conforms(e.get("event"), str) for e in events)
    epochs = [e for e in events if e["event"] == "epoch"] if whole else []
    return len(epochs) if whole and all(conforms(e.get("tokens_per_second"), float) for e in epochs) else None


class MetricsLog:
    """Appends events to a file; `position` is its length in bytes."""

    def __init__(self, path: Path, keep: int) -> None:
        """Open the log and cut it to its first `keep` bytes, so that no step stands in it twice."""
        path.touch()
        fsync_folder(path.parent)
        self._file = open(path, "r+b")  # noqa: SIM115 (closed by `close`)
        self._file.truncate(keep)
        self._file.seek(0, os.SEEK_END)

    def write(self, event: str, **values: Any) -> None:
        """Append one line."""
        self._file.write((json.dumps({"event": event, **values}, allow_nan=False) + "\n").encode())
        self._file.flush()

    def position(self) -> int:
        """The log's length once everything written is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def read_events(path: Path, event: str) -> list[dict[str, Any]]:
    """The events of one kind, in order."""
    with open(path, encoding="utf-8") as file:
        return [e for line in file if (e := json.loads(line)).get("event") == event]
