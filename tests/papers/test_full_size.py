"""benchmarks/full_size.py: a suite in the minutes that one has, and weights that travel in parts."""

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import scripts
import torch
from small_suites import suite, write

from backstory.cli.main import main
from backstory.runs import run as runs


@pytest.fixture
def full_size(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(scripts.ROOT / "benchmarks"))
    return scripts.load("benchmarks/full_size.py")


def test_a_run_travels_in_parts(
    full_size: ModuleType, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_size, "PART", 2000)
    parts = full_size.pack(tiny_run, tmp_path / "parts")
    assert len(parts) > 2 and all(part.stat().st_size <= 2000 for part in parts)
    arrived = full_size.unpack(tmp_path / "parts", tmp_path / "arrived")
    original, carried = (runs.weights(runs.load_run(folder).model) for folder in (tiny_run, arrived))
    for name, tensor in original.items():
        assert torch.equal(carried[name], tensor.bfloat16().float())
    assert (arrived / "result.json").read_bytes() == (tiny_run / "result.json").read_bytes()
    assert main(["evaluate", str(arrived), "--out", str(tmp_path / "read")]) == 0


def test_a_part_that_is_missing_is_noticed(
    full_size: ModuleType, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_size, "PART", 4000)
    full_size.pack(tiny_run, tmp_path)[1].unlink()
    with pytest.raises(SystemExit, match="copy all of them again"):
        full_size.unpack(tmp_path, tmp_path / "arrived")
    assert not (tmp_path / "arrived").exists()


@pytest.mark.full
def test_minutes_are_spent_on_a_suite(full_size: ModuleType, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(suite())
    arguments = ["suite.yaml", "--minutes", "0.8", "--out", "spent", "--scale", "small", "--only", "wide"]
    throughput = ["--recipe", "tiny.yaml", "--side-by-side", "1", "2", "--steps", "60", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["full_size.py", "spend", *arguments, *throughput])
    full_size.main()
    rows = json.loads((desk / "spent" / "benchmark-side-by-side.json").read_text())["rows"]
    assert [row["runs"] for row in rows] == [1, 2] and all(
        row["tokens_per_second"] >= row["of_one"] > 0 for row in rows
    )
    assert (desk / "spent" / "suite" / "result.json").is_file()
    shutil.rmtree(desk / "spent" / "suite")
    arrived = full_size.unpack(desk / "spent" / "wide-seed1", desk / "arrived")
    assert main(["evaluate", str(arrived), "--out", "read"]) == 0
