"""`backstory ls`: models, recipes, corpora, readers, experiments, explanations, suites, spaces, and the runs in a folder."""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args, get_type_hints

import tyro

from backstory.cli.command_line import JsonOutput, announce, parse, print_json
from backstory.config import ModelConfig, recipes
from backstory.config.renamed import refuse_old_listing
from backstory.utils.errors import UserError, nearest, pasted
from backstory.utils.formats import MISSING
from backstory.utils.scores import IN_BITS, bits, bounded, perplexity
from backstory.utils.terminal import fitted

if TYPE_CHECKING:
    from backstory.results.run_listing import RunSummary


@dataclass(frozen=True)
class ListArguments(JsonOutput):
    """List models, recipes, corpora, readers and other names.

    `backstory ls runs [FOLDER]` lists the runs in a folder and below it (else in `runs`): how far each is, and its scores.
    """

    kind: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(
            metavar="[KIND]",
            help="models, recipes, corpora, readers, experiments, explanations, suites, spaces, or all of these; or runs.",
        ),
    ] = "all"
    folder: Annotated[
        tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="[FOLDER]", help="For runs: a folder of runs.")
    ] = None
    sort: Literal["name", "valid", "test", "changed"] = "name"
    """Order of runs: by name, best validation or test first, or latest first."""


def main(arguments: Sequence[str]) -> int:
    args = parse(ListArguments, arguments, "ls")
    refuse_old_listing(args.kind)
    if args.kind == "runs":
        return _runs(args)
    if args.kind not in ("all", *KINDS):
        if Path(args.kind).is_dir():
            raise UserError(f"`backstory ls runs {pasted(args.kind)}` lists the runs in a folder")
        known = [*KINDS, "runs"]
        raise UserError(
            f"there is nothing called '{args.kind}' to list{nearest(args.kind, known)}; there are {', '.join(known)}"
        )
    if args.folder is not None:
        raise UserError(f"unexpected argument '{args.folder}'; only `backstory ls runs` takes a folder")
    if args.kind in ("readers", "experiments", "explanations"):
        announce(f"collecting the {args.kind}")
    kinds = KINDS if args.kind == "all" else (args.kind,)
    if args.json:
        print_json({kind: dict(KINDS[kind]()) for kind in kinds})
        return 0
    for kind in kinds:
        if args.kind == "all":
            print(kind, flush=True)
        entries = KINDS[kind]()
        width = max(map(len, entries))
        for name, description in entries.items():
            print(fitted(f"  {name:<{width}}  {description}"))
    return 0


def _runs(args: ListArguments) -> int:
    """List the runs in a folder."""
    from backstory.results.run_listing import list_runs, run_folders

    folder = Path("runs") if args.folder is None else args.folder
    if args.folder is None and not folder.exists():  # nothing is wrong yet
        if args.json:
            print_json([])
        else:
            print("no runs yet; `backstory train RECIPE` makes one in runs, `backstory ls runs FOLDER` lists others")
        return 0
    if (many := len(run_folders(folder))) > 50:
        announce(f"reading {many} runs in {folder}")
    runs = list_runs(folder)
    if args.sort == "changed":
        runs.sort(key=lambda run: run.changed or "", reverse=True)
    elif args.sort != "name":
        runs.sort(key=lambda run: value if (value := getattr(run, f"{args.sort}_nats")) is not None else math.inf)
    if args.json:
        print_json([asdict(run) for run in runs])
        return 0
    if not runs:
        print(f"{folder} holds no runs; `backstory train RECIPE --out FOLDER` makes one")
        return 0
    from backstory.reports.tables import Table, columns, to_text

    headings = columns("run", "corpus", "parameters#", "epoch#", "validation#", "test#", "state", "log changed (UTC)")
    print(to_text(Table(headings, tuple(_line(run) for run in runs if run.problem is None))))
    for run in runs:
        if run.problem is not None:
            print(f"{run.name}: damaged: {run.problem}")
    return 0


def _line(run: "RunSummary") -> tuple[str, ...]:
    scores = (MISSING if n is None else _score(n, run.unit) for n in (run.valid_nats, run.test_nats))
    epoch = MISSING if run.epoch is None else f"{run.epoch}/{run.epochs}" if run.epochs else str(run.epoch)
    when = MISSING if run.changed is None else run.changed[:16].replace("T", " ")
    parameters = MISSING if run.parameters is None else f"{run.parameters:,}"
    return (run.name, run.corpus or MISSING, parameters, epoch, *scores, run.state, when)


def _score(nats: float, unit: str | None) -> str:
    """Return a score for a column: `1.1753 bits`, or a perplexity, `98.12`, which is per word unless it says otherwise."""
    if unit in IN_BITS:
        return f"{bits(nats):.4f} bits"
    return bounded(perplexity(nats)) + ("" if unit in (None, "word") else f" per {unit}")


def _models() -> dict[str, str]:
    """Return the first sentence of each kind of part."""
    return {
        part if config.kind == part else f"{part} {config.kind}": (config.__doc__ or "").splitlines()[0]
        for part, hint in get_type_hints(ModelConfig).items()
        for config in get_args(hint)
        if getattr(config, "kind", "none") != "none"
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
