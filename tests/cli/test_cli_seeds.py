"""`train --seeds`: a run for each seed, side by side; each is the run that `--seed` trains alone."""

import json
import shlex
import signal
import time
from pathlib import Path

import pytest
from commands import SMALL, Command, process, tree

from backstory.cli.train_seeds import SeedJob, SeedJobs, _next_commands
from backstory.config import RunConfig, from_dict
from backstory.jobs.runner import DONE, FAILED, CommandExit, JobRow
from backstory.results.run_results import TrainingPace, read_pace
from backstory.utils.process import cpu_cores

SEEDS = ["train", "demo", *SMALL, "--corpus", "good.txt", "--out", "many"]
LONG = ["--training.epochs=400", "--training.save-minutes=0.001"]


def weights(run: str) -> str:
    return json.loads((Path(run) / "result.json").read_text())["provenance"]["weights"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--seeds", "1", "2", "--seed", "3"], "--seed and --seeds cannot be combined; remove one"),
        (["--seeds", "1", "2", "1"], "--seeds has 1 twice; remove one"),
        (["--seeds", "1", "2", "--workers", "2"], "--seeds trains each seed in one process; remove --workers"),
        (["--seeds", "1", "2", "--resume"], "many holds none of these runs; leave --resume out to start them"),
        (["--seeds", "1", "-2"], "--seeds: seed must be at least 0"),
        (["--seeds"], "--seeds takes one or more seeds: --seeds 1 2"),
        (["--seeds", "1,2"], "--seeds must be a whole number, not '1,2'"),
        (["--seeds", "1", "--corpus", "nowhere.txt"], "nowhere.txt"),
        (["--seeds", "1", "--corpus", "same"], "--allow-equal-splits"),
        (["--seeds", "1", "--text.documents", "21"], "documents"),
        (["--seeds", "1", "--model.core.output", "5"], "the softmax is tied to the embedding"),
        (["--seeds", "1", "--training.batch-size", "90000"], "too few for batch size 90000"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(command: Command, desk: Path, flags: list[str], says: str) -> None:
    before = tree(desk)
    assert says in command(*SEEDS, *flags).err
    assert command(*SEEDS, *flags).code == 2
    assert tree(desk) == before


def test_runs_with_other_settings_are_not_mixed(command: Command, desk: Path) -> None:
    (desk / "many").mkdir()
    (desk / "many" / "recipe.yaml").write_text("seed: 1\n")
    said = command(*SEEDS, "--seeds", "1", "2").mistake()
    assert said == "many/recipe.yaml has other settings than these; choose another folder with --out"
    assert [path.name for path in (desk / "many").iterdir()] == ["recipe.yaml"]


def test_a_run_is_no_folder_for_several_seeds(command: Command, desk: Path) -> None:
    (desk / "many").mkdir()
    (desk / "many" / "config.yaml").write_text("seed: 1\n")
    assert command(*SEEDS, "--seeds", "1", "2").mistake() == "many is a run; choose another folder with --out"
    assert [path.name for path in (desk / "many").iterdir()] == ["config.yaml"]


def test_the_folder_of_several_seeds_is_no_run_to_resume(command: Command, desk: Path) -> None:
    (desk / "many").mkdir()
    (desk / "many" / "recipe.yaml").write_text("seed: 1\n")
    said = command("train", "./many", "--resume").mistake()
    assert said == (
        "./many holds a run for each of several seeds; name them: "
        "`backstory train many/recipe.yaml --seeds 1 2 --out ./many --resume`"
    )


def job(**training: object) -> SeedJob:
    return SeedJob(Path("many/seed1"), from_dict(RunConfig, {"training": training}, "here"), ["train"], None)


def test_a_job_says_how_far_it_is() -> None:
    one = job(epochs=4)
    assert one.next_command() == ["train"] and one.next_command() is None
    assert one.row() == JobRow(("many/seed1", "epoch 1", "–", "–"), None, "many/seed1: epoch 1")
    one.pace = TrainingPace(1, 2.0, 0.25, 50.0)
    assert one.row().cells == ("many/seed1", "epoch 2", "50.0", "6 min 0 s")
    one.command_ended(CommandExit(0))
    assert one.row().cells == ("many/seed1", DONE, "50.0", "–")
    timed = job(minutes=15)
    timed.pace = TrainingPace(1, 2.0, 2 / 15, 50.0)
    assert timed.minutes_left == 13.0


def test_a_failure_leaves_the_others_alone() -> None:
    class Display:
        def show(self, title: str, rows: list[JobRow]) -> None:
            self.title, self.rows = title, rows

    display, jobs = Display(), [job(epochs=4), job(epochs=4)]
    queue = SeedJobs(jobs, display, "demo")  # type: ignore[arg-type]
    first = queue.take()
    assert first is not None and first.next_command()
    first.command_ended(CommandExit(3, "train ended with exit code 3: nan"))
    assert first.state == FAILED and queue.take() is jobs[1] and not queue.finished()
    queue.show()
    assert display.title == "demo: 0 of 2 trained"
    assert [row.cells[1] for row in display.rows] == ["failed: train ended with exit code 3: nan", "waiting"]


def test_the_next_commands_can_be_pasted() -> None:
    said = _next_commands([Path(f"my runs/seed{seed}") for seed in (1, 2, 3)])
    command = shlex.split(said.split("`")[1])
    assert command[:3] == ["backstory", "evaluate", "my runs/seed1"]
    assert command[3:] == ["--reader", "ensemble:runs=my runs/seed2;my runs/seed3"]
    assert shlex.split(said.split("`")[3]) == ["backstory", "report", "my runs"]


def test_the_pace_of_a_log(tmp_path: Path) -> None:
    training = from_dict(RunConfig, {"training": {"epochs": 4}}, "here").training
    assert read_pace(tmp_path, training) == TrainingPace(0, 0.0, 0.0, None)
    (tmp_path / "metrics.jsonl").write_text("no log\n")
    assert read_pace(tmp_path, training) is None


@pytest.mark.full
def test_each_seed_is_the_run_that_it_would_be_alone(command: Command) -> None:
    done = command(*SEEDS, "--seeds", "1", "2", "--data-dir", ".")
    assert done.code == 0, done.err
    (model,) = Path("many/seed1").glob("checkpoints/best-*/model.json")
    assert json.loads(model.read_text())["places"]["data_dir"] == str(Path.cwd())
    assert "many/seed1: epoch 1" in done.err and "many/seed2: done, validation perplexity" in done.err
    assert "many/seed1: validation perplexity" in done.out and "many/seed2: validation perplexity" in done.out
    assert "`backstory evaluate many/seed1 --reader ensemble:runs=many/seed2`" in done.out.replace("\n  ", " ")
    assert command("train", "demo", *SMALL, "--corpus", "good.txt", "--seed=2", "--threads=1", "--out=one").code == 0
    assert weights("many/seed2") == weights("one") != weights("many/seed1")
    assert command("evaluate", "many/seed1", "--reader", "ensemble:runs=many/seed2").code == 0
    assert [r["name"] for r in json.loads(command("evaluate", "many", "--json").out)] == ["seed1", "seed2"]
    assert "is not empty; use --resume" in command(*SEEDS, "--seeds", "2", "3").mistake()
    more = command(*SEEDS, "--seeds", "1", "2", "3", "--resume", "--json")
    assert [r["provenance"]["seed"] for r in json.loads(more.out)] == [1, 2, 3]


@pytest.mark.full
def test_a_run_that_fails_is_named(command: Command) -> None:
    failed = command(*SEEDS, "--seeds", "1", "2", "--lr", "1e30")
    assert failed.code == 1
    assert "backstory: failed: many/seed1: train ended with exit code 3" in failed.err


@pytest.mark.full
def test_stopped_seeds_are_saved_and_resumed(command: Command, desk: Path) -> None:
    with process(*SEEDS, *LONG, "--seeds", "1", "2") as trained:
        together = (1, 2)[: cpu_cores()]
        saved = [desk / "many" / f"seed{seed}" / "checkpoints" for seed in together]
        deadline = time.monotonic() + 120
        while not all(folder.is_dir() and any(folder.iterdir()) for folder in saved):
            assert time.monotonic() < deadline and trained.poll() is None
            time.sleep(0.1)
        trained.send_signal(signal.SIGTERM)
        _, said = trained.communicate(timeout=120)
    assert trained.returncode == 128 + signal.SIGTERM
    assert "many is stopped and its runs are saved; go on with the same command and --resume" in said
    shorter = [*SEEDS, *LONG[1:], "--training.epochs=2", "--accept", "config", "--seeds", "1", "2", "--resume"]
    assert command(*shorter).code == 0
    assert weights("many/seed1") != weights("many/seed2")
