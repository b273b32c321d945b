"""`backstory VERB ...`: finds the verb, and turns errors into one line and an exit code; imports no torch itself."""

import importlib
import os
import signal
import sys
import warnings
from collections.abc import Sequence

from backstory.config.errors import NonFiniteError, UserError, check_name
from backstory.config.machine import first_here, out_of_memory, refused
from backstory.config.plugin_files import load_plugins, split_plugins
from backstory.config.signals import Interrupted, interruptible
from backstory.config.terminal import failure, printing

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
    "check": "test a core, reader or experiment of your own (a plugin) against the contract",
    "ls": "list models, recipes, corpora, readers, experiments, explanations, suites, spaces",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code: 0, 2 for what the user can put right, 3 for a loss that broke down.

    128 + its number after a signal. Without `arguments` it is a whole program: those of the process, which ends afterwards.
    """
    with printing(), interruptible(last=arguments is None) as interrupts:
        try:
            code, said = _ended(list(sys.argv[1:] if arguments is None else arguments))
            interrupts.ends = True
        except KeyboardInterrupt as stop:
            interrupts.ends = True
            code, said = 128 + (stop.signal if isinstance(stop, Interrupted) else signal.SIGINT), "interrupted"
        if said is not None:
            _say(said)
        if (error := failure()) is not None and not isinstance(error, BrokenPipeError):
            _say(f"cannot write to standard output: {error.strerror}; make room, or send it elsewhere")
            code = code or 2
        return code


def _ended(arguments: list[str]) -> tuple[int, str | None]:
    """How a command line ends: the exit code, and what is said of an error."""
    try:
        try:
            code = _run(arguments)
        except SystemExit as stop:  # after --help
            code = int(stop.code or 0)
        sys.stdout.flush()
        return code, None
    except (UserError, NonFiniteError) as error:
        return error.exit_code, str(error)
    except OSError as error:
        # A full disk, a folder without permission: nothing that a traceback would explain.
        told = refused(error)
        return told.exit_code, str(told)
    except (MemoryError, RuntimeError, ImportError) as error:  # the last: a library that cannot be loaded
        if (told := out_of_memory(error)) is None:
            raise
        return told.exit_code, str(told)


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview())
        return 0
    arguments, plugins = split_plugins(arguments)
    verb, *rest = arguments or [""]
    if verb == "--version":
        from importlib.metadata import version

        print(f"backstory {version('backstory')}")
        return 0
    check_name(verb, VERBS, "command", "backstory --help")
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError("the folder that this was started in is gone; go to one that is there (`cd FOLDER`)") from None
    warnings.showwarning = _show_warning
    # Threads that wait for each other by spinning bring training to a crawl where something else runs on the same cores.
    # Read by OpenMP when torch is loaded; a short spin costs nothing on idle cores.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    load_plugins(plugins)
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
            "--plugin FILE loads parts of your own into any command (docs/extending.md).",
            "Begin with `backstory demo`. Long work can be stopped with Ctrl-C and taken up again with --resume.",
        ]
    )


def _say(message: str) -> None:
    if first_here():
        print(f"backstory: {_line(message)}", file=sys.stderr)


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    _say(f"warning: {message}")


def _line(message: str) -> str:
    """A message in one line, without the middle where somebody typed or wrote thousands of characters."""
    line = " ".join(message.split())
    return line if len(line) <= 1200 else f"{line[:800]} ... {line[-350:]}"


if __name__ == "__main__":
    sys.exit(main())
