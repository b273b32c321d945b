"""Which of the processes that `torchrun` started speaks."""

import os


def first_here() -> bool:
    """Whether this is the first process of a distributed run on this machine, or the only one."""
    return os.environ.get("LOCAL_RANK", "0") == "0"
