"""A process that only saves and rotates checkpoints is killed at random: a whole and correct one always remains."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from backstory.storage.checkpoint import newest_checkpoint, read_checkpoint, rotate_checkpoints, write_checkpoint

KEEP = 2
GROUPS = ("weights", "optimizer", "state")


def torture(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """A trial is one kill; every other one with TMPDIR on another file system, where there is one."""
    elsewhere = other_file_system(folder)
    print(f"  TMPDIR on the same file system and {'on another one' if elsewhere else '(there is no other) again'}")
    with tempfile.TemporaryDirectory(dir=elsewhere) as far:
        near = folder / "tmp"
        near.mkdir()
        for name, place, mine in (("near", near, trials[::2]), ("far", Path(far), trials[1::2])):
            yield from (f"TMPDIR {name}: {problem}" for problem in kills(mine, folder / name, place))


def other_file_system(folder: Path) -> str | None:
    """A folder that can be written, on another file system than this one."""
    places = (place for place in ("/dev/shm", "/tmp", "/var/tmp", str(Path.home())) if os.access(place, os.W_OK))
    return next((place for place in places if os.stat(place).st_dev != folder.stat().st_dev), None)


def kills(trials: Sequence[int], parent: Path, temporary: Path) -> Iterator[str]:
    """Processes are forked from one that has loaded the library; each goes on after the newest step that it finds."""
    parent.mkdir()
    forker = subprocess.Popen(
        [sys.executable, __file__, str(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
    )
    assert forker.stdin is not None and forker.stdout is not None
    for number in trials:
        forker.stdin.write(b"\n")
        forker.stdin.flush()
        child = int(forker.stdout.readline())
        time.sleep(random.Random(number).uniform(0.0, 0.3))
        os.kill(child, signal.SIGKILL)
        if int(forker.stdout.readline()) != signal.SIGKILL:
            yield f"kill {number}: the process had ended already"
        yield from (f"kill {number}: {problem}" for problem in session_state(parent))
    forker.stdin.close()
    forker.wait(60)
    forker.stdout.close()


def session_state(parent: Path) -> list[str]:
    """Return what is wrong with the newest checkpoint, once any was announced."""
    announced = int((parent / "announced").read_bytes() or b"0") if (parent / "announced").exists() else 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            found = newest_checkpoint(parent, "last")
        except UserWarning as warning:
            return [str(warning)]
    if found is None:
        return [f"no checkpoint loads, and {announced} was finished"] if announced else []
    step = found.documents["progress"]["step"]
    values = {v for group in found.tensors.values() for t in group.values() for v in (t.min().item(), t.max().item())}
    if step < announced or found.path.name != f"last-{step}" or values != {float(step % 1000)}:
        return [f"{found.path.name} holds step {step} of {sorted(values)}, and {announced} was finished"]
    return []


def save_forever(parent: Path) -> None:
    """Save step after step, announcing every finished one, from the newest on that stands."""
    found = newest_checkpoint(parent, "last")
    step = found.documents["progress"]["step"] if found else 0
    announced = os.open(parent / "announced", os.O_WRONLY | os.O_CREAT)
    while True:
        step += 1
        groups = {name: {f"t{i}": torch.full((40, 100), float(step % 1000)) for i in range(4)} for name in GROUPS}
        saved = write_checkpoint(parent, f"last-{step}", groups, {"progress": {"step": step}})
        os.pwrite(announced, b"%9d" % step, 0)
        rotate_checkpoints(saved, KEEP)
        read_checkpoint(saved)


def fork_on_demand(parent: Path) -> None:
    """For every line a process that saves; its number, and the signal that ended it."""
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            save_forever(parent)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, flush=True)


if __name__ == "__main__":
    fork_on_demand(Path(sys.argv[1]))
