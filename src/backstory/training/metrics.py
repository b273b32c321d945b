"""metrics.jsonl: one line per event, cut back on resuming to what the checkpoint knew."""

import json
import os
from pathlib import Path
from typing import Any

from backstory.config import UserError
from backstory.config.small_file import read_lines
from backstory.storage.atomic import fsync_folder, naming, write_atomically
from backstory.storage.documents import conforms, parse

LOST = "lost"
"""The event of a log that was mended: so many `epochs` before its `step` are no longer told of."""
_EPOCH = {"epoch": int, "train_nats": float, "valid_nats": float, "valid_perplexity": float, "tokens_per_second": float}
"""What the line on an epoch has at least."""


def check_log(path: Path, keep: int, epochs: int, accept: bool) -> bool:
    """Whether the first `keep` bytes of the log, which a checkpoint knew, still tell of so many epochs.

    Raises UserError where they do not, unless that is accepted, and for a link.
    """
    if path.is_symlink():
        raise UserError(f"{path} is a link, and what it leads to is not written to; put the file itself there")
    there = path.stat().st_size if path.is_file() else 0
    if there < keep:
        problem = (
            "is shorter than the checkpoint knew it" if path.is_file() else "is missing, and was not at the checkpoint"
        )
    elif keep and _told(path, keep) != epochs:
        problem = f"does not tell of the {epochs} epochs that the checkpoint knew"
    else:
        return True
    if not accept:
        raise UserError(
            f"{path} {problem}; restore the file to go on, or --accept metrics to go on with what is left of it, "
            "or start again with --overwrite"
        )
    return False


def mend_log(path: Path, step: int, epochs: int) -> int:
    """Keep the whole lines of the log up to a step, and say in it how many of so many epochs are lost; its length in bytes."""
    kept, last, told = [], 0, 0
    for line in (line.rstrip(b"\n") for line in read_lines(path, path.parent)) if path.is_file() else ():
        event = _event(line)
        if event is None or event["event"] == LOST or not event["step"] <= step:
            continue
        if event["event"] == "epoch":
            if not last < event["epoch"] <= epochs:
                continue
            last, told = event["epoch"], told + 1
        kept.append(line)
    kept.append(json.dumps({"event": LOST, "step": step, "epochs": epochs - told}).encode())
    write_atomically(path, b"".join(line + b"\n" for line in kept))
    return path.stat().st_size


def _event(line: bytes) -> dict[str, Any] | None:
    """What a line tells; None for one that no run can have written."""
    try:
        event = parse(line)
    except ValueError:
        return None
    if not conforms(event, dict[str, Any]) or not conforms(event.get("event"), str):
        return None
    expected = {"step": int, **{"epoch": _EPOCH, LOST: {"epochs": int}}.get(event["event"], {})}
    return event if all(conforms(event.get(key), hint) for key, hint in expected.items()) else None


def _told(path: Path, keep: int) -> int | None:
    """Epochs that the first `keep` bytes of a log tell of, or tell are lost; None where they are no whole lines of events."""
    told, left = 0, keep
    for line in read_lines(path, path.parent):
        left -= len(line)
        event = _event(line)
        if event is None or left < 0 or not line.endswith(b"\n"):
            return None
        told += 1 if event["event"] == "epoch" else event["epochs"] if event["event"] == LOST else 0
        if not left:
            return told
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
        """The log's length once everything written is on the disk."""
        with naming(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def read_events(path: Path, event: str) -> list[dict[str, Any]]:
    """The events of one kind, in order."""
    with open(path, encoding="utf-8") as file:
        return [e for line in file if (e := json.loads(line)).get("event") == event]
