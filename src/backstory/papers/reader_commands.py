"""Preparations of a suite: commands of `backstory reader` that follow a training, before the run is read."""

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from backstory.config.readers import LearnedSettings
from backstory.readers.gradient_statistics import statistics_name
from backstory.readers.learned import learned_name
from backstory.readers.registry import needs, parse_stack, settings_file, settings_name
from backstory.storage.checkpoint import MANIFEST
from backstory.storage.run_files import SAVED
from backstory.utils.errors import UserError, check_name, first_line, shown


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(message)


@dataclass(frozen=True)
class Preparation:
    """One command of `backstory reader`."""

    action: str
    arguments: tuple[str, ...]
    """Its flags."""
    output: Path
    """The file in the run's folder that it writes."""
    needs: dict[str, str]
    """Names of what it takes from the run's folder of readers, each with the command that makes it."""

    @property
    def made(self) -> str:
        """Return the name of what it makes in the run's folder of readers."""
        return self.output.relative_to(SAVED).parts[0]


def preparation(text: str) -> Preparation:
    """Read a line such as `tune --reader dynamic`. Raises UserError; flags that are not used here are checked later."""
    try:
        words = shlex.split(text) or [""]
    except ValueError as error:
        raise UserError(
            f"the preparation {shown(text)} cannot be read ({first_line(error).lower()}); correct it"
        ) from None
    check_name(words[0], ("statistics", "tune", "train"), "preparation")
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--reader", action="append")
    parser.add_argument("--name", default=LearnedSettings().network)
    parser.add_argument("--moving", default="all")
    flags: Any = parser.parse_known_args(words[1:])[0]
    stack = parse_stack(flags.reader or "dynamic")
    if words[0] == "statistics":
        output = Path(SAVED, statistics_name(flags.moving), MANIFEST)
    elif words[0] == "tune":
        output = Path(SAVED, settings_file(settings_name(stack)))
    else:
        output = Path(SAVED, learned_name(flags.name), MANIFEST)
    return Preparation(words[0], tuple(words[1:]), output, {} if words[0] == "statistics" else needs(stack))
