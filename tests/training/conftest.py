"""Tiny runs: trained quietly, stopped or broken off at a chosen step, and compared bit for bit."""

import io
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from runs import outcome, with_training
from torch.optim.optimizer import register_optimizer_step_post_hook

from backstory.config import RunConfig
from backstory.training import Stopped, train

Train = Callable[..., dict[str, Any]]
At = Callable[[int, Callable[[torch.optim.Optimizer], object]], None]


@pytest.fixture(scope="session")
def quietly() -> Train:
    """`train` without a word."""

    def run(config: RunConfig, out: Path, **options: Any) -> dict[str, Any]:
        return train(config, out, console=Console(file=io.StringIO()), **options)

    return run


@contextmanager
def counting() -> Iterator[At]:
    """Call a function once, right after this many more optimizer steps, until the block ends."""
    handles = []

    def arrange(steps: int, action: Callable[[torch.optim.Optimizer], object]) -> None:
        left = steps

        def count(optimizer: torch.optim.Optimizer, arguments: object, options: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                action(optimizer)

        handles.append(register_optimizer_step_post_hook(count))

    try:
        yield arrange
    finally:
        for handle in handles:
            handle.remove()


def stop(optimizer: torch.optim.Optimizer) -> None:
    signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def at_step() -> Iterator[At]:
    """Call a function once, right after this many more optimizer steps."""
    with counting() as arrange:
        yield arrange


@pytest.fixture
def stop_after(at_step: At) -> Callable[[int], None]:
    """Send this process a SIGTERM after this many more steps."""
    return lambda steps: at_step(steps, stop)


@pytest.fixture
def resumes_exactly(quietly: Train, stop_after: Callable[[int], None], tmp_path: Path) -> Callable[..., Any]:
    """Check that a run stopped after this many steps and resumed equals an uninterrupted one. Return its result.

    Their folders are `straight` and `stopped`; `arguments` are those of `train` for what is not resumed.
    """

    def check(config: RunConfig, steps: int, **arguments: Any) -> Any:
        quietly(config, tmp_path / "straight", **arguments)
        stop_after(steps)
        with pytest.raises(Stopped):
            quietly(config, tmp_path / "stopped", **arguments)
        resumed = quietly(config, tmp_path / "stopped", mode="resume")
        assert outcome(tmp_path / "stopped") == outcome(tmp_path / "straight")
        return resumed

    return check


@pytest.fixture(scope="session")
def stopped_once(tiny_config: RunConfig, quietly: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs that was stopped in its second. All tests share it, so that they take a copy."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with counting() as arrange, pytest.raises(Stopped):
        arrange(35, stop)
        quietly(with_training(tiny_config, epochs=2), folder)
    return folder


@pytest.fixture(scope="session")
def not_stopped(tiny_config: RunConfig, quietly: Train, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same run as `stopped_once`, uninterrupted."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    quietly(with_training(tiny_config, epochs=2), folder)
    return outcome(folder)
