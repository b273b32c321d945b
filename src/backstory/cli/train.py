"""`backstory train RECIPE [...]`: train a model; a flag with the dotted name of a setting overrides the recipe."""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from backstory.cli.command_line import parse
from backstory.config import RunConfig, TextConfig, UserError, changes, from_dict, pasted, plural, recipes, to_dict
from backstory.config.errors import check_utf8
from backstory.config.process import first_here
from backstory.config.scores import UnknownShare, format_score


@dataclass(frozen=True)
class TrainArguments:
    """Train a model from a recipe, by name (`backstory ls recipes`) or from a YAML file; flags change its settings.

    `backstory train RUN --resume` resumes a run with the settings in its folder.

    `--model.head.kind mixture` chooses another kind of part (`backstory ls models`), with flags of its own: add --help to
    see them.
    """

    corpus: str | None = None
    """Short for --text.corpus: a corpus by name, a text file, or a folder."""
    data_dir: Path | None = None
    """Folder that holds the corpora (else BACKSTORY_DATA)."""
    out: Path | None = None
    """The run's folder (else runs/RECIPE, or the resumed one)."""
    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """Resume the run in that folder."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace the run in that folder."""
    accept: tuple[str, ...] = ()
    """Allowed differences from the resumed run: config, corpus, metrics (its log was lost)."""
    init_from: Path | None = None
    """A run whose best weights initialise this one; parts that it lacks, such as a buffer, are initialised as usual."""
    allow_equal_splits: tyro.conf.FlagCreatePairsOff[bool] = False
    """Allow a corpus whose validation and test are the same text."""
    track: tuple[str, ...] = ()
    """Log the curves to tensorboard or trackio too (pip install 'backstory[track]')."""
    config: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=RunConfig)


def main(arguments: Sequence[str]) -> int:
    """Train; on a signal, save and return 128 + its number."""
    recipe, rest = split_recipe(arguments, "train")
    config = with_kinds(recipes.load(recipe), rest) if recipe else RunConfig()
    args = parse(TrainArguments, rest, "train RECIPE", TrainArguments(config=config))
    if not recipe:
        raise UserError("name a recipe: `backstory train RECIPE`; `backstory ls recipes` lists them")
    if args.resume and args.overwrite:
        raise UserError("--resume and --overwrite cannot be combined; remove one")
    if unknown := set(args.accept) - {"config", "corpus", "metrics"}:
        raise UserError(f"--accept takes config, corpus or metrics, not {', '.join(sorted(unknown))}")
    config = with_corpus(args.config, args.corpus, recipes.load(recipe))
    out = args.out or (Path(recipe) if Path(recipe).is_dir() else Path("runs") / Path(recipe).stem)
    mode = "resume" if args.resume else "overwrite" if args.overwrite else "new"
    accept = frozenset(args.accept)
    code = run_training(config, out, mode, args.data_dir, accept, args.track, args.init_from, args.allow_equal_splits)
    if code == 0 and first_here():
        run = pasted(out)
        print(f"`backstory evaluate {run}` reads the test split, `backstory report {run}` makes a page of it")
    return code


def with_corpus(config: RunConfig, corpus: str | None, recipe: RunConfig) -> RunConfig:
    """Return the settings with another corpus, without the recipe's settings of a synthetic corpus that it replaces."""
    text = dataclasses.replace(config.text, corpus=corpus or config.text.corpus)
    if text.corpus != recipe.text.corpus:
        from backstory.data.encoding import SYNTHETIC_SETTINGS, corpora_with

        for part in SYNTHETIC_SETTINGS:
            current, own, usual = (getattr(settings, part) for settings in (text, recipe.text, TextConfig()))
            for name, value in changes(current).items():
                if text.corpus not in corpora_with(part, name) and value == getattr(own, name):
                    current = dataclasses.replace(current, **{name: getattr(usual, name)})
            text = dataclasses.replace(text, **{part: current})
    return dataclasses.replace(config, text=text)


def run_training(
    config: RunConfig,
    out: Path,
    mode: Literal["new", "resume", "overwrite"],
    data_dir: Path | None = None,
    accept: frozenset[str] = frozenset(),
    track: tuple[str, ...] = (),
    init_from: Path | None = None,
    allow_equal_splits: bool = False,
) -> int:
    """Train and print the result. Return the exit code, 128 + the signal's number after a stop."""
    from backstory.training import Stopped, train

    try:
        how: dict[str, Any] = {
            "accept": accept,
            "track": track,
            "init_from": init_from,
            "allow_equal_splits": allow_equal_splits,
        }
        result = train(config, out, mode=mode, data_dir=data_dir, **how)
    except Stopped as stopped:
        if first_here():
            print(f"backstory: {stopped}", file=sys.stderr)
        return stopped.exit_code
    if not result:  # the first rank prints it
        return 0
    figures = result["figures"]
    at = format_score(figures["valid_nats"], figures["unit"])
    known = UnknownShare.of(figures.get("unknown", {}).get("valid", {}), figures["tokens"]["valid"])
    unknown = known.phrase(f"the {plural(figures['unit'])}")
    score = f"{at} ({unknown})" if unknown else at
    print(f"{out}: validation {score} after epoch {figures['best_epoch']} of {figures['epochs']}")
    return 0


def split_recipe(arguments: Sequence[str], verb: str) -> tuple[str | None, list[str]]:
    """Return the recipe, which comes first, and the arguments after it."""
    if not arguments or arguments[0] in ("-h", "--help"):
        return None, list(arguments)
    if arguments[0].startswith("-"):
        raise UserError(f"the recipe comes first: `backstory {verb} RECIPE {arguments[0]} ...`")
    check_utf8(arguments[0])
    return arguments[0], list(arguments[1:])


def with_kinds(config: RunConfig, arguments: Sequence[str]) -> RunConfig:
    """Return the settings with each `--model.PART.kind K` applied, since it changes the other flags."""
    settings: dict[str, Any] = to_dict(config)
    apart = [part for a in arguments for part in (a.split("=", 1) if a.startswith("--") else [a])]
    for flag, value in pairwise(apart):
        path = flag.removeprefix("--").split(".")
        if flag.startswith("--model.") and len(path) == 3 and path[2] == "kind":
            part = settings["model"].get(path[1])
            if isinstance(part, dict) and part.get("kind") != value:
                settings["model"][path[1]] = {"kind": value}
    return from_dict(RunConfig, settings, "command line")
