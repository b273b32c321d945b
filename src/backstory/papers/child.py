"""A command in a process that ends with the one that started it: `python -m backstory.papers.child PID VERB ...`."""

import ctypes
import os
import runpy
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1


def end_with(parent: int) -> None:
    """Ask Linux for SIGTERM, on which a training saves, when the parent is gone, however it ended; elsewhere nothing."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != parent:  # it went before we asked
        sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    del sys.argv[1]
    runpy.run_module("backstory", run_name="__main__", alter_sys=True)
