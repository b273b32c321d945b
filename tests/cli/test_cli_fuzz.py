"""Command lines of verbs, flags and junk: whatever is typed, the end is exit code 0, or 2 and one line."""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from backstory.cli import data, demo, evaluate, examine, explain, generate, ls, reader, recipe, report, reproduce, train
from backstory.cli.main import VERBS, main
from backstory.cli.mistakes import settings

DATACLASSES = [
    (demo.Arguments, None),
    (train.Arguments, train.Arguments()),
    (evaluate.Arguments, None),
    (examine.Arguments, None),
    (generate.Arguments, None),
    (explain.Arguments, None),
    (report.Arguments, None),
    (reproduce.Arguments, None),
    (reader.AuditArguments, None),
    (data.ShowArguments, None),
    (data.PrepareArguments, None),
    (recipe.CopyArguments, None),
    (ls.Arguments, None),
]
FLAGS = sorted({flag for kind in DATACLASSES for s in settings(*kind) if not s.positional for flag in s.flags()})
STARTS = [[verb] for verb in VERBS] + [
    ["train", "demo"],
    ["train", "ptb-mos"],
    ["evaluate", "run"],
    ["examine", "run"],
    ["generate", "run"],
    ["explain", "surprisal", "run"],
    ["reader", "audit"],
    ["reader", "audit", "run"],
    ["data", "show", "file"],
    ["recipe", "check", "demo"],
    ["recipe", "copy", "demo"],
    ["reproduce", "base", "--dry-run"],
]
NUMBERS = ["0", "1", "-1", "7", "0.5", "1e-3", "1e400", "nan", "inf", "-inf", "None", "none", "true", "no", "9" * 5000]
NAMES = ["auto", "cpu", "cuda", "sgd", "mixture", "lstm", "static", "truncate", "models", "test", "config", "demo"]
PATHS = ["run", "file", "file/x", "run/x.yaml", "", " ", "é", "\u2028"]
MARKS = ["-", "--", "---", "=", "--=", "-h", "--help", "--version", "--tyro-print-completion"]

WORK = [
    "backstory.cli.train.run_training",
    "backstory.reading.evaluate",
    "backstory.context.examine_run",
    "backstory.explanations.explain_run",
    "backstory.cli.evaluate.describe",
    "backstory.cli.evaluate.summary",
    "backstory.cli.examine.describe",
    "backstory.cli.explain.show",
    "backstory.cli.explain.write_view",
    "backstory.reports.write",
    "backstory.papers.reproduce.Reproduction.run",
]
"""What takes time, taken out of the verbs."""

# What a shell can pass: any text but NUL, and here not the surrogates that stand for bytes that are no UTF-8.
junk = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
flags = st.sampled_from(FLAGS) | st.sampled_from(FLAGS).flatmap(lambda f: st.integers(3, len(f)).map(lambda n: f[:n]))
values = st.sampled_from(NUMBERS + NAMES + PATHS + MARKS) | junk | st.integers().map(str) | st.floats().map(str)
words = flags | values | st.builds("{}={}".format, flags, values)
lines = st.builds(lambda start, rest: start + rest, st.sampled_from(STARTS) | st.just([]), st.lists(words, max_size=5))


@pytest.fixture(scope="module")
def without_work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty folder, and verbs whose work is taken out, so that only what is typed decides."""
    folder, there = tmp_path_factory.mktemp("fuzz"), Path.cwd()
    (folder / "file").write_text("some words\n")

    with pytest.MonkeyPatch.context() as patch:
        for name in WORK:
            patch.setattr(name, lambda *_, **__: 0)
        patch.setattr("backstory.reading.generate", lambda *_, **__: iter(["some", " words"]))
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"some words")))
        os.chdir(folder)
        yield folder
        os.chdir(there)


def check(typed: list[str], folder: Path) -> None:
    """Run it, and look at how it ended."""
    out, err = io.StringIO(), io.StringIO()
    before = sorted(folder.rglob("*"))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(typed)
    said = err.getvalue()
    if code == 0:
        assert said == "", said
        return
    assert code == 2
    assert out.getvalue() == ""
    assert said.startswith("backstory: ") and len(said.split("\n")) == 2 and said.endswith("\n"), said
    assert sorted(folder.rglob("*")) == before, "something was written"


@hypothesis.settings(max_examples=200)
@hypothesis.given(typed=lines)
def test_whatever_is_typed_ends_well(typed: list[str], without_work: Path) -> None:
    hypothesis.assume("stdlib" not in typed)  # it would be prepared
    check(typed, without_work)


@pytest.mark.full
@hypothesis.settings(max_examples=5000)
@hypothesis.given(typed=lines)
def test_whatever_is_typed_ends_well_many_times(typed: list[str], without_work: Path) -> None:
    hypothesis.assume("stdlib" not in typed)  # it would be prepared
    check(typed, without_work)
