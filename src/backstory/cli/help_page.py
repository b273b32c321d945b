"""Help of a command: the flags that most people need, in groups, or all of them (`--help-all`).

Everything comes from the dataclass that the command is parsed into. tyro, which parses it, would take half a second.
"""

import ast
import shutil
import sys
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from backstory.cli.examples import EXAMPLES
from backstory.cli.flags import Setting, settings
from backstory.config.options import LoadOptions, ModelOptions

HELP, HELP_ALL = ("-h", "--help"), "--help-all"
WIDEST = 110
COLUMN = 34
"""Columns of the flags; a longer one has its text on the next line."""

_MODEL_AND_TRAINING = {
    "text": (
        *("--corpus", "--data-dir", "--text.tokenizer", "--text.lowercase", "--text.minimum-count"),
        *("--text.maximum-size", "--text.field"),
    ),
    "model": (
        *("--model.core.kind", "--model.core.layers", "--model.core.hidden", "--model.embedding.size"),
        *("--model.head.kind", "--model.dual.kind", "--model.buffer.kind"),
    ),
    "training": (
        *("--training.epochs", "--training.minutes", "--training.batch-size", "--training.segment"),
        *("--training.optimizer", "--training.learning-rate", "--training.schedule"),
        *("--training.early-stopping", "--training.clip", "--training.weight-decay"),
        *("--training.precision", "--training.device", "--seed"),
    ),
}
COMMON: Mapping[str, Mapping[str, Sequence[str]]] = {
    "train": {
        "run": (
            *("--out", "--resume", "--overwrite", "--init-from", "--seeds"),
            *("--threads", "--workers", "--track", "--json"),
        ),
        **_MODEL_AND_TRAINING,
    },
    "sweep run": {
        "sweep": ("--space", "--trials", "--out", "--processes", "--prune-from", "--keep-all", "--json"),
        **_MODEL_AND_TRAINING,
    },
    "evaluate": {
        "reading": ("--split", "--reader", "--batch-size", "--after", "--resume", "--precision", "--device"),
        "result": ("--json", "--out", "--per-token", "--each-line", "--per-line", "--proof"),
        "corpus": ("--data-dir", "--corpus"),
    },
    "compress": {
        "coding": ("--model", "--reader", "--batch-size", "--out", "--overwrite", "--json"),
        "model": ("--precision", "--device"),
    },
    "examine": {
        "experiment": ("--experiment", "--targets", "--maximum-context", "--context", "--by", "--reader", "--seed"),
        "text": ("--split", "--text", "--within-documents", "--start-token", "--data-dir", "--corpus"),
        "result": ("--json", "--out", "--workers", "--device"),
    },
    "explain": {
        "passage": ("--split", "--text", "--at", "--words", "--find"),
        "reading": ("--reader", "--against", "--device"),
        "picture": ("--top", "--layer", "--html", "--json"),
        "corpus": ("--data-dir", "--corpus"),
    },
    "explain reading": {
        "stretch": ("--split", "--text", "--at", "--tokens"),
        "reading": ("--reader", "--against", "--device"),
        "picture": ("--block", "--passage", "--html", "--json"),
        "corpus": ("--data-dir", "--corpus"),
    },
    "reader train": {
        "meta-learner": ("--name", "--reader", "--split", "--skip", "--json"),
        "training": ("--training.steps", "--training.stream", "--training.learning-rate", "--device"),
        "corpus": ("--data-dir", "--corpus"),
    },
    "referee": {
        "predictor": ("--text", "--process"),
        "reading": ("--block", "--batch-size"),
        "audit": ("--cuts", "--every-token", "--seed", "--claim"),
        "result": ("--json", "--out"),
    },
    "data show": {
        "text": ("--tokenizer", "--lowercase", "--minimum-count", "--maximum-size", "--field", "--data-dir", "--json"),
    },
}
COMMON = {**COMMON, "data prepare": COMMON["data show"]}
"""Groups of the flags that `--help` shows; the commands that are not here show all of theirs."""


def page(kind: type, verb: str, default: Any, everything: bool) -> str:
    """Return the help of a command; `default` has the kinds of the parts, and the values that flags override."""
    known = sorted(settings(kind, default), key=_rank)
    positional, flags = [s for s in known if s.positional], [s for s in known if not s.positional]
    command = " ".join(["backstory", verb, *(s.name for s in positional)])
    common = COMMON.get(verb.removesuffix(" RECIPE"))
    lines = [f"usage: {command} [FLAGS]", "", *paragraphs(kind.__doc__ or ""), ""]
    if positional:
        lines += [*(line for s in positional for line in _entry(s.name, _text(s))), ""]
    by_name = {s.name: s for s in flags}
    if common is None or everything:
        groups = {title: [s for s in flags if _group(s) == title] for title in dict.fromkeys(map(_group, flags))}
    else:
        groups = {title: [by_name[name] for name in names if name in by_name] for title, names in common.items()}
    for title, entries in groups.items():
        lines += [f"{title}:" if title else "flags:"]
        lines += [line for s in entries for line in _entry(f"{_names(s, everything)}{_metavar(s)}", _text(s))] + [""]
    lines += _entry("-h, --help", "Show this page." if common is None else "Show the common flags.")
    if common is not None:
        shown = sum(map(len, groups.values()))
        count = "" if everything else f" ({len(flags)}; these are {shown})"
        lines += _entry(HELP_ALL, f"Show all flags{count}.")
    return "\n".join([*lines, *_examples(verb.removesuffix(" RECIPE"))])


def _rank(setting: Setting) -> int:
    """Return the place of a flag in its group: those of the command, `--json`, those of loading, and of a model elsewhere."""
    if setting.field not in _LOADING or not issubclass(setting.owner, LoadOptions):
        return int(setting.name == "--json")
    return 3 if setting.field in _ELSEWHERE else 2


_ELSEWHERE = {*(field.name for field in fields(LoadOptions)[1:]), "corpus"}
_LOADING = {field.name for field in fields(ModelOptions)}


class HelpShown(SystemExit):
    """The page of help was printed, which ends the command."""


def wanted(arguments: Iterable[str]) -> Literal["common", "all"] | None:
    """Return the page that arguments ask for, if any."""
    typed = set(arguments)
    return "all" if HELP_ALL in typed else "common" if typed.intersection(HELP) else None


def table(entries: Mapping[str, str]) -> str:
    """Return names with one phrase each, side by side."""
    width = max(map(len, entries))
    return "\n".join(line for name, phrase in entries.items() for line in _entry(name, phrase, width + 2))


def _names(setting: Setting, everything: bool) -> str:
    """Return the flags of a setting: `--training.[no-]partial-shuffle`; its short name, or with `everything` both names."""
    flag = setting.name
    if setting.short and not everything:
        return setting.short[0]
    if len(setting.flags()) > 1:
        head, _, last = flag.rpartition(".")
        flag = f"{head}.[no-]{last}" if head else f"--[no-]{last.removeprefix('--')}"
    return ", ".join([*setting.short, flag])


def _metavar(setting: Setting) -> str:
    """Return the kind of value that a flag takes, with a space before it."""
    if setting.kind is bool:
        return ""
    kinds = [k for k in setting.kinds() if k is not type(None)]
    words = {int: "INT", float: "NUMBER", Path: "PATH"}
    options = [str(v) for k in kinds if typing.get_origin(k) is Literal for v in typing.get_args(k)]
    metavar = "NAME" if options else words.get(kinds[0], "TEXT")
    return f" {metavar}" + (" ..." if setting.listed and not setting.repeated else "")


def _examples(verb: str) -> Iterator[str]:
    """Yield the examples of a command, each under what it does."""
    if verb in EXAMPLES:
        yield from ("", "examples:")
    for purpose, typed in EXAMPLES.get(verb, {}).items():
        yield f"  {purpose}:"
        yield f"    backstory {typed}"


def _text(setting: Setting) -> str:
    """Return the explanation of a setting, with its choices and its default."""
    explanation = next((m.help for m in setting.marks if getattr(m, "help", None)), None) or field_doc(
        setting.owner, setting.field
    )
    options = setting.options()
    choices = "" if all(option in explanation for option in options) else f" One of {', '.join(options)}."
    default, shown = setting.default, ""
    if not setting.positional and isinstance(default, bool | int | float | str | Path) and default not in ("", False):
        shown = f" [{'on' if default is True else default}]"
    elif isinstance(default, tuple) and default:
        shown = f" [{' '.join(map(str, default))}]"
    elif type(default) in (int, float):  # a zero
        shown = f" [{default}]"
    return " ".join(f"{explanation}{choices}{shown}".split())


def _group(setting: Setting) -> str:
    return setting.name.removeprefix("--").rpartition(".")[0]


def _width() -> int:
    return min(WIDEST, shutil.get_terminal_size().columns)


def _entry(name: str, text: str, column: int = COLUMN) -> Iterator[str]:
    """Yield the lines of a name and its text beside it."""
    lines = textwrap.wrap(text, max(24, _width() - column - 2), break_on_hyphens=False) or [""]
    if len(name) > column - 2:
        yield f"  {name}"
    else:
        yield f"  {name:<{column}}{lines.pop(0)}".rstrip()
    yield from (" " * (column + 2) + line for line in lines)


def paragraphs(doc: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring, wrapped, with empty lines between them."""
    for number, paragraph in enumerate(textwrap.dedent(doc).strip().split("\n\n")):
        if number:
            yield ""
        yield from textwrap.wrap(" ".join(paragraph.split()), _width(), break_on_hyphens=False)


def field_doc(owner: type, name: str) -> str:
    """Return the docstring below a field of a dataclass, or of the class that it comes from."""
    for kind in owner.__mro__:
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if file is not None and (doc := _docs(file).get(kind.__name__, {}).get(name)):
            return doc
    return ""


@cache
def _docs(file: str) -> dict[str, dict[str, str]]:
    """Return the docstrings below the fields of each class of a source file."""
    docs: dict[str, dict[str, str]] = {}
    classes = [
        node for node in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)
    ]
    for node in classes:
        for pair in pairwise(node.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                    docs.setdefault(node.name, {})[name] = doc
    return docs
