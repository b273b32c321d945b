"""`backstory VERB ...`: run a verb, and turn errors into one line and an exit code. Imports no torch itself."""

import sys

try:
    import importlib
    import os
    import re
    import signal
    import time
    import warnings
    from collections.abc import Sequence
    from typing import NoReturn

    from backstory.config.plugin_files import beside_plugins, load_plugins, of_plugin, split_plugins
    from backstory.utils.errors import NonFiniteError, UserError, check_name, damaged_bytecode, out_of_memory, refused
    from backstory.utils.process import Interrupted, Stopped, first_here, interruptible, run_program
    from backstory.utils.terminal import failure, printing
except KeyboardInterrupt:  # before there is a handler for it
    print("backstory: interrupted", file=sys.stderr)
    sys.exit(130)  # 128 + SIGINT

AFTER_FIRST = 10.0
"""Seconds that another rank of this machine waits after an error for the first one to end with it."""
GROUPS = {
    "Train a model": {
        "demo": "train, read and examine a small model, and report (a few minutes)",
        "train": "train a model from a recipe",
        "recipe": "show, copy or check a recipe (show, copy, check)",
        "data": "prepare a corpus, show it, or train a tokenizer for it",
        "sweep": "search the settings of a recipe, and show the best (run, show)",
    },
    "Evaluate and use it": {
        "evaluate": "score a split of a corpus, or your own text, with a trained model",
        "generate": "continue a prompt with a trained model",
        "read": "score standard input line by line as it arrives; can be resumed",
        "report": "write one page with the results of run folders",
    },
    "Understand it": {
        "examine": "measure how a model uses its context",
        "explain": "show how a model predicts a passage, word by word",
    },
    "Let it adapt while it reads": {
        "reader": "prepare adaptive readers (statistics, tune, train), or audit one",
    },
    "Reproduce and verify figures": {
        "reproduce": "run the systems of a paper and test its claims",
        "verify": "decode the proof of an evaluation, and check its text and score",
        "referee": "score and audit any predictor: a Python object, or a process",
    },
    "Share and compress": {
        "export": "write a trained model for Hugging Face, with its tokenizer",
        "compress": "compress any file with a trained model",
        "decompress": "restore a compressed file, byte for byte",
    },
    "Tools": {
        "ls": "list runs, models, recipes, corpora, readers and other names",
        "benchmark": "measure how fast this machine trains and reads, in about a minute",
        "check": "test a plugin: a core, reader, metric or experiment of your own",
        "completion": "print the completion script of a shell (bash, zsh, fish)",
        "help": "explain a command, like COMMAND --help",
    },
}
"""Verbs under the headings of `backstory --help`, in the order in which a newcomer needs them."""
VERBS = {verb: what for verbs in GROUPS.values() for verb, what in verbs.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    That is 0; 1 if the work was done and its outcome is a failure (an audit, a claim, a run); 2 for an error of the user; 3
    for a loss that is not finite; 128 + its number after a signal. Without `arguments` it runs those of the process, which
    ends afterwards.
    """
    with printing(), interruptible(last=arguments is None) as interrupts:
        try:
            typed = list(sys.argv[1:] if arguments is None else arguments)
            code, message = _exit(typed)
            message = message and _with_flags(message, typed)
            if message is not None and code < 128 and not first_here():
                # torchrun stops every rank once one has ended: the first, too, before it has said the same.
                time.sleep(AFTER_FIRST)
            interrupts.ends = True
        except KeyboardInterrupt as stop:
            interrupts.ends = True
            code, message = 128 + (stop.signal if isinstance(stop, Interrupted) else signal.SIGINT), "interrupted"
        if message is not None:
            _say(message)
        if (error := failure()) is not None and not isinstance(error, BrokenPipeError):
            _say(f"cannot write to standard output: {error.strerror}; make room, or send it elsewhere")
            code = code or 2
        return code


def _exit(arguments: list[str]) -> tuple[int, str | None]:
    """Run a command line; return its exit code, and the message of an error or None."""
    try:
        try:
            code = _run(arguments)
        except SystemExit as stop:
            from backstory.cli.help_page import HelpShown

            if not isinstance(stop, HelpShown):  # a plug-in or a predictor has called exit
                raise UserError(
                    f"the code of a file that was loaded ended the command with exit({stop.code!r})"
                ) from None
            code = 0
        sys.stdout.flush()
        return code, None
    except (UserError, NonFiniteError, Stopped) as error:
        return error.exit_code, str(error)
    except OSError as error:
        # A full disk or a folder without permission needs no traceback.
        line = refused(error)
        return line.exit_code, str(line)
    except Exception as error:
        # An ImportError may be a library that does not fit into memory.
        no_memory = out_of_memory(error) if isinstance(error, MemoryError | RuntimeError | ImportError) else None
        if (line := no_memory or damaged_bytecode(error) or of_plugin(error) or beside_plugins(error)) is None:
            raise
        return line.exit_code, str(line)


def _run(arguments: list[str]) -> int:
    if arguments[:1] in (["help"], ["--help"], ["-h"]):
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "--help-all"):
        print(overview())
        return 0
    arguments, plugins = split_plugins(arguments)
    verb, *rest = arguments or [""]
    if verb in ("-V", "-v", "--version", "version"):
        from importlib.metadata import version

        print(f"backstory {version('backstory')}")
        return 0
    if verb == "compare":  # the function of that name in Python
        raise UserError(
            "there is no command 'compare'; `backstory explain reading RUN --against READER_OR_RUN` compares"
        )
    if verb not in VERBS:
        from backstory.cli.completion import COMMANDS

        if actions := [f"`backstory {name}`" for name in COMMANDS if name.endswith(f" {verb}")]:
            raise UserError(f"there is no command '{verb}'; it is {' or '.join(actions)}")
    check_name(verb, VERBS, "command", "backstory --help")
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError("the current folder was deleted; change to an existing one (`cd FOLDER`)") from None
    warnings.showwarning = _show_warning
    # Threads that spin while they wait slow training down a lot when other programs use the same cores.
    # OpenMP reads this when torch is loaded; a short spin costs nothing on idle cores.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    load_plugins(plugins)
    return importlib.import_module(f"backstory.cli.{verb}").main(rest) or 0


def overview() -> str:
    """Return the text of `backstory --help`."""
    width = max(map(len, VERBS))
    lines = []
    for heading, verbs in GROUPS.items():
        lines += [f"{heading}:", *(f"  {verb:<{width}}  {what}" for verb, what in verbs.items()), ""]
    return "\n".join(
        [
            "Backstory: language models that remember.",
            "",
            "usage: backstory COMMAND [...]      (backstory COMMAND --help explains one)",
            "",
            *lines,
            "Start with `backstory demo`. Stop long work with Ctrl-C; --resume continues it.",
            "Every command takes `--plugin FILE`, a Python file with parts of your own.",
        ]
    )


def _with_flags(message: str, arguments: Sequence[str]) -> str:
    """Return a message with each setting that was typed as a flag under the flag's name: `--training.batch-size`."""
    flags = {word.partition("=")[0].replace("_", "-") for word in arguments if word.startswith("--")}
    for flag in sorted(flags):
        setting = re.escape(flag.removeprefix("--").replace("-", "_"))
        where = (
            rf"(?<![\w.-]){setting}(?![\w.]| to false)"
            if "." in flag
            else rf"(?<=^command line: ){setting}(?= must be )"
        )
        message = re.sub(where, flag, message)
    return re.sub("^command line: (?=--)", "", message)


def _say(message: str) -> None:
    if first_here():
        print(f"backstory: {_line(message)}", file=sys.stderr)


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    _say(f"warning: {message}")


def _line(message: str) -> str:
    """Return a message in one line; the middle of a very long one is left out."""
    line = " ".join(message.split())
    return line if len(line) <= 1200 else f"{line[:800]} ... {line[-350:]}"


def program() -> NoReturn:
    """Run the command line of this process, which ends with its exit code."""
    run_program(main)


if __name__ == "__main__":
    program()
