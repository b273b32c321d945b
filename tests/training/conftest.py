"""Tiny runs: trained quietly, stopped or broken off at a chosen step, and compared bit for bit."""

import io
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch.optim.optimizer import register_optimizer_step_post_hook

from backstory.config import RunConfig
from backstory.training import train

Train = Callable[..., dict[str, Any]]
At = Callable[[int, Callable[[torch.optim.Optimizer], object]], None]


@pytest.fixture
def quietly() -> Train:
    """`train` without a word."""

    def run(config: RunConfig, out: Path, **options: Any) -> dict[str, Any]:
        return train(config, out, console=Console(file=io.StringIO()), **options)

    return run


@pytest.fixture
def at_step() -> Iterator[At]:
    """Call a function once, right after so many more steps of any optimizer."""
    handles = []

    def arrange(steps: int, action: Callable[[torch.optim.Optimizer], object]) -> None:
        left = steps

        def count(optimizer: torch.optim.Optimizer, arguments: object, options: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                action(optimizer)

        handles.append(register_optimizer_step_post_hook(count))

    yield arrange
    for handle in handles:
        handle.remove()


@pytest.fixture
def stop_after(at_step: At) -> Callable[[int], None]:
    """Send this process a SIGTERM after so many more steps."""
    return lambda steps: at_step(steps, lambda optimizer: signal.raise_signal(signal.SIGTERM))
