"""Backstory: language models that remember. `import backstory as bs`; everything heavy is imported when first used."""

import importlib

TYPE_CHECKING = False  # as that of `typing`, whose import takes long enough for Ctrl-C to end it with a traceback
if TYPE_CHECKING:
    from typing import Any

    __version__: str
    from backstory.api import (
        audit,
        compress,
        decompress,
        evaluate,
        generate,
        load,
        referee,
        train,
        verify,
    )
    from backstory.api_analysis import compare, examine, explain, report
    from backstory.config import RunConfig
    from backstory.config.recipes import recipe
    from backstory.plugins import register
    from backstory.results.seed_gain import seed_gain
    from backstory.utils.errors import UserError

_HOMES = {
    "RunConfig": "backstory.config",
    "UserError": "backstory.utils.errors",
    "recipe": "backstory.config.recipes",
    "register": "backstory.plugins",
    "seed_gain": "backstory.results.seed_gain",
    **dict.fromkeys(("compare", "examine", "explain", "report"), "backstory.api_analysis"),
}
"""The module of each name that is not in `backstory.api`."""

__all__ = [
    "RunConfig",
    "UserError",
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
    "seed_gain",
    "train",
    "verify",
]


def __getattr__(name: str) -> "Any":
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("backstory")
    if name not in __all__:
        raise AttributeError(f"module 'backstory' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES.get(name, "backstory.api")), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
