"""Source files of a plugin and their hash, by which results of an edited plugin are told from those before."""

import ast
import hashlib
import importlib.util
import linecache
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from backstory.config.small_file import resolved


@dataclass(frozen=True)
class PluginSource:
    """The source of a plugin as it was loaded."""

    files: tuple[Path, ...]
    """Its files, resolved: the one that was named, then those beside it that it imports, or all of a package."""
    sha256: str
    """Of all files (hex)."""
    reloads: bool = True
    """False for a part of a notebook or of the program itself, which other processes cannot load."""


def source_of_file(path: Path) -> PluginSource:
    """Return the source of a Python file with the modules beside it that it imports."""
    return _source(tuple(_with_neighbours(resolved(path))))


def source_of_module(name: str) -> PluginSource:
    """Return the source of a module: all files of the package that it is in, or its file with those beside it."""
    spec = importlib.util.find_spec(name.partition(".")[0])
    if spec is None:
        return _source(())
    if folders := spec.submodule_search_locations:
        return _source(tuple(sorted(resolved(file) for folder in folders for file in Path(folder).rglob("*.py"))))
    file = Path(spec.origin or "")
    return source_of_file(file) if file.is_file() and file.suffix == ".py" else _source(())


def source_of_main(file: str) -> PluginSource:
    """Return the source of a script that is running, or of a cell of a notebook.

    Lines that are typed at a prompt are not kept by Python: they get a hash of their own, equal to no other.
    """
    text = "".join(linecache.getlines(file))
    digest = hashlib.sha256(text.encode()).hexdigest() if text else secrets.token_hex(32)
    return PluginSource((), digest, reloads=False)


def _source(files: Sequence[Path]) -> PluginSource:
    contents = [file.read_bytes() for file in files]
    if len(files) == 1:
        return PluginSource(tuple(files), hashlib.sha256(contents[0]).hexdigest())
    digests = "".join(hashlib.sha256(content).hexdigest() for content in contents)
    return PluginSource(tuple(files), hashlib.sha256(digests.encode()).hexdigest())


def _with_neighbours(path: Path) -> list[Path]:
    """Return a file and the modules in its folder that it imports, directly or through one of them."""
    files, waiting = [], [path]
    while waiting:
        file = waiting.pop(0)
        if file in files:
            continue
        files.append(file)
        waiting += (neighbour for name in _imports(file) if (neighbour := path.with_name(f"{name}.py")).is_file())
    return files


def _imports(file: Path) -> Iterator[str]:
    """Yield the top-level names that a file imports; nothing where it is no Python."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
