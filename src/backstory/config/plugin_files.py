"""Plugin files: Python files of a user that register cores, readers, metrics or experiments, loaded before a command runs."""

import builtins
import hashlib
import importlib
import os
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from backstory.config.errors import UserError, check_name, pasted, shown
from backstory.config.small_file import resolved

VARIABLE = "BACKSTORY_PLUGINS"
"""Environment variable with the plugin files of this process, which the processes that it starts load as well."""
LOADED: dict[str, str] = {}
"""SHA-256 (hex) of each loaded file, by its absolute path; figures depend on them, and results record them."""


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
    path = resolved(file)
    if str(path) in LOADED:
        return
    if not path.is_file() or path.suffix != ".py":
        raise UserError(f"there is no Python file {shown(str(file))}; give {given_to} a .py file")
    source = path.read_bytes()
    LOADED[str(path)] = hashlib.sha256(source).hexdigest()
    try:
        _run(path, source, "plugin")
    except UserError:
        del LOADED[str(path)]
        raise


def plugin_flags() -> str:
    """Return the flags of the loaded files, for a command that is printed: ` --plugin my_core.py`; empty without any."""
    return "".join(f" --plugin {path}" for path in _pasted())


def _pasted() -> list[str]:
    """Return the paths of the loaded files as they are typed in this folder."""
    here = Path.cwd()
    return [pasted(p.relative_to(here) if p.is_relative_to(here) else p) for p in map(Path, LOADED)]


def plugin_hashes() -> dict[str, str]:
    """Return the SHA-256 (hex) of each loaded file by its name; of two with one name by their paths."""
    names = [Path(path).name for path in LOADED]
    return {name if names.count(name) == 1 else path: LOADED[path] for path, name in zip(LOADED, names, strict=True)}


def load_factory(name: str) -> Callable[[], Any]:
    """Return the function or class that `module:name` or `file.py:name` names. Raises UserError."""
    place, _, attribute = name.rpartition(":")
    if not place or not attribute.isidentifier():
        raise UserError(
            f"{shown(name)} does not name a predictor; give a module or a file and a function: my_model.py:make"
        )
    if place.endswith(".py"):
        path = resolved(place)
        if not path.is_file():
            raise UserError(f"there is no Python file {shown(place)}; give the path of one, as in my_model.py:make")
        _import_from(str(path.parent))
        module = _run(path, path.read_bytes(), "file")
    else:
        _import_from(os.getcwd())
        try:
            module = importlib.import_module(place)
        except (Exception, SystemExit) as error:
            problem = f"{type(error).__name__}: {error}"
            raise UserError(f"the module {place} does not load ({problem}); correct it, or give file.py:name") from None
    functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    check_name(attribute, functions, f"function or class in {place} called")
    return getattr(module, attribute)


def _import_from(folder: str) -> None:
    """Let modules of a folder be imported, as `python FILE` and `python -m MODULE` do."""
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _run(path: Path, source: bytes, what: str) -> types.ModuleType:
    """Run a Python file as a module of its own. Raises UserError with file and line where it fails.

    It prints to standard error: standard output is the command's, which may write JSON or a code there.
    """
    module = types.ModuleType(f"backstory_{what}_{path.stem}_{len(LOADED)}")
    module.__file__ = str(path)
    module.__dict__["__builtins__"] = vars(builtins) | {"print": _print_to_standard_error}
    sys.modules[module.__name__] = module  # dataclasses look up their module by its name
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        if isinstance(error, UserError):
            raise UserError(f"{where(error, path)}: {error}") from None
        problem = f"{type(error).__name__}: {error}"
        raise UserError(
            f"{where(error, path)}: the {what} does not load ({problem}); correct it and try again"
        ) from None
    return module


def _print_to_standard_error(*values: Any, file: Any = None, **options: Any) -> None:
    print(*values, file=sys.stderr if file is None else file, **options)


def of_plugin(error: Exception) -> UserError | None:
    """Return an error that a loaded file raised, or what it called, as one line with the place; None for one of our own."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    path = next((file for file in reversed(files) if file in LOADED), None)
    if path is None:
        return None
    return UserError(f"{where(error, Path(path))}: {_told(error)}")


def beside_plugins(error: Exception) -> UserError | None:
    """Return an error of our own code as one line where a loaded file may have brought it about; None without such a file."""
    if not LOADED:
        return None
    checks = " or ".join(f"`backstory check {path}`" for path in _pasted())
    return UserError(f"it fails with {plugin_flags().strip()} ({_told(error)}); see what {checks} says")


def _told(error: Exception) -> str:
    """Return the kind and the message of an error; that of a plugin may have none."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def where(error: BaseException, path: Path) -> str:
    """Return `my_core.py, line 12`: the last line of the file that an error passed through."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path.name}, line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path.name}, line {lines[-1]}" if lines else path.name
