"""`python -m backstory.interop.lm_eval ...`: the command `lm_eval`, which knows the model `backstory` then."""

import os
import sys

from backstory.interop.folders import need
from backstory.utils.errors import UserError
from backstory.utils.terminal import one_line


def main() -> int:
    """Run the harness with the command line; returns the exit code, 2 for what the user can put right."""
    try:
        need("lm_eval", "eval", "the evaluation harness")
        from lm_eval.__main__ import cli_evaluate

        import backstory.interop.harness  # noqa: F401

        # For its standard errors the harness starts a process for each core; without them they are the same.
        if "OMP_NUM_THREADS" in os.environ:
            os.environ.setdefault("DISABLE_MULTIPROC", "1")
        cli_evaluate()
    except UserError as error:
        print(f"backstory: {one_line(str(error))}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
