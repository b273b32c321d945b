"""A worker of a training: `python -m backstory.training.training_worker PID` trains as one of its ranks."""

from pathlib import Path
from typing import Any

from backstory.config import RunConfig, from_saved
from backstory.jobs.worker import serve
from backstory.training.fit import train
from backstory.utils.process import run_program


def work(config: Any, accept: list[str], data_dir: str | None, init_from: str | None, **arguments: Any) -> None:
    """Train with the arguments of `train`, as plain values."""
    paths = {name: path and Path(path) for name, path in (("data_dir", data_dir), ("init_from", init_from))}
    train(from_saved(RunConfig, config, "the settings"), accept=frozenset(accept), **paths, **arguments)


if __name__ == "__main__":
    run_program(lambda: serve(work))
