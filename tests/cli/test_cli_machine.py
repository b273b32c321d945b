"""System errors and odd names: one line with the place and the remedy, and nothing left behind."""

import errno
import os
import py_compile
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import SMALL, Command, tree

from backstory.cli import main as cli
from backstory.storage import atomic
from backstory.utils import free_memory
from backstory.utils.errors import pasted, refused

BAD = os.fsdecode(b"caf\xe9")

WRITING = {
    "recipe copy": "recipe copy demo new.yaml",
    "report": "report run --out page.html",
    "explain": "explain surprisal run --words 5 --html page.html",
    "evaluate": "evaluate run good.txt --out figures",
    "per token": "evaluate run good.txt --per-token tokens.tsv --out figures",
    "examine": "examine run --experiment truncate --targets 5 --maximum-context 9 --out figures",
    "generate": "generate run --tokens 2 --save",
    "read": "read run --session kept",
}


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Simulate a full disk: fsync fails."""

    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return lambda: monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("name", ["recipe copy", "report", "generate"])
def test_a_full_disk_is_told_with_the_file_and_leaves_nothing(
    command: Command, run_copy: Path, full: Callable[[], None], name: str
) -> None:
    _told_on_a_full_disk(command, full, WRITING[name])


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in WRITING if name not in ("recipe copy", "report", "generate")])
def test_every_verb_tells_of_a_full_disk(
    command: Command, run_copy: Path, full: Callable[[], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("good.txt", encoding="utf-8") as text:
        monkeypatch.setattr("sys.stdin", text)
        _told_on_a_full_disk(command, full, WRITING[name])


def _told_on_a_full_disk(command: Command, full: Callable[[], None], line: str) -> None:
    before = tree(Path())
    full()
    ended = command(*shlex.split(line))
    last = ended.err.splitlines()[-1]
    assert ended.code == 2 and "Traceback" not in ended.err, ended.err
    assert last.startswith("backstory: cannot write to ") and "No space left on device; make room" in last, last
    named = last.removeprefix("backstory: cannot write to ").partition(":")[0]
    assert not Path(named).name.startswith(atomic.TEMPORARY)
    kept = {name: sha for name, sha in tree(Path()).items()}
    changed = {name for name in kept if kept[name] and before.get(name) != kept[name]}
    assert not changed, changed


def test_a_module_that_was_compiled_on_a_full_disk_is_named(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Python writes as much of the compiled form as there is room for, and then cannot read it."""
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "compiled"))
    monkeypatch.delitem(sys.modules, "backstory.cli.completion", raising=False)
    source = Path(cli.__file__).with_name("completion.py")
    compiled = Path(py_compile.compile(str(source), doraise=True))
    os.truncate(compiled, 100)
    assert command("completion", "bash").mistake() == (
        f"{compiled} is damaged, as a full disk or ulimit -f leaves it; remove it, and give the same command again"
    )
    compiled.unlink()
    assert command("completion", "bash").code == 0


def test_what_failed_goes_well_once_there_is_room(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", lambda d: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
        assert "new.yaml: No space left on device; make room" in command("recipe", "copy", "demo", "new.yaml").mistake()
    assert command("recipe", "copy", "demo", "new.yaml").code == 0
    assert "exists" in command("recipe", "copy", "demo", "new.yaml").mistake()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("can't start new thread"),
        ImportError("libtorch.so: failed to map segment from shared object"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        OSError(errno.EAGAIN, "Resource temporarily unavailable"),
        RuntimeError("Resource temporarily unavailable"),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_too_little_memory_is_one_line(command: Command, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(arguments: object) -> int:
        raise error

    monkeypatch.setattr(cli, "_run", fail)
    assert "there is not enough memory" in command("ls").mistake()


def test_other_errors_are_not_taken_for_lack_of_memory(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: object) -> int:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(cli, "_run", fail)
    with pytest.raises(RuntimeError, match="ours"):
        command("ls")


def test_limits_of_the_process_bound_the_memory_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text("MemAvailable: 8000000 kB\n")
    (tmp_path / "self" / "status").write_text("VmSize:\t 3000 kB\nVmData:\t 1000 kB\n")
    limits = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits[which], resource.RLIM_INFINITY))

    def left() -> int | None:
        return free_memory.available_memory(tmp_path, tmp_path / "none")

    monkeypatch.setattr(free_memory.sys, "platform", "linux")
    assert left() == 8_000_000 * 1024
    limits[resource.RLIMIT_AS] = 5000 * 1024
    assert left() == 2000 * 1024
    limits[resource.RLIMIT_DATA] = 1500 * 1024
    assert left() == 500 * 1024
    limits[resource.RLIMIT_DATA] = 0
    assert left() == 0


def test_errors_of_the_system_name_their_place() -> None:
    assert str(refused(PermissionError(13, "Permission denied", "a/b"))) == "a/b: Permission denied"
    assert str(refused(OSError("odd"))) == "odd"
    assert "x: Input/output error; check the disk" in str(refused(OSError(5, "Input/output error"), "x"))
    read_only = OSError(errno.EROFS, "Read-only file system", "x")
    assert "x: Read-only file system; choose another place, or check the disk" in str(refused(read_only))
    assert str(refused(read_only, otherwise="choose a file")) == "cannot write x: Read-only file system; choose a file"


def test_a_tokenizer_is_not_trained_for_a_folder_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK)
    assert cli.main(["data", "tokenizer", str(tmp_path / "absent"), "--out", str(tmp_path / "pieces.json")]) == 2
    assert capsys.readouterr().err == f"backstory: cannot write to {tmp_path}; choose another folder with --out\n"


# --- names ---


@pytest.mark.parametrize(
    "line",
    [
        ["train", "demo", "--corpus", "good.txt", "--out", f"{BAD}/run"],
        ["train", BAD],
        ["train", "demo", "--corpus", f"{BAD}.txt", "--out", "new"],
        ["recipe", "copy", "demo", f"{BAD}.yaml"],
        ["report", "run", "--out", f"{BAD}.html"],
        ["report", BAD],
        ["evaluate", "run", "good.txt", "--out", BAD],
        ["evaluate", BAD],
        ["sweep", "run", "demo", "--space", "space.yaml", "--out", BAD],
        ["reproduce", "base", "--out", BAD],
        ["export", "run", "--out", BAD],
        ["read", "run", "--session", BAD],
        ["demo", "--out", BAD],
    ],
)
def test_a_name_that_is_not_utf8_is_refused(command: Command, desk: Path, line: list[str]) -> None:
    shutil.copy("good.txt", f"{BAD}.txt")
    before = tree(desk)
    assert r"the name '" in (told := command(*line).mistake()) and "is not UTF-8; rename it" in told
    assert tree(desk) == before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names are UTF-8 in every locale")
def test_a_name_that_the_locale_does_not_read_is_not_blamed(desk: Path) -> None:
    environment = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-m", "backstory", "report", "café".encode()], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "as Python takes names for ASCII here; set PYTHONUTF8=1, and give the same command again" in done.stderr


def test_a_folder_below_one_that_is_not_utf8_is_refused_too(
    command: Command, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (desk / BAD).mkdir()
    monkeypatch.chdir(desk / BAD)
    told = command("train", "demo", "--corpus", str(desk / "good.txt"), "--out", "new", *SMALL).mistake()
    assert "is not UTF-8" in told and not list((desk / BAD).iterdir())


@pytest.mark.parametrize("name", ["-dash", "two words", "a'b", "$HOME", "plain"])
def test_a_path_in_a_printed_command_is_taken_back_by_a_shell(name: str) -> None:
    (back,) = shlex.split(pasted(Path("./" + name)))
    assert Path(back) == Path(name) and not back.startswith("-")


@pytest.mark.full
def test_hints_of_a_run_with_a_dash_can_be_pasted(command: Command, run_copy: Path) -> None:
    run_copy.rename("-dash")
    told = command("train", "./-dash", "--resume").out
    hints = told.split("`")[1::2]
    assert [shlex.split(hint)[:3] for hint in hints] == [
        ["backstory", "evaluate", "./-dash"],
        ["backstory", "report", "./-dash"],
    ]
    for hint in hints:
        assert command(*shlex.split(hint)[1:]).code == 0
