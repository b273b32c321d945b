"""A signal to a real `backstory train`: it saves, exits with 128 + signal, and resumes bit for bit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import outcome, with_training

from backstory.config import RunConfig, to_yaml


def backstory(folder: Path, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "backstory", "train", str(folder / "recipe.yaml"), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))


@pytest.fixture
def recipe(tiny_config: RunConfig, tmp_path: Path) -> Path:
    """A folder with a recipe of a few seconds."""
    (tmp_path / "recipe.yaml").write_text(to_yaml(with_training(tiny_config, epochs=15, save_minutes=1e-3)))
    return tmp_path


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGHUP])
def test_a_signal_stops_a_run_that_then_resumes(recipe: Path, number: signal.Signals) -> None:
    out = recipe / "broken"
    running = backstory(recipe, "--out", str(out))
    log, deadline = out / "metrics.jsonl", time.monotonic() + 60
    while not (log.exists() and log.stat().st_size > 2000):
        assert running.poll() is None and time.monotonic() < deadline, running.stderr and running.stderr.read()
        time.sleep(0.02)
    running.send_signal(number)
    _, told = running.communicate(timeout=60)
    assert running.returncode == 128 + number
    assert f"{out} is stopped and saved; go on with the same command and --resume" in told
    assert not (out / "result.json").exists()
    for arguments in (("--out", str(out), "--resume"), ("--out", str(recipe / "straight"))):
        finished = backstory(recipe, *arguments)
        _, told = finished.communicate(timeout=120)
        assert finished.returncode == 0, told
    assert outcome(out) == outcome(recipe / "straight")
