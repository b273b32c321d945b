"""A signal to a real `backstory train`: it saves, exits with 128 + signal, and resumes bit for bit."""

import json
import os
import re
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
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
                            process_group=0)  # a group of its own can be suspended  # fmt: skip


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


@pytest.mark.full
@pytest.mark.skipif(not hasattr(signal, "SIGTSTP"), reason="needs Ctrl-Z")
def test_the_time_for_which_a_training_is_suspended_is_not_trained_time(recipe: Path) -> None:
    """Suspended for half of its minutes before the steps are planned, it still plans for all of them."""
    out, seconds = recipe / "run", 12.0
    running = backstory(
        recipe, "--out", str(out), "--training.minutes", str(seconds / 60), "--training.batch-size", "12"
    )
    log, deadline = out / "metrics.jsonl", time.monotonic() + 60
    while not (log.exists() and log.stat().st_size):
        assert running.poll() is None and time.monotonic() < deadline, running.stderr and running.stderr.read()
        time.sleep(0.01)
    running.send_signal(signal.SIGTSTP)
    time.sleep(0.5 * seconds)
    done = json.loads(log.read_text().splitlines()[-1])
    running.send_signal(signal.SIGCONT)
    printed, errors = running.communicate(timeout=120)
    assert running.returncode == 0, errors
    planned = re.search(r"([\d,]+) steps fit into", printed + errors)
    assert planned is not None, printed + errors
    # With half of the time gone, no more would be planned than twice the steps before it; a quarter has a quarter of them.
    assert int(planned[1].replace(",", "")) > 2.5 * done["step"]
    epochs = [json.loads(line) for line in log.read_text().splitlines()]
    assert all(epoch["seconds"] >= 0 for epoch in epochs if "seconds" in epoch)
