"""Examinations on the command line: of a user's own text, and by how many processes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from commands import Command, piped

import backstory as bs
from backstory.cli import examine
from backstory.cli.command_line import parse
from backstory.utils.errors import UserError


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine of eight cores with memory for all of them, and nothing in the environment."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(examine, "cpu_cores", lambda: 8)
    monkeypatch.setattr(examine, "available_memory", lambda: 100 << 30)
    monkeypatch.setattr(examine, "GRAPHICS", ())
    return monkeypatch


def test_a_text_of_ones_own_is_examined(
    tiny_run: Path, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "ann took the tea and bob saw more oil\n" * 20
    (tmp_path / "mine.txt").write_text(text)
    flags = ("examine", str(tiny_run), "--targets", "30", "--maximum-context", "20", "--json")
    done = command(*flags, "--text", "mine.txt", "--out", "a")
    assert done.code == 0, done.err
    read = json.loads(done.out)["figures"]
    shown = command(*flags[:-1], "--text", "mine.txt", "--out", "a").out
    assert f"{tiny_run.name}, mine.txt, 30 targets; with " in shown and "text split" not in shown
    piped(monkeypatch, text.encode())
    assert json.loads(command(*flags, "--text", "-", "--out", "b").out)["figures"] == read
    again = bs.examine(tiny_run, text=text, targets=30, maximum_context=20, out=tmp_path / "c")
    assert again.to_dict()["figures"] == read and read["split"] == "text"


def count(run: Any, *flags: str) -> int:
    return examine.worker_count(parse(examine.ExamineArguments, [str(run), *flags], "examine"))


def test_a_run_takes_every_core(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert count(tmp_path) == count(tmp_path, "--device", "cpu") == 8
    assert count(tmp_path, "--workers", "3") == 3
    os.mkfifo(tmp_path / "pipe")  # its bytes are read once
    assert count(tmp_path, "--text", str(tmp_path / "pipe")) == count(tmp_path, "--text", "-") == 1
    machine.setattr(examine, "available_memory", lambda: None)
    assert count(tmp_path) == 8


def test_processes_are_no_more_than_fit_into_the_memory(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine.setattr(examine, "available_memory", lambda: 5 << 30)
    assert count(tmp_path) == 3  # of a gibibyte and a half each
    assert count(tmp_path, "--memory", "0.5") == 5
    assert count(tmp_path, "--memory", "100") == 1


def test_one_process_examines_models_from_elsewhere_and_on_gpus(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert count("hf:gpt2") == 1
    assert count(tmp_path, "--device", "cuda") == 1
    (tmp_path / "gpu").touch()
    machine.setattr(examine, "GRAPHICS", (str(tmp_path / "gpu"),))
    assert count(tmp_path) == 1
    assert count(tmp_path, "--device", "cpu") == 8
    assert count(tmp_path, "--device", "cpu", "--text", "-") == 1
    machine.setattr(examine.sys, "platform", "darwin")
    assert count(tmp_path, "--device", "cpu") == 1 and count(tmp_path, "--workers", "2") == 2


def test_the_environment_comes_first(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine.setenv("OMP_NUM_THREADS", "4")
    assert count(tmp_path) == 1
    assert count(tmp_path, "--workers", "2") == 2
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        machine.setenv(name, value)
    assert count(tmp_path) == count(tmp_path, "--workers", "2") == 2
    with pytest.raises(UserError, match="torchrun has started 2 ranks; leave --workers out"):
        count(tmp_path, "--workers", "3")
