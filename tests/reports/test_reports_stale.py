"""Stale results of every kind are recognised by their hashes."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from backstory.reports import render, write
from backstory.reports.page import _stale_apart as apart
from backstory.results import read

OLD, NEW = "0" * 64, "f" * 64


@pytest.fixture
def measured(run: Any, made: Any) -> Any:
    """Make a run of these weights with one result of each kind, of these."""

    def make(of: dict[str, Any] | None = None, trained: dict[str, Any] | None = None, checkpoint: str = "") -> Path:
        folder = run()
        kinds = {
            "examine-truncate-valid": made.result("examination", made.truncation()),
            "evaluate-test": made.result("evaluation", made.evaluation()),
            "explain-surprisal": made.result("explanation", made.explanation()),
            "explain-reading": made.result("comparison", made.comparison()),
            "sample": made.result("sample", made.sample()),
        }
        for name, result in kinds.items():
            (folder / name).mkdir(exist_ok=True)
            result["provenance"] |= of or {}
            result["provenance"]["command"] = None
            (folder / name / "result.json").write_text(json.dumps(result))
        result = made.result("training", made.training())
        result["provenance"] |= trained or {}
        (folder / "result.json").write_text(json.dumps(result))
        if checkpoint:
            holds(folder, checkpoint)
        return folder

    return make


def holds(folder: Path, sha256: str, epoch: int = 3) -> None:
    """Give a run a checkpoint of best weights, as its manifest tells of it."""
    path = folder / "checkpoints" / f"best-{epoch}"
    path.mkdir(parents=True)
    files = {"weights.safetensors": {"bytes": 8, "sha256": sha256}}
    (path / "manifest.json").write_text(json.dumps({"schema": 1, "files": files}))


def stale(folder: Path) -> dict[str, str]:
    return {r.kind: r.stale for r in read(folder).results}


KINDS = ("training", "evaluation", "examination", "explanation", "comparison", "sample")
ALL = dict.fromkeys(KINDS, "of earlier weights")
BEFORE = dict.fromkeys(KINDS, "from before the run was trained on") | {"training": ""}
NONE = dict.fromkeys(KINDS, "")


@pytest.mark.parametrize(
    ("of", "trained", "checkpoint", "expected"),
    [
        ({"weights": OLD}, {"weights": NEW}, "", ALL | {"training": ""}),
        ({"weights": NEW}, {"weights": NEW}, "", NONE),
        # A run of an earlier version: the file that was read is the file that is there.
        ({"weights": OLD, "weights_file": "a"}, {}, "a", NONE),
        ({"weights": OLD, "weights_file": "a"}, {}, "b", ALL | {"training": ""}),
        # Trained on since, and not to the end.
        ({"weights": OLD, "weights_file": "a"}, {"weights": OLD, "weights_file": "a"}, "b", ALL),
        # The same weights in another file.
        ({"weights": OLD, "weights_file": "a"}, {"weights": OLD, "weights_file": "b"}, "b", NONE),
        # Nothing tells.
        ({}, {"weights": NEW, "weights_file": "b"}, "b", NONE),
        ({"weights": OLD}, {}, "b", NONE),
        ({"weights": [OLD, NEW], "weights_file": ["a", "b"]}, {"weights": NEW, "ended": "2027"}, "", NONE),
        ({"weights": {}, "weights_file": 3}, {"weights": [], "weights_file": {}, "ended": 1}, "b", NONE),
        ({}, {"ended": "2026-11-20T12:00:00Z"}, "", BEFORE),
        ({}, {"ended": "2026-11-20T10:00:00Z"}, "", NONE),
    ],
)  # fmt: skip
def test_staleness(of: Any, trained: Any, checkpoint: str, expected: dict[str, str], measured: Any) -> None:
    assert stale(measured(of, trained, checkpoint)) == expected


def test_the_newest_checkpoint_counts_and_a_damaged_manifest_is_skipped(measured: Any) -> None:
    of = {"weights": OLD, "weights_file": "a"}
    folder = measured(of, of, "a")
    holds(folder, "b", 12)
    assert stale(folder) == ALL
    for damage in ("{", "[]", '{"schema": 1, "files": {"weights.safetensors": {"sha256": 3}}}', '{"schema": 2}'):
        (folder / "checkpoints" / "best-12" / "manifest.json").write_text(damage)
        assert stale(folder) == NONE


def test_runs_below_a_run_are_their_own(measured: Any, made: Any) -> None:
    folder = measured({"weights": NEW}, {"weights": NEW})
    for name, kind, figures in (("other", "training", made.training()),):
        (folder / name).mkdir()
        (folder / name / "result.json").write_text(json.dumps(made.result(kind, figures, "other", weights=OLD)))
    assert {r.stale for r in read(folder).results} == {""}
    (folder / "result.json").unlink()
    assert {r.stale for r in read(folder).results} == {""}


@pytest.mark.full
def test_every_section_names_what_is_stale(measured: Any) -> None:
    folder = measured({"weights": OLD}, {"weights": NEW})
    runs = [read(folder)]
    now, earlier = apart(runs)
    assert now == runs[0].current() and [r.kind for r in now.results] == ["training"]
    assert earlier.name == "demo, of earlier weights" and len(earlier.results) == 5
    with pytest.warns(UserWarning, match="is of earlier weights; renew it with") as told:
        write([folder], folder.parent / "report.html")
    assert len(told) == 5
    page = (folder.parent / "report.html").read_text()
    assert page == render([folder])
    assert ">audited<" not in page and page.count("<h1>demo</h1>") == 1
    assert page.count("; renew it with `backstory ") == 5
    for section in ("Figures", "Context", "Word by word", "Readers against each other", "Sample text"):
        body = page.split(f">{section}</h2>")[1].split("</section>")[0]
        assert "demo, of earlier weights" in body, section
    lede = page.split("<main>")[0]
    assert "demo reaches validation" in lede and "98.1" not in lede


@pytest.mark.full
def test_a_failed_audit_of_earlier_weights_is_still_one(measured: Any, made: Any) -> None:
    folder = measured({"weights": OLD}, {"weights": NEW})
    failed = made.evaluation(audit={"passed": False, "places": 8, "checks": {"causal": False}, "failures": []})
    (folder / "evaluate-test/result.json").write_text(json.dumps(made.result("evaluation", failed, weights=OLD)))
    page = render([folder])
    assert ">AUDIT FAILED<" in page and "Audit failed: demo, of earlier weights" in page


COMMANDS = [
    ("evaluation", {}, {}, "evaluate-test", "evaluate RUN --split test"),
    (
        "evaluation",
        {"reader": "cache", "batch_size": 10, "after": "valid", "lengths": [5, 9], "addressing": "dense"},
        {"precision": "bfloat16"},
        "mine",
        "evaluate RUN --split test --reader cache --after valid --batch-size 10 --lengths 5 9 --addressing dense "
        "--precision bfloat16 --out RUN/mine",
    ),
    ("evaluation", {"split": "text"}, {}, "mine", "evaluate RUN stdlib --out RUN/mine"),
    ("sample", {}, {}, "sample", "generate RUN --save"),
    ("explanation", {}, {}, "explain-surprisal", "explain surprisal RUN"),
    ("comparison", {}, {}, "explain-reading", "explain reading RUN"),
    (
        "examination",
        {},
        {},
        "examine-truncate-valid",
        "examine RUN --experiment truncate --split valid --targets 2000 --maximum-context 1000",
    ),
    (
        "examination",
        {"context": 100, "start_token": True, "seed": 3, "near": 50},
        {},
        "examine-truncate-valid-start-token",
        "examine RUN --experiment truncate --split valid --targets 2000 --maximum-context 1000 --context 100 --start-token "
        "--seed 3",
    ),
    ("evaluation", {"lines": 7}, {}, "evaluate-test-lines", "evaluate RUN --split test --each-line"),
    ("evaluation", {}, {"command": "backstory evaluate 'my run' --json"}, "evaluate-test", "evaluate 'my run' --json"),
    ("evaluation", {}, {"command": "backstory demo"}, "evaluate-test", "evaluate RUN --split test"),
]


@pytest.mark.parametrize(("kind", "figures", "told", "place", "command"), COMMANDS)
def test_what_renews_a_result(
    kind: str, figures: Any, told: Any, place: str, command: str, tmp_path: Path, made: Any
) -> None:
    make = {"examination": made.truncation}.get(kind) or getattr(made, kind)
    result = made.result(kind, make(**figures), weights=OLD, precision="float32")
    result["provenance"] |= {"command": None, **told}
    folder = tmp_path / "a run"
    (folder / place).mkdir(parents=True)
    (folder / place / "result.json").write_text(json.dumps(result))
    (folder / "result.json").write_text(json.dumps(made.result("training", made.training(), weights=NEW)))
    (stale,) = [r for r in read(folder).results if r.stale]
    expected = shlex.split(f"backstory {command}")
    assert shlex.split(stale.renew) == [part.replace("RUN", str(folder)) for part in expected]


@pytest.mark.full
def test_an_unfinished_training_is_gone_on_with(measured: Any) -> None:
    of = {"weights": OLD, "weights_file": "a"}
    folder = measured(of, of, "b")
    assert next(r for r in read(folder).results if r.kind == "training").renew == f"backstory train {folder} --resume"
    page = render([folder])
    assert "demo, train is of earlier weights" in page and "demo has the results below" in page
