"""The README does what it says: its commands and its Python run, on small models, and its tables are those of results/."""

import dataclasses
import importlib.util
import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backstory.cli import demo, main, train
from backstory.config import RunConfig, recipes
from backstory.training.run_folder import Mode

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[list[str]]:
    """Every `backstory` command line of the README, in order."""
    lines = [part.strip() for block in blocks("bash") for line in block.splitlines() for part in line.split("&&")]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("backstory ")]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to follow the README in: a text and a data folder of one's own, and recipes of a size for a test."""
    words = np.random.default_rng(0).choice([f"word{i}" for i in range(40)], 60_000)
    text = "\n".join(" ".join(line) for line in words.reshape(-1, 20))
    (tmp_path / "my.txt").write_text(text)
    (tmp_path / "data" / "ptb").mkdir(parents=True)
    for split, share in (("train", 1.0), ("valid", 0.05), ("test", 0.05)):
        (tmp_path / "data" / "ptb" / f"ptb.{split}.txt").write_text(text[: int(share * len(text))])
    whole = recipes.load

    def small(name: str) -> RunConfig:
        config = whole(name)
        core = dataclasses.replace(config.model.core, hidden=8, layers=1)
        embedding = dataclasses.replace(config.model.embedding, size=8)
        corpus = config.text.corpus if config.text.corpus == "ptb" else str(tmp_path / "my.txt")
        return dataclasses.replace(
            config,
            text=dataclasses.replace(config.text, corpus=corpus),
            model=dataclasses.replace(config.model, core=core, embedding=embedding),
            training=dataclasses.replace(config.training, epochs=1, schedule="constant"),
        )

    monkeypatch.setattr(recipes, "load", small)
    monkeypatch.setattr(demo, "TARGETS", 20)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_and_the_python_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [c[1] for c in commands()][:5] == ["demo", "ls", "train", "evaluate", "examine"]
    for command in commands():
        if command[1] == "recipe" and command[2] == "check":
            (home / command[3]).write_text(recipes.text("demo"))
        fewer = ["--targets", "20"] if command[1] == "examine" else []
        assert main.main([*command[1:], *fewer]) == 0, command
        if command[1:3] == ["recipe", "copy"]:
            (home / command[4]).unlink()
    capsys.readouterr()
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "True" in printed and "word" in printed
    assert {"demo", "demo-buffer", "demo-longer", "ptb-small", "ptb-small-pointer", "mine"} == {
        p.name for p in (home / "runs").iterdir()
    }


def test_a_demo_goes_on_from_any_training(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, calls = train.run_training, []

    def stopped(config: RunConfig, out: Path, mode: Mode, *rest: Any, **others: Any) -> int:
        calls.append((out.name, mode))
        return 130 if out.name == at else whole(config, out, mode, *rest, **others)

    monkeypatch.setattr(train, "run_training", stopped)
    at = "demo-buffer"
    assert main.main(["demo"]) == 130
    assert calls == [("demo", "new"), ("demo-buffer", "new")]
    # The second training had not begun, so that going on begins it, with the weights of the first.
    at, before = "demo-longer", calls.copy()
    assert main.main(["demo", "--resume"]) == 130
    assert calls[len(before) :] == [("demo", "resume"), ("demo-buffer", "overwrite"), ("demo-longer", "overwrite")]
    at = ""
    assert main.main(["demo", "--resume"]) == 0
    assert calls[-3:] == [("demo", "resume"), ("demo-buffer", "resume"), ("demo-longer", "overwrite")]
    assert main.main(["demo", "--resume"]) == 0
    assert calls[-3:] == [("demo", "resume"), ("demo-buffer", "resume"), ("demo-longer", "resume")]
    # The buffer's is the gain over what began alike and was trained alike without one.
    further = [
        json.loads((home / "runs" / f"demo-{name}" / "result.json").read_text()) for name in ("buffer", "longer")
    ]
    settings = [result["provenance"]["config"] for result in further]
    assert [s["model"].pop("buffer")["kind"] for s in settings] == ["span-buffer", "none"] and settings[0] == settings[
        1
    ]
    begun = [result["provenance"]["begun_with"] for result in further]
    assert begun[0] == begun[1] and begun[0]["run"] == "demo"
    with_it, without = (
        json.loads((home / "runs" / f"demo-{name}" / "evaluate-test" / "result.json").read_text())["figures"][
            "perplexity"
        ]
        for name in ("buffer", "longer")
    )
    assert f"{100 * (with_it / without - 1):+.1f}% with the buffer" in capsys.readouterr().out
    # Anything in the way of the later ones is told of before the first is trained.
    for name in ("demo-longer", "demo-buffer"):
        shutil.rmtree(home / "runs" / "demo", ignore_errors=True)
        assert main.main(["demo"]) == 2 and "is not empty" in capsys.readouterr().err
        shutil.rmtree(home / "runs" / name)
        assert not (home / "runs" / "demo").exists()


def test_the_install_commands_name_what_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installs = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("pip install")]
    assert len(installs) == 2
    for line in installs:
        assert "-c constraints.txt -e" in line
        for extra in re.findall(r"\[(\w+)\]", line):
            assert extra in project["optional-dependencies"]
    assert (ROOT / "constraints.txt").is_file()


def test_links_point_to_files() -> None:
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / link).exists(), f"{document.name}: {link}"


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    return generate


def test_tables_are_made_from_results() -> None:
    generate = generator()
    for document in generate.TABLES:
        assert generate.filled(document) == (ROOT / document).read_text(encoding="utf-8"), "run python docs/generate.py"


def test_any_document_may_have_the_recency_of_a_grid_that_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = json.loads((ROOT / "results" / "reproduce-recall.json").read_text(encoding="utf-8"))
    (tmp_path / "reproduce-old.json").write_text(json.dumps(made), encoding="utf-8")
    for run in made["figures"]["runs"]:
        for reading in run["readings"]:
            far = {"from": 1000, "to": None, "distance": 1234.5, "tokens": 7, "nats": 4.25}
            reading["recency"] = {"new": {"tokens": 0, "nats": None}, "bins": [far]}
    (tmp_path / "reproduce-told.json").write_text(json.dumps(made), encoding="utf-8")
    places = "<!-- table: told-recency -->\n<!-- end -->\n<!-- table: old-recency -->\n<!-- end -->\n"
    (tmp_path / "page.md").write_text(places, encoding="utf-8")
    (tmp_path / "without.md").write_text("no table", encoding="utf-8")
    generate = generator()
    for name, value in (("ROOT", tmp_path), ("RESULTS", tmp_path), ("TABLES", {"page.md": {}, "without.md": {}})):
        monkeypatch.setattr(generate, name, value)
    page = generate.filled("page.md")
    assert page.count("1,000 or more ago") == 1 and page.count("| 4.25 | – |") == len(made["figures"]["rows"])
    assert page.endswith(places.partition("<!-- end -->")[2])
    assert generate.filled("without.md") == "no table"
