"""The number of threads of a training: requested, recorded or timed, without effect on its result."""

import io
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console
from runs import outcome, with_training

from backstory.config import RunConfig
from backstory.models.devices import restored_threads
from backstory.models.thread_timing import fastest_threads
from backstory.storage.checkpoint import newest_checkpoint
from backstory.training import Stopped, threads, train
from backstory.utils.errors import UserError


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which torch would use two threads, and a training that is long enough for timing."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(threads, "FEWEST_STEPS", 1)
    with restored_threads():
        torch.set_num_threads(2)
        yield


def said(config: RunConfig, out: Path, **options) -> str:
    output = io.StringIO()
    train(config, out, console=Console(file=output, width=200), **options)
    return output.getvalue()


def recorded(out: Path) -> int:
    checkpoint = newest_checkpoint(out / "checkpoints", "last", frozenset({"progress"}))
    assert checkpoint is not None
    return checkpoint.documents["progress"]["threads"]


@pytest.mark.parametrize(("useful", "most", "fastest"), [(1, 2, 1), (2, 6, 2), (8, 6, 6)])
def test_the_number_is_doubled_while_that_helps(useful: int, most: int, fastest: int) -> None:
    with restored_threads():
        best, seconds = fastest_threads(lambda: time.sleep(0.04 / min(torch.get_num_threads(), useful)), most)
    assert best == fastest
    assert list(seconds) == [1, 2, 4, 6][: len(seconds)]


@pytest.mark.full
def test_timing_leaves_no_trace(two_cores: None, tiny_config: RunConfig, tmp_path: Path) -> None:
    output = said(tiny_config, tmp_path / "timed")
    line = next(line for line in output.splitlines() if "a step takes" in line)
    assert re.fullmatch(
        r"(1 thread|2 threads): a step takes [\d.]+ s, with (2 threads|1 thread) [\d.]+ s \(--threads sets the number\)",
        line,
    )
    assert torch.get_num_threads() == 2
    chosen = recorded(tmp_path / "timed")
    assert line.startswith(f"{chosen} thread") and f", {chosen} thread" in output.splitlines()[0]
    assert "a step takes" not in said(tiny_config, tmp_path / "told", threads=chosen)
    assert outcome(tmp_path / "timed") == outcome(tmp_path / "told")


@pytest.mark.full
def test_a_resumed_run_keeps_its_number(two_cores: None, tiny_config: RunConfig, stop_after, tmp_path: Path) -> None:
    out, config = tmp_path / "run", with_training(tiny_config, epochs=2)
    stop_after(5)
    with pytest.raises(Stopped):
        said(config, out, threads=2)
    stop_after(5)
    with pytest.raises(Stopped):
        said(config, out, mode="resume")
    assert recorded(out) == 2
    output = said(config, out, mode="resume", threads=1)
    assert recorded(out) == 1
    assert (
        f"{out} was trained with 2 threads, and goes on with 1: the rest may differ in the last bits; --threads 2 repeats it"
        in output.splitlines()
    )


def test_no_threads_are_refused(tiny_config: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="threads must be"):
        train(tiny_config, tmp_path / "run", threads=0)
