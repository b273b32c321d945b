"""Help: every verb explains every flag it has, on a page that fits a terminal."""

import re
from itertools import pairwise

import pytest
from commands import Command

from backstory.cli import (
    data,
    demo,
    evaluate,
    examine,
    explain,
    export,
    generate,
    ls,
    read,
    reader,
    recipe,
    report,
    reproduce,
    sweep,
    train,
)
from backstory.cli.main import VERBS
from backstory.cli.mistakes import settings
from backstory.config import RunConfig, from_dict

MIXTURE = from_dict(RunConfig, {"model": {"head": {"kind": "mixture"}}}, "a test")
PAGES = {
    "demo": (demo.DemoArguments, None),
    "train": (train.TrainArguments, train.TrainArguments()),
    "train demo": (train.TrainArguments, train.TrainArguments()),
    "train demo --model.head.kind mixture": (train.TrainArguments, train.TrainArguments(config=MIXTURE)),
    "train demo --model.head.kind=mixture": (train.TrainArguments, train.TrainArguments(config=MIXTURE)),
    "evaluate": (evaluate.EvaluateArguments, None),
    "examine": (examine.ExamineArguments, None),
    "generate": (generate.GenerateArguments, None),
    "read": (read.ReadArguments, None),
    "explain": (explain.ExplainArguments, None),
    "explain reading": (explain.CompareReadersArguments, None),
    "export": (export.ExportArguments, None),
    "report": (report.ReportArguments, None),
    "reproduce": (reproduce.ReproduceArguments, None),
    "sweep run": (sweep.SweepArguments, sweep.SweepArguments()),
    "sweep run demo": (sweep.SweepArguments, sweep.SweepArguments()),
    "sweep show": (sweep.ShowSweepArguments, None),
    "reader audit": (reader.AuditReaderArguments, None),
    "data show": (data.ShowCorpusArguments, None),
    "data prepare": (data.PrepareCorpusArguments, None),
    "recipe copy": (recipe.CopyRecipeArguments, None),
    "recipe check": (recipe.CheckRecipeArguments, None),
    "ls": (ls.ListArguments, None),
}


def explained(page: str) -> list[str]:
    """The page as words, without the lines of its boxes."""
    return page.translate(dict.fromkeys(map(ord, "╭╮╰╯│─|+"), " ")).split()


@pytest.mark.parametrize("verb", PAGES)
def test_help_explains_every_flag(verb: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    shown = command(*verb.split(), "--help")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith(f"usage: backstory {verb.split()[0]} ")
    boxed = shown.out[shown.out.index(" options ") :]
    assert max(map(len, boxed.splitlines())) <= 100
    words = explained(shown.out)
    for setting in settings(*PAGES[verb]):
        for flag in [setting.name] if setting.positional else setting.flags():
            assert any(word.rstrip(",") == flag for word in words), f"{flag} is not on the page"
    lines = [line.strip("│| ") for line in boxed.splitlines()]
    for line, after in pairwise(lines):
        bare = re.search(r"^-\S+( \S+)* {2,}\(default", line) or (
            re.fullmatch(r"-\S+( \S+)*", line) and after.startswith("(default")
        )
        assert not bare, f"a flag without a word of explanation: {line}"


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_the_overview_names_every_verb(flag: str, command: Command) -> None:
    shown = command(flag)
    assert (shown.code, shown.err) == (0, "")
    assert {line.split()[0] for line in shown.out.splitlines() if line.startswith("  ")} == set(VERBS)
    assert "--plugin FILE" in shown.out
    assert shown == command()


@pytest.mark.parametrize("verb", ["reader", "data", "recipe"])
def test_verbs_of_verbs_say_what_there_is(verb: str, command: Command) -> None:
    shown = command(verb, "--help")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith(f"usage: backstory {verb} {{")


def test_the_version_is_told(command: Command) -> None:
    shown = command("--version")
    assert shown.code == 0 and shown.out.startswith("backstory 0.")
