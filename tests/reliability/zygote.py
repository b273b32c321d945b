"""A process that has loaded the library once and forks commands from it: `python zygote.py`, one request per line of JSON.

A request is {"arguments", "output", "environment", "before"}: the command line, the file that takes what it says, what
its environment has besides, and what is called in the process first, as [module, function, {options}]. It is answered by
the number of the process, and once that has ended by its exit code, or minus the signal that ended it.
"""

import importlib
import json
import os
import signal
import sys

from backstory.cli.command_line import parse
from backstory.cli.main import main
from backstory.cli.train import TrainArguments

# Everything that a training imports and the command line creates once. No tensor is created here, so that no thread has
# started when it forks.
for name in ("backstory.training", "torch._dynamo", "torch.profiler", "rich.progress"):
    importlib.import_module(name)
parse(TrainArguments, [], "train")


def run(request: dict) -> int:
    """The command, in the forked process."""
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for module, function, options in request["before"]:
        getattr(importlib.import_module(module), function)(**options)
    return main(request["arguments"])


def serve() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = 0
    for line in sys.stdin:
        if child:
            # Reaped this late, so that its number is nobody else's while it may still be sent a signal.
            os.waitpid(child, 0)
        child = os.fork()
        if child == 0:
            code = run(json.loads(line))
            if sys.stdout is not None:  # a command started with it closed
                sys.stdout.flush()
            os._exit(code)  # tearing down the interpreter takes longer than many commands
        print(child, flush=True)
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        print(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status, flush=True)


if __name__ == "__main__":
    serve()
