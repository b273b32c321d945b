"""Damaged results are named on the page and in the terminal, the rest is shown, and nothing foreign becomes markup."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import searched

from backstory.reports import render, to_text, write
from backstory.reports.sections import figures_section
from backstory.reports.tables import Table, columns
from backstory.results import result_from
from backstory.utils.errors import UserError

Change = Callable[[dict[str, Any]], object]


def reported(folders: list[Path], out: Path) -> tuple[str, list[str]]:
    """Return the page on run folders, and the terminal's output."""
    with pytest.warns(UserWarning) as told:
        write(folders, out)
    return out.read_text(encoding="utf-8"), [str(warning.message) for warning in told]


@pytest.mark.parametrize(
    ("below", "change", "reason"),
    [
        ("evaluate-test", lambda f: f.update(tokens=0), "figures.tokens must be a number that is whole, 1 or more"),
        ("evaluate-test", lambda f: f.update(unit="x" * 2000), "figures.unit must be text of at most 1,000 characters"),
        ("evaluate-test", lambda f: f.update(batch_size=0), "figures.batch_size must be a number"),
        ("evaluate-test", lambda f: f.update(unknown_tokens=3, out_of_vocabulary_tokens=4), "figures.unknown_tokens"),
        ("evaluate-test", lambda f: f.update(perplexity_per_word="low"), "figures.perplexity_per_word"),
        ("evaluate-test", lambda f: f["recency"]["bins"][0].pop("to"), r"recency.bins\[0\].to must be a number"),
        ("evaluate-test", lambda f: f["recency"]["new"].update(nats=None), "recency.new.nats must be null where"),
        ("evaluate-test", lambda f: f["memory"]["curves"][0]["bins"][0].pop("to"), r"curves\[0\].bins\[0\].to must be"),
        ("examine", lambda f: f["effective_context"].pop("context"), "effective_context.context must be a number"),
        ("examine", lambda f: f["effective_context"].pop("low"), "effective_context must be with both ends"),
        ("examine", lambda f: f["effective_context"].update(threshold_percent=100.0), "threshold_percent must be"),
        ("examine", lambda f: f.update(seed=[1]), "figures.seed must be a number or null"),
        ("examine", lambda f: f.update(groups=None), "figures.groups must be a list"),
        ("examine", lambda f: f.update(targets=1.5), "figures.targets must be a number that is whole"),
        ("compare", lambda f: f["comparisons"][0].update(over="nobody"), "between readers that are named"),
        ("compare", lambda f: f["documents"][1].update(tokens=-1), r"documents\[1\].tokens must be a number"),
        ("search", lambda f: f["trials"][1].update(trial=7), "figures.trials must be trials of numbers that differ"),
        ("search", lambda f: f["parameters"][0].update(importance=5.0), "importance must be a number from 0 to 1"),
        ("search", lambda f: f["parameters"][0].pop("same"), "same must be text"),
    ],
)
def test_a_damaged_result_is_named_and_the_others_are_shown(
    run: Any, made: Any, tmp_path: Path, below: str, change: Change, reason: str
) -> None:
    results = {
        **made.everything(),
        "evaluate-test": made.result("evaluation", made.evaluation(memory=made.memory(), recency=made.recency())),
        "examine": made.result("examination", made.truncation()),
        "compare": made.result("comparison", made.comparison()),
        "search": searched.saved(searched.search()),
    }
    change(results[below]["figures"])
    results = {name: results[name] for name in {"": 0, below: 0}}
    text, told = reported([run(results=results)], tmp_path / "page.html")
    assert len(told) == 1 and "\n" not in told[0]
    assert re.search(rf"^not shown: .*demo/{below}/result.json is damaged: .*{reason}", told[0])
    assert "<h2>Not shown</h2>" in text and f"demo/{below}/result.json is damaged" in text
    assert "<h2>Learning</h2>" in text and "Training of every run" in text


@pytest.mark.parametrize("content", ["", "[" * 5000, '{"schema": 2}', '{"schema": 1, "figures": {"x": NaN}}', "\x00"])
def test_a_file_that_is_no_result_is_named(run: Any, tmp_path: Path, content: str) -> None:
    folder = run()
    (folder / "evaluate-test" / "result.json").write_text(content)
    text, told = reported([folder], tmp_path / "page.html")
    assert len(told) == 1 and "demo/evaluate-test/result.json" in told[0]
    assert "demo/evaluate-test/result.json" in text and "<h2>Context</h2>" in text


@pytest.mark.full
def test_a_damaged_log_is_named_and_the_curve_is_that_of_the_result(run: Any, tmp_path: Path) -> None:
    text, told = reported([run(metrics='{"nats": 1}\nnonsense\n')], tmp_path / "page.html")
    assert len(told) == 1 and "metrics.jsonl is damaged at line 2 (not a JSON object)" in told[0]
    assert "metrics.jsonl is damaged at line 2" in text and "<h2>Learning</h2>" in text


@pytest.mark.full
def test_nothing_is_read_through_a_link_out_of_the_folder(run: Any, tmp_path: Path) -> None:
    folder, secret = run(), tmp_path / "secret"
    secret.write_text("a: hidden words\n")
    (folder / "config.yaml").unlink()
    (folder / "config.yaml").symlink_to(secret)
    text, told = reported([folder], tmp_path / "page.html")
    assert len(told) == 1 and "config.yaml: a link leads out of" in told[0]
    assert "hidden words" not in text and "corpus: stdlib" in text  # what the results recorded


@pytest.mark.full
def test_a_fault_of_ours_takes_one_result_and_is_named(run: Any, tmp_path: Path) -> None:
    with patch.object(figures_section, "_evaluation_row", side_effect=ZeroDivisionError("by zero")):
        text, told = reported([run()], tmp_path / "page.html")
    assert told == ["not shown: evaluate-test/result.json of demo cannot be shown: ZeroDivisionError: by zero"]
    assert "cannot be shown: ZeroDivisionError" in text and "<h2>Context</h2>" in text


UNITS = ["w\x00\x1b[2J\x07", "\ufffe\ufdd0", "$x^$", "$\\frac{", "<b>&", "a\nb\tc", "\u202eabc", "w" * 1000]


@pytest.mark.full
@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_of_any_characters_is_drawn(run: Any, made: Any, unit: str) -> None:
    results = made.everything()
    for result in results.values():
        result["figures"]["unit"] = unit
    text = render([run(results=results)])
    assert "<b>&" not in text and not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]", text)
    assert text.count("<svg") == 4


@pytest.mark.full
def test_numbers_beyond_all_axes_are_drawn_at_their_ends_or_not(run: Any, made: Any) -> None:
    results = made.everything()
    results["examine-truncate-valid"]["figures"]["conditions"][0].update(low=-1e300, high=1e300)
    results[""]["figures"]["curve"][0]["valid_nats"] = 1e300
    results["compare"] = made.result("comparison", made.comparison())
    results["compare"]["figures"]["comparisons"][0]["blocks"][:2] = [1e306, -1e306]
    assert render([run(results=results, metrics="")]).count("<svg") == 10


@pytest.mark.full
def test_references_in_settings_are_not_unfolded(run: Any) -> None:
    lines = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 25)]
    folders = [run(name, config="\n".join(["a0: &a0 [x]", *lines, ""])) for name in ("a", "b")]
    assert "Settings that differ" not in render(folders)


@pytest.mark.full
def test_a_page_is_not_written_through_a_link(run: Any, tmp_path: Path) -> None:
    folder, target, link = run(), tmp_path / "elsewhere.html", tmp_path / "page.html"
    write([folder], target)
    before = target.read_bytes()
    link.symlink_to(target)
    with pytest.raises(UserError, match=r"page.html is a link; name the place it leads to, or --overwrite"):
        write([folder], link)
    assert link.is_symlink()
    target.write_bytes(before + b" ")
    write([folder], link, overwrite=True)
    assert not link.is_symlink() and link.read_bytes() == before and target.read_bytes() == before + b" "


def test_older_results_without_a_reproductions_figures_are_named_once(made: Any) -> None:
    row = {"system": "a", "note": "", "split": "test", "reader": "static"}
    figures = {"suite": "g", "scale": "small", "title": "t", "metric": "perplexity", "unit": None, "planned": 1,
               "finished": 0, "failed": 0, "core_hours": 0.0, "systems": [row], "claims": [], "runs": []}  # fmt: skip
    with pytest.raises(UserError, match=r"figures.systems\[0\].published must be a number or null"):
        result_from(json.dumps(made.result("reproduction", figures)), "x")


def test_a_terminal_is_not_obeyed(run: Any) -> None:
    assert to_text(Table(columns("a\x1b[2J", "b"), (("c\nd", "e\x07"),))) == "a\\x1b[2J  b\nc\\nd      e\\x07"
