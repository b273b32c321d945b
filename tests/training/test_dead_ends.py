"""Whatever happens to a run's folder, one line reports it, and its remedy works."""

import errno
import io
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from runs import contents, events, outcome, with_training
from torch.optim.optimizer import register_optimizer_step_post_hook

from backstory.config import RunConfig
from backstory.runs.run import load_run
from backstory.storage import manifest
from backstory.training import Stopped, train
from backstory.training.events import MetricsLog
from backstory.utils.errors import NoDisk, UserError

Train = Callable[..., dict]


@pytest.fixture
def config(tiny_config: RunConfig) -> RunConfig:
    return with_training(tiny_config, epochs=2)


@pytest.fixture(scope="module")
def straight(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs that nothing happened to."""
    out = tmp_path_factory.mktemp("straight") / "out"
    train(with_training(tiny_config, epochs=2), out, console=Console(file=io.StringIO()))
    return out


@pytest.fixture(scope="module")
def stopped(tiny_config: RunConfig, straight: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, stopped in its second epoch."""
    out, left = tmp_path_factory.mktemp("stopped") / "out", events(straight, "epoch")[0]["step"] + 3

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            signal.raise_signal(signal.SIGTERM)

    handle = register_optimizer_step_post_hook(count)
    with pytest.raises(Stopped):
        train(with_training(tiny_config, epochs=2), out, console=Console(file=io.StringIO()))
    handle.remove()
    return out


# --- the folder ---


def test_a_run_whose_folder_is_removed_ends_and_leaves_nothing(
    config: RunConfig, quietly: Train, at_step: Callable, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    at_step(3, lambda _: shutil.rmtree(out))
    with pytest.raises(UserError, match=r"out was removed or moved while it was trained.*start again"):
        quietly(config, out)
    assert not out.exists()
    quietly(config, out)


@pytest.mark.full
def test_a_run_whose_folder_is_moved_goes_on_where_it_is(
    config: RunConfig, quietly: Train, at_step: Callable, straight: Path, stopped: Path, tmp_path: Path
) -> None:
    out, elsewhere = Path(shutil.copytree(stopped, tmp_path / "out")), tmp_path / "elsewhere"
    at_step(2, lambda _: out.rename(elsewhere))
    with pytest.raises(UserError, match=r"removed or moved while it was trained.*--resume where it is now"):
        quietly(config, out, mode="resume")
    assert not out.exists()
    quietly(config, elsewhere, mode="resume")
    assert outcome(elsewhere) == outcome(straight)


def test_a_run_that_took_the_place_of_a_moved_one_is_left_alone(
    config: RunConfig, quietly: Train, at_step: Callable, stopped: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(stopped, tmp_path / "other")
    (tmp_path / "other" / ".lock").write_text("")  # as of another training

    def replace(_: object) -> None:
        out.rename(tmp_path / "elsewhere")
        (tmp_path / "other").rename(out)

    at_step(3, replace)
    before = contents(tmp_path / "other")
    with pytest.raises(UserError, match="removed or moved"):
        quietly(config, out)
    assert contents(out) == before


def test_what_is_no_run_is_not_offered_to_be_resumed(config: RunConfig, quietly: Train, tmp_path: Path) -> None:
    (tmp_path / "out" / "checkpoints").mkdir(parents=True)
    for mode in ("new", "resume", "overwrite"):
        with pytest.raises(UserError, match="choose another folder with --out") as told:
            quietly(config, tmp_path / "out", mode=mode)
        assert "use --resume" not in str(told.value)


# --- permissions ---


def test_a_run_that_cannot_be_written_to_is_resumed_in_a_copy(
    config: RunConfig, quietly: Train, stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(stopped, tmp_path / "out"))
    before, access = contents(out), os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != out and access(path, mode))
    with pytest.raises(UserError, match=r"cannot write to .*out; copy the run, and resume the copy$"):
        quietly(config, out, mode="resume")
    assert contents(out) == before


@pytest.mark.parametrize("closed", ["checkpoints", "checkpoints/best-1"])
def test_overwriting_removes_nothing_unless_all_of_it_can_go(
    config: RunConfig, quietly: Train, stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    out = Path(shutil.copytree(stopped, tmp_path / "out"))
    before, access = contents(out), os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != out / closed and access(path, mode))
    with pytest.raises(UserError, match=rf"cannot write to .*{closed}: Permission denied; .*--out"):
        quietly(config, out, mode="overwrite")
    assert contents(out) == before


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="there are no sticky folders here")
@pytest.mark.parametrize("sticky", [".", "checkpoints/best-1"])
def test_overwriting_removes_nothing_of_another_user_in_a_sticky_folder(
    config: RunConfig, quietly: Train, stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sticky: str
) -> None:
    out = Path(shutil.copytree(stopped, tmp_path / "out"))
    (out / sticky).chmod(0o1777)
    before, owner = contents(out), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    inner = re.escape(str(out / sticky))
    with pytest.raises(UserError, match=rf"^cannot remove {inner}/[^/]+: only its owner can, as {inner} has .*--out$"):
        quietly(config, out, mode="overwrite")
    assert contents(out) == before
    monkeypatch.undo()
    quietly(config, out, mode="overwrite")


def test_checkpoints_that_may_not_be_read_are_not_called_missing(
    config: RunConfig, tiny_run: Path, tmp_path: Path, quietly: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))

    def forbidden(path: object, *arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as closed:
        closed.setattr(manifest.os, "listdir", forbidden)
        with pytest.raises(UserError, match=r"cannot read .*checkpoints: Permission denied; have its owner"):
            load_run(run)
    with monkeypatch.context() as closed:
        closed.setattr(manifest, "sha256", forbidden)
        with pytest.raises(UserError, match=r"cannot read .*: Permission denied; have its owner"):
            load_run(run)


# --- the disk ---


def test_a_full_disk_is_told_with_the_file_and_the_way_on(
    config: RunConfig, quietly: Train, stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **values: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = Path(shutil.copytree(stopped, tmp_path / "out"))
    with monkeypatch.context() as disk:
        disk.setattr("backstory.storage.checkpoint.fsync_file", full)
        told = r"cannot write to .*out/checkpoints/\w+-\d+(/\S+)?: No space left .*; make room .*, and go on with .*--resume"
        with pytest.raises(NoDisk, match=told):
            quietly(config, out, mode="resume")
    quietly(config, out, mode="resume")


# --- the log ---

DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda whole: None,
    "empty": lambda whole: b"",
    "cut": lambda whole: whole[: len(whole) // 2],
    "garbage": lambda whole: whole.replace(b'{"event": "epoch"', b'\x00\xff garbage "epoch"'),
    "a line twice": lambda whole: whole.splitlines(keepends=True)[0] + whole,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_whose_log_was_lost_goes_on_when_that_is_accepted(
    config: RunConfig, quietly: Train, straight: Path, stopped: Path, tmp_path: Path, damage: str
) -> None:
    out = Path(shutil.copytree(stopped, tmp_path / "out"))
    log = out / "metrics.jsonl"
    damaged = DAMAGES[damage](log.read_bytes())
    log.unlink() if damaged is None else log.write_bytes(damaged)
    if damage != "a line twice":
        with pytest.raises(UserError, match=r"metrics\.jsonl .*restore the file .*--accept metrics .*--overwrite"):
            quietly(config, out, mode="resume")
    result = quietly(config, out, mode="resume", accept=frozenset({"metrics"}))
    found, expected = outcome(out), outcome(straight)
    for part in ("events", "figures"):
        del found[part], expected[part]
    assert found == expected
    epochs = [event["epoch"] for event in events(out, "epoch")]
    lost = sum(event["epochs"] for event in events(out, "lost"))
    assert epochs[-1] == 2 and len(epochs) + lost == 2 == result.figures.epochs
    quietly(config, out, mode="resume")  # which finds nothing wrong any more


def test_a_finished_run_without_log_and_result_makes_its_result_again(
    config: RunConfig, straight: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(straight, tmp_path / "out")
    whole = json.loads((out / "result.json").read_text())["figures"]
    for name in ("metrics.jsonl", "result.json"):
        (tmp_path / "out" / name).unlink()
    train(config, tmp_path / "out", mode="resume", accept=frozenset({"metrics"}), console=Console(file=io.StringIO()))
    figures = json.loads((tmp_path / "out" / "result.json").read_text())["figures"]
    assert figures["curve"] == [] and figures["valid_nats"] == whole["valid_nats"]
    assert figures["tokens_per_second"] > 0 and figures["epochs"] == 2


def test_the_log_names_itself_on_a_full_disk(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", 0)
    with open("/dev/full", "r+b", buffering=0) as full:
        os.dup2(full.fileno(), log._file.fileno())
        with pytest.raises(OSError, match=r"metrics\.jsonl"):
            log.write("steps", step=1)
        os.dup2(os.open(tmp_path / "metrics.jsonl", os.O_RDWR), log._file.fileno())
    log.close()
