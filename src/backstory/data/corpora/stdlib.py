"""The corpus `stdlib`: docstrings and help topics of the running Python, one document per module and topic."""

import ast
import hashlib
import inspect
import json
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from backstory.data.corpora.text_files import Source
from backstory.storage import disk_cache
from backstory.storage.atomic import write_atomically
from backstory.utils.errors import UserError
from backstory.utils.small_file import read_small

PROVENANCE = f"docstrings and help topics of Python {platform.python_version()} (PSF licence)"
FORMAT = 1
"""Version of the rules below; a text built by other versions is not used."""

# Tests, examples, generated tables of code pages, other people's packages, and docs of the docs.
_SKIPPED = {
    *("test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "encodings", "this", "antigravity"),
    *("pydoc_data", "site-packages", "dist-packages", "lib-dynload", "__pycache__"),
}
# Private modules that hold the documentation of public ones.
_TWINS = {"_collections_abc", "_pydatetime", "_pydecimal", "_pyio", "_strptime", "_threading_local", "__future__"}


def sources() -> dict[str, list[Source]]:
    """Return the documents of train, valid and test, as ranges of one file that is built once and cached.

    Raises UserError if this Python comes without its library's sources.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    modules = dict(_modules(root))
    if not modules:
        raise UserError(f"this Python has no sources in {root} to make the corpus stdlib of; give a text file instead")
    # The version alone does not tell a patched library from another, names and sizes do.
    listing = [(name, path.stat().st_size) for name, path in modules.items()]
    key = hashlib.sha256(repr((FORMAT, sys.version, listing)).encode()).hexdigest()
    entry = disk_cache.fetch(f"stdlib-{key[:32]}", lambda folder: _build(folder, modules, root))
    out: dict[str, list[Source]] = {"train": [], "valid": [], "test": []}
    for title, split, start, end in json.loads(read_small(entry / "documents.json", inside=entry)):
        out[split].append(Source(entry / "stdlib.txt", title, start, end))
    return out


def _modules(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and file of every public module, sorted by name."""
    paths = {}
    for base, folders, names in os.walk(root):
        folders[:] = [f for f in folders if _shown(f)]  # site-packages may be huge, so it is not walked at all
        package = Path(base).relative_to(root).parts
        for name in names:
            stem, suffix = os.path.splitext(name)
            if suffix == ".py" and (_shown(stem) or (stem == "__init__" and package)):
                parts = package if stem == "__init__" else (*package, stem)
                paths[".".join(parts)] = Path(base, name)
    yield from sorted(paths.items())


def _shown(name: str) -> bool:
    return name in _TWINS or not (name in _SKIPPED or name.startswith("_") or "-" in name)


def _build(folder: Path, modules: dict[str, Path], root: Path) -> None:
    """Write the text of all documents, and the list of their ranges."""
    seen: set[str] = set()
    texts, documents, position = [], [], 0
    for title, docstrings in [*_module_docs(modules), *_topics(root)]:
        text = "\n\n".join(p for d in docstrings for p in _paragraphs(d) if p not in seen and not seen.add(p))
        if len(text.split()) < 10:
            continue
        data = (text + "\n\n").encode("utf-8", "replace")
        texts.append(data)
        documents.append((title, _split(title), position, position + len(data)))
        position += len(data)
    write_atomically(folder / "stdlib.txt", texts)
    write_atomically(folder / "documents.json", json.dumps(documents))


def _split(title: str) -> str:
    """Return the split of a document: a twentieth each are valid and test, by title, so that a new module moves no other."""
    return {0: "valid", 1: "test"}.get(hashlib.sha256(title.encode()).digest()[0] % 20, "train")


def _module_docs(modules: dict[str, Path]) -> Iterator[tuple[str, list[str]]]:
    for name, path in modules.items():
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):  # not readable, or a template
            continue
        yield name, list(_docstrings(tree))


def _docstrings(node: ast.Module | ast.ClassDef) -> Iterator[str]:
    """Yield the docstrings of a module or class and of its public members, in the order of the source."""
    if text := ast.get_docstring(node):
        yield text
    for child in _statements(node.body):
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from _docstrings(child)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and _public(child.name):
            yield ast.get_docstring(child) or ""


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, also those under `if` and `try`: much of the library depends on the platform."""
    for child in body:
        if isinstance(child, ast.If | ast.Try):
            yield from _statements([*child.body, *child.orelse])
        else:
            yield child


def _public(name: str) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def _topics(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the topics of `help()`, from their file."""
    path = root / "pydoc_data" / "topics.py"
    if not path.is_file():
        return
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for title, text in sorted(ast.literal_eval(node.value).items()):
                yield f"topic {title}", [text]


# --- cleaning: prose stays; doctests, signatures, code and tables go ---

_ITEM = re.compile(r"(?:[-*+o•]|\d+[.)]|\(\w\))\s")
_SIGNATURE = re.compile(r"[\w.]+\(.*\)\s*(?:->.*)?|[\w.]+\(.*,")


def _paragraphs(docstring: str) -> Iterator[str]:
    """Yield the paragraphs of prose of a docstring, each on one line."""
    for block in re.split(r"\n[^\S\n]*\n", inspect.cleandoc(docstring)):
        for lines in _items(_prose_lines(block)):
            text = " ".join(" ".join(lines).split())
            if _reads(text):
                yield text


def _prose_lines(block: str) -> list[str]:
    """Return the lines of a block up to its first doctest, whose output extends to the end of the block."""
    lines = []
    for line in block.splitlines():
        if line.lstrip().startswith(">>>"):
            break
        if not re.fullmatch(r"[\W_]*", line) and not _SIGNATURE.fullmatch(line.strip()):
            lines.append(line)
    return lines


def _items(lines: list[str]) -> Iterator[list[str]]:
    """Yield the lines of each item of a list, or of the whole paragraph if it is no list."""
    group: list[str] = []
    for line in lines:
        if group and _ITEM.match(line.lstrip()):
            yield group
            group = []
        group.append(line)
    if group:
        yield group


def _reads(text: str) -> bool:
    """Return True for prose: mostly letters, and words rather than code and symbols."""
    words = text.split()
    plain = sum(1 for w in words if re.fullmatch(r"[(\"'`*]*[^\W\d_]+(?:['’-][^\W\d_]+)*[`*\"').,;:!?]*", w))
    return len(words) >= 3 and plain >= 0.6 * len(words)
