"""Ranks started by a real `torchrun`: the updates of one process, resumed bit for bit, and refused where they do not fit."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from runs import checkpoints, events, outcome, with_model, with_training

from backstory.config import EmbeddingConfig, LSTMConfig, RecallConfig, RunConfig, TextConfig, to_yaml
from backstory.jobs.ranks import joined
from backstory.storage.checkpoint import read_checkpoint
from backstory.utils.errors import UserError

pytestmark = pytest.mark.full
DROPOUTS = ("input_dropout", "layer_dropout", "output_dropout", "weight_drop")


def started(ranks: int, config: RunConfig, out: Path, *flags: str) -> subprocess.Popen:
    """A training by so many ranks; by a plain process where it is one."""
    recipe = out.with_suffix(".yaml")
    recipe.write_text(to_yaml(config))
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launcher, "-m", "backstory", "train", str(recipe), "--out", str(out), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})


def trained(ranks: int, config: RunConfig, out: Path, *flags: str) -> tuple[int, str]:
    """The exit code and what was said of it."""
    process = started(ranks, config, out, *flags)
    _, said = process.communicate(timeout=120)
    return process.returncode, said


def children(process: subprocess.Popen) -> list[int]:
    """The ranks' processes, in the order of their ranks."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return sorted(map(int, listed))


def own_lines(said: str) -> list[str]:
    """Return its own output, without the first line, which says what it is about to do."""
    return [line for line in said.splitlines() if line.startswith("backstory: ") and ": training " not in line]


@pytest.mark.parametrize("fresh", [False, True], ids=["one text", "fresh documents"])
def test_two_ranks_make_the_updates_of_one(fresh: bool, tiny_config: RunConfig, tmp_path: Path) -> None:
    config = with_training(
        with_model(
            tiny_config,
            embedding=EmbeddingConfig(size=7, dropout=0.0),
            core=LSTMConfig(layers=2, hidden=9, **dict.fromkeys(DROPOUTS, 0.0)),
        ),
        batch_size=4,
        epochs=2,
        partial_shuffle=True,
        clip=0.3,
    )
    if fresh:
        recall = RecallConfig(entities=20, cast=4, words=10, length=60, documents=10, held_out=3, new_each_epoch=True)
        config = dataclasses.replace(config, text=TextConfig("recall", recall=recall))
    for ranks in (1, 2):
        code, said = trained(ranks, config, tmp_path / str(ranks))
        assert code == 0, said
    assert events(tmp_path / "1", "epoch")[-1]["step"] >= 20
    assert [p.name for p in checkpoints(tmp_path / "1", "last")] == [
        p.name for p in checkpoints(tmp_path / "2", "last")
    ]
    one, two = (read_checkpoint(checkpoints(tmp_path / name, "last")[0]) for name in "12")
    torch.testing.assert_close(two.tensors["weights"], one.tensors["weights"], rtol=0, atol=2e-6)
    for name, whole in one.tensors["state"].items():
        halves = torch.cat([two.tensors[file][name] for file in ("state", "state-1")])
        torch.testing.assert_close(halves, whole, rtol=0, atol=2e-6)
    for a, b in zip(events(tmp_path / "1", "steps"), events(tmp_path / "2", "steps"), strict=True):
        assert a.pop("event") == b.pop("event")
        assert a == pytest.approx(b, rel=1e-5)


@pytest.mark.parametrize("ranks", [2])
def test_a_stopped_run_resumes_bit_for_bit(ranks: int, tiny_config: RunConfig, tmp_path: Path) -> None:
    # Fine-tuning and averaging included. Long enough to be caught in the middle. The signal is one rank's alone.
    config = with_training(tiny_config, batch_size=6, segment=2, segment_deviation=0.0, epochs=30, finetune_epochs=2)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    code, said = trained(ranks, config, straight)
    assert code == 0, said
    process = started(ranks, config, broken)
    while not (broken / "metrics.jsonl").exists() or len(events(broken, "epoch")) < 2:
        assert process.poll() is None
        time.sleep(0.002)
    os.kill(children(process)[-1], signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert not (broken / "result.json").exists(), f"it was not stopped in the middle: {said}"
    assert any("go on with the same command and --resume" in line for line in own_lines(said))
    code, said = trained(ranks, config, broken, "--resume")
    assert code == 0, said
    assert said.count("resuming") == 1
    assert outcome(broken) == outcome(straight)


def test_another_number_of_ranks_is_refused(tiny_config: RunConfig, tmp_path: Path) -> None:
    config = with_training(tiny_config, batch_size=4, epochs=1)
    code, said = trained(2, config, tmp_path / "run")
    assert code == 0, said
    before = outcome(tmp_path / "run")
    code, said = trained(2, config, tmp_path / "run", "--resume")
    assert code == 0 and "finished already" in said, said
    code, said = trained(1, config, tmp_path / "run", "--resume", "--workers", "1")
    assert code == 2
    assert own_lines(said) == [f"backstory: {tmp_path / 'run'} was trained by 2 workers, not 1; go on with --workers 2"]
    code, said = trained(1, config, tmp_path / "run", "--resume")
    assert code == 0 and "finished already" in said, said
    code, said = trained(4, config, tmp_path / "run", "--resume")
    assert "was trained by 2 workers, not 4; go on with torchrun --nproc-per-node 2" in said
    assert outcome(tmp_path / "run") == before


def test_the_first_rank_says_what_is_wrong_though_another_ends_sooner(
    tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = tmp_path / "late"
    late.mkdir()
    (late / "sitecustomize.py").write_text("import os, time\ntime.sleep(5 * (os.environ.get('LOCAL_RANK') == '0'))\n")
    monkeypatch.setenv("PYTHONPATH", str(late))
    code, said = trained(2, with_training(tiny_config, batch_size=3), tmp_path / "run")
    assert code != 0 and len(own_lines(said)) == 1 and "2 ranks cannot share 3 rows equally" in own_lines(said)[0]


def test_rows_that_ranks_cannot_share_are_refused(tiny_config: RunConfig, tmp_path: Path) -> None:
    code, said = trained(2, with_training(tiny_config, batch_size=3), tmp_path / "run")
    assert code != 0
    assert own_lines(said) == [
        "backstory: 2 ranks cannot share 3 rows equally; make training.batch_size a multiple of 2"
    ]
    assert not (tmp_path / "run").exists()


def test_ranks_that_cannot_be_met_are_told_of_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "nowhere.invalid", "MASTER_PORT": "29500"}
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"cannot meet the other ranks at nowhere\.invalid:29500"), joined():
        pass


REDUCTIONS = """
import torch, torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from backstory.config import EmbeddingConfig, LSTMConfig, ModelConfig
from backstory.jobs.ranks import joined
from backstory.models import Precision, build_model
from backstory.training.gradients import Accumulated, Eager
from backstory.training.objectives import Likelihood

def build():
    torch.manual_seed(0)
    return build_model(ModelConfig(EmbeddingConfig(size=7, dropout=0.0), core), 11)

def gradient(model, of):
    return Eager(of, list(model.parameters()), Likelihood(), Precision(torch.float32, "the test"), clip=0.0)

off = dict.fromkeys(("input_dropout", "layer_dropout", "output_dropout", "weight_drop"), 0.0)
core, text = LSTMConfig(layers=2, hidden=9, **off), torch.randint(11, (8, 6), generator=torch.Generator().manual_seed(1))
with joined() as ranks:
    whole, shared = build(), build()
    gradient(whole, whole)(text, whole.start(8))
    parallel, reduced = ranks.parallel(shared), []
    parallel.register_comm_hook(None, lambda _, bucket: (reduced.append(bucket.is_last()), allreduce_hook(None, bucket))[1])
    rows = ranks.share(8)
    for step in range(3):
        reduced.clear()
        Accumulated(gradient(shared, parallel), 3)(text[rows], shared.start(4))
        assert sum(reduced) == 1, f"step {step}: {sum(reduced)} reductions"
        for (name, one), other in zip(whole.named_parameters(), shared.parameters()):
            torch.testing.assert_close(other.grad, one.grad, rtol=0, atol=1e-7, msg=lambda m: f"{name}: {m}")
    print("as one process")
"""


def test_accumulated_gradients_are_reduced_once_a_step(tmp_path: Path) -> None:
    script = tmp_path / "reductions.py"
    script.write_text(REDUCTIONS)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("as one process") == 2
