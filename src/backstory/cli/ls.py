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
    chosen = KINDS if args.kind == "all" else {args.kind: KINDS.get(args.kind)}
    for kind, listed in chosen.items():
        if listed is None:
            raise UserError(
                f"there is nothing called '{kind}' to list{nearest(kind, KINDS)}; there are {', '.join(KINDS)}"
            )
        entries = listed()
        width = max(map(len, entries))
        print(
            "\n".join(
                [*([f"{kind}"] if args.kind == "all" else []), *(f"  {n:<{width}}  {w}" for n, w in entries.items())]
            )
        )
    return 0


def _models() -> dict[str, str]:
    kinds = {
        part: [c for c in get_args(hint) if c.kind != "none"] for part, hint in get_type_hints(ModelConfig).items()
    }
    return {
        part if c.kind == part else f"{part} {c.kind}": (c.__doc__ or "").splitlines()[0]
        for part, configs in kinds.items()
        for c in configs
    }


def _descriptions(module: str, name: str) -> Mapping[str, str]:
    return {key: kind.description for key, kind in getattr(importlib.import_module(module), name).items()}


def _suites() -> dict[str, str]:
    suite = importlib.import_module("backstory.papers.suite")
    return {name: suite.load(name).title for name in suite.names()}


def _spaces() -> dict[str, str]:
    space = importlib.import_module("backstory.tuning.space")
    return {name: space.load(name).title for name in space.names()}


KINDS: dict[str, Callable[[], Mapping[str, str]]] = {
    "models": _models,
    "recipes": lambda: {name: recipes.summary(name) for name in recipes.names()},
    "corpora": lambda: _descriptions("backstory.data", "CORPORA"),
    "readers": lambda: _descriptions("backstory.readers", "READERS"),
    "experiments": lambda: _descriptions("backstory.context", "EXPERIMENTS"),
    "explanations": lambda: _descriptions("backstory.explanations", "EXPLANATIONS"),
    "suites": _suites,
    "spaces": _spaces,
}
