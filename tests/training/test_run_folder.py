"""A run's folder is started once, overwritten or resumed only on request, and untouched by refusals."""

import dataclasses
import io
import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from runs import checkpoints, contents, events, with_training

from backstory.config import RunConfig, from_yaml
from backstory.runs import run_folder
from backstory.runs.run import load_run, weights_hash
from backstory.storage.lock import LOCK
from backstory.training import train
from backstory.training.events import MetricsLog, read_events
from backstory.utils.errors import UserError
from backstory.utils.process import StopRequest

Train = Callable[..., dict]


@pytest.fixture
def finished(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(tiny_run, tmp_path / "tiny"))


def refused(quietly: Train, config: RunConfig, out: Path, match: str, mode: str = "new") -> None:
    before = contents(out.parent)
    with pytest.raises(UserError, match=match):
        quietly(config, out, mode=mode)
    assert contents(out.parent) == before


def test_a_run_leaves_its_settings_log_checkpoints_and_result(tiny_config: RunConfig, tiny_run: Path) -> None:
    left = sorted(p.name for p in tiny_run.iterdir())
    assert left == ["checkpoints", "config.yaml", "metrics.jsonl", "result.json", "run.json"]
    assert from_yaml(RunConfig, (tiny_run / "config.yaml").read_text(), "") == tiny_config
    result = json.loads((tiny_run / "result.json").read_text())
    assert (result["kind"], result["name"]) == ("training", "tiny")
    begun = json.loads((tiny_run / "run.json").read_text())
    at_the_end = {"seconds", "ended", "weights", "weights_file"}
    assert {k: v for k, v in result["provenance"].items() if k not in at_the_end} == begun
    assert at_the_end <= result["provenance"].keys()
    assert result["provenance"]["weights"] == weights_hash(load_run(tiny_run).model)
    assert begun["precision"] == "float32" and begun["precision_reason"]
    assert result["figures"]["curve"][0]["valid_nats"] == events(tiny_run, "epoch")[0]["valid_nats"]
    seconds = [epoch["seconds"] for epoch in result["figures"]["curve"]]
    assert seconds == sorted(seconds) and seconds[-1] == result["provenance"]["seconds"], "since the start of the run"


def test_a_second_run_into_the_same_folder_is_refused(tiny_config: RunConfig, finished: Path, quietly: Train) -> None:
    refused(quietly, tiny_config, finished, "is not empty; use --resume")


def test_a_folder_that_holds_anything_is_refused(tiny_config: RunConfig, quietly: Train, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    refused(quietly, tiny_config, tmp_path / "out", "is not empty")
    refused(quietly, tiny_config, tmp_path / "out", "something other than a run; it is not overwritten", "overwrite")
    refused(quietly, tiny_config, tmp_path / "out", "no run to resume", "resume")


def test_an_empty_folder_is_taken(tiny_config: RunConfig, quietly: Train, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    quietly(tiny_config, tmp_path / "out")
    assert (tmp_path / "out" / "result.json").exists()


def test_what_a_killed_start_left_is_nothing(tiny_config: RunConfig, quietly: Train, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in (LOCK, ".tmp-1-config.yaml"):
        (tmp_path / "out" / name).write_text("part")
    quietly(tiny_config, tmp_path / "out")
    assert (tmp_path / "out" / "result.json").exists() and not list((tmp_path / "out").glob(".*"))


def test_overwriting_that_was_interrupted_can_be_done_again(
    tiny_config: RunConfig, finished: Path, quietly: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_atomically", interrupt)  # all is removed, the settings are not yet written
        with pytest.raises(KeyboardInterrupt):
            quietly(tiny_config, finished, mode="overwrite")
    assert [p.name for p in finished.iterdir()] == ["config.yaml"]
    quietly(tiny_config, finished, mode="overwrite")
    assert (finished / "result.json").exists()


def interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_nothing_to_resume(tiny_config: RunConfig, quietly: Train, tmp_path: Path) -> None:
    refused(quietly, tiny_config, tmp_path / "absent", "no run to resume", "resume")
    assert not (tmp_path / "absent").exists()


def test_a_file_in_the_place_of_the_folder_or_above_it_is_refused(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    for mode in ("new", "overwrite"):
        refused(quietly, tiny_config, tmp_path / "file", "is a file", mode)
    with pytest.raises(UserError, match=r"cannot write to .*file"):
        quietly(tiny_config, tmp_path / "file" / "below" / "run")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_refused(tiny_config: RunConfig, quietly: Train, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    try:
        (closed / "probe").touch()
    except PermissionError:
        with pytest.raises(UserError, match=r"cannot write to .*closed"):
            quietly(tiny_config, closed / "run")
        assert list(closed.iterdir()) == []
    else:
        pytest.skip("this user may write where nobody may")


def test_overwriting_starts_again_and_leaves_other_files(
    tiny_config: RunConfig, finished: Path, quietly: Train
) -> None:
    (finished / "notes.txt").write_text("mine")
    (finished / "checkpoints" / ".tmp-1-last-9").mkdir()
    (finished / "metrics.jsonl").write_text("{}\n" * 100)
    (finished / "checkpoints" / "last-999").mkdir()
    quietly(with_training(tiny_config, learning_rate=1.0), finished, mode="overwrite")
    assert (finished / "notes.txt").read_text() == "mine"
    assert [e["learning_rate"] for e in events(finished, "epoch")] == [1.0]
    assert not any(p.name.startswith(".tmp") or p.name == "last-999" for p in (finished / "checkpoints").iterdir())


def test_bad_settings_are_refused_before_anything_is_written(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path
) -> None:
    refused(quietly, with_training(tiny_config, learning_rate=-1.0), tmp_path / "out", "training.learning_rate")
    refused(quietly, with_training(tiny_config, batch_size=10_000), tmp_path / "out", "too few for batch size")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", [{"finetune_epochs": 1}, {"averaging": "always"}], ids=str)
@pytest.mark.parametrize("optimizer", ["adam", "nadam"])
def test_averaged_sgd_without_sgd_is_refused_before_anything_is_written(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path, optimizer: str, change: dict
) -> None:
    config = with_training(tiny_config, optimizer=optimizer, **change)
    refused(
        quietly, config, tmp_path / "out", f"training.{next(iter(change))}.* training.optimizer sgd, not {optimizer}"
    )


# --- log and signals ---


def test_the_log_is_cut_to_what_the_checkpoint_knew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, 0)
    log.write("epoch", epoch=1, valid_nats=0.1)
    kept = log.position()
    log.write("steps", step=1)
    log.write("epoch", epoch=2, valid_nats=0.2)
    log.close()
    assert [e["epoch"] for e in read_events(path, "epoch")] == [1, 2]
    log = MetricsLog(path, kept)
    log.write("epoch", epoch=2, valid_nats=0.3)
    assert log.position() == path.stat().st_size
    log.close()
    assert [e["valid_nats"] for e in read_events(path, "epoch")] == [0.1, 0.3]
    assert read_events(path, "steps") == []


def test_the_log_refuses_numbers_that_json_cannot_hold(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", 0)
    with pytest.raises(ValueError, match="JSON"):
        log.write("epoch", nats=float("inf"))
    log.close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_signals_are_noted_and_then_handled_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    heard: list[str] = []
    stop = StopRequest(lambda: heard.append("once"))
    with stop.listening():
        assert not stop.requested
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested and stop.signal == signal.SIGINT
    assert heard == ["once"]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_start_killed_before_its_settings_is_begun_again(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".tmp-1-config.yaml").write_text("seed")
    quietly(tiny_config, tmp_path / "out")
    assert not list((tmp_path / "out").glob(".tmp-*"))
    assert (tmp_path / "out" / "result.json").exists()


def test_a_disk_that_fails_later_is_told_with_what_to_do(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **values: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MetricsLog, "write", full)
    with pytest.raises(UserError, match=r"cannot write to .*out: No space left on device; .* go on with .*--resume"):
        quietly(tiny_config, tmp_path / "out")


def test_a_disk_that_fills_up_after_the_settings_is_told_with_what_to_do(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Path.mkdir

    def full(path: Path, *arguments: Any, **options: Any) -> None:
        if path.name == "checkpoints":
            raise OSError(28, "No space left on device", str(path))
        make(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", full)
        with pytest.raises(
            UserError, match=r"checkpoints: No space left .*, and go on with the same command and --resume"
        ):
            quietly(tiny_config, tmp_path / "out")
    quietly(tiny_config, tmp_path / "out", mode="resume")
    assert (tmp_path / "out" / "result.json").exists()


def test_resuming_says_where_it_goes_on(tiny_config: RunConfig, finished: Path) -> None:
    def said() -> list[str]:
        console = Console(file=io.StringIO())
        train(tiny_config, finished, mode="resume", console=console)
        return [line for line in console.file.getvalue().splitlines() if str(finished) in line]

    (last,) = checkpoints(finished, "last")
    step = last.name.removeprefix("last-")
    assert said() == [f"{finished} is finished already, after step {step}; there is nothing left to train"]
    last.rename(last.with_name("elsewhere"))
    (finished / "result.json").unlink()  # as if it had been killed in its first epoch
    assert said() == [f"resuming {finished} at its beginning, as it holds no whole checkpoint"]


def test_a_run_that_lost_its_checkpoints_is_not_begun_again(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path
) -> None:
    out, config = tmp_path / "out", with_training(tiny_config, epochs=2)
    quietly(config, out)
    for lost in checkpoints(out, "last"):
        shutil.rmtree(lost)
    for unfinished in (False, True):
        if unfinished:
            (out / "result.json").unlink()
        before = contents(out)
        with pytest.raises(UserError, match=r"was trained, but .*checkpoints has no checkpoint left .* --overwrite"):
            quietly(config, out, mode="resume")
        assert contents(out) == before


def test_overwriting_leaves_no_result_of_the_old_weights(
    finished: Path, tiny_config: RunConfig, quietly: Train
) -> None:
    for name in ("explain-surprisal", "sample", "of-my-own"):
        (finished / name).mkdir()
        (finished / name / "result.json").write_text("{}")
        (finished / name / "notes.txt").write_text("notes")
    (finished / "readers").mkdir()
    (finished / "readers" / "cache.json").write_text("tuned for the old weights, and refused with others")
    quietly(tiny_config, finished, mode="overwrite")
    assert not (finished / "readers").exists()
    assert [p.parent.name for p in finished.glob("*/notes.txt")] == ["of-my-own"]
    assert not list(finished.glob("*/result.json"))


def test_a_link_is_not_removed_on_overwriting(finished: Path, tiny_config: RunConfig, quietly: Train) -> None:
    elsewhere = (finished / "checkpoints").rename(finished.with_name("elsewhere"))
    (finished / "checkpoints").symlink_to(elsewhere)
    before = contents(finished)
    with pytest.raises(UserError, match="checkpoints is a link, and what it leads to is not removed"):
        quietly(tiny_config, finished, mode="overwrite")
    assert contents(finished) == before


def test_a_first_line_of_the_log_that_was_torn_is_begun_again(
    finished: Path, tiny_config: RunConfig, quietly: Train
) -> None:
    shutil.rmtree(finished / "checkpoints")
    (finished / "result.json").unlink()
    (finished / "metrics.jsonl").write_text('{"event": "steps", "step": 2')
    quietly(tiny_config, finished, mode="resume")
    assert [e["epoch"] for e in read_events(finished / "metrics.jsonl", "epoch")] == [1]


def test_a_vocabulary_that_knows_hardly_a_word_is_told(tiny_config: RunConfig, tmp_path: Path) -> None:
    said = {1: io.StringIO(), 500: io.StringIO()}
    for least, file in said.items():
        text = dataclasses.replace(tiny_config.text, minimum_count=least)
        train(dataclasses.replace(tiny_config, text=text), tmp_path / str(least), console=Console(file=file))
    warning = (
        r"(?m)^100\.0% of the validation words are outside the vocabulary \(read as <unk>\), so the perplexity says nothing "
        r"about the text; lower text\.minimum_count \(500\) for rare words of the training text; new words need more text, or "
        r"another tokenizer$"
    )
    assert re.search(warning, said[500].getvalue()) and "<unk>" not in said[1].getvalue()


def test_a_validation_text_of_other_words_is_told(tiny_config: RunConfig, tmp_path: Path) -> None:
    corpus, file = tmp_path / "corpus", io.StringIO()
    corpus.mkdir()
    for split, words in (("train", "ann saw tea "), ("valid", "der Hut ist "), ("test", "ann saw tea ")):
        (corpus / f"{split}.txt").write_text(words * 60)
    text = dataclasses.replace(tiny_config.text, corpus=str(corpus))
    train(dataclasses.replace(tiny_config, text=text), tmp_path / "run", console=Console(file=file))
    warning = (
        r"% of the validation words are outside the vocabulary .* nothing about the text; the training text does not"
    )
    assert re.search(warning, file.getvalue())
