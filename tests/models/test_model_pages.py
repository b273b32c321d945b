"""The pages on models name code and settings that exist."""

import ast
import dataclasses
import re
import typing
from pathlib import Path

import pytest

import backstory
from backstory.config import ModelConfig

PACKAGE = Path(backstory.__file__).parent
DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["models.md", "span-buffer.md", "external-memory.md", "dual.md"]


def defined(path: Path) -> set[str]:
    """Return the classes, functions and methods of a file: `SpanBuffer`, `SpanBuffer.attend`."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, kinds)]
    inner = {f"{node.name}.{part.name}" for node in nodes for part in node.body if isinstance(part, ast.FunctionDef)}
    return {node.name for node in nodes} | inner


def settings(config: type) -> set[str]:
    """Return the dotted names of a dataclass's settings."""
    names = set()
    for name, kind in typing.get_type_hints(config).items():
        inner = settings(kind) if dataclasses.is_dataclass(kind) else set()
        names |= {name} | {f"{name}.{part}" for part in inner}
    return names


@pytest.mark.parametrize("page", [*PAGES, "cache.md", "counting.md", "dynamical.md"])
def test_a_table_of_equations_names_functions_that_exist(page: str) -> None:
    text = (DOCS / page).read_text("utf-8")
    table = re.search(r"^\| equation.*\| file in `src/backstory`: function \|\n\|.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None
    for row in table[1].splitlines():
        places = re.findall(r"`([\w/]+\.py): ([\w.]+)`", row)
        assert places, row
        for file, name in places:
            assert name in defined(PACKAGE / file), row


@pytest.mark.parametrize("page", PAGES[1:])
def test_a_table_of_settings_names_settings_that_exist(page: str) -> None:
    hints = typing.get_type_hints(ModelConfig)
    tables = re.findall(
        r"^\| setting of `model\.(\w+)`.*\n\|.*\n((?:\|.*\n)+)", (DOCS / page).read_text("utf-8"), re.MULTILINE
    )
    assert tables
    for part, rows in tables:
        known = set().union(*(settings(kind) for kind in typing.get_args(hints[part])))
        named = {name for row in rows.splitlines() for name in re.findall(r"`([\w.]+)`", row.split("|")[1])}
        assert named and named <= known, named - known
