"""A current folder with good and bad files, and the command line to call from it."""

import shutil
from pathlib import Path

import pytest
from commands import Command, Outcome

from backstory.cli.main import main

LINES = "".join(f"ann saw {n} jars of jam and bob took {n % 3} more\n" for n in range(90))

FILES: dict[str, str | bytes] = {
    "good.txt": LINES,
    "there.tsv": "somebody's figures\n",
    "short.txt": "one two three four five six\n",
    **{f"same/{split}.txt": LINES for split in ("train", "valid", "test")},
    "empty.txt": "",
    "blank.txt": " \n\n \n",
    "binary.bin": bytes(range(256)) * 20,
    "nul.txt": LINES + "a\0b" + LINES,
    "latin.txt": b"ann\n" + "café\n".encode("latin-1") + LINES.encode(),
    "file": "not a folder\n",
    "other/notes.txt": "somebody's notes\n",
    "stopped/config.yaml": "seed: 1\n",
    "elsewhere/config.json": '{"model_type": "gpt2"}\n',
    "mine.yaml": "seed: 3\n",
    "broken.yaml": "seed: 1\ntraining: {epochs: [1\n",
    "unknown.yaml": "training: {epoch: 3}\n",
    "float.yaml": "training: {epochs: 1.5}\n",
    "text.yaml": "training: {partial_shuffle: 'yes'}\n",
    "nan.yaml": "training: {learning_rate: .nan}\n",
    "list.yaml": "- 1\n",
    "space.yaml": "settings: {training.epochs: {range: [0, 5]}}\n",
    "latin.yaml": "# café\n".encode("latin-1"),
}


def lay_out(folder: Path) -> Path:
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    (folder / "hollow").mkdir()
    return folder


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with files in it."""
    monkeypatch.chdir(lay_out(tmp_path))
    return tmp_path


@pytest.fixture(scope="session")
def untouched_desk(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A desk with a finished run that all tests share, so that they write nothing there."""
    folder = lay_out(tmp_path_factory.mktemp("desk"))
    shutil.copytree(tiny_run, folder / "run")
    return folder


@pytest.fixture
def run_copy(desk: Path, tiny_run: Path) -> Path:
    """A finished run on the desk, called `run`."""
    return Path(shutil.copytree(tiny_run, desk / "run")).relative_to(desk)


@pytest.fixture
def command(desk: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Call the command line from the desk."""

    return lambda *arguments: called(capsys, *arguments)


@pytest.fixture
def command_at_untouched_desk(
    untouched_desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Call the command line and check that it writes nothing."""
    monkeypatch.chdir(untouched_desk)
    return lambda *arguments: called(capsys, *arguments)


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> Outcome:
    capsys.readouterr()
    code = main([str(a) for a in arguments])
    return Outcome(code, *capsys.readouterr())
