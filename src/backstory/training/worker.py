"""A worker of a training: `python -m backstory.training.worker PID` reads the arguments of `train` from standard input."""

import json
import sys
from pathlib import Path

from backstory.config import NonFiniteError, RunConfig, UserError, from_saved
from backstory.config.plugin_files import load_plugins
from backstory.config.process import Stopped
from backstory.jobs.child import end_with
from backstory.training.fit import train


def main() -> int:
    """Train as one of the ranks that the environment names; print the error that ends it, and return its exit code."""
    end_with(int(sys.argv[1]))
    arguments = json.load(sys.stdin)
    try:
        load_plugins()
        for name in ("data_dir", "init_from"):
            arguments[name] = arguments[name] and Path(arguments[name])
        config = from_saved(RunConfig, arguments.pop("config"), "the settings")
        train(config, accept=frozenset(arguments.pop("accept")), **arguments)
    except (UserError, NonFiniteError, Stopped) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
