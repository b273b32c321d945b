"""Recipes: packaged YAML files, found by name, or files of one's own, found by path."""

from importlib import resources
from pathlib import Path
from typing import Any

from backstory.config.errors import check_name
from backstory.config.schema import RunConfig
from backstory.config.strict import from_file, from_yaml

CONFIG = "config.yaml"
"""File of a run that holds its settings, and that makes a folder a run."""


def names() -> list[str]:
    """The packaged recipes."""
    folder = resources.files("backstory") / "recipes"
    return sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml"))


def text(name: str) -> str:
    """The YAML of a packaged recipe, its header included. Raises UserError for an unknown name."""
    check_name(name, names(), "recipe", "backstory ls recipes")
    return (resources.files("backstory") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")


def summary(name: str) -> str:
    """The first line of a packaged recipe's header."""
    return text(name).splitlines()[0].removeprefix("#").strip()


def load(name_or_path: str) -> RunConfig:
    """The settings of a recipe by its name, of a YAML file by its path, or of a run by its folder. Raises UserError."""
    if Path(name_or_path, CONFIG).is_file():
        return from_file(RunConfig, Path(name_or_path, CONFIG))
    if name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path:
        return from_file(RunConfig, Path(name_or_path))
    return from_yaml(RunConfig, text(name_or_path), f"recipe {name_or_path}")


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
