"""The command line among other programs: plain lines in pipes, a reader that goes away, Ctrl-C."""

import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, Command, Outcome, process
from runs import contents
from tiers import fast_then_full

import backstory
from backstory.cli.main import program
from backstory.training.loop import Trainer

LONG = "a folder [with brackets] whose name is long enough to be wrapped where lines are cut at eighty columns"


@pytest.mark.full
def test_a_real_process_prints_plain_lines(desk: Path) -> None:
    trained = process("train", "demo", *SMALL, "--corpus", "good.txt", "--out", LONG)
    out, err = trained.communicate(timeout=120)
    assert trained.returncode == 0, err
    assert out.splitlines()[0].startswith(f"{LONG}: validation perplexity ")
    # Lines, whatever their length: what the model is, what to know of the text, and the epoch. No bar, no colour.
    about = r"([\d.]+% of .* outside the vocabulary .*\n)([\d.]+% of .* occur in train too\n)*"
    vectors = r"making word vectors from [\d,]+ tokens \.\.\.\n"
    start = r"training: 0.0% of [\d,]+ tokens done; a line follows every minute\n"
    what = re.escape(f"backstory: training demo in {LONG}\n")
    assert re.fullmatch(rf"{what}[\d,]+ parameters, .*\n{about}{vectors}{start}epoch +1 .* best.*\n", err), err
    assert max(map(len, err.splitlines())) > 80
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", out + err)


@pytest.mark.full
def test_a_path_is_printed_as_it_is(command: Command) -> None:
    """The line is not wrapped and keeps its brackets."""
    begin = ("train", "demo", *SMALL, "--corpus", "good.txt", "--out", LONG)
    assert command(*begin).code == 0
    assert f"\n{LONG} is finished already" in command(*begin, "--resume").err


@pytest.mark.full
def test_a_mistake_in_a_real_process(desk: Path) -> None:
    failed = process("train", "demo", "--training.epoch", "1")
    out, err = failed.communicate(timeout=60)
    assert (failed.returncode, out) == (2, "")
    assert err.count("\n") == 1 and err.startswith("backstory: there is no flag --training.epoch (did you mean")
    assert not (desk / "runs").exists()


@pytest.mark.parametrize("arguments", fast_then_full([["ls"], ["train", "--help"]], [["train", "--help"]]))
def test_a_reader_that_goes_away_is_no_error(arguments: list[str], desk: Path) -> None:
    command = process(*arguments)
    assert command.stdout is not None and command.stderr is not None
    command.stdout.close()  # before anything is written, so that writing must fail
    assert command.wait(60) == 0
    assert command.stderr.read() == ""
    command.stderr.close()


@pytest.mark.full
def test_head_takes_the_first_line(desk: Path) -> None:
    listing = process("ls")
    first = subprocess.run(["head", "-n", "1"], stdin=listing.stdout, capture_output=True, text=True, timeout=60)
    _, err = listing.communicate(timeout=60)
    assert (first.stdout, err, listing.returncode) == ("models\n", "", 0)


def test_an_interrupt_is_one_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(arguments: Sequence[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("backstory.cli.ls.main", interrupted)
    assert command("ls") == Outcome(130, "", "backstory: interrupted\n")


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_of_a_real_process(desk: Path, number: signal.Signals) -> None:
    code = (
        "import os, signal; from backstory.cli import ls, main; "
        f"ls.KINDS['models'] = lambda: os.kill(os.getpid(), {number}); raise SystemExit(main.main(['ls', 'models']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "backstory: interrupted\n")


@pytest.mark.parametrize("module", ["typing", "rich.console"])
def test_an_interrupt_while_python_loads_the_program(module: str) -> None:
    code = (
        "import runpy, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == '{module}': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "runpy.run_module('backstory', run_name='__main__')"
    )
    # Without `site`, which may have loaded modules of Python before; libraries are where they are here.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(backstory.__file__).parents[1]), *sys.path])}
    line = [sys.executable, "-S", "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=environment)
    # Python may end itself by the signal, for which a shell has the same number.
    assert done.returncode in (128 + signal.SIGINT, -signal.SIGINT)
    assert (done.stdout, done.stderr) == ("", "backstory: interrupted\n")


def test_a_stop_while_training_saves_and_says_how_to_go_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Trainer._step

    def stopped_at_once(trainer: Trainer, *arguments: Any) -> float:
        os.kill(os.getpid(), signal.SIGTERM)
        return step(trainer, *arguments)

    monkeypatch.setattr(Trainer, "_step", stopped_at_once)
    begin = ("train", "demo", *SMALL, "--corpus", "good.txt", "--out", "new")
    stopped = command(*begin)
    assert (stopped.code, stopped.out) == (128 + signal.SIGTERM, "")
    assert (
        stopped.err.splitlines()[-1] == "backstory: new is stopped and saved; go on with the same command and --resume"
    )


def test_a_loss_that_breaks_down_is_exit_code_three(command: Command) -> None:
    broken = command(
        "train", "demo", *SMALL, "--corpus", "good.txt", "--out", "new", "--training.learning-rate", "1e300"
    )
    assert broken.code == 3
    assert re.match(r"backstory: step \d+: loss nan.*--overwrite and a smaller", broken.err.splitlines()[-1])


def test_a_warning_is_one_line(command: Command, run_copy: Path) -> None:
    """A damaged checkpoint is skipped with a warning, and the previous one is read."""
    (whole,) = run_copy.glob("checkpoints/best-*")
    damaged = shutil.copytree(whole, whole.with_name("best-99"))
    (damaged / "weights.safetensors").write_bytes(b"damaged")
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # as outside of tests, where a warning is no error
        evaluated = command("evaluate", "run")
    assert evaluated.code == 0
    assert evaluated.err.startswith("backstory: warning: skipping a damaged checkpoint: ")
    assert evaluated.err.count("\n") == 1


@pytest.mark.full
@pytest.mark.parametrize("lost", [True, False])
def test_a_finished_run_without_its_best_weights_is_to_be_trained_again(
    lost: bool, command: Command, run_copy: Path
) -> None:
    for best in run_copy.glob("checkpoints/best-*"):
        shutil.rmtree(best) if lost else (best / "weights.safetensors").write_bytes(b"damaged")
    before = contents(run_copy)
    for typed in (("evaluate", "run"), ("train", "run", "--resume")):
        outcome = command(*typed)
        assert outcome.code == 2 and outcome.out == ""
        last = outcome.err.splitlines()[-1]
        assert "has lost its best weights; train it again: `backstory train run --overwrite`" in last
        assert "finished already" not in outcome.err and contents(run_copy) == before
    assert command("train", "run", "--overwrite").code == 0
    assert command("evaluate", "run").code == 0


def test_the_program_that_is_installed_is_this_one(command: Command) -> None:
    (entry,) = entry_points(group="console_scripts", name="backstory")
    assert entry.load() is program
