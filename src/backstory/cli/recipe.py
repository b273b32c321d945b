"""`backstory recipe copy NAME FILE` and `backstory recipe check FILE`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from backstory.cli.command_line import dispatch, parse
from backstory.config import UserError, pasted, recipes
from backstory.config.machine import refused
from backstory.storage.atomic import write_atomically


@dataclass(frozen=True)
class CopyArguments:
    """Copy a packaged recipe into a file of your own."""

    name: Annotated[
        tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME", help="The recipe (`backstory ls recipes`).")
    ]
    file: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(metavar="FILE", help="The file to write; one that exists is left as it is."),
    ]


@dataclass(frozen=True)
class CheckArguments:
    """Check a recipe: unknown keys, wrong types, values out of range."""

    recipe: Annotated[
        tyro.conf.Positional[str], tyro.conf.arg(metavar="RECIPE", help="A YAML file, or a packaged recipe.")
    ]


def main(arguments: Sequence[str]) -> int:
    return dispatch("recipe", {"copy": copy, "check": check}, arguments)


def copy(arguments: Sequence[str]) -> int:
    """Write the recipe with its header."""
    given = parse(CopyArguments, arguments, "recipe copy")
    text = recipes.text(given.name)
    if given.file.suffix not in (".yaml", ".yml"):
        raise UserError(f"a recipe's file ends in .yaml, so that `backstory train` knows it; use {given.file}.yaml")
    if os.path.lexists(given.file):
        raise UserError(f"{given.file} exists; choose another file")
    try:
        write_atomically(given.file, text)
    except OSError as error:
        raise refused(error, given.file, otherwise="choose another file") from None
    print(f"{given.file}; edit it, then `backstory train {pasted(given.file)}`")
    return 0


def check(arguments: Sequence[str]) -> int:
    """Read the recipe strictly."""
    given = parse(CheckArguments, arguments, "recipe check")
    recipes.load(given.recipe)
    print(f"{given.recipe}: good")
    return 0
