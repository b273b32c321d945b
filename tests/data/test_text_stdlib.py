"""The corpus made of the running Python's documentation: its size, its order, its prose."""

import ast
import hashlib
import sys
import time
from pathlib import Path

import pytest

from backstory.config.schema import TextConfig
from backstory.data import prepare
from backstory.data.corpora import stdlib
from backstory.utils.errors import UserError


@pytest.mark.full
@pytest.mark.usefixtures("shared_cache")
def test_size_documents_and_time() -> None:
    modules = set(sys.modules)
    began = time.perf_counter()
    data = prepare(TextConfig())
    assert time.perf_counter() - began < 30
    tokens = {name: len(split.ids) for name, split in data.splits.items()}
    assert 150_000 < sum(tokens.values()) < 600_000
    assert 8_000 < len(data.vocabulary) < 25_000
    assert sum(len(s.documents) for s in data.splits.values()) > 250
    for split in ("valid", "test"):
        assert 0.02 < tokens[split] / sum(tokens.values()) < 0.12
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in data.provenance
    # Sources are parsed, never imported.
    assert not {m for m in set(sys.modules) - modules if m.startswith(("tkinter", "turtle", "antigravity"))}


@pytest.mark.full
def test_it_is_the_same_every_time(cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = []
    for folder in (cache_folder, tmp_path):
        monkeypatch.setenv("BACKSTORY_CACHE", str(folder))
        sources = stdlib.sources()
        path = sources["train"][0].path
        listed = [(s.title, s.start, s.end) for split in sources.values() for s in split]
        sums.append((hashlib.sha256(path.read_bytes()).hexdigest(), listed))
        assert folder in path.parents
    assert sums[0] == sums[1]


@pytest.mark.full
@pytest.mark.usefixtures("shared_cache")
def test_documents_are_titled_and_told_apart() -> None:
    sources = stdlib.sources()
    titles = [s.title for split in sources.values() for s in split]
    assert len(set(titles)) == len(titles)
    assert {"argparse", "json", "email.message"} <= set(titles)
    assert not [t for t in titles if t.startswith(("test", "idlelib", "site-packages"))]
    text = sources["train"][0].path.read_text("utf-8")
    assert ">>>" not in text
    paragraphs = text.split("\n\n")[:-1]
    assert len(set(paragraphs)) == len(paragraphs) > 5000
    json = next(s for split in sources.values() for s in split if s.title == "json")
    assert "lightweight data interchange format" in text.encode()[json.start : json.end].decode()


def test_only_prose_is_kept() -> None:
    docstring = """Return the sum
    of all numbers.

    sum(iterable, start)
    --------------------

    The following is an example, with output:
    >>> sum([1, 2])
    3

    - first item of
      a list
    - second item, longer

    x = {1: 2}; y = [a for a in x]
    | a | b | c | d |
    """
    assert list(stdlib._paragraphs(docstring)) == [
        "Return the sum of all numbers.",
        "The following is an example, with output:",
        "- first item of a list",
        "- second item, longer",
    ]


def test_public_docstrings_in_the_order_of_the_source() -> None:
    tree = ast.parse('''
"""Module."""
class A:
    """Class."""
    def __init__(self): "Made."
    def _hidden(self): "Not this."
    async def run(self): "Run."
class _B:
    """Nor this."""
if True:
    def f(): "Function."
''')
    assert [d for d in stdlib._docstrings(tree) if d] == ["Module.", "Class.", "Made.", "Run.", "Function."]


def test_a_python_without_sources_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdlib.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(UserError, match="give a text file instead"):
        stdlib.sources()
