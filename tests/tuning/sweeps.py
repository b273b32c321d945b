"""Helpers of the tests of sweeps: a tiny recipe, a space over it, and the command line in this process or another."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from runs import command, with_training

from backstory.config import RunConfig, to_yaml

SPACE = """
title: Tiny models
settings:
  training.learning_rate: {range: [0.05, 10], log: true}
  model.core.layers: {choice: [1, 2]}
  model.core.hidden: {range: [5, 12], when: {model.core.layers: 2}}
  model.embedding.size: {choice: [6, 8]}
  model.core.output: {same: model.embedding.size}
"""
RUN = ("sweep", "run", "tiny.yaml", "--space", "space.yaml")


@dataclass(frozen=True)
class Searched:
    """A sweep that was run to its end, and what the command said."""

    folder: Path
    code: int
    out: str
    err: str


def prepare(folder: Path, config: RunConfig, corpus: Path) -> None:
    """The recipe, which names the corpus by a path from the folder, and the space."""
    shutil.copytree(corpus, folder / "corpus")
    text = to_yaml(with_training(config, epochs=2)).replace(str(corpus), "corpus")
    (folder / "tiny.yaml").write_text(text, encoding="utf-8")
    (folder / "space.yaml").write_text(SPACE, encoding="utf-8")


def start(*arguments: str) -> subprocess.Popen:
    """`backstory sweep run` on the desk in a process of its own, its output in pipes."""
    program = [sys.executable, "-m", "backstory", *RUN, *arguments]
    return subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ), start_new_session=True
    )


def finish(running: subprocess.Popen, timeout: float = 300) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    out, err = running.communicate(timeout=timeout)
    return running.returncode, out, err


def search(*arguments: str) -> tuple[int, str, str]:
    """The same of `backstory sweep run` in this process, where none is to be killed or to run beside it."""
    return command(*RUN, *arguments)
