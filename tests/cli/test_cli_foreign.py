"""Files from elsewhere at the command line: files that are not texts, links out of a run, endless folders."""

import io
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from commands import Command, Outcome, process

from backstory.config import TextConfig
from backstory.data import prepare
from backstory.data.corpora.catalogue import find
from backstory.storage.atomic import within
from backstory.utils.errors import UserError

needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


def linked(path: Path) -> Path:
    """Move a file or folder out of the run, and put a link in its place."""
    there = path.parents[1] / f"elsewhere-{path.name}"
    shutil.move(path, there)
    path.symlink_to(there.absolute())
    return there


def test_a_run_may_be_a_link_and_what_it_holds_may_not_lead_out(command: Command, run_copy: Path) -> None:
    Path("linked").symlink_to(run_copy)
    assert command("evaluate", "linked").code == 0
    there = linked(Path("run/evaluate-test"))
    before = (there / "result.json").read_bytes()
    assert "run/evaluate-test is not followed: a link leads out of run" in command("evaluate", "run").mistake()
    assert (there / "result.json").read_bytes() == before


def reported(command: Command) -> Outcome:
    """Make a report on the run, with its warnings on standard error as at a terminal."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        return command("report", "run", "--out", "page.html")


@pytest.mark.full
def test_a_report_shows_no_file_that_settings_are_a_link_to(command: Command, run_copy: Path) -> None:
    Path("secret").write_text("a: secret\n")
    (run_copy / "config.yaml").unlink()
    (run_copy / "config.yaml").symlink_to("../secret")
    shown = reported(command)
    assert shown.code == 0 and "not shown: cannot read run/config.yaml: a link leads out of run" in shown.err
    assert "secret" not in Path("page.html").read_text()


def test_a_report_shows_no_settings_that_are_none(command: Command, run_copy: Path) -> None:
    (run_copy / "config.yaml").write_text("the words of *xyzzy: [\n")
    shown = reported(command)
    assert shown.code == 0 and "not shown: run/config.yaml is not valid YAML" in shown.err
    page = Path("page.html").read_text()
    assert "xyzzy" not in page and "run/config.yaml is not valid YAML" in page


def test_overwriting_removes_nothing_through_a_link(command: Command, run_copy: Path) -> None:
    there = Path("mine")
    there.mkdir()
    (there / "result.json").write_text("{}")
    (run_copy / "of-somebody").symlink_to("../mine")
    (run_copy / "evaluate-test").symlink_to("../mine")
    assert command("train", "run", "--overwrite", "--out", "run").code == 0
    assert (there / "result.json").read_text() == "{}"


@needs_pipes
@pytest.mark.parametrize("text", ["/dev/zero", "/dev/null", "/proc/self/status"])
def test_a_device_is_no_text(command: Command, run_copy: Path, text: str) -> None:
    assert f"cannot read {text}: it is not a regular file" in command("evaluate", "run", text).mistake()


@needs_pipes
def test_a_pipe_is_waited_for_and_says_so(command: Command, run_copy: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"ann saw the tea and bob took more ink\n" * 5)
    os.close(writing)
    told = command("evaluate", "run", f"/dev/fd/{reading}")
    os.close(reading)
    assert told.code == 0, told.err
    assert f"/dev/fd/{reading} is a pipe; waiting until something is written into it" in told.err


@pytest.mark.parametrize(
    "arguments",
    [("evaluate", "run", "-"), ("generate", "run", "--prompt", "-"), ("read", "run"),
     ("explain", "surprisal", "run", "--text", "-")],
)  # fmt: skip
def test_standard_input_that_is_closed(
    command: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed; give it a text" in command(*arguments).mistake()


def test_standard_input_that_is_a_device(command: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/zero") as zero:
        monkeypatch.setattr(sys, "stdin", zero)
        assert "standard input is a device" in command("generate", "run", "--prompt", "-").mistake()
    with open(os.devnull) as null:
        monkeypatch.setattr(sys, "stdin", null)
        assert command("generate", "run", "--prompt", "-", "--tokens", "2").code == 0


def test_a_prompt_without_an_end(command: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Typed(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            buffer[:] = b"y" * len(buffer)
            return len(buffer)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Typed())))
    assert "the prompt is longer than" in command("generate", "run", "--prompt", "-").mistake()


@pytest.mark.full
def test_a_pipe_that_nobody_writes_to_is_told_of(desk: Path, run_copy: Path) -> None:
    os.mkfifo("pipe")
    with process("evaluate", "run", "pipe") as waiting:
        assert waiting.stderr is not None
        try:
            said = [waiting.stderr.readline() for _ in range(2)]
        finally:
            waiting.kill()
    assert said[0] == "backstory: reading pipe with run\n"
    assert "pipe is a pipe; waiting" in said[1]


def test_a_download_goes_through_no_link(command: Command, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("data").mkdir()
    Path("data/ptb").symlink_to("../other")
    said = command("data", "prepare", "ptb", "--data-dir", "data").mistake()
    assert "data/ptb is not followed: a link leads out of data" in said
    assert [path.name for path in Path("other").iterdir()] == ["notes.txt"]


# --- corpora ---


@pytest.mark.full
def test_folders_a_thousand_deep_are_read(tmp_path: Path) -> None:
    here = os.getcwd()
    try:
        os.chdir(tmp_path)
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
        Path("a.txt").write_text("one two three\n" * 50)
    finally:
        os.chdir(here)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "round").symlink_to("round")
    assert [len(sources) for sources in find(str(tmp_path)).sources.values()] == [1, 1, 1]
    subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)  # deeper than `rmtree` goes


def test_files_of_any_name_are_read(tmp_path: Path) -> None:
    for name in ("a\nb.txt", "c\x1b[2J.txt", "e\udcff.txt"):
        (tmp_path / name).write_text("one two three\n" * 50)
    assert len(prepare(TextConfig(corpus=str(tmp_path))).splits["train"].ids) > 50


def test_a_part_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    usual = os.scandir

    def scandir(path: str) -> object:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return usual(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match=r"cannot read .*closed: Permission denied"):
        find(str(tmp_path))


def test_links_in_a_circle_are_told(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(UserError, match="a is not followed"):
        within(tmp_path, "a")
    assert within(tmp_path, "b", "c") == tmp_path / "b" / "c"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("evaluate run --plugin round.py", "there is no Python file 'round.py'"),
        ("referee round.py:make --text good.txt", "there is no Python file 'round.py'"),
        ("train demo --corpus ptb --data-dir round.py --out new", "the data folder round.py lacks ptb/ptb.train.txt"),
        ("train run --overwrite --init-from run --out round.py", "cannot write to round.py"),
        ("explain surprisal run --against round.py", "'round.py' is neither a reader nor a run folder"),
        ("explain reading run --against round.py", "'round.py' is neither a reader nor a run folder"),
        ("reproduce recall --out round.py", "round.py/result.json is in the way"),
    ],
)
def test_a_link_to_itself_is_nothing_anywhere(line: str, says: str, command: Command, run_copy: Path) -> None:
    Path("round.py").symlink_to("round.py")
    said = command(*line.split()).err.splitlines()
    assert says in said[-1] and len(said) <= 2


def test_a_folder_that_may_not_be_entered_hides_no_run_beside_it(
    command: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("closed").mkdir()
    usual = os.stat

    def stat(path: object, **options: bool) -> os.stat_result:
        if "closed" in Path(str(path)).parent.parts:
            raise PermissionError(13, "Permission denied", path)
        return usual(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat)
    assert command("ls", "runs", ".").out.splitlines()[1].startswith("run ")


def test_a_link_to_itself_hides_no_run_beside_it(command: Command, run_copy: Path) -> None:
    Path("round").symlink_to("round")
    assert command("ls", "runs", ".").out.splitlines()[1].startswith("run ")
