"""Plugins: files or modules of a user that register cores, readers, metrics or experiments, loaded before a command runs."""

import builtins
import importlib
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from backstory.config.plugin_sources import PluginSource, source_of_file, source_of_main, source_of_module
from backstory.utils.errors import UserError, check_name, pasted, shown
from backstory.utils.small_file import resolved, user_path

VARIABLE = "BACKSTORY_PLUGINS"
"""Environment variable with the plugins of this process, which the processes that it starts load as well."""
LOADED: dict[str, PluginSource] = {}
"""Each plugin by its absolute path or the name of its module; figures depend on them, and results record their hashes."""
_loading = False
"""True while a plugin is loaded: the parts that it registers are its own."""


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
        files.append(user_path(file))
    return rest, files


def load_plugins(plugins: Sequence[Path] = ()) -> None:
    """Load plugins, and those that the environment names. Raises UserError with file and line where one fails."""
    for name in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        load_plugin(Path(name), VARIABLE)
    for name in plugins:
        load_plugin(name)
    _update_environment()


def load_plugin(name: Path, given_to: str = "--plugin") -> PluginSource:
    """Run a Python file, or import a module, once, so that it registers its parts. Return its source.

    `given_to` is the flag, variable or command that was given the name, for the message on one that is neither. Raises
    UserError with file and line where it fails.
    """
    is_module = all(part.isidentifier() for part in str(name).split(".")) and name.suffix != ".py"
    key = str(name if is_module else resolved(name))
    if key in LOADED:
        return LOADED[key]
    with _plugin_loading():
        if is_module:
            LOADED[key] = _import_plugin(str(name), given_to)
            return LOADED[key]
        path = Path(key)
        if not path.is_file() or path.suffix != ".py":
            raise _absent(name, given_to)
        _import_from(str(path.parent), last=True)
        content = path.read_bytes()  # once: the hash is of what runs, also while the file is edited
        LOADED[key] = source_of_file(path, content)
        try:
            _run(path, content, "plugin")
        except UserError:
            del LOADED[key]
            raise
    return LOADED[key]


def record_part(file: str, module: str, part: str) -> None:
    """Record the source of a part that a Python program registers, as if `--plugin` had loaded it.

    Results then record its hash, and the processes that this one starts load it, unless the program itself or a notebook has
    defined it.
    """
    if _loading:
        return
    if module == "__main__":
        LOADED[str(resolved(file)) if os.path.isfile(file) else f"notebook: {part}"] = source_of_main(file)
    elif "." in module or hasattr(sys.modules.get(module), "__path__"):
        LOADED[module] = source_of_module(module)
    elif os.path.isfile(file):
        LOADED[str(resolved(file))] = source_of_file(Path(file))
    _update_environment()


def _update_environment() -> None:
    """Name the plugins to the processes that this one starts."""
    if names := _reloading():
        os.environ[VARIABLE] = os.pathsep.join(names)


def _reloading() -> list[str]:
    return [name for name, source in LOADED.items() if source.reloads]


@contextmanager
def _plugin_loading() -> Iterator[None]:
    global _loading
    before, _loading = _loading, True
    try:
        yield
    finally:
        _loading = before


def _absent(name: Path, given_to: str) -> UserError:
    return UserError(
        f"there is no Python file {shown(str(name))}; give {given_to} a .py file, or the name of a module that is installed"
    )


def _import_plugin(name: str, given_to: str) -> PluginSource:
    """Import a module, installed or in this folder. It prints to standard error, as a file does (`_run`)."""
    _import_from(os.getcwd(), last=True)
    try:
        with redirect_stdout(sys.stderr):
            importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise _absent(Path(name), given_to) from None
        raise _not_loaded(error, source_of_module(name).files, "plugin", name) from None
    for loaded, module in list(sys.modules.items()):
        if f"{loaded}.".startswith(f"{name}."):
            vars(module).setdefault("print", _print_to_standard_error)
    return source_of_module(name)


def plugin_flags() -> str:
    """Return the flags of the loaded files, for a command that is printed: ` --plugin my_core.py`; empty without any."""
    return "".join(f" --plugin {name}" for name in _pasted())


def _pasted() -> list[str]:
    """Return the paths and modules of the loaded plugins as they are typed in this folder."""
    here = Path.cwd()
    return [pasted(p.relative_to(here) if p.is_relative_to(here) else p) for p in map(Path, _reloading())]


def plugin_hashes() -> dict[str, str]:
    """Return the SHA-256 (hex) of each plugin by the name of its file or module; of two with one name by their paths."""
    names = [Path(path).name for path in LOADED]
    return {
        name if names.count(name) == 1 else path: source.sha256
        for (path, source), name in zip(LOADED.items(), names, strict=True)
    }


def load_factory(name: str) -> Callable[[], Any]:
    """Return the function or class that `module:name` or `file.py:name` names. Raises UserError."""
    source, _, attribute = name.rpartition(":")
    if not source or not attribute.isidentifier():
        raise UserError(
            f"{shown(name)} does not name a predictor; give a module or a file and a function: my_model.py:make"
        )
    if source.endswith(".py"):
        path = resolved(source)
        if not path.is_file():
            raise UserError(f"there is no Python file {shown(source)}; give the path of one, as in my_model.py:make")
        _import_from(str(path.parent))
        module = _run(path, path.read_bytes(), "file")
    else:
        _import_from(os.getcwd())
        try:
            module = importlib.import_module(source)
        except (Exception, SystemExit) as error:
            problem = f"{type(error).__name__}: {error}"
            raise UserError(
                f"the module {source} does not load ({problem}); correct it, or give file.py:name"
            ) from None
    functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    check_name(attribute, functions, f"function or class in {source} called")
    return getattr(module, attribute)


def _import_from(folder: str, last: bool = False) -> None:
    """Let modules of a folder be imported, as `python FILE` and `python -m MODULE` do.

    With `last` after all others: a file of a user may have the name of a library that is imported later.
    """
    if folder not in sys.path:
        sys.path.insert(len(sys.path) if last else 0, folder)


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
        raise _not_loaded(error, source_of_file(path, source).files, what, path.name) from None
    return module


def _not_loaded(error: BaseException, files: Sequence[Path], what: str, name: str) -> UserError:
    """Return the error of a file or module that does not load as one line with the place."""
    if isinstance(error, UserError):
        return UserError(f"{where(error, files, name)}: {error}")
    problem = f"{type(error).__name__}: {error}"
    return UserError(f"{where(error, files, name)}: the {what} does not load ({problem}); correct it and try again")


def _print_to_standard_error(*values: Any, file: Any = None, **options: Any) -> None:
    print(*values, file=sys.stderr if file is None else file, **options)


def of_plugin(error: Exception) -> UserError | None:
    """Return an error that a plugin raised, or what it called, as one line with the place; None for one of our own."""
    files = [file for source in LOADED.values() for file in source.files]
    if _last_frame(error, files) is None:
        return None
    return UserError(f"{where(error, files)}: {_described(error)}")


def beside_plugins(error: Exception) -> UserError | None:
    """Return an error of our own code as one line where a loaded file may have brought it about; None without such a file."""
    if not LOADED:
        return None
    checks = " or ".join(f"`backstory check {path}`" for path in _pasted())
    return UserError(f"it fails with {plugin_flags().strip()} ({_described(error)}); see what {checks} says")


def _described(error: Exception) -> str:
    """Return the kind and the message of an error; that of a plugin may have none."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def where(error: BaseException, files: Sequence[Path], otherwise: str = "") -> str:
    """Return `my_core.py, line 12`: the last line of these files that an error passed through, else a name."""
    if isinstance(error, SyntaxError) and error.filename and resolved(error.filename) in files:
        return f"{Path(error.filename).name}, line {error.lineno}"
    frame = _last_frame(error, files)
    return otherwise if frame is None else f"{Path(frame.filename).name}, line {frame.lineno}"


def _last_frame(error: BaseException, files: Sequence[Path]) -> traceback.FrameSummary | None:
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame for frame in reversed(frames) if resolved(frame.filename) in files), None)
