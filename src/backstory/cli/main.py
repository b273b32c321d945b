"""`backstory VERB ...`: finds the verb, and turns errors into one line and an exit code; imports no torch itself."""

import importlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from backstory.cli.ranks import first_here
from backstory.config.errors import NonFiniteError, UserError, check_name

VERBS = {
    "demo": "train, read, examine and report a small model on your own Python's documentation (5 minutes)",
    "train": "train a model by a recipe",
    "evaluate": "read a split of a corpus, or a text, with a trained model and score it",
    "read": "read standard input as it arrives, in a session that can be gone on with",
    "generate": "go on with a text as a trained model would",
    "examine": "measure how a model uses its context",
    "explain": "show what a model makes of a passage, word by word",
    "sweep": "search the settings of a recipe, and show what was found (run, show)",
    "reproduce": "run the systems of a paper and say which of its claims hold",
    "export": "write a trained model as one of Hugging Face, with its tokenizer and a model card",
    "report": "make one page of the results in run folders",
    "reader": "prepare a run for readers that adapt (statistics, tune, train), or test that one is honest (audit)",
    "data": "download a corpus, or show what it holds (prepare, show)",
    "recipe": "copy or check a recipe",
    "ls": "list models, recipes, corpora, readers, experiments, explanations, grids, spaces",
}


class Terminated(KeyboardInterrupt):
    """SIGTERM came: what holds for Ctrl-C holds for it, but the exit code."""


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises Terminated in the block, so that what is unfinished is cleared away (only in the main thread)."""

    def terminate(*_: object) -> None:
        raise Terminated

    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code: 0, 2 for what the user can put right, 3 for a loss that broke down."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            with terminable():
                code = _run(arguments)
        except SystemExit as stop:  # after --help
            code = int(stop.code or 0)
        sys.stdout.flush()  # what is still buffered must not fail later, out of reach of the handlers below
        return code
    except UserError as error:
        return _fail(str(error), 2)
    except NonFiniteError as error:
        return _fail(str(error), 3)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); the interpreter would complain once more while it closes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # A full disk, a folder without permission: nothing that a traceback would explain.
        return _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part), 2)
    except KeyboardInterrupt as stop:
        return _fail("interrupted", 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT))


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview())
        return 0
    verb, *rest = arguments
    if verb == "--version":
        from importlib.metadata import version

        print(f"backstory {version('backstory')}")
        return 0
    check_name(verb, VERBS, "command", "backstory --help")
    warnings.showwarning = _show_warning
    # Threads that wait for each other by spinning bring training to a crawl where something else runs on the same cores.
    # Read by OpenMP when torch is loaded; a short spin costs nothing on idle cores.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    return importlib.import_module(f"backstory.cli.{verb}").main(rest) or 0


def overview() -> str:
    """What `backstory --help` prints."""
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {what}" for verb, what in VERBS.items()]
    return "\n".join(
        [
            "Backstory: language models that remember.",
            "",
            "usage: backstory COMMAND [...]      (backstory COMMAND --help explains one)",
            "",
            *lines,
            "",
            "Begin with `backstory demo`. Long work can be stopped with Ctrl-C and taken up again with --resume.",
        ]
    )


def _fail(message: str, code: int) -> int:
    if first_here():
        print(f"backstory: {_line(message)}", file=sys.stderr)
    return code


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    if first_here():
        print(f"backstory: warning: {_line(str(message))}", file=sys.stderr)


def _line(message: str) -> str:
    """A message in one line, without the middle where somebody typed or wrote thousands of characters."""
    line = " ".join(message.split())
    return line if len(line) <= 1200 else f"{line[:800]} ... {line[-350:]}"


if __name__ == "__main__":
    sys.exit(main())
