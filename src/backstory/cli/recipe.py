"""`backstory recipe show NAME`, `backstory recipe copy NAME FILE` and `backstory recipe check FILE`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import tyro
import yaml

from backstory.cli.command_line import JsonOutput, announce, dispatch, parse, print_json
from backstory.config import RunConfig, recipes, to_dict
from backstory.config.strict import changes
from backstory.storage.atomic import write_atomically
from backstory.utils.errors import UserError, pasted, refused
from backstory.utils.small_file import user_path


@dataclass(frozen=True)
class ShowRecipeArguments(JsonOutput):
    """Show every setting of a recipe, as YAML; those of synthetic corpora only where they apply."""

    recipe: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(metavar="RECIPE", help="A packaged recipe (`backstory ls recipes`), a YAML file, or a run."),
    ]


@dataclass(frozen=True)
class CopyRecipeArguments(JsonOutput):
    """Copy a packaged recipe, or the settings of a run, to a file of your own."""

    name: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(metavar="NAME", help="The recipe (`backstory ls recipes`), or the folder of a run."),
    ]
    file: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(metavar="FILE", help="The file to write; an existing one is not changed."),
    ]


@dataclass(frozen=True)
class CheckRecipeArguments(JsonOutput):
    """Check a recipe: unknown keys, wrong types, values that are out of range or incompatible."""

    recipe: Annotated[
        tyro.conf.Positional[str], tyro.conf.arg(metavar="RECIPE", help="A YAML file, or a packaged recipe.")
    ]


def main(arguments: Sequence[str]) -> int:
    return dispatch("recipe", ACTIONS, arguments)


def show(arguments: Sequence[str]) -> int:
    """Print the settings of a recipe, with its header if it has one."""
    args = parse(ShowRecipeArguments, arguments, "recipe show")
    config = recipes.load(args.recipe)
    if args.json:
        print_json(to_dict(config))
        return 0
    lines = recipes.text(args.recipe).splitlines() if args.recipe in recipes.names() else []
    print(*takewhile(lambda line: line.startswith("#"), lines), yaml.safe_dump(_applying(config), sort_keys=False),
          sep="\n", end="")  # fmt: skip
    return 0


def _applying(config: RunConfig) -> dict[str, Any]:
    """Return the settings without those of synthetic corpora that the corpus is not, unless they were changed."""
    from backstory.data.encoding import SYNTHETIC_SETTINGS

    settings = to_dict(config)
    for part, corpora in SYNTHETIC_SETTINGS.items():
        if config.text.corpus not in corpora and not changes(getattr(config.text, part)):
            del settings["text"][part]
    return settings


def copy(arguments: Sequence[str]) -> int:
    """Write the recipe with its header, or the settings of a run, to a new file."""
    args = parse(CopyRecipeArguments, arguments, "recipe copy")
    recipes.check_has_settings(args.name)
    if args.name not in recipes.names() and (user_path(args.name) / recipes.CONFIG).is_file():
        text = yaml.safe_dump(_applying(recipes.load(args.name)), sort_keys=False)
    else:
        text = recipes.text(args.name)
    if args.file.suffix not in (".yaml", ".yml"):
        raise UserError(f"the file of a recipe must end in .yaml; use {args.file}.yaml")
    if os.path.lexists(args.file):
        raise UserError(f"{args.file} exists; choose another file")
    try:
        write_atomically(args.file, text)
    except OSError as error:
        raise refused(error, args.file, otherwise="choose another file") from None
    text = f"{args.file}; edit it, then `backstory train {pasted(args.file)}`"
    args.show({"recipe": args.name, "file": str(args.file)}, text)
    return 0


def check(arguments: Sequence[str]) -> int:
    """Read the recipe and report the first mistake that `train` would refuse before it reads a corpus."""
    args = parse(CheckRecipeArguments, arguments, "recipe check")
    config = recipes.load(args.recipe)
    try:
        _check_trainable(config, args.recipe)
    except UserError as error:
        raise UserError(f"{args.recipe}: {error}") from None
    args.show({"recipe": args.recipe, "good": True}, f"{args.recipe}: good")
    return 0


def _check_trainable(config: RunConfig, name: str) -> None:
    """Raise UserError for settings that contradict each other, or make no model."""
    from backstory.data import check_synthetic

    config.training.check()
    check_synthetic(config.text)
    announce(f"checking {name}")
    from backstory.models import check_parts

    check_parts(config.model)


ACTIONS = {
    "show": ("show every setting of a recipe, including defaults", show),
    "copy": ("copy a packaged recipe, or a run's settings, to a file", copy),
    "check": ("check a recipe: unknown keys, wrong types, values that are out of range or incompatible", check),
}
