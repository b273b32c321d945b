"""Recipes: packaged YAML files, found by name, or files of one's own, found by path."""

import os
from pathlib import Path
from typing import Any

from backstory.config.arguments import checked
from backstory.config.packaged import Packaged
from backstory.config.schema import RunConfig
from backstory.config.strict import from_file

CONFIG = "config.yaml"
"""File of a run that holds its settings, and that makes a folder a run."""
_PACKAGED = Packaged(RunConfig, "backstory", "recipes", "recipe")


def names() -> list[str]:
    """The packaged recipes."""
    return _PACKAGED.names()


def text(name: str) -> str:
    """The YAML of a packaged recipe, its header included. Raises UserError for an unknown name."""
    return _PACKAGED.text(name)


def summary(name: str) -> str:
    """The first line of a packaged recipe's header."""
    return text(name).splitlines()[0].removeprefix("#").strip()


@checked()
def load(name_or_path: str) -> RunConfig:
    """The settings of a recipe by its name, of a YAML file by its path, or of a run by its folder. Raises UserError."""
    if os.path.lexists(settings := Path(name_or_path, CONFIG)):
        return from_file(RunConfig, settings, Path(name_or_path))
    return _PACKAGED.load(name_or_path)


def merged(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Nested settings with nested changes; a part of another kind takes nothing over from the one it replaces."""
    result = dict(settings)
    for key, value in changes.items():
        there = settings.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            replaced = value.get("kind", there.get("kind")) != there.get("kind")
            result[key] = dict(value) if replaced else merged(there, value)
        else:
            result[key] = value
    return result
