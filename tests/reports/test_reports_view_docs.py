"""The page on reports is correct: its examples are results, it names every field, key and flag, and its code runs."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from backstory.cli import examine, generate, report
from backstory.cli.explain import CompareReadersArguments, ExplainArguments
from backstory.cli.flags import settings
from backstory.reports import passage_html, render
from backstory.results import ExplanationFigures, Passage, SampleFigures, UnknownTokens, result_from

PAGE = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")
EXAMPLES = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]


def test_there_is_a_valid_example_of_each_kind() -> None:
    results = [result_from(json.dumps(example), "reports.md") for example in EXAMPLES]
    assert [result.label for result in results] == ["explain surprisal of test", "sample"]
    passage = results[0].figures.passage
    assert {layer.kind for layer in passage.layers} == {"sequential", "diverging", "plain", "weights", "candidates"}


def test_every_field_is_described() -> None:
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    named = set(re.findall(r"`(\w+)`", prose))
    passage = Passage.read(EXAMPLES[0]["figures"]["passage"], "reports.md").to_dict()
    fields = {key for layer in passage["layers"] for key in layer} | set(passage) | set(passage["words"][0])
    explanation, sample = ({f.name for f in dataclasses.fields(k)} for k in (ExplanationFigures, SampleFigures))
    explanation -= {f.name for f in dataclasses.fields(UnknownTokens)}  # which docs/results.md describes
    assert (fields | set(EXAMPLES[0]["figures"]) | sample | explanation) - named == set()


def test_keys_and_flags_are_those_that_there_are() -> None:
    keys = set(re.findall(r"\b(Arrow\w+|Home|End|Escape)\b", passage_html.SCRIPT))
    assert keys == {"ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "Escape"}
    assert all(f"| {row} |" in PAGE for row in ("← →", "↑ ↓", "Home, End", "Escape", "Tab"))
    known = {
        setting.name
        for verb in (
            *(ExplainArguments, CompareReadersArguments, generate.GenerateArguments),
            *(examine.ExamineArguments, report.ReportArguments),
        )
        for setting in settings(verb)
    }
    assert set(re.findall(r"(?<![\w-])--[a-z]+", PAGE)) - {"--out"} <= known


def test_the_python_example_runs(tmp_path: Path, run: Any, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    results = {"explain-surprisal": made.result("explanation", made.explanation())}
    run("runs/demo", results=results)
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code
    names: dict[str, Any] = {}
    exec(compile(code[1], "reports.md", "exec"), names)
    assert '<figure class="passage">' in names["figure"] and "A &lt;passage&gt;" in names["page"]
    assert "Word by word" in render([tmp_path / "runs" / "demo"])
