"""`backstory reproduce` on tiny suites: its output and files, and resuming by the same command."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_suites import CLAIM, Reproduced, finish, reproduce, start, suite, write

from backstory.cli.main import main
from backstory.config import RunConfig, to_dict
from backstory.context import read_examination
from backstory.papers.claims import judge
from backstory.reports import render
from backstory.results import EvaluationFigures, read

NAMES = ["plain-seed1", "plain-seed2", "wide-seed1", "wide-seed2"]


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "runs" / "suite-small" / "result.json").read_text(encoding="utf-8"))


def figures(folder: Path) -> dict[str, Any]:
    """Return everything that two reproductions of the same suite must share."""
    found = result(folder)["figures"]
    runs = [
        {k: run[k] for k in ("run", "state", "valid_perplexity", "readings", "examinations")} for run in found["runs"]
    ]
    for run in runs:  # all but how long a reading took
        run["readings"] = [{k: v for k, v in reading.items() if k != "seconds"} for reading in run["readings"]]
    return {"systems": found["systems"], "claims": found["claims"], "runs": runs}


def written(folder: Path) -> dict[str, tuple[int, int]]:
    """Return modification times and sizes of every run's files."""
    files = (p for p in (folder / "runs" / "suite-small" / "runs").rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.stat().st_size) for p in files}


def copied(reproduced: Reproduced, desk: Path) -> Path:
    """The finished reproduction on a desk of one's own."""
    shutil.copytree(reproduced.folder / "runs", desk / "runs")
    shutil.copy(reproduced.folder / "suite.yaml", desk / "suite.yaml")
    return desk


# --- what one reproduction says and leaves ---


def test_the_budget_comes_first(reproduced: Reproduced) -> None:
    first, *rest = reproduced.err.splitlines()
    assert first == (
        "Tiny models, small scale: 5 runs, 0 finished; about 0.04 core-hours to go, as the suite states: "
        "1 min 15 s with 2 processes"
    )
    assert any(line.startswith("plain-seed1: running, epoch 1 of 1") for line in rest)
    assert any(re.match(r"wide-seed2: done, validation perplexity \d", line) for line in rest)


def test_every_run_is_a_run_folder_with_commands_that_make_it_again(reproduced: Reproduced) -> None:
    for run in result(reproduced.folder)["figures"]["runs"][:4]:
        found_at = reproduced.folder / "runs" / "suite-small" / "runs" / run["run"]
        found = read(found_at)
        trained, [evaluated] = found.training, found.of(EvaluationFigures)
        assert trained is not None
        place = f"runs/suite-small/runs/{run['run']}"
        recipe = f"runs/suite-small/recipes/{run['system']}.yaml"
        assert trained.provenance.command == f"backstory train {recipe} --seed {run['seed']} --out {place}"
        origin = json.loads((found_at / "result.json").read_text())["provenance"]
        assert origin["seed"] == run["seed"]
        assert origin["device"].startswith("cpu") and "1 thread)" in origin["device"]
        assert (evaluated.provenance.command or "").startswith(
            f"backstory evaluate {place} --split test --reader static"
        )
        assert run["readings"][0]["value"] == evaluated.figures.perplexity
        assert (run["valid_perplexity"], run["parameters"]) == (
            trained.figures.valid_perplexity,
            trained.figures.parameters,
        )
        assert run["curve"] == [[e.epoch, e.valid_perplexity] for e in trained.figures.curve]
        assert run["seconds"] == pytest.approx(sum(r.provenance.seconds or 0 for r in found.results), abs=0.1)


def test_the_result_holds_published_and_ours_and_the_claims(reproduced: Reproduced) -> None:
    whole = result(reproduced.folder)
    assert (whole["kind"], whole["name"], whole["schema"]) == ("reproduction", "suite-small", 1)
    found = whole["figures"]
    assert (found["planned"], found["finished"], found["failed"], found["threads"]) == (5, 4, 1, 1)
    values = {
        system: {run["seed"]: run["readings"][0]["value"] for run in found["runs"] if run["system"] == system}
        for system in ("plain", "wide")
    }
    plain = found["systems"][0]
    a, b = values["plain"].values()
    assert (plain["published"], plain["source"]) == (9.5, "Somebody 2000, table 1")
    assert plain["mean"] == pytest.approx((a + b) / 2)
    assert plain["deviation"] == pytest.approx(abs(a - b) / 2**0.5)
    assert (plain["seeds"], plain["planned_seeds"], plain["audited"]) == ([1, 2], [1, 2], True)
    claim, unjudged = found["claims"]
    judged = judge(values["wide"], values["plain"])
    assert (claim["gain"], claim["low"], claim["high"]) == (judged.gain, judged.low, judged.high)
    assert (claim["published_gain"], claim["verdict"], claim["paired"]) == (0.25, judged.verdict, True)
    assert (unjudged["verdict"], unjudged["seeds"], unjudged["gain"]) == ("runs are missing: no claim", [2, 0], None)
    [examined] = found["runs"][0]["examinations"]
    assert (examined["experiment"], examined["targets"]) == ("truncate", 20)
    assert found["core_hours"] == pytest.approx(sum(run["seconds"] for run in found["runs"]) / 3600, abs=1e-3)


def test_the_result_says_how_it_came_about_and_names_no_place_of_this_machine(reproduced: Reproduced) -> None:
    origin = result(reproduced.folder)["provenance"]
    assert origin["command"] == "backstory reproduce suite.yaml --scale small"
    assert origin["config"]["title"] == "Tiny models" and origin["config"]["systems"][1]["small"]["seeds"] == [1, 2]
    assert origin["seed"] == [1, 2] and origin["corpus"]["name"] == "corpus" and origin["precision"] == "float32"
    for path in (reproduced.folder / "runs").rglob("result.json"):
        assert str(reproduced.folder) not in path.read_text(encoding="utf-8"), path


def test_a_failed_run_is_told_and_leaves_the_others_alone(reproduced: Reproduced) -> None:
    assert reproduced.code == 1
    said = reproduced.err.splitlines()[-1]
    assert said.startswith("backstory: failed: broken-seed1: train ended with exit code 3: step ") and "nan" in said
    broken = result(reproduced.folder)["figures"]["runs"][4]
    assert (broken["state"], broken["valid_perplexity"], broken["readings"]) == ("failed", None, [])
    assert broken["problem"] in said


def test_the_tables_are_printed(reproduced: Reproduced) -> None:
    lines = reproduced.out.splitlines()
    heads = [line.split("  ")[0] for line in lines if line]
    assert heads[:4] == ["System", "plain", "wide", "broken"]
    assert heads[4:7] == ["Claim", "Wide beats plain", "Plain beats broken"]
    plain = next(line for line in lines if line.startswith("plain "))
    mean = result(reproduced.folder)["figures"]["systems"][0]["mean"]
    assert "9.50 (Somebody 2000, table 1)" in plain and f" {mean:.2f} " in plain and "audited" in plain
    assert " 0 of 1 " in next(line for line in lines if line.startswith("broken "))
    assert lines[-1].startswith("runs/suite-small/result.json; `backstory report runs/suite-small`")


def test_the_report_shows_it(reproduced: Reproduced) -> None:
    page = render([reproduced.folder / "runs" / "suite-small"])
    assert "4 of 5 runs finished, 1 failed" in page
    for text in ("Published and ours", "Tiny models, small scale", "Everything is tiny.", "Wide beats plain",
                 "broken-seed1 failed: train ended with exit code 3", "95% t interval", "Does it hold here?"):  # fmt: skip
        assert text in page, text
    assert "Other results" not in page and "<p>None" not in page


# --- how it was tested ---


def test_rows_say_how_they_were_trained(reproduced: Reproduced, tiny_config: RunConfig) -> None:
    training = tiny_config.training
    for system in figures(reproduced.folder)["systems"][:2]:
        protocol = system["protocol"]
        assert (protocol["corpus"], protocol["init_from"]) == ("corpus", None)
        of_training = set(protocol) - {"corpus", "init_from", "finetune_learning_rate", "averaging"}
        assert {"weight_decay", "clip", "schedule", "activation_l2", "batch_size"} < of_training
        settings = to_dict(training)
        assert {key: protocol[key] for key in of_training} == {key: settings[key] for key in of_training}
        assert protocol["finetune_learning_rate"] == training.learning_rate


def test_a_confounded_claim_has_a_gain_and_no_verdict(reproduced: Reproduced, desk: Path) -> None:
    folder = copied(reproduced, desk)
    judged = figures(folder)["claims"][0]
    write(suite(claims=[CLAIM | {"confounded": "wide learns faster"}]))
    code, out, err = reproduce("suite.yaml")
    assert code == 0, err
    again = figures(folder)["claims"][0]
    alone = {"holm_p_value": judged["p_value"]}  # the suite has one claim now
    assert again == judged | alone | {"confounded": "wide learns faster", "verdict": "confounded: no verdict"}
    assert "confounded: no verdict  wide learns faster" in out


# --- the same command again ---


def test_finished_runs_are_not_run_again(reproduced: Reproduced, desk: Path) -> None:
    folder = copied(reproduced, desk)
    write(suite())
    before, figures_before = written(folder), figures(folder)
    code, out, err = reproduce("suite.yaml")
    assert code == 0, err
    first, *rest = err.splitlines()
    assert first == "Tiny models, small scale: 4 runs, all finished" and not any("running" in line for line in rest)
    after = written(folder)
    assert after == before
    again = figures(folder)
    assert again["runs"] == figures_before["runs"][:4] and again["systems"] == figures_before["systems"][:2]
    assert "Wide beats plain" in out


@pytest.mark.full
def test_a_seed_more_runs_that_seed_alone(reproduced: Reproduced, desk: Path) -> None:
    folder = copied(reproduced, desk)
    longer = suite()
    longer["systems"][1]["small"]["seeds"] = [1, 2, 3]
    write(longer)
    before = written(folder)
    code, _, err = reproduce("suite.yaml")
    assert code == 0, err
    assert "5 runs, 4 finished" in err.splitlines()[0] and "by the finished ones" in err.splitlines()[0]
    assert {name: when for name, when in written(folder).items() if "wide-seed3" not in name} == before
    claim = result(folder)["figures"]["claims"][0]
    assert (claim["seeds"], claim["paired"]) == ([3, 2], False)


def test_the_recorded_command_selects_the_same_runs(reproduced: Reproduced, desk: Path) -> None:
    folder, command = copied(reproduced, desk), "reproduce suite.yaml --scale small --only wide --seeds 1"
    assert main(command.split()) == 0
    assert result(folder)["provenance"]["command"] == f"backstory {command}"


def test_other_settings_are_refused(reproduced: Reproduced, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copied(reproduced, desk)
    other = suite()
    other["systems"][1]["small"]["overrides"]["training"] = {"epochs": 2}
    write(other)
    before = written(folder)
    assert main(["reproduce", "suite.yaml"]) == 2
    assert "wide-seed1 was trained with other settings than the suite now has for it" in capsys.readouterr().err
    assert written(folder) == before


def test_runs_of_a_version_without_some_settings_are_those_of_the_grid(
    reproduced: Reproduced, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(reproduced, desk)
    write(suite())
    for path in (folder / "runs" / "suite-small" / "runs").glob("*/config.yaml"):
        settings = yaml.safe_load(path.read_text())
        del settings["training"]["decay_patience"], settings["text"]["algorithm"]
        path.write_text(yaml.safe_dump(settings, sort_keys=False))
    assert main(["reproduce", "suite.yaml", "--dry-run"]) == 0
    assert "4 runs, all finished" in capsys.readouterr().out


@pytest.mark.full
def test_a_damaged_reading_is_read_again(reproduced: Reproduced, desk: Path) -> None:
    folder = copied(reproduced, desk)
    write(suite())
    path = folder / "runs" / "suite-small" / "runs" / "wide-seed1" / "evaluate-test" / "result.json"
    before, values = written(folder), figures(folder)["systems"][:2]
    path.write_text(path.read_text()[:100])
    code, _, err = reproduce("suite.yaml")
    assert code == 0, err
    changed = {name for name, when in written(folder).items() if when != before.get(name)}
    assert changed == {str(path.relative_to(folder))}
    assert figures(folder)["systems"] == values


def test_what_else_lies_in_a_run_is_no_part_of_the_reproduction(reproduced: Reproduced, desk: Path) -> None:
    folder = copied(reproduced, desk)
    write(suite())
    assert main(["reproduce", "suite.yaml"]) == 0
    before = result(folder)
    place = folder / "runs" / "suite-small" / "runs" / "plain-seed1"
    assert main(["evaluate", str(place), "--batch-size", "10", "--out", str(place / "more")]) == 0
    for kind in ("evaluate-test", "examine-truncate-valid"):  # as slow as can be told from the others
        stray = json.loads((place / kind / "result.json").read_text())
        stray["provenance"]["seconds"] = 1e6
        (place / f"{kind}-too").mkdir()
        (place / f"{kind}-too" / "result.json").write_text(json.dumps(stray))
    assert main(["reproduce", "suite.yaml"]) == 0
    after = result(folder)
    assert after["figures"] == before["figures"]
    assert after["provenance"]["seconds"] == before["provenance"]["seconds"]


def to_go(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The runs that the same command would take up."""
    assert main(["reproduce", "suite.yaml", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    return [line.split()[0] for line in lines if line.split()[1] == "waiting"]


def test_a_reading_made_otherwise_is_made_again(
    reproduced: Reproduced, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(reproduced, desk)
    write(suite())
    assert to_go(capsys) == []
    place = folder / "runs" / "suite-small" / "runs" / "wide-seed1"
    assert main(["evaluate", str(place), "--batch-size", "10", "--out", str(place / "evaluate-test")]) == 0
    capsys.readouterr()
    assert to_go(capsys) == ["wide-seed1"]


@pytest.mark.parametrize("change", [{"targets": 10}, {"maximum_context": 29}])
def test_an_examination_with_other_settings_is_to_be_made_again(
    change: dict[str, int], reproduced: Reproduced, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(reproduced, desk)
    changed = suite()
    write(changed)
    assert to_go(capsys) == []
    changed["systems"][0]["small"]["examinations"][0] |= change
    write(changed)
    assert to_go(capsys) == ["plain-seed1"]


@pytest.mark.full
def test_what_is_to_be_made_again_is_made_once(
    reproduced: Reproduced, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where fewer targets are possible than were asked for, and the result says how many there were."""
    folder = copied(reproduced, desk)
    systems = figures(folder)["systems"][:2]
    changed = suite()
    changed["systems"][0]["small"]["examinations"][0] |= {"targets": 10**6, "maximum_context": 29}
    write(changed)
    place = folder / "runs" / "suite-small" / "runs" / "wide-seed1"
    assert main(["evaluate", str(place), "--batch-size", "10", "--out", str(place / "evaluate-test")]) == 0
    before = written(folder)
    code, _, err = reproduce("suite.yaml")
    assert code == 0, err
    remade = {Path(name).parent.name for name, when in written(folder).items() if when != before[name]}
    assert remade == {"evaluate-test", "examine-truncate-valid"}
    assert figures(folder)["systems"] == systems
    [examined] = result(folder)["figures"]["runs"][0]["examinations"]
    assert 20 < examined["targets"] < 10**6 and examined["maximum_context"] == 29
    capsys.readouterr()
    assert to_go(capsys) == []


def test_a_reading_that_failed_its_audit_decides_nothing(reproduced: Reproduced, desk: Path) -> None:
    folder = copied(reproduced, desk)
    write(suite())
    path = folder / "runs" / "suite-small" / "runs" / "wide-seed1" / "evaluate-test" / "result.json"
    cheated = json.loads(path.read_text())
    cheated["figures"]["audit"]["passed"] = False
    path.write_text(json.dumps(cheated))
    assert main(["reproduce", "suite.yaml"]) == 0
    found = result(folder)["figures"]
    assert [system["audited"] for system in found["systems"]] == [True, False]
    assert (found["claims"][0]["verdict"], found["claims"][0]["gain"]) == ("an audit failed: no claim", None)


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(suite())
    before = sorted(desk.rglob("*"))
    assert main(["reproduce", "suite.yaml", "--dry-run", "--processes", "3", "--only", "wide"]) == 0
    shown = capsys.readouterr()
    first, *rest = shown.out.splitlines()
    assert first.startswith("Tiny models, small scale: 2 runs, 0 finished; about 0.02 core-hours to go")
    assert first.endswith("30 s with 2 processes")
    assert [line.split() for line in rest] == [[name, "waiting", "30", "s"] for name in ("wide-seed1", "wide-seed2")]
    assert sorted(desk.rglob("*")) == before


# --- stopped in the middle ---


def slow() -> dict[str, Any]:
    """The suite with one seed for each system and trainings of some seconds, saved all the time."""
    changed = suite()
    for system in changed["systems"]:
        system["small"]["seeds"] = [1]
        overrides = system["small"].setdefault("overrides", {})
        overrides["training"] = {"epochs": 18, "save_minutes": 1e-3}
    return changed


def wait_until_some_run_has(folder: Path, epochs: int, running: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while True:
        logs = (folder / "runs" / "suite-small" / "runs").glob("*/metrics.jsonl")
        if any(path.read_bytes().count(b'"epoch", "epoch"') >= epochs for path in logs):
            return
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def steps(folder: Path) -> dict[str, list[int]]:
    """The steps in every run's log, in order."""
    found = {}
    for path in (folder / "runs" / "suite-small" / "runs").glob("*/metrics.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[path.parent.name] = [line["step"] for line in lines if line["event"] == "steps"]
    return found


def copied_inputs(desk: Path, folder: Path) -> Path:
    """A folder with the corpus, the recipe and the suite of a desk, and nothing else."""
    for name in ("corpus", "tiny.yaml", "suite.yaml"):
        copy = shutil.copytree if (desk / name).is_dir() else shutil.copy
        copy(desk / name, folder / name)
    return folder


def children() -> list[int]:
    """Processes on this machine that run a command of the current folder's reproduction."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command, where = (path / "cmdline").read_bytes(), os.readlink(path / "cwd")
        except OSError:
            continue
        if b"backstory.jobs.child" in command and where == str(Path.cwd()):
            found.append(int(path.name))
    return found


def wait_until_no_child_is_left() -> None:
    deadline = time.monotonic() + 60
    while children():
        assert time.monotonic() < deadline, "processes outlived what started them"
        time.sleep(0.05)


@pytest.mark.full
def test_a_killed_runner_goes_on_with_the_same_command(desk: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """After repeated SIGKILLs all processes end, and the figures equal those of an undisturbed reproduction."""
    write(slow())
    for epochs in (1, 8):
        running = start("suite.yaml", "--processes", "2")
        wait_until_some_run_has(desk, epochs, running)
        running.kill()
        finish(running)
        if epochs == 8:  # the last time with the old processes still about to end
            wait_until_no_child_is_left()
    code, _, err = reproduce("suite.yaml", "--processes", "2")
    assert code == 0, err
    for seen in steps(desk).values():
        assert seen == sorted(set(seen)), "a step is missing or doubled"
    os.chdir(copied_inputs(desk, tmp_path_factory.mktemp("straight")))
    code, _, err = reproduce("suite.yaml", "--processes", "2")
    assert code == 0, err
    assert figures(desk) == figures(Path.cwd())
    assert steps(desk) == steps(Path.cwd())


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT])
def test_a_signal_stops_it_with_everything_saved(number: signal.Signals, desk: Path) -> None:
    write(slow())
    running = start("suite.yaml", "--processes", "2")
    wait_until_some_run_has(desk, 5, running)
    os.killpg(running.pid, number)  # as the terminal does on Ctrl-C
    code, _, err = finish(running, timeout=60)
    assert code == 128 + number, err
    assert err.splitlines()[-1] == (
        "backstory: runs/suite-small is stopped and its runs are saved; run the same command again to resume"
    )
    assert children() == []
    saved = [p for p in (desk / "runs" / "suite-small" / "runs").iterdir() if list(p.glob("checkpoints/last-*"))]
    assert saved and not (desk / "runs" / "suite-small" / "result.json").exists()
    before = {p.name: steps(desk)[p.name] for p in saved}
    code, _, err = reproduce("suite.yaml", "--processes", "2")
    assert code == 0, err
    after = steps(desk)
    for name, seen in before.items():
        assert after[name][: len(seen)] == seen, "a resumed run repeats nothing"


@pytest.mark.full
def test_a_killed_run_is_told_and_taken_up_again(desk: Path) -> None:
    """Stand-in for the kernel's out-of-memory killer."""
    write(slow())
    running = start("suite.yaml")
    wait_until_some_run_has(desk, 3, running)
    [child] = children()
    os.kill(child, signal.SIGKILL)
    code, _, err = finish(running)
    assert code == 1
    assert "train was ended by SIGKILL, probably for lack of memory" in err.splitlines()[-1]
    assert [run["state"] for run in result(desk)["figures"]["runs"]].count("done") == 1
    assert result(desk)["figures"]["claims"][0]["verdict"] == "runs are missing: no claim"
    code, _, err = reproduce("suite.yaml")
    assert code == 0, err
    assert result(desk)["figures"]["finished"] == 2


@pytest.mark.full
def test_two_reproductions_in_one_folder_do_not_mix(desk: Path) -> None:
    write(slow())
    running = start("suite.yaml")
    wait_until_some_run_has(desk, 1, running)
    code, out, err = reproduce("suite.yaml")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"backstory: another reproduction is running in runs/suite-small; .*\n", err)
    assert finish(running)[0] == 0


# --- a suite in the time that one has ---


def test_minutes_are_planned_for_each_run(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(suite())
    assert main(["reproduce", "suite.yaml", "--minutes", "1.5", "--processes", "2", "--dry-run"]) == 0
    head, *runs = capsys.readouterr().out.splitlines()
    assert "4 runs of 1.5 min, 0 finished" in head and "readings not counted: 3 min 0 s" in head
    assert [line.split()[2:] for line in runs] == [["1", "min", "30", "s"]] * 4


@pytest.mark.full
def test_runs_end_after_their_minutes_and_say_so(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(suite())
    started = time.monotonic()
    code, out, err = reproduce("suite.yaml", "--only", "wide", "--minutes", "0.1")
    assert code == 0, err
    assert time.monotonic() - started > 2 * 6
    folder = desk / "runs" / "suite-small-0.1min"
    whole = json.loads((folder / "result.json").read_text())
    assert whole["name"] == "suite-small-0.1min"
    assert whole["provenance"]["command"] == "backstory reproduce suite.yaml --scale small --minutes 0.1 --only wide"
    wide = whole["figures"]["systems"][1]
    assert wide["protocol"]["minutes"] == 0.1 and " scaled to 0.1 min, from scratch" in out
    assert all(run["epochs"] > 10 for run in whole["figures"]["runs"][2:])  # of the one epoch that the suite has
    assert re.search(r"wide-seed1: running, epoch \d+$", err, re.MULTILINE)
    capsys.readouterr()
    assert main(["reproduce", "suite.yaml", "--only", "wide", "--minutes", "0.1", "--dry-run"]) == 0
    assert "2 runs of 0.1 min, all finished" in capsys.readouterr().out
    assert main(["reproduce", "suite.yaml", "--out", str(folder), "--minutes", "0.2", "--dry-run"]) == 2
    assert "trained with other settings" in capsys.readouterr().err


SWAP = """
import backstory as bs
from backstory.context import Condition, Experiment


def swap(context, target, tags, random):
    return context[::-1].copy()


def conditions(examination):
    return [Condition("swap", "swap", examination.context, swap)]


bs.register("experiment", "swap", Experiment("swap all words", conditions))
"""


@pytest.mark.full
def test_a_suite_may_examine_with_an_experiment_of_a_plugin(desk: Path) -> None:
    """Its result has no picture, so that nothing but its own plugin knows it."""
    (desk / "swap.py").write_text(SWAP, encoding="utf-8")
    system = suite()["systems"][0]
    examination = {"experiment": "swap", "targets": 20, "maximum_context": 30, "context": 10}
    system["small"] |= {"seeds": [1], "examinations": [examination]}
    write(suite(systems=[system], claims=[]))
    running = start("suite.yaml", "--plugin", "swap.py")
    out, err = running.communicate(timeout=300)
    assert running.returncode == 0 and "plain" in out, err
    (run,) = figures(desk)["runs"]
    assert [(e["experiment"], e["targets"], e["maximum_context"]) for e in run["examinations"]] == [("swap", 20, 30)]
    (folder,) = (desk / "runs" / "suite-small" / "runs" / "plain-seed1").glob("examine-swap-*")
    assert [c.name for c in read_examination(folder).figures.conditions] == ["swap"]
