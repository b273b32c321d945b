"""Control characters in names, words and texts are escaped by every verb on every output."""

import io
import re
import shutil
import sys
from pathlib import Path

import pytest
from commands import SMALL, Command
from rich.text import Text

from backstory.cli.main import main
from backstory.reports.tables import Table, columns, to_text
from backstory.utils.terminal import cell, make_console, printable_json, printing, progress_bar

EVIL = "w\x1b]0;gone\x07\x1b[2J\x9b31m\u202eb\x7f"
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
RUN = f"run {EVIL}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose vocabulary, corpus and folder have such names, with results of most verbs in it."""
    place = tmp_path_factory.mktemp("hostile")
    text = place / f"corpus {EVIL}.txt"
    text.write_text("".join(f"ann saw {n} jars of {EVIL} and bob took {n % 3} more\n" for n in range(90)))
    assert main(["train", "demo", *SMALL, "--corpus", str(text), "--out", str(place / RUN)]) == 0
    return place


VERBS = [
    ["train", "demo", *SMALL, "--corpus", f"corpus {EVIL}.txt", "--out", f"new {EVIL}"],
    ["train", RUN, "--resume"],
    ["train", f"no {EVIL}"],
    ["train", "demo", f"--training.{EVIL}", "1"],
    ["evaluate", RUN],
    ["evaluate", RUN, "--json"],
    ["evaluate", RUN, f"corpus {EVIL}.txt"],
    ["evaluate", RUN, f"no {EVIL}"],
    ["evaluate", RUN, "--reader", f"no {EVIL}"],
    ["read", RUN, "--per-token"],
    ["read", RUN, "--per-token", "--json", "--session", f"s {EVIL}"],
    ["generate", RUN, "--prompt", f"ann saw {EVIL}", "--tokens", "40", "--save"],
    ["examine", RUN, "--targets", "20", "--maximum-context", "40"],
    ["explain", "surprisal", RUN, "--words", "20"],
    ["explain", "cache", RUN, "--words", "20", "--json"],
    ["explain", "reading", RUN, "--tokens", "60", "--against", "cache:window=20", "--words", "10"],
    ["reader", "audit", RUN],
    ["reader", "tune", RUN, "--reader", "cache", "--grid", "theta=1,2", "--grid", "weight=0.1"],
    ["reader", "statistics", RUN, "--tokens", "100", "--batch-size", "2"],
    ["data", "show", f"corpus {EVIL}.txt"],
    ["recipe", "copy", "demo", f"r {EVIL}.yaml"],
    ["recipe", "check", f"no {EVIL}.yaml"],
    ["report", RUN, "--out", f"page {EVIL}.html"],
    ["export", RUN, "--out", f"there {EVIL}"],
    ["sweep", "show", f"no {EVIL}"],
    ["sweep", "run", "demo", "--space", f"no {EVIL}"],
    ["reproduce", f"no {EVIL}"],
    ["demo", "--out", f"corpus {EVIL}.txt/demo"],
    ["ls", EVIL],
    [EVIL],
]


@pytest.mark.parametrize("arguments", VERBS, ids=lambda a: " ".join(x for x in a[:3] if x.isprintable()))
def test_no_verb_lets_a_name_or_a_word_steer_the_terminal(
    arguments: list[str], trained: Path, command: Command, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in trained.iterdir():
        (shutil.copytree if path.is_dir() else shutil.copy)(path, desk / path.name)
    with open(f"corpus {EVIL}.txt") as typed:
        monkeypatch.setattr(sys, "stdin", typed)
        done = command(*arguments)
    assert done.out + done.err
    assert not STEERS.search(done.out + done.err), done
    mistaken = arguments[0] in ("ls", EVIL, "demo") or any(a.startswith("no ") for a in arguments) or "1" in arguments
    assert done.code == (2 if mistaken else 0), done.err
    if not mistaken and "--json" not in arguments and "tune" not in arguments:
        assert r"\x1b" in done.out + done.err


def test_our_own_styles_reach_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with printing():
        make_console().print(Text(EVIL, "bold red"))
        with progress_bar(EVIL) as told:
            told(1, 2)
        shown = sys.stderr.styled.stream.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert terminal.getvalue().startswith("\x1b[1;31mw\\x1b]0;gone")
    for text in (terminal.getvalue(), shown):
        assert not STEERS.search(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", text))
        assert "\x07" not in text and "\x1b[2J" not in text


def test_a_line_of_a_table_stays_one() -> None:
    table = to_text(Table(columns("a", "b#"), (("x\ny", "1"), (EVIL, "2"))))
    assert len(table.splitlines()) == 3 and not STEERS.search(table)
    assert cell("a\tb\n") == r"a\tb\n"


def test_json_keeps_its_value() -> None:
    assert printable_json('"\x7f"') == '"\\u007f"'


@pytest.mark.parametrize("columns", ["0", "", "00"])
def test_an_unknown_width_hides_nothing(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", columns)
    console = make_console()
    console.print("a table of words")
    assert capsys.readouterr().out == "a table of words\n"
    assert console.width > 0 and console.height > 0
