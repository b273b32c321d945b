"""One training at a time in a folder: the lock refuses a second one, is invisible otherwise, and dies with its holder."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from filelock import lock_descriptor
from runs import contents, outcome, with_training

from backstory.config import RunConfig
from backstory.storage import lock
from backstory.storage.lock import LOCK, held, locked
from backstory.utils.errors import NoDisk, UserError

Train = Callable[..., dict]
HOLDER = """
import sys, time
from pathlib import Path
from backstory.storage.lock import locked
with locked(Path(sys.argv[1]), "training", "--out"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_training_in_the_folder_is_refused(
    tiny_config: RunConfig, tiny_run: Path, quietly: Train, at_step: Callable, tmp_path: Path
) -> None:
    folder = tmp_path / "tiny"
    told: dict[str, str] = {}

    def second(optimizer: torch.optim.Optimizer) -> None:
        before = contents(folder)
        for mode in ("resume", "overwrite", "new"):
            with pytest.raises(UserError) as refusal:
                quietly(tiny_config, folder, mode=mode)
            told[mode] = str(refusal.value)
        assert contents(folder) == before

    at_step(5, second)
    quietly(tiny_config, folder)
    assert "another training is running in" in told["resume"] and told["overwrite"] == told["resume"]
    assert "is not empty" in told["new"]
    assert outcome(folder) == outcome(tiny_run)
    assert not (folder / LOCK).exists()


def test_a_training_in_another_thread_is_refused_and_the_first_is_as_it_was(
    tiny_config: RunConfig, tiny_run: Path, quietly: Train, at_step: Callable, tmp_path: Path
) -> None:
    def second(optimizer: torch.optim.Optimizer) -> None:
        with (
            ThreadPoolExecutor(1) as pool,
            pytest.raises(UserError, match="another thread of this process is training"),
        ):
            pool.submit(quietly, tiny_config, tmp_path / "second").result()

    at_step(5, second)
    quietly(tiny_config, tmp_path / "tiny")
    assert outcome(tmp_path / "tiny") == outcome(tiny_run)
    assert not (tmp_path / "second").exists()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(quietly, tiny_config, tmp_path / "second").result()
    assert outcome(tmp_path / "second") == outcome(tiny_run)


def test_two_that_both_found_the_folder_free(tiny_config: RunConfig, quietly: Train, tmp_path: Path) -> None:
    with (
        locked(tmp_path / "out", "training", "--out"),
        pytest.raises(UserError, match=r"another training is running in .*out;"),
    ):
        quietly(tiny_config, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_one_that_comes_to_the_lock_when_the_other_is_done(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire = lock._acquire

    def late(folder: Path, *words: str) -> int:
        monkeypatch.setattr(lock, "_acquire", acquire)
        quietly(tiny_config, folder)
        return acquire(folder, *words)

    monkeypatch.setattr(lock, "_acquire", late)
    with pytest.raises(UserError, match="is not empty"):
        quietly(tiny_config, tmp_path / "out")
    assert (tmp_path / "out" / "result.json").exists()


def test_a_killed_holder_leaves_a_folder_that_is_free(tiny_config: RunConfig, quietly: Train, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match="another training"):
        quietly(tiny_config, folder)
    holder.send_signal(signal.SIGKILL)
    holder.communicate(timeout=60)
    assert [p.name for p in folder.iterdir()] == [LOCK]
    quietly(tiny_config, folder)
    assert (folder / "result.json").exists() and not (folder / LOCK).exists()


def test_a_refused_start_leaves_no_folder(tiny_config: RunConfig, quietly: Train, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too few for batch size"):
        quietly(with_training(tiny_config, batch_size=10_000), tmp_path / "deep" / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_its_holder_removed_is_not_taken_for_the_lock(tmp_path: Path) -> None:
    with locked(tmp_path, "training", "--out"):
        late = os.open(tmp_path / LOCK, os.O_RDWR)
    assert lock_descriptor(late, blocking=False)  # of a file that no longer has a name
    assert not lock._is_open_at(late, tmp_path / LOCK)
    with locked(tmp_path, "training", "--out"):
        assert not lock._is_open_at(late, tmp_path / LOCK)
    os.close(late)


def test_a_lock_removed_between_opening_and_locking_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = lock._take

    def late(descriptor: int) -> bool:
        monkeypatch.setattr(lock, "_take", take)
        (tmp_path / LOCK).unlink()
        return take(descriptor)

    monkeypatch.setattr(lock, "_take", late)
    with locked(tmp_path, "training", "--out") as stands:
        assert stands() and held(tmp_path)


def test_a_folder_that_is_moved_or_removed_is_noticed(tmp_path: Path) -> None:
    with locked(tmp_path / "out", "training", "--out") as stands:
        (tmp_path / "out").rename(tmp_path / "moved")
        assert not stands()
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / LOCK).touch()
        assert not stands()
    assert (tmp_path / "out" / LOCK).exists()


def test_a_system_without_locks_trains_unguarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(descriptor: int, blocking: bool) -> bool:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("filelock.lock_descriptor", lacking)
    with locked(tmp_path / "out", "training", "--out"), locked(tmp_path / "out", "training", "--out") as stands:
        assert stands() and not held(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="cannot write to"), locked(tmp_path, "training", "--out"):
        pass
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system in which no folder can be made")
def test_a_folder_that_cannot_be_made_is_told() -> None:
    told = pytest.raises(UserError, match="cannot write to /proc/x: No such file or directory; choose another")
    with told, locked(Path("/proc/x"), "training", "--out"):
        pass


def test_a_disk_without_room_for_a_lock_is_told_and_no_folder_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(os, "open", full)
    no_room = pytest.raises(NoDisk, match=r"cannot write to .*\.lock: No space left on device; make room on that disk")
    with no_room, locked(tmp_path / "new" / "run", "training", "--out"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_whether_a_folder_is_held_is_seen_from_other_processes(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert not held(folder)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    assert held(folder)
    holder.kill()
    holder.communicate(timeout=60)
    assert (folder / LOCK).exists() and not held(folder)
    with locked(folder, "training", "--out"):  # having looked, we do not hold it
        pass


def test_a_look_at_the_lock_neither_refuses_a_start_nor_is_taken_for_one(tmp_path: Path) -> None:
    """Another process looks as `held` does, for longer than it would."""
    (tmp_path / LOCK).touch()
    looking = (tmp_path / LOCK).open("rb")
    assert lock._take(looking.fileno(), shared=True) and not held(tmp_path)
    end = threading.Timer(0.05, looking.close)
    end.start()
    with locked(tmp_path, "training", "--out"):
        assert held(tmp_path)
    end.join()
