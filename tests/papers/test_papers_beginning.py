"""Systems that start from another system's runs, and readings with larger batches: order of the work, and output."""

import copy
import dataclasses
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from small_suites import BROKEN, planned, reproduce, suite, write

from backstory.cli.main import main
from backstory.config import from_yaml
from backstory.jobs.launchers import LocalProcesses
from backstory.jobs.runner import DONE, FAILED, WAITING, JobDisplay, run_jobs
from backstory.papers.suite import Suite
from backstory.papers.suite_folder import SuiteFolder
from backstory.papers.suite_jobs import COLUMNS, RunJob, SuiteJobs, minutes_to_go
from backstory.results import result_at
from backstory.utils.errors import UserError
from backstory.utils.process import StopRequest

SPANS = {"kind": "span-buffer", "size": 12, "span": 3, "attention": "bilinear"}


def begun() -> dict[str, Any]:
    """A plain system, one with a buffer that begins with it, one that breaks down, and one that would begin with that."""
    buffered = {
        "name": "spans",
        "readings": [{"batch_size": 3}, {"reader": "shuffled-buffer", "batch_size": 3}],
        "small": {
            "recipe": "tiny.yaml",
            "overrides": {"model": {"buffer": SPANS}},
            "init_from": "plain",
            "seeds": [1],
            "minutes": 0.5,
        },
    }
    plain, after = (
        suite()["systems"][0],
        {"name": "after", "small": {**copy.deepcopy(BROKEN["small"]), "init_from": "broken"}},
    )
    plain["small"] = {"recipe": "tiny.yaml", "seeds": [1], "minutes": 0.25}
    claim = {"sentence": "Foreign spans are as good", "better": {"system": "spans", "reader": "shuffled-buffer",
             "batch_size": 3}, "than": {"system": "spans", "batch_size": 3}}  # fmt: skip
    return suite(systems=[after, buffered, plain, BROKEN], claims=[claim])


@pytest.mark.full
def test_runs_begin_with_others_and_are_read_in_several_rows(desk: Path) -> None:
    write(suite(systems=begun()["systems"][1:3], claims=begun()["claims"]))
    code, out, err = reproduce("suite.yaml", "--processes", "2")
    assert code == 0, err
    folder = desk / "runs" / "suite-small"
    found = json.loads((folder / "result.json").read_text())["figures"]
    runs = {run["system"]: run for run in found["runs"]}
    assert {run["state"] for run in runs.values()} == {DONE}
    trained = json.loads((folder / "runs" / "spans-seed1" / "result.json").read_text())["provenance"]
    assert trained["init_from"]["run"] == "plain-seed1"
    assert trained["command"].endswith(
        "--out runs/suite-small/runs/spans-seed1 --init-from runs/suite-small/runs/plain-seed1"
    )

    readings = {(r["reader"], r["batch_size"]): r for r in runs["spans"]["readings"]}
    assert list(readings) == [("static", 3), ("shuffled-buffer", 3)]
    assert len({r["value"] for r in readings.values()}) == 2, "each is a reading of its own"
    assert runs["plain"]["readings"][0]["policy"] is None
    for (reader, systems), reading in readings.items():
        name = (
            "evaluate-test" + (f"-{reader}" if reader != "static" else "") + (f"-batch{systems}" if systems > 1 else "")
        )
        read = json.loads((folder / "runs" / "spans-seed1" / name / "result.json").read_text())["figures"]
        assert (reading["value"], reading["policy"]) == (read["perplexity"], read["policy"])
        assert reading["policy"]["oracle_perplexity"] <= reading["value"]
    systems = {(system["system"], system["reader"], system["batch_size"]): system for system in found["systems"]}
    assert systems["spans", "shuffled-buffer", 3]["mean"] == readings["shuffled-buffer", 3]["value"]
    [claim] = found["claims"]
    assert claim["better"] == {
        "system": "spans",
        "split": "test",
        "reader": "shuffled-buffer",
        "batch_size": 3,
        "after": None,
        "addressing": None,
        "lengths": [],
        "overrides": [],
        "precision": "float32",
    }
    assert claim["verdict"] == "an audit failed: no claim", "rows with each other's buffers depend on each other"
    assert "test, shuffled-buffer, batch of 3" in out and "test, static, batch of 3" in out

    assert main(["reproduce", "suite.yaml", "--dry-run", "--only", "spans"]) == 0, "what it begins with is finished"
    changed = begun()
    del changed["systems"][1]["small"]["init_from"]
    write(changed)
    assert main(["reproduce", "suite.yaml", "--dry-run"]) == 2


@pytest.mark.full
def test_a_row_is_read_from_the_trained_weights_and_from_those_after_validation(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moving, system = (
        "dynamic:rule=sgd,rate=0.05",
        suite()["systems"][0] | {"prepare": ["tune --reader tempered --in-turn"]},
    )
    system["readings"] = [{"reader": moving}, {"reader": moving, "after": "valid"}, {"reader": "tempered"}]
    cache = {"experiment": "cache", "targets": 100, "maximum_context": 30}
    system["small"] = {"recipe": "tiny.yaml", "seeds": [1], "minutes": 0.25, "examinations": [cache]}
    sides = {
        "better": {"system": "plain", "reader": moving, "after": "valid"},
        "than": {"system": "plain", "reader": moving},
    }
    write(suite(systems=[system], claims=[{"sentence": "Validation helps", **sides}]))
    code, out, err = reproduce("suite.yaml")
    assert code == 0, err
    folder = desk / "runs" / "suite-small"
    result = result_at(folder / "result.json")
    trained, after, tempered = result.figures.runs[0].readings
    assert (
        [r.after for r in result.figures.systems]
        == [None, "valid", None]
        == [r.after for r in (trained, after, tempered)]
    )
    place = folder / "runs" / "plain-seed1"
    for reading, name in ((trained, ""), (after, "-after-valid")):
        file = place / f"evaluate-test-dynamic_rule_sgd_rate_0.05{name}" / "result.json"
        read = json.loads(file.read_text())["figures"]
        assert (read["after"], read["perplexity"]) == (reading.after, reading.value)
    assert trained.value != after.value
    assert [system.mean for system in result.figures.systems] == [r.value for r in (trained, after, tempered)]
    assert result.figures.claims[0].gain == pytest.approx(trained.value - after.value)
    assert f"test, {moving}, after valid" in out
    file = place / "evaluate-test-tempered" / "result.json"
    assert json.loads(file.read_text())["figures"]["readers"][1]["origin"].startswith("tuned on the first ")

    # A suite that asks for findings judges what was examined before it did, and runs nothing again.
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()}
    assert list(result.figures.findings) == []
    write(suite(systems=[system], claims=[], findings=[{"paper": "context", "system": "plain"}]))
    assert main(["reproduce", "suite.yaml"]) == 0
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()} == before
    examined = json.loads((place / "examine-cache-valid" / "result.json").read_text())["figures"]
    help_, harm = result_at(folder / "result.json").figures.findings
    assert (help_.finding, harm.finding) == ("cache", "cache-window")
    assert list(help_.measures) == [] and help_.verdict == "not measured", "so few words decide nothing"
    assert harm.measures[0].value == pytest.approx(examined["conditions"][0]["outside_window"])
    assert harm.verdict == "not measured", "so few words outside the window decide nothing"
    told = capsys.readouterr().out
    assert (
        "36% of the words are not in a cache's window of 500 when they come" in told and "section 6.2, figure 7" in told
    )

    # Another time nothing of it is run again, and another suite takes it over.
    assert main(["reproduce", "suite.yaml", "--dry-run"]) == 0
    assert SuiteFolder(folder).finished(planned(suite(systems=[system], claims=[]))["plain-seed1"])


def test_what_may_not_be_read_before(desk: Path) -> None:
    for split, after, told in (
        ("test", "test", "test would be scored with what was learned from it"),
        ("valid", "test", "nothing is learned from the test split before another is scored"),
        ("test", "vald", "there is no split 'vald'"),
    ):
        system = suite()["systems"][0] | {"readings": [{"reader": "dynamic", "split": split, "after": after}]}
        with pytest.raises(UserError, match=f"system plain: {told}"):
            planned(suite(systems=[system], claims=[]))
    reading = {"reader": "dynamic", "after": "valid"}
    system = suite()["systems"][0] | {"prepare": ["statistics"], "readings": [reading, {"reader": "dynamic"}]}
    planned(suite(systems=[system], claims=[]))  # two readings of the same split
    system["prepare"] = ["statistics", "tune --reader cache", "tune --reader cache --in-turn"]
    with pytest.raises(UserError, match=r"two prepare commands write readers/cache.json; remove one"):
        planned(suite(systems=[system], claims=[]))
    system = suite()["systems"][0] | {"readings": [reading, dict(reading)]}
    with pytest.raises(UserError, match="two readings of test, dynamic, after valid; leave one out"):
        planned(suite(systems=[system], claims=[]))


def test_what_another_training_began_with_is_refused(desk: Path) -> None:
    runs, folder = planned(begun()), SuiteFolder(desk / "out")
    run = runs["spans-seed1"]
    folder.open(from_yaml(Suite, yaml.safe_dump(begun()), "mine"), list(runs.values()))
    place = folder.run(run)
    place.mkdir()
    shutil.copy(folder.recipe(run), place / "config.yaml")
    folder.check([run])
    for init_from in ({}, {"init_from": {"run": "wide-seed1", "weights": "0"}}):
        (place / "run.json").write_text(json.dumps(init_from))
        with pytest.raises(
            UserError, match=r"spans-seed1 started from .* but the suite now starts it from plain-seed1"
        ):
            folder.check([run])
    (place / "run.json").write_text(json.dumps({"init_from": {"run": "plain-seed1", "weights": "0"}}))
    folder.check([run])
    with pytest.raises(
        UserError, match=r"started from plain-seed1, but the suite now starts it from weights of its own"
    ):
        folder.check([dataclasses.replace(run, init_from=None)])


def test_a_training_goes_on_or_begins_again_with_the_other_run(desk: Path) -> None:
    runs, folder = planned(begun()), SuiteFolder(Path("out"))
    run, begin = runs["spans-seed1"], ("--init-from", "out/runs/plain-seed1")
    place = folder.run(run)
    assert folder.commands(run)[0].arguments[-2:] == begin
    place.mkdir(parents=True)
    (place / "config.yaml").touch()
    assert folder.commands(run)[0].arguments[-3:] == ("--overwrite", *begin), (
        "it was killed before its first checkpoint"
    )
    (place / "checkpoints" / "last-0").mkdir(parents=True)
    assert folder.commands(run)[0].arguments[-2:] == (str(place), "--resume")
    assert folder.commands(dataclasses.replace(run, init_from=None))[0].arguments[-1] == "--resume"


def test_a_row_that_is_left_out_is_needed_by_those_that_begin_with_it(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(begun())
    assert main(["reproduce", "suite.yaml", "--only", "spans"]) == 2
    message = "system spans starts from the weights of plain, and its run plain-seed1 is not finished here; add plain to --only"
    assert capsys.readouterr().err == f"backstory: {message}\n"
    assert not Path("runs").exists()
    assert main(["reproduce", "suite.yaml", "--dry-run", "--only", "spans", "plain"]) == 0


def test_a_run_waits_for_the_one_it_begins_with(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pretends to run for a moment; the one that begins with another would be the first to start, as the longest."""
    runs, started = planned(begun()), []

    def start(job: RunJob) -> None:
        started.append(job.run.name)
        job.state = FAILED if job.run.system == "broken" else DONE

    def run(jobs: list[RunJob], processes: int) -> None:
        display = JobDisplay(Console(file=io.StringIO()), COLUMNS)
        local = LocalProcesses(processes)
        run_jobs(SuiteJobs(jobs, display, "", local, "perplexity"), local, StopRequest())

    monkeypatch.setattr(RunJob, "next_command", start)
    found = [RunJob(run, SuiteFolder(desk / "out"), minutes=run.minutes) for run in runs.values()]
    run(found, 2)
    assert started.index("plain-seed1") < started.index("spans-seed1") and "after-seed1" not in started
    by_name = {job.run.name: job for job in found}
    assert by_name["after-seed1"].problem == "it begins with broken-seed1, which failed"
    alone = RunJob(runs["spans-seed1"], SuiteFolder(desk / "out"))
    run([alone], 1)
    assert alone.state == DONE, "what it begins with was finished before"


def test_what_is_left_is_no_shorter_than_a_run_after_the_one_it_begins_with(desk: Path) -> None:
    runs = planned(begun())
    folder = SuiteFolder(desk / "out")
    plain, spans = (RunJob(runs[name], folder, WAITING, minutes=10.0) for name in ("plain-seed1", "spans-seed1"))
    assert minutes_to_go([plain, spans], 2) == 20
    plain.state = DONE
    assert minutes_to_go([plain, spans], 2) == 10
    assert minutes_to_go([spans], 2) == 10
