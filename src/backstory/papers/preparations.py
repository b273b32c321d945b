"""What is done with a trained run before it is read, as `backstory reader` is told it: statistics, tune, train."""

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from backstory.config import UserError, check_name
from backstory.config.readers import LearnedSettings
from backstory.readers.gradient_statistics import statistics_name
from backstory.readers.learned import learned_name
from backstory.readers.registry import kinds_of, parse_stack, settings_file
from backstory.runs.run_folder import SAVED
from backstory.storage.checkpoint import MANIFEST


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(message)


@dataclass(frozen=True)
class Preparation:
    """One command of `backstory reader`."""

    action: str
    arguments: tuple[str, ...]
    """Its flags."""
    made: Path
    """The file in the run's folder that is there when it has been done."""


def preparation(text: str) -> Preparation:
    """From a line such as `tune --reader dynamic`. Raises UserError; the flags that are not used here are checked later."""
    words = shlex.split(text) or [""]
    check_name(words[0], ("statistics", "tune", "train"), "preparation")
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--reader", action="append")
    parser.add_argument("--name", default=LearnedSettings().network)
    parser.add_argument("--moving", default="all")
    found: Any = parser.parse_known_args(words[1:])[0]
    stack = parse_stack(found.reader or "dynamic")
    if words[0] == "statistics":
        made = Path(SAVED, statistics_name(found.moving), MANIFEST)
    elif words[0] == "tune":
        made = settings_file(Path(), kinds_of(stack))  # as `tune` files it
    else:
        made = Path(SAVED, learned_name(found.name), MANIFEST)
    return Preparation(words[0], tuple(words[1:]), made)
