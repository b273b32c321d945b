"""`backstory reader`: from a trained run to adaptive readings, and the mistakes on the way."""

import dataclasses
import hashlib
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cheats import GoldCache
from commands import Command, tree

from backstory.cli.evaluation_text import untuned
from backstory.config.readers import CacheSettings
from backstory.evaluation.opening import open_evaluation
from backstory.readers import READERS
from backstory.readers.kind import ReaderKind
from backstory.runs.run import load_run, weights_hash
from backstory.utils import terminal as progress


@dataclasses.dataclass(frozen=True)
class Peaked(CacheSettings):
    """Settings of a cache that is sure of the last word like this one."""

    theta: float = 3.0
    weight: float = 0.99


STEPS = "segment=5,rate=0.01,decay=0.01,epsilon=0.01"


def test_the_progress_of_statistics_is_counted_in_minibatches(
    command: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    made = command("reader", "statistics", run_copy, "--batch-size", "4")
    assert made.code == 0
    count = re.search(r"([\d,]+) minibatches of 4 x 5 tokens", made.out)
    assert count is not None and f"collecting statistics: 1 of {count[1]} minibatches, " in made.err


@pytest.mark.full
@pytest.mark.parametrize("moving", ["all", "low-rank:2"])
def test_statistics_that_a_reading_needs_are_collected_in_the_same_command(
    moving: str, command: Command, run_copy: Path
) -> None:
    reading = ("evaluate", run_copy, "--reader", f"dynamic:segment=20,moving={moving}+cache", "--json")
    assert "has no statistics of training gradients yet" in command(*reading).mistake()
    done = command(*reading, "--collect-statistics")
    assert (done.code, json.loads(done.out)["kind"]) == (
        0,
        "evaluation",
    ) and "statistics of training gradients are in" in done.err
    again = command(*reading)
    assert json.loads(again.out)["figures"]["gains"] == json.loads(done.out)["figures"]["gains"]


@pytest.mark.full
def test_a_reader_that_is_worse_for_want_of_tuning_says_how_to_tune_it(
    command: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A cache whose default settings make any text worse: all weight on the nearest word.
    kind = dataclasses.replace(READERS["cache"], settings=Peaked)
    monkeypatch.setitem(READERS, "cache", kind)
    said = f"`backstory reader tune {run_copy} --reader cache` tunes it"
    assert (
        f"  untuned     cache makes it worse with its default settings; {said}"
        in command("evaluate", run_copy, "--reader", "cache").out
    )
    Path("own.txt").write_text(" ".join(filter(str.isalpha, load_run(run_copy).vocabulary.words)) + "\n")
    assert said in command("evaluate", run_copy, "own.txt", "--reader", "cache").out
    assert "untuned" not in command("evaluate", run_copy, "--reader", "cache:weight=0.01,theta=0.1").out
    assert command("reader", "tune", run_copy, "--reader", "cache", "--tokens", "100").code == 0
    assert "untuned" not in command("evaluate", run_copy, "--reader", "cache").out


@pytest.mark.parametrize(("perplexity", "lines"), [(100.01, 0), (101.0, 1)])
def test_a_reader_that_changes_nothing_is_not_said_to_be_worse(perplexity: float, lines: int) -> None:
    gains = [SimpleNamespace(name="static", perplexity=100.0), SimpleNamespace(name="cache", perplexity=perplexity)]
    figures: Any = SimpleNamespace(reader="cache", gains=gains, readers=[{"name": "cache", "origin": "default"}])
    assert len(untuned(figures, Path("run"))) == lines


@pytest.mark.full
def test_from_a_trained_run_to_readings_that_adapt(command: Command, run_copy: Path) -> None:
    before = weights_hash(load_run(run_copy).model)
    made = command("reader", "statistics", run_copy, "--batch-size", "4")
    assert made.code == 0 and re.search(r"minibatches of 4 x 5 tokens of train", made.out)
    tuned = command(
        "reader", "tune", run_copy, "--reader", f"dynamic:{STEPS}", "--tokens", "100", "--grid", "rate=0.001,0.01"
    )
    assert tuned.code == 0 and "perplexity of 100 tokens, best of 2 settings" in tuned.out
    assert tuned.out.splitlines()[-1] == str(run_copy / "readers" / "dynamic.json")
    tuned = command("reader", "tune", run_copy, "--reader", "cache", "--grid", "window=5,50", "--tokens", "100")
    assert tuned.code == 0 and "best of 112 settings (112 read to the end)" in tuned.out, (
        "2 windows, 8 thetas, 7 weights"
    )
    edge = r"(?m)^window (5 is the smallest|50 is the largest) that was tried; --grid window=VALUE,VALUE tries others$"
    assert re.search(edge, tuned.out), "with two values the best is at an edge"
    assert command("reader", "tune", run_copy, "--reader", "dynamic", "--reader", "cache", "--tokens", "100").code == 0
    short = ["--training.steps", "4", "--training.every", "2", "--training.stream", "100", "--training.sample", "2"]
    trained = command("reader", "train", run_copy, "--skip", "20", *short)
    assert trained.code == 0 and "reader learned:network=three-level` reads with it" in trained.out
    assert "trained on 100 tokens of valid after the first 20\n" in trained.out
    assert (
        command("reader", "tune", run_copy, "--reader", "learned", "--tokens", "100", "--grid", "rate=0.5,1").code == 0
    )
    assert {p.name for p in (run_copy / "readers").iterdir()} == {
        "statistics", "dynamic.json", "cache.json", "dynamic+cache.json", "gates-three-level", "learned.json",
    }  # fmt: skip
    read = command("evaluate", run_copy, "--reader", "cache", "--reader", "learned", "--json")
    figures = json.loads(read.out)["figures"]
    assert figures["reader"] == "learned+cache" and figures["audit"]["passed"]
    assert [g["name"] for g in figures["gains"]] == ["static", "learned", "cache"]
    assert figures["readers"][0]["moving"] == sum(p.numel() for p in load_run(run_copy).model.parameters())
    shown = command("evaluate", run_copy, "--reader", "dynamic", "--reader", "cache").out
    assert re.search(
        r"(?m)^  dynamic +\d+\.\d\d  [+-]\d+\.\d%  \(tuned on the first 100 tokens of valid: .*MiB\)$", shown
    )
    assert command("reader", "audit", run_copy, "--reader", "learned", "--reader", "cache").code == 0
    assert command("generate", run_copy, "--reader", "dynamic", "--tokens", "12").code == 0
    assert weights_hash(load_run(run_copy).model) == before


@pytest.mark.full
def test_a_meta_learner_is_trained_on_the_later_half_of_a_short_text(command: Command, run_copy: Path) -> None:
    assert command("reader", "statistics", run_copy, "--batch-size", "4").code == 0
    short = ["--training.steps", "4", "--training.every", "2", "--training.sample", "50"]
    trained = json.loads(command("reader", "train", run_copy, "--json", *short).out)
    tokens = len(open_evaluation(run_copy, split="valid").split.ids)
    assert (
        trained["skip"] == tokens // 2 and tokens - trained["skip"] - 11 < trained["tokens"] < tokens - trained["skip"]
    )
    read = json.loads(command("evaluate", run_copy, "--reader", "learned", "--json").out)
    assert read["figures"]["readers"][0]["trained"]["skip"] == trained["skip"]


@pytest.mark.full
def test_settings_in_turn_are_kept_and_named(command: Command, run_copy: Path) -> None:
    reader = ["--reader", f"dynamic:rule=nadam,{STEPS}", "--reader", "tempered"]
    tuned = command("reader", "tune", run_copy, *reader, "--tokens", "100", "--in-turn", "--grid", "clip=0,0.5")
    assert tuned.code == 0, tuned.err
    assert re.search(r"(?m)^perplexity of 100 tokens, best of \d+ settings \(\d+ read to the end\)$", tuned.out)
    files = [run_copy / "readers" / f"{name}.json" for name in ("dynamic-nadam", "dynamic-nadam+tempered")]
    assert tuned.out.splitlines()[-2:] == [str(file) for file in files]
    dynamic, tempered = (json.loads(file.read_text())["settings"] for file in files)
    assert (dynamic["segment"], dynamic["rate"]) == (5, 0.01), "what is typed is held"
    assert dynamic["clip"] in (0.0, 0.5) and 0.9 <= tempered["temperature"] <= 1.3
    read = command("evaluate", run_copy, "--reader", "dynamic:rule=nadam", "--reader", "tempered", "--after", "valid")
    assert read.code == 0 and ", test split, dynamic:rule=nadam+tempered reader, after valid" in read.out
    named = rf"(?m)^  tempered +\d.*\(tuned on the first 100 tokens of valid: temperature {tempered['temperature']}\)$"
    assert re.search(named, read.out), read.out


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("reader tune run --split test", r"nothing is chosen on the test split or learned from it"),
        ("reader train run --split test", r"nothing is chosen on the test split or learned from it"),
        ("reader tune run --reader static", r"the reader static has no settings to tune"),
        ("reader tune run --reader dynamic", r"run has no statistics .* `backstory reader statistics run`$"),
        (
            "reader tune run --reader dynamic:rule=sgd --grid rte=1",
            r"there is no setting 'rte' \(did you mean 'rate'\?\)",
        ),
        ("reader tune run --reader dynamic:rule=sgd --grid rate", r"must be written setting=value,value"),
        ("reader tune run --reader dynamic:rule=sgd --grid decay=0.1,2", r"decay must be at least 0 and at most"),
        (
            "reader tune run --reader cache --grid theta=1,1.0",
            r"--grid theta: the value 1.0 appears twice; leave one out",
        ),
        (
            "reader tune run --reader cache --grid weight=0,0",
            r"--grid weight: the value 0.0 appears twice; leave one out",
        ),
        ("reader tune run --reader cache --grid theta=1 --grid theta=2", r"--grid gives theta twice; give all of its"),
        (
            "reader tune run --reader dynamic:rule=sgd --in-turn --grid clip=1 --grid clip=2",
            r"--grid gives clip twice; give all of its values at once: clip=VALUE,VALUE",
        ),
        (
            "reader audit run --batch-size 9999",
            r"the text has [\d,]+ tokens but --batch-size is 9,999; use --batch-size",
        ),
        ("evaluate run --reader dynamic:rule=sgd,rate=1e300", r"rate must be above 0 and at most 1e\+30, not 1e\+300"),
        ("reader train run --reader cache", r"works with the reader dynamic only, not cache"),
        ("reader train run --reader dynamic:rule=sgd --skip 0", r"(with the rule rms|has no statistics)"),
        ("reader train run --name a/b", r"a meta-learner's name is made of letters, digits and hyphens"),
        (
            "reader statistics run --batch-size 100000",
            r"too few for minibatches of 100,000 x 5; use a smaller --batch-size",
        ),
        ("reader statistics run --moving some", r"statistics are of all weights, which also serve some"),
        (
            "reader tune run --reader cache --in-turn",
            r"cache has none of segment, temperature, clip, beta1 to tune in",
        ),
        ("reader tune run --reader dynamic:rule=sgd --in-turn --grid temperature=1", r"no setting 'temperature'"),
        (
            "reader tune run --reader tempered --grid temperature=0",
            r"temperature must be at least 0.01 and at most 100",
        ),
        ("evaluate run --reader tempered:temperature=0", r"temperature must be at least 0.01 and at most 100, not 0"),
        ("reader tune run --reader cache --grid rate=[1", r"there is no setting 'rate'"),
        ("reader tune run --reader cache --grid theta=[1", r"'\[1' is not a value for theta"),
        ("reader train run --skip 20000", r"has \d+ tokens, of which --skip 20,000 leaves none; use a smaller --skip"),
        ("evaluate run --after test", r"test would be scored with what was learned from it"),
        ("evaluate run --reader dynamic", r"run has no statistics of training gradients yet"),
        ("evaluate run --reader learned", r"run has no meta-learner called 'three-level'; train it with"),
        ("evaluate run --reader cache:weight=1", r"weight must be at least 0 and at most 0.999, not 1"),
        ("evaluate run --reader cache:size=3", r"unknown key 'size'; there are window, theta, weight, confidence$"),
        ("evaluate run --reader=", r"the name of the reader is empty; give one"),
        ("examine run --reader=", r"the name of the reader is empty; give one"),
        ("generate run --reader=", r"the name of the reader is empty; give one"),
        ("evaluate run --reader cache++cache", r"reader 'cache\+\+cache': a name is missing beside a '\+'"),
        ("evaluate run --reader static:rate=1", r"unknown key 'rate'; there are none$"),
        ("evaluate run --reader cache:windw=3", r"unknown key 'windw' \(did you mean 'window'\?\)"),
        ("evaluate run --reader cache:window=900000000000", r"lower its window"),
        ("evaluate run --reader dynamic:rule=sgd,moving=last:9", r"this model has \d+ layers?, so last:9 is too many"),
        ("evaluate run --reader dynamic --reader learned", r"both read with the model; choose one of them"),
        ("evaluate run --after train2", r"there is no split 'train2'"),
        ("evaluate run --after valid --batch-size 9999", r"valid has [\d,]+ tokens but --batch-size is 9,999; use"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    typed: str, says: str, desk: Path, run_copy: Path, command: Command
) -> None:
    before = tree(desk)
    line = command(*typed.split()).mistake()
    assert re.search(says, line), line
    assert tree(desk) == before


@pytest.mark.parametrize("action", ["tune run --reader cache", "statistics run"])
def test_a_run_that_cannot_be_written_to_is_copied(
    action: str, run_copy: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    outcome = command("reader", *action.split())
    assert outcome.code == 2 and "--out" not in outcome.err
    assert outcome.err.endswith(
        "cannot write to run; what a reader learns is saved in the run: copy the run, and name the copy\n"
    )


def test_what_was_made_for_other_weights_is_refused(command: Command, run_copy: Path) -> None:
    assert command("reader", "statistics", run_copy, "--batch-size", "4").code == 0
    path = run_copy / "readers" / "statistics"
    manifest, document = path / "manifest.json", path / "statistics.json"
    changed = document.read_text().replace(json.loads(document.read_text())["weights"], "0" * 64)
    document.write_text(changed)
    listed = json.loads(manifest.read_text())
    listed["files"]["statistics.json"] = {
        "bytes": len(changed.encode()),
        "sha256": hashlib.sha256(changed.encode()).hexdigest(),
    }
    manifest.write_text(json.dumps(listed))
    line = command("evaluate", run_copy, "--reader", "dynamic").mistake()
    assert "are statistics of other weights than run has now; collect them with" in line


def test_options_of_another_kind_of_model_are_refused_where_a_reader_is_tuned(command: Command, run_copy: Path) -> None:
    for flags in (["--window", "5"], ["--text.field", "body"]):
        refusal = command("reader", "tune", "run", "--reader", "cache", "--tokens", "100", *flags).mistake()
        assert refusal == command("reader", "audit", "run", "--reader", "cache", *flags).mistake()


@pytest.mark.parametrize("control", [False, True])
def test_a_reading_whose_audit_fails_ends_with_exit_code_1_unless_it_is_a_control(
    command: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch, control: bool
) -> None:
    gold = ReaderKind("gold", "gold", lambda context, settings: GoldCache(context.run.model), control=control)
    monkeypatch.setitem(READERS, "gold", gold)
    done = command("evaluate", "run", "--reader", "gold")
    assert done.code == (0 if control else 1)
    assert "audit       FAILED" in done.out and (run_copy / "evaluate-test-gold").is_dir()
    assert ("control     gold is not a reader to compare by its score" in done.out) == control


def test_a_control_that_passes_its_audit_is_not_said_to_fail_it(
    command: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(READERS, "plain", dataclasses.replace(READERS["static"], name="plain", control=True))
    done = command("evaluate", "run", "--reader", "plain")
    assert done.code == 0 and "audit       passed" in done.out
    assert "control     plain is not a reader to compare by its score, whether or not it passes the audit" in done.out
