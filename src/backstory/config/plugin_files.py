"""Plugin files: Python files of a user that register cores, readers, metrics or experiments, loaded before a command runs."""

import hashlib
import os
import sys
import traceback
import types
from collections.abc import Sequence
from pathlib import Path

from backstory.config.errors import UserError, shown

VARIABLE = "BACKSTORY_PLUGINS"
"""Environment variable with the plugin files of this process, which the processes that it starts load as well."""
LOADED: dict[str, str] = {}
"""SHA-256 (hex) of each loaded file, by its absolute path; results record them."""


def split_plugins(arguments: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Split `--plugin FILE` (any number of times) from a command line. Raises UserError where the file is missing."""
    rest, files = [], []
    words = iter(arguments)
    for word in words:
        if word == "--":
            return [*rest, word, *words], files
        if word != "--plugin" and not word.startswith("--plugin="):
            rest.append(word)
            continue
        file = word.partition("=")[2] if "=" in word else next(words, "")
        if not file or file.startswith("--"):
            raise UserError("--plugin needs a Python file: `--plugin my_core.py`")
        files.append(Path(file))
    return rest, files


def load_plugins(files: Sequence[Path] = ()) -> None:
    """Load the files, and those that the environment names. Raises UserError with file and line where one fails."""
    inherited = [Path(file) for file in os.environ.get(VARIABLE, "").split(os.pathsep) if file]
    for file in (*inherited, *files):
        load_plugin(file)
    if LOADED:
        os.environ[VARIABLE] = os.pathsep.join(LOADED)


def load_plugin(file: Path, given_to: str = "--plugin") -> None:
    """Run a Python file, once, so that it registers its parts. Raises UserError with file and line where it fails.

    `given_to` is the flag or command that was given the file, for the message on one that is no Python file.
    """
    path = file.resolve()
    if str(path) in LOADED:
        return
    if not path.is_file() or path.suffix != ".py":
        raise UserError(f"there is no Python file {shown(str(file))}; give {given_to} a .py file")
    source = path.read_bytes()
    module = types.ModuleType(f"backstory_plugin_{path.stem}_{len(LOADED)}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look up their module by its name
    LOADED[str(path)] = hashlib.sha256(source).hexdigest()
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[module.__name__], LOADED[str(path)]
        if isinstance(error, UserError):
            raise UserError(f"{where(error, path)}: {error}") from None
        problem = f"{type(error).__name__}: {error}"
        raise UserError(
            f"{where(error, path)}: the plugin does not load ({problem}); correct it and try again"
        ) from None


def where(error: Exception, path: Path) -> str:
    """Return `my_core.py, line 12`: the last line of the file that an error passed through."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path.name}, line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path.name}, line {lines[-1]}" if lines else path.name
