"""Shared by the tests of papers: a suite of tiny runs, and the command line in this process or another."""

import copy
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from runs import command

from backstory.config import from_yaml
from backstory.papers.plan import SuiteRun, runs_of
from backstory.papers.suite import Suite

CLAIM = {"sentence": "Wide beats plain", "where": "table 1", "better": {"system": "wide"}, "than": {"system": "plain"}}
SUITE: dict[str, Any] = {
    "title": "Tiny models",
    "note": "Everything is tiny.",
    "systems": [
        {
            "name": "plain",
            "readings": [{"published": {"value": 9.5, "source": "Somebody 2000, table 1"}}],
            "small": {
                "recipe": "tiny.yaml",
                "seeds": [1, 2],
                "minutes": 0.5,
                "examinations": [{"experiment": "truncate", "targets": 20, "maximum_context": 30}],
            },
        },
        {
            "name": "wide",
            "readings": [{"published": {"value": 9.25, "source": "Somebody 2000, table 1"}}],
            "small": {
                "recipe": "tiny.yaml",
                "overrides": {"model": {"core": {"hidden": 15}}},
                "seeds": [1, 2],
                "minutes": 0.5,
            },
        },
    ],
    "claims": [CLAIM],
}
BROKEN = {
    "name": "broken",
    "small": {
        "recipe": "tiny.yaml",
        "overrides": {"training": {"learning_rate": 1e30, "clip": 0.0}},
        "seeds": [1],
        "minutes": 0.5,
    },
}
"""A system whose loss breaks down."""


@dataclass(frozen=True)
class Reproduced:
    """A reproduction with a failing system, and the command's output."""

    folder: Path
    code: int
    out: str
    err: str


def suite(**changes: Any) -> dict[str, Any]:
    """The suite, to be changed."""
    return copy.deepcopy(SUITE) | changes


def planned(suite: dict[str, Any]) -> dict[str, SuiteRun]:
    """Its runs at the small scale, by their names."""
    return {run.name: run for run in runs_of(from_yaml(Suite, yaml.safe_dump(suite), "mine"), "small", "mine")}


def write(suite: dict[str, Any], path: Path = Path("suite.yaml")) -> str:
    path.write_text(yaml.safe_dump(suite, sort_keys=False), encoding="utf-8")
    return str(path)


def start(*arguments: str) -> subprocess.Popen:
    """`backstory reproduce` in a process of its own, its output in pipes."""
    program = [sys.executable, "-m", "backstory", "reproduce", *arguments]
    return subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ), start_new_session=True
    )


def finish(running: subprocess.Popen, timeout: float = 300) -> tuple[int, str, str]:
    """Return exit code, standard output, and standard error after its first line, which announces the planning."""
    out, err = running.communicate(timeout=timeout)
    first, rest = err.split("\n", 1)
    assert first.startswith("backstory: planning ")
    return running.returncode, out, rest


def reproduce(*arguments: str) -> tuple[int, str, str]:
    """The same of `backstory reproduce` in this process, where none is to be killed or to run beside it."""
    return command("reproduce", *arguments)  # announces nothing, since torch is loaded
