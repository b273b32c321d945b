"""Workers that a training starts itself: equal to one process, resumed bit for bit, and never left behind."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import checkpoints, events, outcome, with_model, with_settings, with_training

from backstory.config import (
    AlgorithmConfig,
    AuxiliarySoftmaxConfig,
    EmbeddingConfig,
    LSTMConfig,
    NTMConfig,
    RunConfig,
    TextConfig,
    to_dict,
)
from backstory.jobs.ranks import Ranks
from backstory.jobs.workers import hosted
from backstory.storage.checkpoint import read_checkpoint
from backstory.training import Stopped
from backstory.utils.errors import UserError

Train = Callable[..., Any]
DROPOUTS = ("input_dropout", "layer_dropout", "output_dropout", "weight_drop")
SCRIPT = """
import json, sys
import backstory as bs
from backstory.config import RunConfig, from_dict
bs.train(from_dict(RunConfig, json.load(open(sys.argv[1])), "test"), sys.argv[2], workers=3)
"""
"""A program of a user, without a guard around what it does."""


def children(pid: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def without_dropout(config: RunConfig) -> RunConfig:
    core = LSTMConfig(layers=2, hidden=9, **dict.fromkeys(DROPOUTS, 0.0))
    return with_model(config, embedding=EmbeddingConfig(size=7, dropout=0.0), core=core)


def long(config: RunConfig) -> RunConfig:
    return with_training(config, batch_size=6, segment=2, segment_deviation=0.0, epochs=1000)


@pytest.mark.full
def test_two_workers_make_the_updates_of_one(tiny_config: RunConfig, quietly: Train, tmp_path: Path) -> None:
    config = with_training(without_dropout(tiny_config), batch_size=4, clip=0.3, validation_batch_size=3)
    config = with_settings(config, {"model.embedding.initialisation": "ppmi"})
    nats = [quietly(config, tmp_path / str(n), workers=n).figures.valid_nats for n in (1, 2)]
    assert nats[1] == pytest.approx(nats[0], rel=1e-6)
    one, two = (read_checkpoint(checkpoints(tmp_path / name, "last")[0]) for name in "12")
    torch.testing.assert_close(two.tensors["weights"], one.tensors["weights"], rtol=0, atol=2e-6)
    assert two.documents["progress"]["ranks"] == json.loads((tmp_path / "2" / "run.json").read_text())["ranks"] == 2
    assert children(os.getpid()) == []


ANSWERS = TextConfig("copy", algorithm=AlgorithmConfig(bits=3, longest=4, documents=20, held_out=9))
VALIDATIONS = {
    "fewer rows than workers": (lambda config: config, 2),
    "unequal rows": (lambda config: config, 4),
    "a gate": (lambda config: with_model(config, buffer=AuxiliarySoftmaxConfig()), 2),
    "a memory that answers": (
        lambda config: dataclasses.replace(
            with_training(with_model(config, core=NTMConfig(layers=(8,), slots=6, width=4)), answer_loss_only=True),
            text=ANSWERS,
        ),
        5,
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("case", VALIDATIONS)
def test_workers_share_the_validation_text(case: str, tiny_config: RunConfig, quietly: Train, tmp_path: Path) -> None:
    changed, rows = VALIDATIONS[case]
    config = changed(without_dropout(tiny_config))
    # Nothing is learned, so validation figures differ only through the sharing.
    config = with_training(config, batch_size=3, validation_batch_size=rows, learning_rate=1e-30, epochs=1)
    for workers in (1, 3):
        quietly(config, tmp_path / str(workers), workers=workers)
    one, three = (events(tmp_path / name, "epoch")[-1] for name in "13")
    assert one.keys() == three.keys() and one["valid_nats"] > 0
    for name in {"valid_nats", "valid_perplexity", "policy", "answers"} & one.keys():
        assert close(three[name], one[name])
    assert ("policy" in one, "answers" in one) == (case == "a gate", case == "a memory that answers")


def close(mine: Any, reference: Any) -> bool:
    """Compare plain values, numbers to rounding."""
    if isinstance(reference, dict):
        return mine.keys() == reference.keys() and all(close(mine[name], reference[name]) for name in reference)
    if isinstance(reference, list):
        return len(mine) == len(reference) and all(map(close, mine, reference))
    return mine == (pytest.approx(reference, rel=1e-6) if isinstance(reference, float) else reference)


@pytest.mark.parametrize("world", range(1, 6))
def test_shares_are_disjoint_and_whole(world: int) -> None:
    for rows in range(12):
        shares = [list(range(rows)[Ranks(rank, world).share(rows)]) for rank in range(world)]
        assert [row for share in shares for row in share] == list(range(rows))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_rows_that_cannot_be_shared_are_refused(tiny_config: RunConfig, quietly: Train, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"2 ranks cannot share 3 rows equally; make training\.batch_size a multiple"):
        quietly(tiny_config, tmp_path / "run", workers=2)
    assert not (tmp_path / "run").exists()


@pytest.mark.full
@pytest.mark.parametrize(("workers", "accumulate", "steps"), [(2, 1, 20), (3, 2, 12)], ids=["plain", "accumulated"])
def test_a_stopped_run_resumes_with_its_workers(
    tiny_config: RunConfig,
    quietly: Train,
    stop_after: Callable[[int], None],
    tmp_path: Path,
    workers: int,
    accumulate: int,
    steps: int,
) -> None:
    config = with_training(tiny_config, batch_size=2 * workers, accumulate=accumulate, epochs=2)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    quietly(config, straight, workers=workers)
    stop_after(steps)  # in the second epoch
    with pytest.raises(Stopped):
        quietly(config, broken, workers=workers)
    with pytest.raises(UserError, match=rf"was trained by {workers} workers, not 1; go on with --workers {workers}"):
        quietly(config, broken, mode="resume", workers=1)
    quietly(config, broken, mode="resume")
    assert outcome(broken) == outcome(straight)


@pytest.mark.full
def test_a_killed_worker_is_one_line(tiny_config: RunConfig, quietly: Train, tmp_path: Path) -> None:
    def kill(step: object) -> None:
        if checkpoints(tmp_path / "run", "last"):
            os.kill(children(os.getpid())[0], signal.SIGKILL)

    class Killer:
        on_step = staticmethod(kill)

    line = "worker 1 was ended by SIGKILL, probably for lack of memory; go on with the same command and --resume"
    with pytest.raises(UserError, match=line):
        quietly(long(tiny_config), tmp_path / "run", workers=2, callbacks=[Killer()])
    assert children(os.getpid()) == []
    wait = checkpoints(tmp_path / "run", "last")
    assert wait and read_checkpoint(wait[0]).documents["progress"]["ranks"] == 2


PLUGIN = """
import os, signal
from backstory.readers import StaticReader
from backstory.utils.process import launched

predict = StaticReader.predict

def killed(self, tokens):
    if launched().rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return predict(self, tokens)

StaticReader.predict = killed
"""
"""Kills the second worker as it begins to read the validation text."""


@pytest.mark.full
def test_a_worker_killed_in_validation_is_one_line(
    tiny_config: RunConfig, quietly: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    monkeypatch.setenv("BACKSTORY_PLUGINS", str(tmp_path / "plugin.py"))
    with pytest.raises(
        UserError, match=r"^worker 1 was ended by SIGKILL, .*; go on with the same command and --resume$"
    ):
        quietly(with_training(tiny_config, batch_size=4), tmp_path / "run", workers=2)
    assert children(os.getpid()) == []


@pytest.mark.full
def test_workers_that_cannot_start_are_one_line(
    tiny_config: RunConfig, quietly: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BACKSTORY_PLUGINS", str(tmp_path / "absent.py"))
    refused = r"worker 1 ended with exit code 2: there is no Python file .*; give BACKSTORY_PLUGINS a .*; start again"
    with pytest.raises(UserError, match=refused):
        quietly(with_training(tiny_config, batch_size=4), tmp_path / "run", workers=2)


BEFORE_THE_GROUP = """
import os, signal, sys
import torch.distributed as dist
from backstory.jobs.ranks import HERE, joined
from backstory.jobs.worker import serve

def work(end):
    if end:
        store, _, _ = next(dist.rendezvous("env://"))
        store.set(HERE.format(1), "")
        os.kill(os.getpid(), signal.SIGKILL)
    with joined() as ranks:
        ranks.largest(2.0)

if __name__ == "__main__":
    sys.exit(serve(work))
"""
"""A worker that says it is ready, and is killed before it is connected with the first rank."""
TWICE = """
from backstory.jobs.ranks import joined
from backstory.jobs.workers import hosted

for end in (True, False):
    try:
        with hosted(2, 1, "early", {"end": end}, lambda: "try again") as meeting, joined(meeting) as ranks:
            print("together", ranks.largest(1.0))
    except Exception as error:
        print(error)
"""


@pytest.mark.full
def test_a_worker_killed_before_the_ranks_are_connected_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "early.py").write_text(BEFORE_THE_GROUP)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=100)
    killed, together = done.stdout.splitlines()
    assert killed == "worker 1 was ended by SIGKILL, probably for lack of memory; try again", done.stderr
    assert together == "together [2.0]", done.stderr


NEED = r"^2 workers need 28 open files, and the limit is 27; raise it \(ulimit -n\), or take 1 worker$"


def test_workers_that_could_not_open_their_files_are_not_started() -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (27, hard))
    try:
        with pytest.raises(UserError, match=NEED), hosted(2, 1, "absent", {}, lambda: ""):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_error_of_torch_before_the_workers_meet_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise torch.distributed.DistStoreError("Failed to init uv loop")

    monkeypatch.setattr("torch.distributed.TCPStore", fails)
    line = r"^2 workers cannot meet on this machine \(Failed to init uv loop\); .* or take 1 worker$"
    with pytest.raises(UserError, match=line), hosted(2, 1, "absent", {}, lambda: ""):
        pass


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_a_script_that_is_ended(number: int, tiny_config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "config.json").write_text(json.dumps(to_dict(long(tiny_config))))
    command = [sys.executable, "script.py", "config.json", "run"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as program:
        wait_until(lambda: checkpoints(tmp_path / "run", "last"))
        workers = children(program.pid)
        assert len(workers) == 2
        program.send_signal(number)
        _, said = program.communicate(timeout=60)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    assert not list(tmp_path.glob("run/checkpoints/.*"))
    if number == signal.SIGINT:
        assert "run is stopped and saved; go on with the same call and mode='resume'" in said
