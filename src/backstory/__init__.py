"""Backstory: language models that remember. `import backstory as bs`; everything heavy is imported when first used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from backstory.api import evaluate, examine, explain, generate, load, report, train
    from backstory.config import RunConfig
    from backstory.config.recipes import recipe
    from backstory.plugins import register

_HOMES = {
    "RunConfig": ("backstory.config", "RunConfig"),
    "evaluate": ("backstory.api", "evaluate"),
    "examine": ("backstory.api", "examine"),
    "explain": ("backstory.api", "explain"),
    "generate": ("backstory.api", "generate"),
    "load": ("backstory.api", "load"),
    "recipe": ("backstory.config.recipes", "recipe"),
    "register": ("backstory.plugins", "register"),
    "report": ("backstory.api", "report"),
    "train": ("backstory.api", "train"),
}

__all__ = ["RunConfig", "evaluate", "examine", "explain", "generate", "load", "recipe", "register", "report", "train"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("backstory")
    if name not in _HOMES:
        raise AttributeError(f"module 'backstory' has no attribute '{name}'")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
