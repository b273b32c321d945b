"""The demo for real: a few minutes on two idle cores."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from backstory.cli import demo
from backstory.cli.main import main
from backstory.config import RunConfig, to_yaml
from backstory.utils.errors import FolderConflict, UserError
from backstory.utils.process import Stopped


def figures(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())["figures"]


def gain(examined: dict[str, Any], short: int, long: int) -> float:
    """Nats that a longer context gains on a shorter one."""
    nats = {c["context"]: c["nats"] for c in examined["conditions"]}
    return nats[short] - nats[long]


def test_a_demo_of_other_settings_is_refused_with_flags_that_it_has(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny_run, tmp_path / "demo-pointer")
    assert main(["demo", "--resume", "--out", str(tmp_path / "demo")]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "demo-pointer was trained with other settings (" in message
    assert message.endswith("; use --overwrite to start again, or another --out")


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Stopped("it is saved; go on with the same command", 2)])
@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (True, "interrupted; `backstory demo --out mine --resume` goes on"),
        (False, "interrupted before anything was saved; start again"),
    ],
)
def test_an_interrupted_demo_says_how_to_go_on(
    stop: BaseException,
    saved: bool,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run_training(config: RunConfig, out: Path, *_: object) -> None:
        if saved:
            out.mkdir()
            (out / "config.yaml").write_text(to_yaml(config))
        raise stop

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo.train, "run_training", run_training)
    assert main(["demo", "--out", "mine"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == f"backstory: {message}"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            FolderConflict("a holds another; it would be lost", "choose another --out, or replace it with --again"),
            "a holds another; it would be lost; use --overwrite to start again, or another --out",
        ),
        (UserError("the disk is full; make room"), "the disk is full; make room"),
    ],
)
def test_advice_names_flags_of_the_demo(error: UserError, told: str) -> None:
    with pytest.raises(UserError, match=f"^{told}$"), demo._flags_of_its_own():
        raise error


def test_a_demo_in_the_root_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []

    def trained(console: object, mode: str, *paths: Path) -> None:
        folders.extend(paths)
        raise UserError("/ is not empty")

    monkeypatch.setattr(demo, "_train", trained)
    assert main(["demo", "--out", "/"]) == 2
    assert folders == [Path("/"), Path("/-pointer")]


def test_the_commands_after_the_demo_fit_a_usual_terminal() -> None:
    lines = [f"  {command.format(out='runs/demo'):<51}  {purpose}" for command, purpose in demo.NEXT]
    assert {len(line.rpartition("  ")[0]) for line in lines} == {53}, "the purposes are below each other"
    assert max(map(len, lines)) <= 80


@pytest.mark.full
def test_demo_in_a_process_of_its_own(tmp_path: Path) -> None:
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "backstory", "demo"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "demo"
    lstm, cache, pointer = (
        [figures(folder / f"{verb}{reader}") for verb in ("evaluate-test", "examine-truncate-valid")]
        for folder, reader in ((run, ""), (run, "-cache"), (run.with_name("demo-pointer"), ""))
    )
    for read, examined in (lstm, cache, pointer):
        assert read["audit"]["passed"]
        assert examined["conditions"][0]["low"] > 0  # five tokens of context are too few, beyond doubt
    assert lstm[0]["perplexity"] < 95
    # Both memories gain over the same training without them, mostly on words that an LSTM has forgotten.
    for read, examined in (cache, pointer):
        assert read["perplexity"] < lstm[0]["perplexity"] - 5
        assert gain(examined, 20, 500) > gain(lstm[1], 20, 500)
    assert gain(cache[1], 100, 500) > 0.02
    sample = json.loads((run / "sample" / "result.json").read_text())["figures"]
    assert sample["prompt"] + sample["text"] in done.stdout
    page = (run / "report.html").read_text()
    assert all(part in page for part in ("<svg", "demo, cache", "demo-pointer", "Gate", "Sample text", "Word by word"))
    print(f"demo: {time.monotonic() - began:.0f} s")
