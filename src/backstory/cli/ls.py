"""`backstory ls`: models, recipes, corpora, readers, experiments, explanations, suites and spaces."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, get_args, get_type_hints

import tyro

from backstory.cli.command_line import parse
from backstory.config import (
    ModelConfig,
    UserError,
    nearest,
    recipes,
)
from backstory.config.renamed import refuse_old_listing


@dataclass(frozen=True)
class ListArguments:
    """List models, recipes, corpora, readers and other names."""

    kind: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(
            metavar="[KIND]",
            help="models, recipes, corpora, readers, experiments, explanations, suites, spaces, or all.",
        ),
    ] = "all"


def main(arguments: Sequence[str]) -> int:
    args = parse(ListArguments, arguments, "ls")
    refuse_old_listing(args.kind)
    if args.kind not in ("all", *KINDS):
        raise UserError(
            f"there is nothing called '{args.kind}' to list{nearest(args.kind, KINDS)}; there are {', '.join(KINDS)}"
        )
    for kind in KINDS if args.kind == "all" else (args.kind,):
        if args.kind == "all":
            print(kind)
        entries = KINDS[kind]()
        width = max(map(len, entries))
        for name, description in entries.items():
            print(f"  {name:<{width}}  {description}")
    return 0


def _models() -> dict[str, str]:
    """Return the first sentence of each kind of part."""
    return {
        part if config.kind == part else f"{part} {config.kind}": (config.__doc__ or "").splitlines()[0]
        for part, hint in get_type_hints(ModelConfig).items()
        for config in get_args(hint)
        if config.kind != "none"
    }


def _descriptions(module: str, name: str) -> Mapping[str, str]:
    return {key: kind.description for key, kind in getattr(importlib.import_module(module), name).items()}


def _titles(module: str) -> dict[str, str]:
    files = importlib.import_module(module)
    return {name: files.load(name).title for name in files.names()}


KINDS: dict[str, Callable[[], Mapping[str, str]]] = {
    "models": _models,
    "recipes": lambda: {name: recipes.summary(name) for name in recipes.names()},
    "corpora": lambda: _descriptions("backstory.data", "CORPORA"),
    "readers": lambda: _descriptions("backstory.readers", "READERS"),
    "experiments": lambda: _descriptions("backstory.context", "EXPERIMENTS"),
    "explanations": lambda: _descriptions("backstory.explanations", "EXPLANATIONS"),
    "suites": lambda: _titles("backstory.papers.suite"),
    "spaces": lambda: _titles("backstory.tuning.space"),
}
