"""The reference page is true: its examples are results that can be read, and it names every field that is required."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from backstory.reports import kinds, result_from
from backstory.reports.recency_section import terminal

PAGE = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
ELSEWHERE = ("explanation", "sample")
"""What docs/reports.md describes."""
EXAMPLES = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]


def test_there_is_a_valid_example_of_each_kind() -> None:
    results = [result_from(json.dumps(example), "results.md") for example in EXAMPLES if "schema" in example]
    labels = [
        "train",
        "evaluate test (static)",
        "examine truncate on valid",
        "reproduce base (small)",
        "explain reading of test",
    ]
    assert [result.label for result in results] == labels


def test_there_is_an_example_of_each_line_of_the_log() -> None:
    assert [example["event"] for example in EXAMPLES if "event" in example] == ["steps", "epoch"]


def test_the_example_of_memory_curves_can_be_read() -> None:
    (memory,) = (example for example in EXAMPLES if "curves" in example)
    evaluation = next(e for e in EXAMPLES if e.get("kind") == "evaluation")
    figures = evaluation["figures"] | {"memory": memory}
    assert result_from(json.dumps(evaluation | {"figures": figures}), "results.md").figures["memory"] == memory


def test_the_example_of_recency_can_be_read() -> None:
    (recency,) = (example for example in EXAMPLES if "new" in example)
    evaluation = next(e for e in EXAMPLES if e.get("kind") == "evaluation")
    figures = evaluation["figures"] | {"recency": recency}
    (line,) = terminal(result_from(json.dumps(evaluation | {"figures": figures}), "results.md").figures)
    assert "2.44 for words seen 1–4 ago" in line


def keys(shape: object) -> set[str]:
    """The keys of a shape and of all shapes in it."""
    if isinstance(shape, dict):
        return set(shape).union(*map(keys, shape.values()))
    inner = shape[:1] if isinstance(shape, list) else vars(shape).values() if dataclasses.is_dataclass(shape) else ()
    return set().union(*map(keys, inner))


def test_every_field_is_described() -> None:
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    named = {part for code in re.findall(r"`([\w.]+)`", prose) for part in code.split(".")}
    shown = (kinds.ENVELOPE, *(shape for kind, shape in kinds.KINDS.items() if kind not in ELSEWHERE), kinds.GROUP)
    fields = set().union(*map(keys, (*shown, *kinds.CONDITIONS.values())))
    assert len(fields) > 100 and fields - named == {
        "0.1",
        "minimum_count",
        "maximum_size",
    }  # a temperature, and settings


def test_the_python_example_runs(tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run("runs/demo")
    run("runs/wide", name="wide")
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code
    exec(compile(code[1], "results.md", "exec"), {})
    assert "demo and wide" in (tmp_path / "report.html").read_text(encoding="utf-8")
