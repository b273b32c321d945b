"""What `torchrun` tells the processes that it starts, by the environment: which of how many each of them is."""

import os
from dataclasses import dataclass

from backstory.config.errors import UserError, shown

MEETING = ("RANK", "MASTER_ADDR", "MASTER_PORT")
"""What several processes find each other by."""


@dataclass(frozen=True)
class Launched:
    """Which process this is; alone where `torchrun` did not start it."""

    rank: int = 0
    world: int = 1
    local: int = 0
    """Its number on this machine."""
    here: int = 1
    """How many of them are on this machine."""


def launched() -> Launched:
    """What the environment says. Raises UserError where that is no number, out of range, or not all there is to say."""
    started = world()
    if started == 1:
        return Launched()
    missing = next((name for name in MEETING if not os.environ.get(name)), None)
    if missing is not None:
        raise UserError(f"WORLD_SIZE is {started}, and {missing} is not set; start several processes with torchrun")
    _number("MASTER_PORT", 0, 1, 65535)
    here = _number("LOCAL_WORLD_SIZE", started, 1, started)
    return Launched(_number("RANK", 0, 0, started - 1), started, _number("LOCAL_RANK", 0, 0, here - 1), here)


def world() -> int:
    """How many processes were started together; 1 without `torchrun`. Raises UserError where the environment has no number."""
    return _number("WORLD_SIZE", 1, 1)


def first_here() -> bool:
    """Whether this is the first process of a distributed run on this machine, or the only one: whatever is no number is."""
    named = os.environ.get("LOCAL_RANK", "0")
    return not named.isdecimal() or not named.strip("0")


def _number(name: str, usual: int, least: int, most: int = 1 << 20) -> int:
    named = os.environ.get(name) or str(usual)
    if len(named) < 10 and named.isascii() and named.isdecimal() and least <= int(named) <= most:
        return int(named)
    raise UserError(
        f"{name} must be a whole number from {least} to {most}, not {shown(named)}; unset it, or start with torchrun"
    )
