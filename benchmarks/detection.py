"""Rates at which cheats are caught and honest subjects refused, over many seeds, in parallel processes."""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

Rate = Callable[[str, int], dict[str, Any]]
"""Tries a named cheat, or an honest subject, with this many seeds."""
Task = tuple[str, str, int]
"""Kind of trial, name, and number of seeds."""


def flags(description: str | None, out: Path) -> argparse.ArgumentParser:
    """Return a parser of the flags that both benchmarks have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=out)
    return parser


def rates(
    tasks: Sequence[Task], kinds: Mapping[str, Rate], processes: int
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield kind, name and figures of each task in order, and print them as they arrive."""
    with get_context("spawn").Pool(processes) as pool:
        for kind, name, figures in pool.imap(partial(_rate, dict(kinds)), tasks):
            print(json.dumps([kind, name, figures]), flush=True)
            yield kind, name, figures


def _rate(kinds: Mapping[str, Rate], task: Task) -> tuple[str, str, dict[str, Any]]:
    kind, name, seeds = task
    torch.set_num_threads(1)
    return kind, name, kinds[kind](name, seeds)
