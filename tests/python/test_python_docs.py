"""The Python of docs/python.md and of the pages on readers runs, block by block, on a small text and small models."""

import re
import shutil
from pathlib import Path
from typing import Any

import foreign
import numpy as np
import pytest

import backstory as bs
from backstory.config import RunConfig, recipes

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SMALL = {"model.core.hidden": 8, "model.embedding.size": 8, "training.epochs": 1, "training.schedule": "constant"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a text and a small model of transformers; recipes are of a size for a test."""
    words = np.random.default_rng(0).choice([f"word{i}" for i in range(40)], 6000)
    (tmp_path / "my.txt").write_text("\n".join(" ".join(line) for line in words.reshape(-1, 20)))
    foreign.saved(tmp_path / "gpt2", text="word1 word2 " * 50, n_positions=64)
    whole = recipes.load

    def small(name: str) -> RunConfig:
        return recipes.with_overrides(whole(name), SMALL) if name == "demo" else whole(name)

    monkeypatch.setattr(recipes, "load", small)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.full
def test_every_block_runs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"docs/python.md, block {number + 1}", "exec"), names)
    printed = capsys.readouterr().out
    assert "epoch 1: " in printed and "True" in printed and "ComposedModel(" in printed
    assert {"small", "mine", "watched"} == {path.name for path in (home / "runs").iterdir()}
    assert names["watch"].losses and len(names["words"]) == 20
    assert (home / "context.svg").is_file() and (home / "report.html").is_file()


@pytest.mark.parametrize("page", ["cache.md", "counting.md", "reading.md"])
def test_every_block_on_readers_runs(home: Path, page: str) -> None:
    bs.train("demo", corpus="my.txt", out="runs/demo")
    for name in ("ptb-small", "one", "two"):
        shutil.copytree("runs/demo", f"runs/{name}")
    shutil.copy("my.txt", "notes.txt")
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/{page}, block {number + 1}", "exec"), {})


def test_the_scorer_of_the_page_on_context_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "context.md").read_text(encoding="utf-8")
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def score" in b)
    exec(compile(block, "docs/context.md", "exec"), {})
    assert "effective context" in capsys.readouterr().out


def test_the_page_names_every_function() -> None:
    assert {name for name in bs.__all__ if f"bs.{name}" not in PAGE} == {"RunConfig"}


@pytest.mark.parametrize("name", [name for name in bs.__all__ if name not in ("RunConfig", "UserError", "register")])
def test_help_says_what_it_takes_and_shows_an_example(name: str) -> None:
    documented = getattr(bs, name).__doc__
    parameters = re.findall(r"^ {8}(\w+): ", documented, re.MULTILINE)
    code = getattr(bs, name).__wrapped__.__code__
    assert set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]) <= set(parameters)
    assert ">>> " in documented and "Raises UserError" in documented
