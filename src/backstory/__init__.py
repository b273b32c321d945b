"""Backstory: language models that remember. `import backstory as bs`; everything heavy is imported when first used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from backstory.api import (
        audit,
        compare,
        compress,
        decompress,
        evaluate,
        examine,
        explain,
        generate,
        load,
        referee,
        report,
        train,
        verify,
    )
    from backstory.config import RunConfig
    from backstory.config.recipes import recipe
    from backstory.plugins import register

_HOMES = {
    "RunConfig": "backstory.config",
    "audit": "backstory.api",
    "compare": "backstory.api",
    "compress": "backstory.api",
    "decompress": "backstory.api",
    "evaluate": "backstory.api",
    "examine": "backstory.api",
    "explain": "backstory.api",
    "generate": "backstory.api",
    "load": "backstory.api",
    "recipe": "backstory.config.recipes",
    "referee": "backstory.api",
    "register": "backstory.plugins",
    "report": "backstory.api",
    "train": "backstory.api",
    "verify": "backstory.api",
}
"""The module of each name."""

__all__ = [
    "RunConfig",
    "audit",
    "compare",
    "compress",
    "decompress",
    "evaluate",
    "examine",
    "explain",
    "generate",
    "load",
    "recipe",
    "referee",
    "register",
    "report",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("backstory")
    if name not in _HOMES:
        raise AttributeError(f"module 'backstory' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
