"""Tables of the fields of records, from the code that defines them, and of the sections of a report."""

import ast
import dataclasses
import importlib
import inspect
import itertools
import re
import textwrap
import types
import typing
from typing import Any

from tables.sources import headed

from backstory.reports import Table
from backstory.reports.sections import SECTIONS
from backstory.reports.sections.settings_section import AGAIN, SETTINGS
from backstory.results.validation import Absent, holds_other_keys, key_of


def field_types(hint: Any) -> str:
    """Describe the JSON types of a type hint in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return field_types(arguments[0])
    if origin in (typing.Union, types.UnionType):
        names = [field_types(one) for one in arguments if one not in (type(None), Absent)]
        return " or ".join(dict.fromkeys([*names, *(["null"] if type(None) in arguments else [])]))
    if origin is tuple or isinstance(hint, typing.TypeVar):
        return "list"
    words = {bool: "true or false", str: "text", int: "number", float: "number", typing.Any: "any"}
    return words.get(hint, "text" if origin is typing.Literal else "object")


def field_meanings(record: type) -> dict[str, str]:
    """Return the docstring of each field of a record, including its bases."""
    meanings: dict[str, str] = {}
    for base in reversed(record.__mro__):
        if dataclasses.is_dataclass(base):
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            assert isinstance(definition, ast.ClassDef)
            for node, after in itertools.pairwise(definition.body):
                if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr):
                    meanings[ast.unparse(node.target)] = " ".join(ast.literal_eval(after.value).split())
    return meanings


def fields(record: type, without: type | None = None) -> str:
    """Return the fields of a record as a Markdown table, optionally without those of a base."""
    hints, meanings = typing.get_type_hints(record, include_extras=True), field_meanings(record)
    elsewhere = {field.name for field in dataclasses.fields(without)} if without else set()
    lines = ["| Field | Type | Meaning |", "|---|---|---|"]
    for field in dataclasses.fields(record):
        if field.name not in elsewhere and not holds_other_keys(field):
            meaning = meanings[field.name].removesuffix(".") + "."
            lines.append(f"| `{key_of(field)}` | {field_types(hints[field.name])} | {meaning} |")
    return "\n".join(lines)


def with_fields(text: str) -> str:
    """Fill in the table of each record that a text names between `<!-- fields: NAME -->` and `<!-- end -->`."""

    def filled_in(match: re.Match[str]) -> str:
        names = [name.strip() for name in match[2].split("without")]
        records = [getattr(importlib.import_module(path), name) for path, name in (n.rsplit(".", 1) for n in names)]
        return f"{match[1]}\n{fields(*records)}\n<!-- end -->"

    return re.sub(r"(<!-- fields: ([\w. ]+) -->)\n.*?<!-- end -->", filled_in, text, flags=re.DOTALL)


def report_sections() -> Table:
    """The sections of a report in the order of the page, with their content."""
    shown = ((section.heading, inspect.getdoc(section.pieces) or "") for section in (*SECTIONS, SETTINGS, AGAIN))
    rows = [(heading, doc.removeprefix("Yield ").removesuffix(".")) for heading, doc in shown]
    return headed(("section", "shows"), rows, texts=2)
