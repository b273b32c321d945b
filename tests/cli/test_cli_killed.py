"""The remains of a killed command are removed by the next one that writes the same file or folder."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from runs import sentences
from tiers import fast_then_full

from backstory.cli.main import main
from backstory.storage.atomic import TEMPORARY

TUNE = "reader tune run --reader cache --grid theta=0.5,1"
WRITERS = {
    TUNE: "run/readers/cache.json",
    "reader statistics run": "run/readers/statistics",
    "reader train run --split train --training.steps 1 --training.every 1 --training.stream 100": (
        "run/readers/gates-three-level"
    ),
    "explain surprisal run --words 3 --html page.html": "page.html",
    "explain surprisal run --words 3": "run/explain-surprisal-words3/result.json",
    "examine run --targets 3 --maximum-context 3": "run/examine-truncate-valid/losses.npz",
    "report run --out page.html": "page.html",
    "export run": "run/export",
    "compress text.txt --model run": "text.txt.bks",
}


@pytest.mark.parametrize(("line", "written"), fast_then_full(WRITERS.items(), [(TUNE, WRITERS[TUNE])]))
def test_the_remains_of_a_killed_command_go(
    line: str, written: str, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    (tmp_path / "text.txt").write_text(sentences(2, 3))
    monkeypatch.chdir(tmp_path)
    if "reader train" in line:
        assert main(["reader", "statistics", "run"]) == 0
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    path = Path(written)
    left = path.with_name(f"{TEMPORARY}{gone.pid}-0-{path.name}")
    (left if path.suffix == "" else left.parent).mkdir(parents=True, exist_ok=True)
    (left / "part" if path.suffix == "" else left).write_text("part")
    assert main(line.split()) == 0
    assert path.exists() and not list(Path().rglob(f"{TEMPORARY}*"))
