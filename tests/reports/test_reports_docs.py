"""The reference page is correct: its examples can be read as results, and it names every required field."""

import dataclasses
import json
import re
import typing
from pathlib import Path
from typing import Any

import pytest
from printed import terminal_lines

from backstory.config.renamed import current_result
from backstory.reports.sections import evaluation_section
from backstory.results import KINDS, Passage, Record, result_from
from backstory.results.examination_record import EXPERIMENTS
from backstory.results.result_file import ResultRecord
from backstory.results.validation import holds_other_keys, key_of

PAGE = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
ELSEWHERE = ("explanation", "sample", "referee")
"""Kinds that docs/reports.md and docs/referee.md describe."""
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


def test_no_example_has_an_old_name() -> None:
    for example in (example for example in EXAMPLES if "schema" in example):
        assert current_result(example) == example


def test_there_is_an_example_of_each_line_of_the_log() -> None:
    assert [example["event"] for example in EXAMPLES if "event" in example] == ["steps", "epoch"]


def test_the_example_of_memory_curves_can_be_read() -> None:
    (memory,) = (example for example in EXAMPLES if "curves" in example)
    evaluation = next(e for e in EXAMPLES if e.get("kind") == "evaluation")
    figures = evaluation["figures"] | {"memory": memory}
    assert result_from(json.dumps(evaluation | {"figures": figures}), "results.md").figures.memory.to_dict() == memory


def test_the_example_of_recency_can_be_read() -> None:
    (recency,) = (example for example in EXAMPLES if "new" in example)
    evaluation = next(e for e in EXAMPLES if e.get("kind") == "evaluation")
    figures = evaluation["figures"] | {"recency": recency}
    (line,) = terminal_lines(evaluation_section.RECENCY, evaluation | {"figures": figures})
    assert "2.44 for words seen 1–4 ago" in line


def records(kind: Any) -> set[type[Record]]:
    """The records that a type hint names, and those in their fields."""
    kind = typing.get_origin(kind) if dataclasses.is_dataclass(typing.get_origin(kind)) else kind
    if isinstance(kind, type) and issubclass(kind, Record):
        hints = typing.get_type_hints(kind, include_extras=True)
        return {kind}.union(*(records(hints[f.name]) for f in dataclasses.fields(kind)))  # type: ignore[arg-type]
    return set().union(*map(records, typing.get_args(kind)))


def test_every_field_is_described() -> None:
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    named = {part for code in re.findall(r"`([\w.]+)`", prose) for part in code.split(".")}
    kinds = [figures for kind, figures in KINDS.items() if figures and kind not in ELSEWHERE]
    shown = set().union(*map(records, (ResultRecord, *kinds, *EXPERIMENTS.values()))) - records(Passage)
    fields = {key_of(field) for record in shown for field in dataclasses.fields(record) if not holds_other_keys(field)}
    assert len(fields) > 100 and fields - named == set()


@pytest.mark.full
def test_the_python_example_runs(tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run("runs/demo")
    run("runs/wide", name="wide")
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code
    exec(compile(code[1], "results.md", "exec"), {})
    assert "demo and wide" in (tmp_path / "report.html").read_text(encoding="utf-8")
