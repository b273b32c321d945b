"""Checkpoints of a compression: killed, it resumes from the last one, and writes the same file.

A checkpoint holds the reader and the coder. The spelling is not in it: it follows from the file, whose beginning is coded again
without the reader.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from backstory.codec.range_coder import Coder, Encoder
from backstory.codec.token_code import CodedText
from backstory.readers import Reader
from backstory.readers.reading_threads import resume_threads
from backstory.readers.saved_reading import (
    PREFIX,
    ReadingCheckpoint,
    check_same,
    explain_full_disk,
    open_folder,
    save_reading,
)
from backstory.storage.atomic import LONGEST_NAME
from backstory.storage.checkpoint import remove_checkpoints
from backstory.storage.documents import has_fields
from backstory.utils.errors import UserError

PROGRESS = {"step": int, "rows": int, "coder": dict[str, Any], "parts": dict[str, float], "checked": int}
CODER = {"low": str, "range": str, "bits": float}


def checkpoint_folder(out: Path) -> Path:
    """Return OUT.part, the folder of the checkpoints of a compression. Raises UserError if its name would be too long."""
    folder = out.with_name(f"{out.name}.part")
    if (length := len(os.fsencode(folder.name))) > LONGEST_NAME:
        raise UserError(
            f"{out} has checkpoints in a folder whose name would take {length} bytes, and file systems allow {LONGEST_NAME}; "
            "choose a shorter name with --out"
        )
    return folder


class CodeCheckpoint:
    """Saves a compression in the folder OUT.part while it lasts.

    A context manager: it resumes the number of threads if asked to, and removes the folder at a good end.
    """

    def __init__(self, out: Path, identity: Callable[[], Mapping[str, Any]], save_every: float, resume: bool) -> None:
        """`identity` is what the code depends on: a checkpoint with another is refused. `save_every` is in seconds, 0 for
        never."""
        self.folder, self.identity = checkpoint_folder(out), identity
        self.save_every, self.resume = save_every, resume
        self._saved: ReadingCheckpoint | None = None
        self._saved_at = time.monotonic()
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._saved = open_folder(stack, self.folder, "compression", self.resume)
            if self._saved is not None:
                resume_threads(self._saved.identity.get("device"))
                check_same(self._saved, self.identity(), "leave --resume out to start again")
                progress = self._saved.progress
                if not has_fields(progress, PROGRESS) or not has_fields(progress["coder"], CODER):
                    raise self._damaged()
            self._exit = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        with self._exit:
            if kind is None:
                remove_checkpoints(self.folder, PREFIX)
            explain_full_disk(self.folder, error)
        if kind is None and self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    @property
    def is_resumed(self) -> bool:
        """Return True if a compression goes on with the number of threads that it began with."""
        return self._saved is not None

    @property
    def done(self) -> int:
        """Steps that were coded before this process."""
        return 0 if self._saved is None else self._saved.progress["step"]

    def restore(self, reader: Reader, coder: Coder, coded: CodedText) -> None:
        """Restore reader, coder and lengths. Raises UserError."""
        assert self._saved is not None and isinstance(coder, Encoder)
        saved = self._saved.progress
        self._saved.restore(reader, saved["rows"])
        try:
            coder.load_state_dict(saved["coder"], self._saved.more["written"].numpy().tobytes())
        except (ValueError, LookupError):
            raise self._damaged() from None
        coded.bits, coded.checked = dict(saved["parts"]), saved["checked"]

    def passed(self, step: int, rows: int, reader: Reader, coder: Coder, coded: CodedText) -> None:
        """Save the compression if the last time was `save_every` seconds ago."""
        if not self.save_every or time.monotonic() - self._saved_at < self.save_every:
            return
        assert isinstance(coder, Encoder)
        state, written = coder.state_dict()
        saved = (step, rows, state, coded.bits, coded.checked)
        progress = dict(zip(PROGRESS, saved, strict=True))
        code = {"written": torch.from_numpy(np.frombuffer(written, np.uint8).copy())}
        save_reading(self.folder, step, reader, self.identity(), progress, code)
        self._saved_at = time.monotonic()

    def _damaged(self) -> UserError:
        assert self._saved is not None
        return UserError(
            f"{self._saved.path} is damaged: it is not a saved compression; leave --resume out to start again"
        )
