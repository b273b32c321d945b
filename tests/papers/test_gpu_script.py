"""benchmarks/gpu.py: steps that fail or hang leave their logs, and the steps after them are run."""

import os
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import scripts

REPRODUCES = """#!/bin/sh
while [ "$1" != --out ]; do shift; done
out=$2
mkdir -p $out/runs/a/checkpoints $out/runs/b
touch $out/runs/a/checkpoints/weights $out/runs/a/result.json $out/runs/b/result.json
echo "a: done, validation perplexity 80.0"
trap 'echo "$CUDA_MPS_CLIENT_PRIORITY" > $out/saved; echo "b: stopped"; exit' TERM
sleep 60 & wait
"""
"""In place of Python: reproduces a suite with a finished run `a`, until it is stopped during `b`, which it saves."""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = scripts.load("benchmarks/gpu.py")
    monkeypatch.setattr(module, "missing", lambda environment: [])
    return module


def start(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--minutes", "1", "--out", str(out), *options])
    return gpu.main()


def programs(gpu: ModuleType, *sources: str) -> list:
    return [gpu.Step(f"step{n}", 20.0, (sys.executable, "-c", source)) for n, source in enumerate(sources)]


def test_every_step_leaves_its_log(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fails = "print('about to fail'); raise SystemExit(3)"
    hangs = "import time; print('hangs', flush=True); time.sleep(60)"
    writes = "open(r'OUT/figures.json', 'w').write('{}')"
    steps = programs(gpu, fails, hangs, writes)
    steps[1] = gpu.Step("step1", 1.0, steps[1].command)
    steps.append(gpu.Step("absent", 20, ("no-such-program",)))
    monkeypatch.setattr(gpu, "LEAST", 0.1)
    monkeypatch.setattr(gpu, "steps", lambda dry, data_dir: steps)
    assert start(gpu, monkeypatch, tmp_path) == 0
    lines = (tmp_path / "summary.txt").read_text().splitlines()
    assert ["exit code 3" in lines[0], "stopped at its limit" in lines[1], "exit code 0" in lines[2]] == [True] * 3
    assert "exit code 127" in lines[3] and "no-such-program" in lines[3]
    with tarfile.open(tmp_path / "gpu.tar.gz") as archive:
        names = set(archive.getnames())
        assert {"gpu/step0.txt", "gpu/step1.txt", "gpu/figures.json", "gpu/summary.txt"} <= names
        log = archive.extractfile("gpu/step1.txt")
        assert log is not None and log.read() == b"hangs\n"


def test_tests_that_cannot_be_collected_are_run_once_more(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps = [gpu.Step("tests", 20, (sys.executable, "-c", "raise SystemExit(2)"))]
    monkeypatch.setattr(gpu, "steps", lambda dry, data_dir: steps)
    monkeypatch.setattr(gpu, "tests", lambda *options: (sys.executable, "-c", f"print({options!r})"))
    assert start(gpu, monkeypatch, tmp_path) == 0
    assert "'-W', 'default'" in (tmp_path / "summary.txt").read_text().splitlines()[1]


def test_steps_side_by_side_share_the_gpu_through_a_server_that_ends(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = tmp_path / gpu.MPS_SERVER
    server.write_text(f'#!/bin/sh\n[ "$1" = -d ] && exit\necho "$(cat) $CUDA_MPS_PIPE_DIRECTORY" > {tmp_path}/ended\n')
    server.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    prints = "import os; print(os.environ.get('CUDA_MPS_PIPE_DIRECTORY'))"
    alone, shares = programs(gpu, prints, prints)
    monkeypatch.setattr(gpu, "steps", lambda dry, data_dir: [alone, replace(shares, shares=True)])
    assert start(gpu, monkeypatch, tmp_path / "out") == 0
    first, second = (tmp_path / "out" / "summary.txt").read_text().splitlines()
    folder = (tmp_path / "ended").read_text().removeprefix("quit ").strip()
    assert first.endswith("None")
    assert folder and second.endswith(folder)


def test_suites_stopped_at_their_limit_are_saved_and_kept_without_weights(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "python"
    program.write_text(REPRODUCES)
    program.chmod(0o755)
    monkeypatch.setattr(gpu.sys, "executable", str(program))
    monkeypatch.setattr(gpu, "LEAST", 0.1)
    step = replace(gpu.suites(tmp_path), seconds=2.0)
    monkeypatch.setattr(gpu, "steps", lambda dry, data_dir: [step])
    assert start(gpu, monkeypatch, tmp_path / "out") == 0
    assert "stopped at its limit" in (tmp_path / "out" / "summary.txt").read_text()
    with tarfile.open(tmp_path / "out" / "gpu.tar.gz") as packed:
        suites = packed.extractfile("gpu/suites.tar.gz")
        with tarfile.open(fileobj=suites) as archive:
            names = set(archive.getnames())
            priorities = [archive.extractfile(f"suites/{name}/saved").read() for name in gpu.SUITES]
    assert {f"suites/{name}.txt" for name in gpu.SUITES} <= names and not any("checkpoints" in n for n in names)
    assert {f"suites/{name}/runs/a/result.json" for name in gpu.SUITES} <= names
    assert not any("/runs/b" in n for n in names)
    assert priorities == [b"0\n", b"1\n", b"1\n"]


def test_what_the_machine_lacks_is_said_before_time_is_spent(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "missing", lambda environment: ["tyro"])
    assert start(gpu, monkeypatch, tmp_path) == 2
    assert capsys.readouterr().out == "this machine lacks tyro: bring them as wheels with --wheels\n"
    assert not (tmp_path / "summary.txt").exists()


def test_its_steps_name_what_is_there(gpu: ModuleType, tmp_path: Path) -> None:
    for step in [*gpu.steps(False, tmp_path), *gpu.steps(True, None)]:
        for part in step.command:
            if part.startswith(("benchmarks/", "tests/")):
                assert (scripts.ROOT / part.partition("::")[0]).is_file()
    assert len([part for part in gpu.tests() if part.endswith("_cuda.py")]) == 3
