"""The comparison of learning curves trains again what has changed since."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import scripts


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(scripts.ROOT / "benchmarks"))
    module = scripts.load("benchmarks/curves.py")
    monkeypatch.delitem(sys.modules, "figures", raising=False)
    return module


def test_edited_code_and_other_arguments_are_trained_again(
    curves: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, runs, trained = tmp_path / "checkout" / "src" / "backstory" / "a.py", tmp_path / "runs", []
    code.parent.mkdir(parents=True)
    code.write_text("one")
    runs.mkdir()

    def training(command: list[str], **_: Any) -> None:
        folder = Path(command[command.index("--out") + 1])
        folder.mkdir()
        (folder / "metrics.jsonl").write_text('{"event": "steps", "nats": 3.0}\n')
        trained.append(folder)

    monkeypatch.setattr(curves.subprocess, "run", training)
    monkeypatch.setattr(curves, "commit", lambda checkout: "abc+changes")

    def count(*arguments: str) -> int:
        assert curves.curve(tmp_path / "checkout", 1, runs, list(arguments)) == (3.0, [])
        return len(trained)

    assert [count("demo"), count("demo")] == [1, 1]
    code.write_text("two")
    assert [count("demo"), count("demo"), count("demo", "--training.epochs", "2")] == [2, 2, 3]
