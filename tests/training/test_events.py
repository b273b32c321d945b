"""Trackers are shown what metrics.jsonl holds, which is written whatever they do."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import contents, events, saved_progress, with_training

from backstory.config import RunConfig, to_yaml
from backstory.training import Stopped
from backstory.training import events as room
from backstory.utils.errors import UserError

Train = Callable[..., dict]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Scalars that TensorBoard shows of a run: (step, value) by name."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    shown = accumulator.EventAccumulator(str(folder / "tensorboard"))
    shown.Reload()
    return {name: [(s.step, s.value) for s in shown.Scalars(name)] for name in shown.Tags()["scalars"]}


def logged(folder: Path, event: str, name: str) -> list[tuple[int, float]]:
    return [(line["step"], pytest.approx(line[name], rel=1e-6)) for line in events(folder, event)]


@pytest.mark.full
def test_tensorboard_shows_the_log_once_also_after_a_stop(
    tiny_config: RunConfig, quietly: Train, stop_after: Callable[[int], None], tmp_path: Path
) -> None:
    config = with_training(tiny_config, epochs=2)
    stop_after(30)
    with pytest.raises(Stopped):
        quietly(config, tmp_path / "run", track=("tensorboard",))
    quietly(config, tmp_path / "run", mode="resume", track=("tensorboard",))
    found = scalars(tmp_path / "run")
    assert found["steps/nats"] == logged(tmp_path / "run", "steps", "nats")
    assert found["epoch/valid_perplexity"] == logged(tmp_path / "run", "epoch", "valid_perplexity")
    assert len(found["epoch/best"]) == 2


@pytest.mark.full
def test_steps_made_again_after_a_crash_are_shown_once(
    tiny_config: RunConfig, quietly: Train, at_step: Callable, tmp_path: Path
) -> None:
    def crash(optimizer: object) -> None:
        raise KeyboardInterrupt

    config = with_training(tiny_config, epochs=2, segment=4)
    at_step(70, crash)  # after a window beyond the last checkpoint
    with pytest.raises(KeyboardInterrupt):
        quietly(config, tmp_path / "run", track=("tensorboard",))
    assert events(tmp_path / "run", "steps")[-1]["step"] > saved_progress(tmp_path / "run")["step"]
    quietly(config, tmp_path / "run", mode="resume", track=("tensorboard",))
    assert scalars(tmp_path / "run")["steps/nats"] == logged(tmp_path / "run", "steps", "nats")


def test_trackio_keeps_the_log(
    tiny_config: RunConfig, quietly: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "store"))
    trackio = pytest.importorskip("trackio")
    quietly(tiny_config, tmp_path / "run", track=("trackio",))
    kept = trackio.Api().runs("backstory")
    assert [run.name for run in kept] == ["run"]


@pytest.mark.full
def test_wandb_keeps_the_log(
    tiny_config: RunConfig, quietly: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a process of its own, as wandb starts a service that outlives a run."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    (tmp_path / "tiny.yaml").write_text(to_yaml(tiny_config))
    command = [sys.executable, "-m", "backstory", "train", "tiny.yaml", "--out", "run", "--track", "wandb"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    [log] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = log.read_bytes()
    assert b"epoch/valid_nats" in content and b"steps/nats" in content


def test_overwriting_a_run_removes_what_tensorboard_has_of_it(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    quietly(tiny_config, tmp_path / "run", track=("tensorboard",))
    quietly(tiny_config, tmp_path / "run", mode="overwrite")
    assert not (tmp_path / "run" / "tensorboard").exists()


@pytest.mark.parametrize("missing", ["tensorboard", "trackio", "wandb"])
def test_a_tracker_that_is_not_installed_is_told_before_anything_is_written(
    missing: str, tiny_config: RunConfig, quietly: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(room, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=rf"--track {missing} needs .*pip install -e '\.\[track\]'` in the clone of backstory"
    ):
        quietly(tiny_config, tmp_path / "run", track=(missing,))
    assert not contents(tmp_path)


def test_an_unknown_tracker_is_told(tiny_config: RunConfig, quietly: Train, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no tracker 'tensorbord' \(did you mean 'tensorboard'\?\)"):
        quietly(tiny_config, tmp_path / "run", track=("tensorbord",))


def test_without_trackers_the_log_alone_is_written(tiny_config: RunConfig, quietly: Train, tmp_path: Path) -> None:
    quietly(tiny_config, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(line)["event"] for line in lines} == {"steps", "epoch"}
