"""`~` is the home folder also where the shell leaves it: after the `=` of a flag, in quotes, and in Python."""

import shlex
import shutil
from pathlib import Path

import pytest
from commands import SMALL, Command

import backstory as bs
from backstory.utils.errors import pasted


@pytest.fixture
def home(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, with a corpus in it, that is not the current folder."""
    folder = desk / "home"
    shutil.copytree(desk / "same", folder / "corpus")
    (folder / "corpus" / "test.txt").write_text("ann saw 3 jars of jam\n" * 20, encoding="utf-8")
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.mark.full
def test_every_file_that_a_command_writes(home: Path, desk: Path, command: Command):
    lines = (
        ["train", "demo", "--corpus=~/corpus", "--out=~/runs/one", *SMALL],
        ["evaluate", "~/runs/one", "--audit-places=1", "--out=~/read", "--per-token=~/tokens.tsv"],
        ["explain", "surprisal", "~/runs/one", "--text=~/corpus/test.txt", "--words=3", "--html=~/words.html"],
        ["compress", "~/corpus/test.txt", "--model=~/runs/one", "--out=~/code.bks"],
        ["report", "~/runs/one", "--out=~/page.html"],
    )
    for line in lines:
        outcome = command(*line)
        assert outcome.code == 0, outcome.err
    written = ("runs/one/result.json", "read/result.json", "tokens.tsv", "words.html", "code.bks", "page.html")
    assert [name for name in written if not (home / name).is_file()] == []
    assert not (desk / "~").exists()


@pytest.mark.full
def test_from_python(home: Path, desk: Path, tiny_run: Path):
    shutil.copytree(tiny_run, home / "run")
    bs.load("~/run")
    result = bs.evaluate("~/run", split="valid", audit_places=1, out="~/read")
    bs.report(["~/run"], "~/page.html")
    small = {flag[2:].partition("=")[0].replace("-", "_"): int(flag.partition("=")[2]) for flag in SMALL[:5]}
    trained = bs.train("demo", "~/new", corpus="~/corpus", overrides={**small, "training.device": "cpu"})
    assert trained is not None and trained.run == home / "new"
    assert result.figures.tokens > 0 and (home / "read" / "result.json").is_file() and (home / "page.html").is_file()
    assert not (desk / "~").exists()


def test_plugins_recipes_and_spaces_are_looked_up_there(home: Path, command: Command):
    assert str(home / "none.py") in command("train", "demo", "--plugin=~/none.py").mistake()
    assert f"cannot read {home / 'none.yaml'}" in command("recipe", "check", "~/none.yaml").mistake()


def test_a_run_takes_the_place_of_a_recipe(home: Path, desk: Path, tiny_run: Path, command: Command):
    shutil.copytree(tiny_run, home / "run")
    lines = (
        ["recipe", "show", "~/run"],
        ["recipe", "check", "~/run"],
        ["recipe", "copy", "~/run", "copy.yaml"],
        ["train", "~/run", "--resume"],
        ["train", "--resume", "~/run"],
        ["train", "--resume", "--out", "~/run"],
    )
    for line in lines:
        outcome = command(*line)
        assert outcome.code == 0, outcome.err
    result = bs.train("~/run", mode="resume")
    assert result is not None and result.run == home / "run"
    assert not (desk / "~").exists()


def test_a_folder_that_is_called_so_keeps_its_name(home: Path, desk: Path, tiny_run: Path, command: Command):
    shutil.copytree(tiny_run, desk / "~" / "run")
    named = pasted(Path("~/run"))
    assert shlex.split(named) == ["./~/run"]
    outcome = command("evaluate", *shlex.split(named), "--split=valid", "--audit-places=1")
    assert outcome.code == 0, outcome.err
    assert list((desk / "~" / "run").glob("evaluate-valid*"))
