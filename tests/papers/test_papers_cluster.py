"""`backstory reproduce --cluster`: the workers of a real cluster take the runs, and take over from one that is lost."""

import os
import signal
from pathlib import Path

import pytest
from clusters import Cluster, cluster
from small_suites import finish, reproduce, start, suite, write
from test_papers_reproduce import (
    children,
    copied_inputs,
    figures,
    slow,
    steps,
    wait_until_no_child_is_left,
    wait_until_some_run_has,
)

from backstory.cli.main import main


@pytest.fixture
def two_workers(tmp_path_factory: pytest.TempPathFactory):
    with cluster(tmp_path_factory.mktemp("cluster"), 2) as made:
        yield made


@pytest.mark.full
def test_a_lost_worker_is_replaced_and_the_figures_are_those_of_this_machine(
    two_workers: Cluster, desk: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    write(slow())
    running = start("suite.yaml", "--cluster", two_workers.address)
    wait_until_some_run_has(desk, 5, running)
    two_workers.workers[0].kill()
    code, _, err = finish(running)
    assert code == 0, err
    for seen in steps(desk).values():
        assert seen == sorted(set(seen)), "a step is missing or doubled"
    straight = copied_inputs(desk, tmp_path_factory.mktemp("straight"))
    os.chdir(straight)
    code, _, err = reproduce("suite.yaml", "--processes", "2")
    assert code == 0, err
    assert figures(desk) == figures(straight)
    assert steps(desk) == steps(straight)


@pytest.mark.full
def test_commands_end_with_whoever_started_them(two_workers: Cluster, desk: Path) -> None:
    write(slow())
    running = start("suite.yaml", "--cluster", two_workers.address)
    wait_until_some_run_has(desk, 5, running)
    os.killpg(running.pid, signal.SIGKILL)
    finish(running, timeout=60)
    wait_until_no_child_is_left()
    before = steps(desk)
    code, _, err = finish(start("suite.yaml", "--cluster", two_workers.address))
    assert code == 0, err
    for name, seen in before.items():
        assert steps(desk)[name][: len(seen)] == seen, "a resumed run repeats nothing"


@pytest.mark.full
def test_a_worker_that_does_not_see_the_folder(
    desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder is moved away below a worker, as one that it has not mounted."""
    write(suite())
    with cluster(tmp_path, 1) as made:
        from backstory.jobs import launchers

        monkeypatch.setattr(launchers.os, "getcwd", lambda: "/nowhere/else")
        assert main(["reproduce", "suite.yaml", "--cluster", made.address]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("backstory: the worker tcp://127.0.0.1:") and "does not see /nowhere/else" in said
    assert children() == []


def test_no_scheduler_is_there(desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from backstory.jobs import launchers

    write(suite())
    monkeypatch.setattr(launchers, "CONNECT_SECONDS", 0.2)
    for address in ("tcp://127.0.0.1:1", "nonsense://x:1"):
        assert main(["reproduce", "suite.yaml", "--cluster", address]) == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.startswith(f"backstory: no Dask scheduler answers at {address}")
        assert "`dask scheduler`" in said
    assert not Path("runs").exists()
