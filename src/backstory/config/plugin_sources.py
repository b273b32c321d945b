"""Source files of a plugin and their hash, by which results of an edited plugin are told from those before."""

import ast
import hashlib
import importlib.util
import linecache
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from backstory.utils.small_file import resolved


@dataclass(frozen=True)
class PluginSource:
    """The source of a plugin as it was loaded."""

    files: tuple[Path, ...]
    """Its files, resolved: the one that was named, then those beside it that it imports, or all of a package."""
    sha256: str
    """Of all files (hex)."""
    reloads: bool = True
    """False for a part of a notebook or of the program itself, which other processes cannot load."""


def source_of_file(path: Path, content: bytes | None = None) -> PluginSource:
    """Return the source of a Python file with the modules beside it that it imports; its `content`, if it has been read."""
    return _source(_with_neighbours(resolved(path), content))


def source_of_module(name: str) -> PluginSource:
    """Return the source of a module: all files of the package that it is in, or its file with those beside it."""
    spec = importlib.util.find_spec(name.partition(".")[0])
    if spec is None:
        return _source({})
    if folders := spec.submodule_search_locations:
        files = sorted(resolved(file) for folder in folders for file in Path(folder).rglob("*.py"))
        return _source({file: file.read_bytes() for file in files})
    file = Path(spec.origin or "")
    return source_of_file(file) if file.is_file() and file.suffix == ".py" else _source({})


def source_of_main(file: str) -> PluginSource:
    """Return the source of a script that is running, or of a cell of a notebook.

    Lines that are typed at a prompt are not kept by Python: they get a hash of their own, equal to no other.
    """
    text = "".join(linecache.getlines(file))
    digest = hashlib.sha256(text.encode()).hexdigest() if text else secrets.token_hex(32)
    return PluginSource((), digest, reloads=False)


def _source(contents: Mapping[Path, bytes]) -> PluginSource:
    digests = [hashlib.sha256(content).hexdigest() for content in contents.values()]
    whole = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    return PluginSource(tuple(contents), whole)


def _with_neighbours(path: Path, content: bytes | None) -> dict[Path, bytes]:
    """Return the content of a file and of the modules in its folder that it imports, directly or through one of them."""
    contents, waiting = dict[Path, bytes](), [path]
    while waiting:
        file = waiting.pop(0)
        if file in contents:
            continue
        contents[file] = content if file == path and content is not None else file.read_bytes()
        names = _imports(contents[file])
        waiting += (neighbour for name in names if (neighbour := path.with_name(f"{name}.py")).is_file())
    return contents


def _imports(content: bytes) -> Iterator[str]:
    """Yield the top-level names that the content of a file imports; nothing where it is no Python."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
