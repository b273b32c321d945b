"""YAML files that come with the package (recipes, suites, search spaces), loaded by name, or a user's own by path."""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Generic, TypeVar

from backstory.config.ignored_settings import dotted_names, warn_ignored
from backstory.config.schema import RunConfig
from backstory.config.strict import Expand, from_dict, from_file, from_yaml, to_dict
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError, check_name, pasted, shown
from backstory.utils.small_file import user_path

T = TypeVar("T")
CONFIG = "config.yaml"
"""The file of a run that holds its settings; a folder with this file is a run."""


@dataclass(frozen=True)
class Packaged(Generic[T]):
    """The YAML files in a folder of a package, listed by `backstory ls FOLDER`."""

    kind: type[T]
    """The dataclass that a file is read as."""
    package: str
    folder: str
    noun: str
    """The word for one file in messages: `recipe`."""
    expand: Expand | None = None
    """Turns the content of a file, with the file's name for messages, into the settings that it stands for."""

    def names(self) -> list[str]:
        """Return the names in alphabetical order."""
        files = (resources.files(self.package) / self.folder).iterdir()
        return sorted(p.name.removesuffix(".yaml") for p in files if p.name.endswith(".yaml"))

    def text(self, name: str) -> str:
        """Return the YAML of a packaged file. Raises UserError for an unknown name."""
        check_name(name, self.names(), self.noun, f"backstory ls {self.folder}")
        return (resources.files(self.package) / self.folder / f"{name}.yaml").read_text(encoding="utf-8")

    def load(self, name_or_path: str) -> T:
        """Load a packaged file by its name, or any YAML file by its path. Raises UserError."""
        if name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path:
            return from_file(self.kind, user_path(name_or_path), expand=self.expand)
        if Path(name_or_path).is_file() and name_or_path not in self.names():
            raise UserError(f"{name_or_path} is not a {self.noun}: the file of a {self.noun} ends in .yaml or .yml")
        return from_yaml(self.kind, self.text(name_or_path), f"{self.noun} {name_or_path}", self.expand)


_PACKAGED = Packaged(RunConfig, "backstory", "recipes", "recipe")
names, text = _PACKAGED.names, _PACKAGED.text
"""The names of the packaged recipes, and the YAML of one with its header."""


def default_folder(recipe: Path) -> Path:
    """Return where a recipe is trained unless a folder is named: a run in its own, any other recipe below `runs`."""
    return recipe if (recipe / CONFIG).exists() else Path("runs") / recipe.stem


def summary(name: str) -> str:
    """Return the first line of a packaged recipe's header."""
    return text(name).splitlines()[0].removeprefix("#").strip()


@checked()
def recipe(name_or_path: str | Path, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Return the settings of a recipe, some of them replaced.

    Args:
        name_or_path: A recipe's name (`backstory ls recipes`), the path of a YAML file, or the folder of a run.
        overrides: New values by the dotted names that are flags on the command line: `{"training.epochs": 3}`.

    Warns of an override that has no effect beside the other settings. Raises UserError for an unknown recipe or setting, and
    for a value that the setting cannot have.

    Example:
        >>> config = bs.recipe("demo", {"training.epochs": 3, "model.core.hidden": 200})
        >>> config.training.epochs
        3
    """
    return with_overrides(load(str(name_or_path)), overrides or {})


@checked()
def with_overrides(config: RunConfig, overrides: Mapping[str, Any]) -> RunConfig:
    """Return settings with new values by dotted names. Another `kind` of part starts from its own defaults.

    Warns of new values that have no effect. Raises UserError for an unknown setting, and for a value that the setting cannot
    have.
    """
    if wrong := next((name for name in overrides if not isinstance(name, str)), None):
        raise UserError(
            f"overrides must have the names of settings as keys, such as 'training.epochs', not {shown(wrong)}"
        )
    kinds = {name: value for name, value in overrides.items() if name.endswith(".kind")}
    settings = merged(to_dict(config), nested(kinds))  # first, as it replaces the part whole
    changed = from_dict(RunConfig, merged(settings, nested(overrides)), "overrides")
    warn_ignored(changed, {name: name for name in dotted_names(overrides)})
    return changed


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted names, as `core.addressing`, as nested dictionaries."""
    result: dict[str, Any] = {}
    for name, value in settings.items():
        *parts, last = name.split(".")
        inner = result
        for part in parts:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise UserError(f"{name} and {part}, set to {shown(inner)}, cannot be combined; remove one")
        inner[last] = value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value
    return result


@checked()
def load(name_or_path: str) -> RunConfig:
    """Return the settings of a recipe (by name), a YAML file (by path) or a run (by folder). Raises UserError.

    Warns of a run that is called like a recipe and has other settings, which are taken.
    """
    name_or_path = os.path.expanduser(name_or_path)  # a `Path` would make the recipe `demo` of the folder `./demo`
    check_has_settings(name_or_path)
    if os.path.lexists(settings := Path(name_or_path, CONFIG)):
        config = from_file(RunConfig, settings, Path(name_or_path))
        if name_or_path in names() and config != _packaged(name_or_path):
            warnings.warn(
                f"{name_or_path} is both a run in this folder and a recipe, and the run's settings are used; for the recipe, "
                f"change to another folder; to name the run, write ./{name_or_path}",
                stacklevel=2,
            )
        return config
    return _packaged(name_or_path) if name_or_path in names() else _PACKAGED.load(name_or_path)


def check_has_settings(name_or_path: str) -> None:
    """Raise UserError for a model of Hugging Face, which has no settings of a training."""
    prefixed = name_or_path.startswith("hf:")
    if prefixed or (name_or_path not in names() and holds_model_elsewhere(Path(name_or_path))):
        model = name_or_path if prefixed else f"hf:{name_or_path}"
        raise UserError(
            f"{name_or_path} is a model of Hugging Face, which is read here, not trained: "
            f"`backstory evaluate {pasted(model)} TEXT`"
        )


def load_recipe(name_or_path: str) -> RunConfig:
    """Return settings as `load` does, but those of the recipe where a run in this folder has its name. Raises UserError."""
    return _packaged(name_or_path) if name_or_path in names() else load(name_or_path)


def holds_model_elsewhere(folder: Path) -> bool:
    """Return True for a folder with the settings of a Hugging Face model, and none of a run."""
    return (folder / "config.json").is_file() and not os.path.lexists(folder / CONFIG)


@cache
def _packaged(name: str) -> RunConfig:
    """Read a packaged recipe once: suites and spaces load the same ones again and again."""
    return _PACKAGED.load(name)


def merged(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return nested settings with nested changes applied. A part of another kind keeps nothing of the part it replaces."""
    result = dict(settings)
    for key, value in changes.items():
        before = settings.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            replaced = value.get("kind", before.get("kind")) != before.get("kind")
            result[key] = dict(value) if replaced else merged(before, value)
        else:
            result[key] = value
    return result
