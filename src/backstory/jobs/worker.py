"""The program of a worker: it reads its arguments from standard input, and ends with the process that started it."""

import json
import os
import sys
from collections.abc import Callable

from backstory.config.plugin_files import load_plugins
from backstory.jobs.child import end_with
from backstory.utils.errors import NonFiniteError, UserError
from backstory.utils.process import Stopped


def serve(work: Callable[..., object]) -> int:
    """Call `work` with the arguments from standard input, as a rank; print the error that ends it. Return the exit code."""
    end_with(int(sys.argv[1]))
    message = json.load(sys.stdin)
    os.environ.update(message["environment"])
    try:
        load_plugins()
        work(**message["arguments"])
    except (UserError, NonFiniteError, Stopped) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0
