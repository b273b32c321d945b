"""`backstory referee`: predictors in files and modules, its verdict in words and exit codes, and mistakes in one line."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from commands import Command, piped

from backstory.results import result_at

PAGE = (Path(__file__).parents[2] / "docs" / "referee.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"```python (\S+\.py)\n(.*?)```", PAGE, re.DOTALL))
PEEKS = """
from bigrams import Bigrams
import numpy as np

class Peeks(Bigrams):
    def predict(self, tokens):
        p = np.exp(super().predict(tokens))
        p[np.arange(len(tokens) - 1), tokens[1:]] += 1
        return np.log(p / p.sum(1, keepdims=True))

class Ends:
    def predict(self, tokens):
        raise SystemExit(0)

    def observe(self, targets): ...

class Talks(Bigrams):
    def predict(self, tokens):
        print("predicting")
        return super().predict(tokens)

class Broken:
    def predict(self, tokens):
        raise KeyError("state")

    def observe(self, targets): ...
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files of the page, a cheat and a text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "bigrams", raising=False)
    for name, code in EXAMPLES.items():
        Path(name).write_text(code)
    Path("peeks.py").write_text(PEEKS)
    Path("my.txt").write_bytes("the naïve cat sat on the mat\n".encode() * 10)


@pytest.mark.parametrize("name", ["bigrams.py:Bigrams", "bigrams:Bigrams"])
def test_a_predictor_that_passes(name: str, command: Command) -> None:
    done = command("referee", name, "--text", "my.txt", "--seed", "1")
    assert done.code == 0
    head, score, *conditions, extent = done.out.splitlines()
    assert head == f"{name} on my.txt"
    assert re.fullmatch(r"  score +\d\.\d{4} bits per byte, .* per byte over 300 bytes", score)
    assert [line.split()[-1] for line in conditions] == ["passed"] * 4 + ["claimed"]
    assert "every token was decoded; seed 1" in extent


def test_a_predictor_that_exits_does_not_pass(command: Command) -> None:
    line = command("referee", "peeks.py:Ends", "--text", "my.txt").mistake()
    assert re.search(r"peeks.py, line \d+: predict failed \(SystemExit: 0\); correct it and try again", line)


def test_what_a_predictor_prints_is_no_part_of_the_answer(command: Command) -> None:
    done = command("referee", "peeks.py:Talks", "--text", "my.txt", "--json")
    assert done.code == 0 and json.loads(done.out)["kind"] == "referee" and "predicting" in done.err


def test_a_figure_is_claimed_once(command: Command) -> None:
    claims = ("--claim", "bits_per_byte=1", "--claim", "bits_per_byte=6")
    line = command("referee", "bigrams.py:Bigrams", "--text", "my.txt", *claims).mistake()
    assert "bits_per_byte is claimed twice; claim it once" in line


@pytest.mark.full
def test_a_cheat_ends_with_exit_code_1_and_is_written(command: Command) -> None:
    done = command("referee", "peeks.py:Peeks", "--text", "my.txt", "--out", "verdict", "--block", "50")
    assert done.code == 1
    assert re.search(r"causal +FAILED at token 0: the prediction is another when the later tokens", done.out)
    assert "it does not count, as the audit failed" in done.out
    figures = result_at(Path("verdict/result.json")).figures
    assert not figures.audit.passed and figures.violations[0].condition == "causal"
    shown = command("referee", "peeks.py:Peeks", "--text", "my.txt", "--json")
    assert shown.code == 1 and json.loads(shown.out)["kind"] == "referee" and "FAILED: causal: at token" in shown.err


@pytest.mark.full
def test_a_claim_is_compared(command: Command) -> None:
    line = ["referee", "bigrams.py:Bigrams", "--text", "my.txt", "--claim", "bytes=300", "--claim"]
    assert command(*line, "tokens=300").code == 0
    wrong = command(*line, "bits-per-byte=1.07")
    assert wrong.code == 1 and "FAILED: 1.07 bits per byte were claimed, and the referee finds" in wrong.out


def test_a_text_may_come_from_standard_input(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, b"abc" * 10)
    assert "over 30 bytes" in command("referee", "bigrams.py:Bigrams", "--text", "-").out


@pytest.mark.full
def test_the_commands_of_the_page_give_one_verdict(command: Command) -> None:
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    lines = [shlex.split(line, comments=True)[1:] for line in block.splitlines()]
    called, spoken = (command(*line, "--block", "1") for line in lines)
    assert called.code == spoken.code == 0 and called.out.splitlines()[1] == spoken.out.splitlines()[1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--text my.txt", "name a predictor, as in my_model.py:Model, or give --process 'COMMAND'; one of them"),
        ("bigrams.py:Bigrams", "there is no text to score; give one with --text FILE"),
        ("bigrams.py:Bigrams --text no.txt", "cannot read no.txt: No such file or directory; give the path of a text"),
        (
            "bigrams.py:Bigram --text my.txt",
            "there is no function or class in bigrams.py called 'Bigram' (did you mean",
        ),
        ("bigrams.py --text my.txt", "'bigrams.py' does not name a predictor; give a module or a file and a function"),
        ("no.py:Bigrams --text my.txt", "there is no Python file 'no.py'"),
        ("no_such_module:Bigrams --text my.txt", "the module no_such_module does not load (ModuleNotFoundError"),
        ("peeks.py:Broken --text my.txt", "peeks.py, line 24: predict failed (KeyError: 'state'); correct it"),
        ("bigrams.py:Bigrams --text my.txt --claim bpb=1", "there is no figure 'bpb'"),
        ("bigrams.py:Bigrams --text my.txt --cuts 0", "--cuts must be at least 1, not 0"),
        ("--process false --text my.txt", "the process ended before it answered start (exit code 1)"),
    ],
)
def test_a_mistake_is_one_line(line: str, message: str, command: Command) -> None:
    assert message in command("referee", *line.split()).mistake()
