"""`backstory sweep` on tiny models: what it leaves, that it goes on, and that nothing is lost with a killed process."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from sweeps import Searched, finish, search, start

from backstory.cli.main import main
from backstory.config import recipes
from backstory.reports import render
from backstory.results import read
from backstory.tuning.sweep_storage import SweepFolder
from backstory.tuning.sweeps import read_sweep
from backstory.tuning.trials import TrialOutcome


def trials(folder: Path) -> list[dict[str, Any]]:
    return read_sweep(folder).to_dict()["figures"]["trials"]


def finished(folder: Path) -> int:
    """Trials that ended so far, by what is told of them."""
    try:
        return sum(t["state"] in ("complete", "pruned") for t in trials(folder))
    except Exception:  # it is just being made
        return 0


def until(condition: Any, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)


def trainings(coordinator: int) -> list[int]:
    """The processes that it started."""
    told = subprocess.run(["pgrep", "-P", str(coordinator)], capture_output=True, text=True)
    return [int(number) for number in told.stdout.split()]


# --- what one sweep says and leaves ---


def test_a_sweep_tells_of_every_trial_and_of_the_best(searched: Searched) -> None:
    assert searched.code == 0, searched.err
    planning, first, *rest = searched.err.splitlines()
    assert planning == "backstory: planning a sweep of tiny.yaml over space.yaml"
    assert first == "sweep: 0 of 4 trials done, 2 at a time"
    told = [re.fullmatch(r"trial (\d): complete, validation perplexity \d+\.\d+(  best)?", line) for line in rest]
    assert sorted(match[1] for match in told if match) == ["0", "1", "2", "3"]
    assert rest[0].endswith("  best")
    assert re.match(
        r"tiny over the space space: 4 trials \(4 complete\); the best is trial \d, validation perplexity", searched.out
    )
    assert re.match(
        r"# The best trial of the sweep sweep, number \d: validation perplexity \d+\.\d+\.\n",
        Path("sweep/best.yaml").read_text(),
    )
    assert "`backstory train sweep/best.yaml` trains the best" in searched.out


def test_every_trial_is_a_run_folder_and_only_the_best_keeps_its_weights(searched: Searched) -> None:
    sweep = searched.folder / "sweep"
    figures = json.loads((sweep / "result.json").read_text())["figures"]
    assert [t["trial"] for t in figures["trials"]] == [0, 1, 2, 3]
    for trial in figures["trials"]:
        run = read(sweep / trial["run"])
        assert run.training is not None
        assert run.training.figures.valid_perplexity == trial["valid_perplexity"]
        assert [[e.epoch, round(e.valid_perplexity, 6)] for e in run.epochs] == trial["curve"]
        assert (sweep / trial["run"] / "checkpoints").exists() == (trial["trial"] == figures["best"])
        config = recipes.load(str(sweep / trial["run"]))
        drawn = trial["settings"]
        assert (config.training.learning_rate, config.model.core.layers) == (
            drawn["training.learning_rate"],
            drawn["model.core.layers"],
        )
        assert config.model.core.output == config.model.embedding.size == drawn["model.embedding.size"]
        assert ("model.core.hidden" in drawn) == (config.model.core.layers == 2)
    assert figures["valid_perplexity"] == min(t["valid_perplexity"] for t in figures["trials"])


def test_the_best_is_a_recipe_that_trains_to_the_same_figure(
    searched: Searched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(searched.folder)
    figures = json.loads(Path("sweep/result.json").read_text())["figures"]
    assert main(["train", "sweep/best.yaml", "--out", "best"]) == 0
    trained = json.loads(Path("best/result.json").read_text())["figures"]
    assert trained["valid_perplexity"] == figures["valid_perplexity"]
    shutil.rmtree("best")


def test_show_tells_the_same_as_the_result(
    searched: Searched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(searched.folder)
    assert main(["sweep", "show", "sweep", "--json"]) == 0
    shown, saved = json.loads(capsys.readouterr().out), json.loads(Path("sweep/result.json").read_text())
    assert shown["figures"] == saved["figures"]
    apart = {"started": None, "commit": None}
    assert shown["provenance"] | apart == saved["provenance"] | apart
    best = next(t for t in saved["figures"]["trials"] if t["trial"] == saved["figures"]["best"])
    trained = json.loads(Path("sweep", best["run"], "result.json").read_text())
    assert saved["provenance"]["weights"] == trained["provenance"]["weights"]
    assert saved["provenance"]["command"].startswith("backstory sweep run tiny.yaml --space space.yaml --trials 4")
    assert main(["sweep", "show", "sweep"]) == 0
    told = capsys.readouterr().out
    assert "training.learning_rate  0.05 to 10, log" in told and "★" in told


def test_json_beside_a_page_is_json(searched: Searched, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["sweep", "show", str(searched.folder / "sweep"), "--json", "--html", str(page)]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "search" and page.is_file()
    assert main(["sweep", "show", str(searched.folder / "sweep"), "--html", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}\n"


def test_a_report_of_the_folder_has_the_sweep(searched: Searched) -> None:
    page = render([searched.folder / "sweep"])
    assert "<h2>Searches</h2>" in page and "Tiny models" in page and "Trial by trial" in page


def test_a_sweep_that_is_done_is_left_as_it_is(
    searched: Searched, desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(searched.folder / "sweep", desk / "sweep")
    before = {p: p.stat().st_mtime_ns for p in (desk / "sweep" / "trials").rglob("*")}
    assert main(["sweep", "run", "tiny.yaml", "--space", "space.yaml", "--trials", "4", "--out", "sweep"]) == 0
    assert capsys.readouterr().err == "sweep: 4 of 4 trials done, 1 at a time\n"
    monkeypatch.setattr("backstory.cli.sweep.plugin_flags", lambda: " --plugin my_core.py")
    assert main(["sweep", "run", "tiny.yaml", "--space", "space.yaml", "--trials", "4", "--out", "sweep"]) == 0
    assert capsys.readouterr().out.endswith(
        "`backstory train sweep/best.yaml --plugin my_core.py` trains the best, "
        "`backstory sweep show sweep --plugin my_core.py` shows what mattered\n"
    )
    assert main(["sweep", "run", "tiny.yaml", "--space", "space.yaml", "--trials", "2", "--out", "sweep"]) == 0
    assert capsys.readouterr().err == "sweep: 4 trials, done\n"
    assert {p: p.stat().st_mtime_ns for p in (desk / "sweep" / "trials").rglob("*")} == before


def test_a_sweep_of_a_version_without_some_settings_goes_on(
    searched: Searched, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(searched.folder / "sweep", desk / "sweep")
    there = yaml.safe_load((desk / "sweep" / "sweep.yaml").read_text())
    del there["recipe"]["training"]["decay_patience"], there["recipe"]["text"]["algorithm"]
    (desk / "sweep" / "sweep.yaml").write_text(yaml.safe_dump(there, sort_keys=False))
    assert main(["sweep", "run", "tiny.yaml", "--space", "space.yaml", "--trials", "4", "--out", "sweep"]) == 0
    assert capsys.readouterr().err == "sweep: 4 of 4 trials done, 1 at a time\n"


@pytest.mark.parametrize(
    ("flags", "space", "message"),
    [
        (
            (),
            "title: x\nsettings: {training.clip: {range: [0, 1]}}",
            r"searches another space \(training.learning_rate: {range: \[0.05, 10\], log: true} there, none here\)",
        ),
        (("--training.epochs", "3"), None, r"searches with other settings \(--training.epochs: 2 there, 3 here\)"),
        (("--storage", "sqlite:///x.db"), None, r"keeps its trials in its own journal"),
        (
            ("--training.learning-rate", "3"),
            None,
            r"--training.learning-rate is set by a flag and searched by the space; remove one",
        ),
        (("--text.algorithm.bits", "3"), None, r"text.algorithm.bits is for the corpus copy or .*; leave it out"),
    ],
)
def test_a_folder_goes_on_only_with_what_it_was_begun_with(
    flags: tuple[str, ...],
    space: str | None,
    message: str,
    searched: Searched,
    desk: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(searched.folder / "sweep", desk / "sweep")
    if space:
        Path("space.yaml").write_text(space)
    assert main(["sweep", "run", "tiny.yaml", "--space", "space.yaml", "--out", "sweep", *flags]) == 2
    told = capsys.readouterr().err
    assert re.search(message, told) and told.count("\n") == 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:////no/such/folder/x.db", r"cannot open the storage sqlite:////no/such/folder/x.db: .*unable to open"),
        ("nonsense", r"cannot open the storage nonsense: "),
        ("redis://localhost", r"cannot open the storage redis://localhost: "),
        ("nosuch://ann:secret@host/db", r"cannot open the storage nosuch://ann:\*\*\*@host/db: "),
    ],
)
def test_a_storage_that_cannot_be_reached_is_told_before_anything_is_written(
    url: str, message: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "run", "tiny.yaml", "--space", "space.yaml", "--out", "sweep", "--storage", url]) == 2
    told = capsys.readouterr().err
    assert re.search(message, told) and told.count("\n") == 1 and "secret" not in told
    assert not Path("sweep").exists()


def test_a_folder_whose_trials_are_lost_is_told(
    searched: Searched, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(searched.folder / "sweep", desk / "sweep")
    Path("sweep/journal.log").write_bytes(b"")
    for arguments in (("show", "sweep"), ("run", "tiny.yaml", "--space", "space.yaml", "--out", "sweep")):
        assert main(["sweep", *arguments]) == 2
        assert re.search(r"journal.log does not hold the trials of sweep; put it back", capsys.readouterr().err)
    Path("sweep/journal.log").unlink()
    assert main(["sweep", "show", "sweep"]) == 2
    assert "sweep/journal.log is missing" in capsys.readouterr().err


def test_without_optuna_it_is_said_what_to_install(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    assert main(["sweep", "run", "tiny.yaml", "--space", "space.yaml"]) == 2
    install = "run `pip install -e '.[tune]'` in the clone of backstory"
    assert capsys.readouterr().err == f"backstory: a sweep needs the package optuna; {install}\n"
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("unit", "line"),
    [(None, "validation perplexity 4.000"), ("character", "validation 2.000 bits per character")],
)
def test_a_trial_is_told_in_bits_of_each_character(unit: str | None, line: str) -> None:
    assert TrialOutcome(1, 1, "complete", 4.0).line(best=True, unit=unit) == f"trial 1: complete, {line}  best"


# --- trouble ---


@pytest.mark.full
def test_a_killed_process_loses_only_its_own_trial_and_another_goes_on_with_it(desk: Path) -> None:
    sweep = desk / "sweep"
    arguments = ("--trials", "6", "--out", "sweep", "--training.epochs", "12", "--prune-from", "None")
    one, two = start(*arguments), start(*arguments)
    until(lambda: finished(sweep) >= 2 and trainings(two.pid))
    os.kill(two.pid, signal.SIGKILL)
    two.communicate()
    code, _, err = finish(one)
    assert code == 0, err
    states = Counter(t["state"] for t in trials(sweep))
    assert states["complete"] == 6 and states["again"] <= 1 and set(states) <= {"complete", "again"}
    lost = [t for t in trials(sweep) if t["state"] == "again"]
    for trial in lost:
        [other] = [t for t in trials(sweep) if t["run"] == trial["run"] and t is not trial and t["state"] == "complete"]
        assert other["settings"] == trial["settings"] and other["epochs"] == 12
    assert not any((sweep / "workers").glob("*")) and main(["train", "sweep/best.yaml", "--out", "best"]) == 0


@pytest.mark.full
def test_a_killed_training_goes_on_from_where_it_was(desk: Path) -> None:
    sweep = desk / "sweep"
    running = start("--trials", "2", "--out", "sweep", "--training.epochs", "40", "--prune-from", "None")
    until(lambda: (sweep / "trials" / "0000" / "metrics.jsonl").is_file())
    until(lambda: (sweep / "trials" / "0000" / "metrics.jsonl").read_text().count('"epoch"') > 3)
    [training] = trainings(running.pid)
    os.kill(training, signal.SIGKILL)
    code, _, err = finish(running)
    assert code == 0 and "trial 0: train was ended by SIGKILL, probably for lack of memory; it is tried again" in err
    first, second, third = trials(sweep)
    assert (first["state"], first["problem"]) == ("again", "killed, and tried again as 1")
    assert (second["state"], second["run"], second["settings"]) == ("complete", "trials/0000", first["settings"])
    assert third["state"] == "complete" and third["run"] == "trials/0002"
    assert "resuming" in (sweep / "logs" / "0000.log").read_text()


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_a_stopped_sweep_goes_on_with_the_same_command(number: signal.Signals, desk: Path) -> None:
    sweep, arguments = desk / "sweep", ("--trials", "2", "--out", "sweep", "--training.epochs", "30")
    running = start(*arguments)
    until(lambda: (sweep / "trials" / "0000" / "metrics.jsonl").is_file())
    running.send_signal(number)
    code, _, err = finish(running)
    assert code == 128 + number and err.splitlines()[-1] == (
        "backstory: sweep is stopped and its trials are saved; run the same command again to resume"
    )
    assert [t["state"] for t in trials(sweep)] == ["again", "waiting"]
    code, _, err = search(*arguments)
    assert code == 0, err
    assert [t["state"] for t in trials(sweep)] == ["again", "complete", "complete"]


@pytest.mark.full
def test_trials_are_kept_in_a_database(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = search("--trials", "3", "--processes", "2", "--out", "sweep", "--storage", "sqlite:///x.db")
    assert code == 0, err
    assert not SweepFolder(desk / "sweep").journal.exists() and Path("x.db").is_file()
    assert [t["state"] for t in trials(desk / "sweep")] == ["complete"] * 3
    Path("x.db").rename("y.db")
    assert main(["sweep", "show", "sweep"]) == 2
    assert "sqlite:///x.db does not hold the trials of sweep" in capsys.readouterr().err


@pytest.mark.full
def test_a_sweep_without_a_complete_trial_has_failed(desk: Path) -> None:
    Path("space.yaml").write_text("settings: {training.batch_size: {range: [5000, 9000]}}")
    code, out, err = search("--trials", "2", "--out", "failed")
    assert code == 1 and "2 failed" in out and "none is complete yet" in out
    assert re.search(r"^backstory: no trial of failed is complete: train ended with exit code 2: ", err, re.MULTILINE)


@pytest.mark.full
def test_trials_whose_loss_breaks_down_are_pruned_and_hopeless_sweeps_are_given_up(desk: Path) -> None:
    Path("space.yaml").write_text("settings: {training.learning_rate: {range: [1.0e+25, 1.0e+30], log: true}}")
    code, out, err = search("--trials", "2", "--out", "broken", "--training.clip", "0")
    assert code == 1 and "none is complete yet" in out
    assert re.search(r"^backstory: no trial of broken is complete: train ended with exit code 3: ", err, re.MULTILINE)
    assert [t["state"] for t in trials(desk / "broken")] == ["pruned", "pruned"]
    assert all("exit code 3" in t["problem"] for t in trials(desk / "broken"))
    assert main(["sweep", "show", "broken"]) == 0
    # More rows than the text has tokens for.
    Path("space.yaml").write_text("settings: {training.batch_size: {range: [5000, 9000]}}")
    code, _, err = search("--trials", "9", "--out", "hopeless")
    assert code == 2 and "5 trials in a row failed, the last because train ended with exit code 2: " in err
    assert [t["state"] for t in trials(desk / "hopeless")] == ["failed"] * 5
