"""Every command that prints facts prints them as JSON too, alone on standard output."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, Command, process
from tiers import fast_then_full

from backstory.cli.completion import COMMANDS
from backstory.cli.flags import settings

WITHOUT = {"demo", "completion", "decompress"}
"""Commands without facts: they show progress, print a script, or write a file."""

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
SPACE = "settings: {training.learning_rate: {range: [0.1, 1.0], log: true}}\n"

BYTES = """
import numpy as np
print("a file that is loaded may print")

class Bytes:
    def predict(self, tokens):
        print(len(tokens))
        return np.full((len(tokens), 256), -np.log(256))

    def observe(self, targets): ...
"""

Holds = Callable[[Any], bool]
CASES: dict[str, tuple[str, Holds]] = {
    "train": (f"train demo --corpus good.txt --out new {' '.join(SMALL)}", lambda j: j["figures"]["epochs"] == 1),
    "evaluate": ("evaluate run", lambda j: j["figures"]["audit"]["passed"]),
    "evaluate a folder of runs": ("evaluate many", lambda j: [r["name"] for r in j] == ["one", "two"]),
    "read": ("read run", lambda j: j["line"] == 1 and j["tokens"] > 0),
    "compress": ("compress good.txt --model run --out code", lambda j: j["size"] > 0 and j["bits_per_byte"] > 0),
    "verify": ("verify proof.bks --model run", lambda j: j["holds"] and j["same_text"] and j["split"] == "test"),
    "generate": ("generate run --tokens 3 --prompt ann --save", lambda j: len(j["text"].split()) == 3),
    "examine": (
        "examine run --targets 5 --maximum-context 9",
        lambda j: j["figures"]["experiment"] == "truncate",
    ),
    "explain": ("explain surprisal run --words 5", lambda j: j["kind"] == "explanation"),
    "explain with a page": ("explain surprisal run --words 5 --html p.html", lambda j: j["kind"] == "explanation"),
    "explain reading": (
        "explain reading run --reader cache --against static --tokens 60 --block 10",
        lambda j: j["kind"] == "comparison",
    ),
    "reproduce": ("reproduce base --dry-run", lambda j: j["runs"][0]["state"] == "waiting"),
    "export": ("export run", lambda j: Path(j["card"]).is_file()),
    "report": ("report run", lambda j: j == {"page": "report.html", "runs": ["run"]}),
    "report a folder of runs": ("report many", lambda j: j["runs"] == ["many/one", "many/two"]),
    "reader statistics": ("reader statistics run --batch-size 4", lambda j: j["batch_size"] == 4),
    "reader tune": ("reader tune run --reader cache --tokens 100 --grid window=5", lambda j: j["tokens"] == 100),
    "reader train": (
        "reader train run --skip 20 --training.steps 4 --training.every 2 --training.stream 100 --training.sample 2",
        lambda j: (j["reader"], j["split"], j["skip"]) == ("learned:network=three-level", "valid", 20),
    ),
    "reader audit": ("reader audit run --reader cache", lambda j: j["passed"] and j["reader"] == "cache"),
    "referee": ("referee bytes.py:Bytes --text good.txt", lambda j: j["figures"]["audit"]["passed"]),
    "data show": ("data show good.txt", lambda j: j["splits"]["train"]["tokens"] > 500),
    "data show of a task": (
        "data show copy --algorithm.documents 20",
        lambda j: "answers" in j["splits"]["test"]["about"],
    ),
    "data prepare": ("data prepare good.txt", lambda j: set(j["splits"]) == {"train", "valid", "test"}),
    "data tokenizer": ("data tokenizer good.txt --size 257 --out pieces.json", lambda j: j["pieces"] == 257),
    "recipe show": ("recipe show demo", lambda j: j["training"]["epochs"] == 2),
    "recipe copy": ("recipe copy demo copied.yaml", lambda j: j["file"] == "copied.yaml"),
    "recipe check": ("recipe check mine.yaml", lambda j: j["good"]),
    "ls": ("ls", lambda j: "demo" in j["recipes"] and len(j) == 8),
    "ls runs": (
        "ls runs many",
        lambda j: [(run["name"], run["state"]) for run in j] == [("one", "finished"), ("two", "finished")],
    ),
}


@pytest.mark.parametrize("name", fast_then_full(list(CASES), [n for n in CASES if n not in ("reader train", "export")]))
def test_json_is_alone_on_standard_output(
    name: str, command: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, holds = CASES[name]
    prepare(name, command, run_copy)
    with open("good.txt", encoding="utf-8") as text:
        monkeypatch.setattr("sys.stdin", text)
        done = command(*shlex.split(line), "--json")
    assert done.code == 0, done.err
    parsed = json.loads(done.out.splitlines()[0] if name == "read" else done.out)
    assert holds(parsed), parsed
    assert "NaN" not in done.out and "Infinity" not in done.out


def prepare(name: str, command: Command, run: Path) -> None:
    """Create the files that a command needs besides the run."""
    if "many" in CASES[name][0]:
        for copy in ("one", "two"):
            shutil.copytree(run, Path("many", copy))
    if name == "verify":
        assert command("evaluate", run, "--proof", "proof.bks").code == 0
    if name == "referee":
        Path("bytes.py").write_text(BYTES, encoding="utf-8")
    if name == "reader train":
        assert command("reader", "statistics", run, "--batch-size", "4").code == 0


@pytest.mark.full
def test_a_sweep_prints_json(command: Command, desk: Path) -> None:
    Path("small.yaml").write_text(SPACE, encoding="utf-8")
    line = ["demo", "--space", "small.yaml", "--trials", "1", "--out", "sweep", "--corpus", "good.txt", *SMALL]
    made, shown = command("sweep", "run", *line, "--json"), command("sweep", "show", "sweep", "--json")
    assert (made.code, shown.code) == (0, 0), made.err + shown.err
    assert len(json.loads(made.out)["figures"]["trials"]) == len(json.loads(shown.out)["figures"]["trials"]) == 1


@pytest.mark.full
def test_the_checks_of_a_plugin_are_json(desk: Path) -> None:
    """Runs in a process of its own, because what a plugin registers stays registered."""
    (code,) = re.findall(r"```python \S+\n((?:(?!```).)*class Sure.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    Path("sure.py").write_text(f'print("loaded")\n{code}', encoding="utf-8")
    out, err = process("check", "sure.py", "--json").communicate(timeout=60)
    assert json.loads(out)["passed"] is True and "loaded" in err, err


def test_every_command_with_facts_has_the_flag_and_a_case() -> None:
    flagged = {name for name, page in COMMANDS.items() if any(s.name == "--json" for s in settings(*page))}
    assert flagged == set(COMMANDS) - WITHOUT
    assert flagged - CASES.keys() == {"benchmark", "check", "sweep run", "sweep show"}


@pytest.mark.parametrize(
    "line", ["evaluate nowhere", "ls runs nowhere", "ls modles", "recipe show demoo", "report nowhere"]
)
def test_a_mistake_leaves_standard_output_empty(line: str, command: Command) -> None:
    assert command(*line.split(), "--json").mistake()
