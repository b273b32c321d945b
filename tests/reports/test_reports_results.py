"""Run folders are read whole, and what is absent or damaged is one line of advice."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backstory.reports import write
from backstory.results import read
from backstory.utils.errors import UserError


def test_a_run_is_read_with_training_first(run: Any) -> None:
    found = read(run())
    assert (found.name, [r.kind for r in found.results]) == ("demo", ["training", "evaluation", "examination"])
    assert [r.source for r in found.results] == [
        "result.json",
        "evaluate-test/result.json",
        "examine-truncate-valid/result.json",
    ]
    assert [r.label for r in found.results] == ["train", "evaluate test (static)", "examine truncate on valid"]
    assert "corpus: stdlib" in found.config
    assert len(found.steps) == 15 and found.steps[0].nats == 6.01
    assert [e.valid_perplexity for e in found.epochs] == [270.4, 160.2, 130.1]


def test_without_log_and_settings_the_results_stand_in(run: Any) -> None:
    folder = run(config=None, metrics="")
    (folder / "metrics.jsonl").unlink()
    found = read(folder)
    assert found.steps == () and [e.epoch for e in found.epochs] == [1, 2, 3]
    assert found.config == "text:\n  corpus: stdlib\nseed: 1\n"


def test_a_result_below_the_second_level_is_another_runs(run: Any, made: Any) -> None:
    folder = run()
    deep = folder / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "result.json").write_text(json.dumps(made.result("evaluation", made.evaluation())))
    assert len(read(folder).results) == 3


def test_an_unfinished_last_line_of_the_log_is_left_out(run: Any, made: Any) -> None:
    lines = "".join(json.dumps(line) + "\n" for line in made.log()[:3])
    assert len(read(run(metrics=lines + '{"event":"steps","st')).steps) == 3


@pytest.mark.parametrize("line", ["nonsense", '{"nats": NaN}', f'{{"event": "steps", "step": 1, "nats": {10**400}}}'])
def test_a_damaged_line_of_the_log_is_named(run: Any, made: Any, line: str) -> None:
    found = read(run(metrics=json.dumps(made.log()[0]) + f"\n{line}\n"))
    assert len(found.unread) == 1
    assert re.search(r"metrics\.jsonl is damaged at line 2 .*; remove that line", found.unread[0])


def test_absent_folders_files_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gone does not exist; name the folder of a run"):
        read(tmp_path / "gone")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file is not a folder; name"):
        read(tmp_path / "file")
    with pytest.raises(UserError, match="has no results; run `backstory train` or `backstory evaluate` first"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"schema": 1,', r"result\.json is damaged \(not valid JSON\)"),
        (b"[" * 100_000, r"result\.json is damaged \(not valid JSON\)"),
        (b'{"schema": 1, "schema": 1}', r"result\.json is damaged \(not valid JSON\)"),
        (b'{"schema": 1, "figures": {"a": NaN}}', r"result\.json is damaged \(not valid JSON\)"),
        (b'{"schema": 1, "figures": {"a": 1' + b"0" * 400 + b"}}", r"result\.json is damaged \(not valid JSON\)"),
        (b'{"schema": 1, "figures": {"a": "\\ud800"}}', r"result\.json is damaged \(not valid JSON\)"),
        (b"[]", "is not a result file"),
        (b'{"schema": 7, "kind": "evaluation"}', "has schema 7 and this version reads schema 1"),
        (b'{"kind": "evaluation"}', "has schema None and"),
        (b'{"schema": 1}', "is damaged: kind must be text"),
        (b"\xff\xfe", "cannot read .*result.json: it is not UTF-8 text"),
    ],
)
def test_damaged_results(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("below", "path", "value", "expected"),
    [
        ("", ("valid_perplexity",), "low", "figures.valid_perplexity must be a number"),
        ("", ("tokens", "valid"), None, "figures.tokens.valid must be a number"),
        ("", ("curve",), [], "figures.curve must be a list that is not empty"),
        ("", ("curve", 1, "train_nats"), True, r"figures.curve\[1\].train_nats must be a number"),
        ("evaluate-test", ("tokens",), None, "figures.tokens must be a number"),
        ("evaluate-test", ("unit",), 3, "figures.unit must be text"),
        ("evaluate-test", ("audit", "passed"), "yes", "figures.audit.passed must be true or false"),
        ("examine-truncate-valid", ("experiment",), None, "figures.experiment must be text"),
        ("examine-truncate-valid", ("effective_context",), 150, "figures.effective_context must be an object"),
        (
            "examine-truncate-valid",
            ("conditions", 0, "effect"),
            None,
            r"figures.conditions\[0\].effect must be a number",
        ),
    ],
)
def test_a_figure_that_is_wrong_is_named(
    run: Any, made: Any, below: str, path: tuple[Any, ...], value: Any, expected: str
) -> None:
    results = made.everything()
    place = results[below]["figures"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    found = read(run(results=results))
    assert len(found.results) == 2 and len(found.unread) == 1 and re.search(expected, found.unread[0])


def test_other_kinds_and_experiments_are_let_through(run: Any, made: Any) -> None:
    results = {
        "a": made.result("dream", {"anything": 1}),
        "b": made.result("examination", {"experiment": "telepathy", "answer": 42}),
    }
    found = read(run(results=results))
    assert [(r.kind, r.label) for r in found.results] == [
        ("examination", "examine telepathy on unknown text"),
        ("dream", "dream"),
    ]


HOSTILE = st.sampled_from([None, True, -1, 0, 10**400, 1e300, -1e300, "", "\ud800", "x", [], [1], {}, {"passed": True}])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside one."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield (*path, key)
        yield from places(inner, (*path, key))


@pytest.mark.full
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])  # it has no state
@given(data=st.data())
def test_a_report_on_a_changed_result_is_made_or_refused(made: Any, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["training", "evaluation", "truncation", "explanation", "comparison", "sample"]))
    kind = "examination" if name == "truncation" else name
    content = made.result(kind, getattr(made, name)())
    *way, last = data.draw(st.sampled_from(list(places(content))))
    place: Any = content
    for key in way:
        place = place[key]
    place[last] = data.draw(HOSTILE)
    with TemporaryDirectory() as folder:
        (Path(folder) / "result.json").write_text(json.dumps(content))
        with suppress(UserError):
            write([Path(folder)], Path(folder) / "page.html")
