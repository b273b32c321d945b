"""Phase of a training process, written into a byte of shared memory that survives it; only looks on, changes nothing."""

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

PHASES = ("start-up", "between steps", "step", "save", "rotation", "best", "validation", "end of epoch", "ending")


class Phase:
    """The byte, as the observer sees it."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(b"\0")
        self._file = path

    def now(self) -> str:
        return PHASES[self._file.read_bytes()[0]]

    def call(self) -> tuple[str, str, dict[str, Any]]:
        """Return the call that the process makes before its command."""
        self._file.write_bytes(b"\0")
        return ("phases", "tell", {"path": str(self._file)})


def tell(path: str) -> None:
    """From now on this process says what it is doing."""
    from backstory.training import checkpointing, fit, loop

    with open(path, "r+b") as file:
        byte = mmap.mmap(file.fileno(), 1)

    def during(owner: Any, name: str, phase: Callable[..., str], after: str | None = None) -> None:
        original = getattr(owner, name)

        def called(*arguments: Any, **options: Any) -> Any:
            before = byte[0]
            byte[0] = PHASES.index(phase(*arguments))
            try:
                return original(*arguments, **options)
            finally:
                byte[0] = before if after is None else PHASES.index(after)

        setattr(owner, name, called)

    during(checkpointing, "write_checkpoint", lambda parent, name, *rest: "best" if name.startswith("best") else "save")
    during(checkpointing, "rotate_checkpoints", lambda *arguments: "rotation")
    during(loop.Trainer, "train", lambda *arguments: "between steps", after="ending")
    during(loop.Trainer, "_step", lambda *arguments: "step")
    during(loop.Trainer, "_end_of_epoch", lambda *arguments: "end of epoch")
    during(loop.Trainer, "_validate", lambda *arguments: "validation")
    during(fit, "write_result", lambda *arguments: "ending")
