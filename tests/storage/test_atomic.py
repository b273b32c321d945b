"""Atomic writes: the old file or the new one, never a part, whatever fails."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from backstory.storage.atomic import (
    TEMPORARY,
    atomic_file,
    sweep_abandoned,
    sweep_temporaries,
    unfinished,
    write_atomically,
)


def fail(*arguments: object, **options: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("old")
    return path


def test_content_replaces_the_file(file: Path) -> None:
    write_atomically(file, "new é")
    assert file.read_bytes() == "new é".encode()
    write_atomically(file, b"\x00\xff")
    assert file.read_bytes() == b"\x00\xff"
    write_atomically(file.with_name("other"), "made")
    assert sorted(p.name for p in file.parent.iterdir()) == ["config.yaml", "other"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(file: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(file, "new")
    assert [p.read_text() for p in file.parent.iterdir()] == ["old"]


def test_a_file_that_may_not_be_replaced_is_named_itself(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(source), None, str(target))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError) as refusal:
        write_atomically(file, "new")
    assert refusal.value.filename == str(file)


def test_an_interruption_leaves_the_old_file_and_nothing_else(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(file, "new")
    assert [p.read_text() for p in file.parent.iterdir()] == ["old"]


def test_content_is_durable_before_it_has_the_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def note(name: str) -> Callable:
        original = getattr(os, name)

        def noted(*arguments: object) -> object:
            events.append(name)
            return original(*arguments)

        return noted

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, note(name))
    write_atomically(file, "new")
    assert events == ["fsync", "replace", "fsync"]  # the file, its name, the folder


def test_the_temporary_file_is_in_the_same_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append(Path(a)), replace(a, b))[1])
    write_atomically(file, "new")
    assert seen[0].parent == file.parent and seen[0].name.startswith(TEMPORARY)


def test_two_writers_of_one_file_do_not_write_into_each_other(file: Path) -> None:
    """Threads have one process number, and so have the first processes of containers that share a folder."""
    with atomic_file(file) as slow:
        slow.write(b"slow, ")
        slow.flush()
        with atomic_file(file) as quick:
            quick.write(b"quick")
        assert file.read_bytes() == b"quick"
        slow.write(b"and whole")
    assert file.read_bytes() == b"slow, and whole"
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("letter", ["a", "é", "\N{GRINNING FACE}"])
def test_a_name_as_long_as_file_systems_take_is_written(tmp_path: Path, letter: str) -> None:
    path = tmp_path / (letter * ((255 - len(".html")) // len(letter.encode())) + ".html")
    write_atomically(path, "page")
    assert [p.name for p in tmp_path.iterdir()] == [path.name] and path.read_text() == "page"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = unfinished(path)
    left.with_name(left.name.replace(str(os.getpid()), str(gone.pid), 1)).write_text("part")
    sweep_abandoned(path)
    assert list(tmp_path.iterdir()) == [path]


def test_sweeping_removes_what_is_unfinished_and_nothing_else(file: Path) -> None:
    folder, kept = file.parent, file.parent / "kept"
    kept.mkdir()
    (kept / "a").write_text("mine")
    (folder / f"{TEMPORARY}1-file").write_text("part")
    (folder / f"{TEMPORARY}1-folder").mkdir()
    (folder / f"{TEMPORARY}1-folder" / "weights.safetensors").write_text("part")
    (folder / f"{TEMPORARY}1-link").symlink_to(kept, target_is_directory=True)
    sweep_temporaries(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["config.yaml", "kept"]
    assert (kept / "a").read_text() == "mine"
    sweep_temporaries(folder / "absent")


def test_only_what_no_process_works_on_any_more_is_abandoned(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = [f"{TEMPORARY}{gone.pid}-a[1].tsv"]
    kept = [
        f"{TEMPORARY}{os.getpid()}-a[1].tsv",
        f"{TEMPORARY}{gone.pid}-b.tsv",
        f"{TEMPORARY}mine-a[1].tsv",
        "a[1].tsv",
    ]
    for name in left + kept:
        (tmp_path / name).write_text("")
    (tmp_path / f"{TEMPORARY}{gone.pid}-0-a[1].tsv").mkdir()
    (tmp_path / f"{TEMPORARY}{gone.pid}-0-a[1].tsv" / "weights.safetensors").write_text("")
    sweep_abandoned(tmp_path / "a[1].tsv")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(kept)
