"""The runs in a folder at a glance: what they are, how far they are, and those that are damaged."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from backstory.cli.main import main
from backstory.data.tokenizers.built_in import BUILT_IN
from backstory.models import Softmax
from backstory.results import run_listing
from backstory.results.run_listing import list_runs, runs_in
from backstory.runs.run import load_run
from backstory.storage.lock import locked
from backstory.storage.run_files import check_results_exist, check_run_exists
from backstory.utils.errors import UserError


@pytest.fixture
def runs(tmp_path: Path, tiny_run: Path) -> Path:
    """A folder of runs, one of them two levels down, and something else."""
    for name in ("seed9", "seed10", "suite/runs/base"):
        shutil.copytree(tiny_run, tmp_path / name)
    (tmp_path / "notes.txt").write_text("mine\n", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_a_finished_run_has_its_figures(runs: Path, tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = json.loads((tiny_run / "result.json").read_text(encoding="utf-8"))
    assert main(["evaluate", str(runs / "seed9"), "--json"]) == 0
    test = json.loads(capsys.readouterr().out)
    listed = {run.name: run for run in list_runs(runs)}
    assert list(listed) == ["seed9", "seed10", "suite/runs/base"]
    run = listed["seed9"]
    assert (run.state, run.epoch, run.epochs, run.unit) == ("finished", 1, 1, "word")
    assert run.corpus == trained["provenance"]["corpus"]["name"]
    assert run.parameters == trained["figures"]["parameters"]
    assert run.valid_nats == trained["figures"]["valid_nats"]
    assert run.test_nats == test["figures"]["nats_per_token"] and listed["seed10"].test_nats is None


def test_only_decimal_digits_are_numbers_in_the_order_of_names(runs: Path) -> None:
    (runs / "seed9").rename(runs / "cm5²")
    assert [run.name for run in list_runs(runs)] == ["cm5²", "seed10", "suite/runs/base"]


def test_tokenizers_have_the_units_that_they_say() -> None:
    assert {name: tokenizer.unit for name, tokenizer in BUILT_IN.items()} == run_listing.UNITS


def test_a_run_that_is_not_finished_has_what_is_known(runs: Path) -> None:
    (runs / "seed9" / "result.json").unlink()
    stopped = next(run for run in list_runs(runs) if run.name == "seed9")
    weights = load_run(runs / "seed9").model.parameters()
    assert (stopped.state, stopped.epoch, stopped.unit) == ("stopped", 1, "word")
    assert stopped.parameters == sum(p.numel() for p in weights) and stopped.valid_nats is not None
    with locked(runs / "seed9", "training", "--out"):
        assert next(run for run in list_runs(runs) if run.name == "seed9").state == "running"


@pytest.mark.parametrize("file", ["run.json", "metrics.jsonl", "result.json", "evaluate-test/result.json"])
def test_a_damaged_run_is_one_line(file: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "seed9" / file).parent.mkdir(exist_ok=True)
    (runs / "seed9" / file).write_text("{\n]\n", encoding="utf-8")
    assert main(["ls", "runs", str(runs)]) == 0
    shown = capsys.readouterr()
    *_, last = lines = shown.out.splitlines()
    assert len(lines) == 4 and last.startswith("seed9: damaged: ") and file in last and shown.err == ""


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("corpus", "x"),
        ("corpus.name", 5),
        ("config.text", [1]),
        ("config.text.corpus", {}),
        ("config.training", "x"),
        ("config.training.epochs", -3),
        ("config.training.finetune_epochs", "2"),
    ],
)
def test_a_run_whose_origin_is_of_wrong_types_is_one_line(
    path: str, value: object, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = runs / "seed9" / "run.json"
    made = inside = json.loads(file.read_text(encoding="utf-8"))
    *parents, last = path.split(".")
    for name in parents:
        inside = inside[name]
    inside[last] = value
    file.write_text(json.dumps(made), encoding="utf-8")
    assert main(["ls", "runs", str(runs)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"seed9: damaged: {file} is damaged ({path} must be ")


def test_a_run_whose_origin_is_too_deep_is_one_line(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = runs / "seed9" / "run.json"
    made = file.read_text(encoding="utf-8")
    file.write_text(made.replace("{", '{"x": ' + "[" * 600 + "]" * 600 + ", ", 1), encoding="utf-8")
    assert main(["ls", "runs", str(runs)]) == 0
    assert "seed9: damaged: " in capsys.readouterr().out


@pytest.mark.parametrize("shape", [[1.5], [1e300, 1e300], [-2], [True], [10**200] * 30, [1] * 100, "ab", 5])
def test_weights_of_no_shape_are_not_counted(shape: object, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "seed9" / "result.json").unlink()
    header = json.dumps({"a": {"shape": shape}, "b": {"shape": [3]}}).encode()
    for file in (runs / "seed9" / "checkpoints").glob("last-*/weights.safetensors"):
        file.write_bytes(len(header).to_bytes(8, "little") + header)
    assert next(run for run in list_runs(runs) if run.name == "seed9").parameters is None
    assert main(["ls", "runs", str(runs), "--json"]) == 0 and json.loads(capsys.readouterr().out)


def test_a_log_from_no_year_has_no_time(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoYear:
        @staticmethod
        def fromtimestamp(*_: object) -> None:
            raise ValueError("year 36835 is out of range")  # as of a file system that keeps such times

    monkeypatch.setattr(run_listing.datetime, "datetime", NoYear)
    assert [run.changed for run in list_runs(runs)] == [None] * 3


def test_a_result_of_other_weights_is_not_shown(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(runs / "seed9")]) == 0
    (best,) = (runs / "seed9" / "checkpoints").glob("best-*/manifest.json")
    manifest = json.loads(best.read_text(encoding="utf-8"))
    manifest["files"]["weights.safetensors"]["sha256"] = "0" * 64
    best.write_text(json.dumps(manifest), encoding="utf-8")
    run = next(run for run in list_runs(runs) if run.name == "seed9")
    assert run.test_nats is None


def test_runs_are_sorted_as_wanted(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = runs / "seed10" / "metrics.jsonl"
    better = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    better[-1]["valid_nats"] /= 2
    log.write_text("".join(json.dumps(line) + "\n" for line in better), encoding="utf-8")
    later = log.stat().st_mtime + 60  # times are told to the second
    os.utime(log, (later, later))
    for order, first in (("name", "seed9"), ("valid", "seed10"), ("changed", "seed10")):
        assert main(["ls", "runs", str(runs), "--sort", order]) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[0] == first


def test_where_nothing_was_trained_yet_the_list_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["ls", "runs"]) == 0
    assert capsys.readouterr().out.startswith("no runs yet; `backstory train RECIPE` makes one in runs")
    assert main(["ls", "runs", "--json"]) == 0 and capsys.readouterr().out == "[]\n"


def test_a_run_that_is_named_without_its_folder_is_proposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "config.yaml").touch()
    for check in (check_run_exists, check_results_exist):
        with pytest.raises(UserError, match=r"\(did you mean 'runs/a'\?\)"):
            check(Path("a"))


def test_what_is_no_folder_of_runs_stands_for_itself(runs: Path) -> None:
    assert runs_in(runs / "seed9") == [runs / "seed9"]
    assert runs_in(runs / "empty") == [runs / "empty"] and runs_in(Path("hf:gpt2")) == [Path("hf:gpt2")]
    with pytest.raises(UserError, match="does not exist; name a folder of runs"):
        list_runs(runs / "nowhere")
    assert list_runs(runs / "empty") == []


def test_a_folder_of_runs_is_evaluated_but_for_the_damaged(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(runs / "seed10" / "checkpoints")
    assert main(["evaluate", str(runs), "--json"]) == 2
    shown = capsys.readouterr()
    assert len(json.loads(shown.out)) == 2
    assert (
        "seed10 is finished, but has lost its best weights" in shown.err
        and "1 of 3 runs in " in shown.err.splitlines()[-1]
    )
    for flags in (["-"], ["--out", "x"], ["--per-token", "x.tsv"], ["--corpus", "ptb", "--corpus", "text8"]):
        assert main(["evaluate", str(runs), *flags]) == 2
        assert "holds 3 runs, and " in capsys.readouterr().err


def test_the_others_are_evaluated_where_one_is_not_finite(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A step so large makes scores infinite on some processors, and only very large on others.
    monkeypatch.setattr(Softmax, "log_prob", lambda self, targets: torch.full(targets.shape, -torch.inf))
    assert main(["evaluate", str(runs), "--json"]) == 2
    shown = capsys.readouterr()
    assert json.loads(shown.out) == [] and "3 of 3 runs" in shown.err.splitlines()[-1]


def test_a_run_that_links_lead_to_is_listed_once_by_its_own_name(runs: Path) -> None:
    names = [run.name for run in list_runs(runs)]
    (runs / "a-link").symlink_to("seed9")  # sorted before it
    (runs / "suite" / "latest").symlink_to("../seed10")
    (runs / "self").symlink_to(".")
    assert [run.name for run in list_runs(runs)] == names
    (runs.parent / "elsewhere").mkdir()
    (runs.parent / "elsewhere" / "linked").symlink_to(runs / "seed9")
    assert [run.name for run in list_runs(runs.parent / "elsewhere")] == ["linked"]  # the only name in that folder
