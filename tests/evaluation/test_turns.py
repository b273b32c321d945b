"""Tune the settings of several readers in turn: order, best values, fixed settings, and saved results."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

import backstory as bs
from backstory.config.options import EvalOptions
from backstory.evaluation import read
from backstory.evaluation.opening import open_evaluation, open_reader
from backstory.readers.registry import configure, parse_stack
from backstory.runs.run import load_run
from backstory.tuning import reader_search as tuning
from backstory.tuning.preparation import tune_reader
from backstory.tuning.reader_search import settings_of
from backstory.utils.errors import UserError

STEP = "dynamic:rule=nadam,rate=0.003,decay=0.01,epsilon=0.001"
GRID = ["segment=3,9", "temperature=0.9,1.1,1.3", "clip=0,0.3", "beta1=0,0.5"]


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_run, folder := tmp_path / "run")
    return folder


def score(run: Path, settings: dict[str, Any]) -> float:
    """Nats of the first 80 tokens with settings of NAdam and a temperature."""
    own = {key: settings[key] for key in ("rate", "decay", "epsilon", "segment", "clip", "beta1")}
    words = ",".join(f"{key}={value}" for key, value in own.items())
    reader = open_reader(run, [f"dynamic:rule=nadam,{words}", f"tempered:temperature={settings['temperature']}"])[1]
    opened = open_evaluation(run, EvalOptions(split="valid", allow_unknown=True))
    return read(reader, opened.split.ids[:80], opened.dataset.vocabulary.start).nats


@pytest.mark.full
def test_each_is_the_best_given_those_before_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return what a plain loop over the settings finds, reading by reading, without giving up on any."""
    monkeypatch.setattr(tuning, "MARGIN", math.inf)
    paths, tuned = tune_reader(run, parse_stack([STEP, "tempered"]), "valid", 80, GRID, in_turn=True)
    here = {"rate": 0.003, "decay": 0.01, "epsilon": 0.001, "segment": 5, "temperature": 1.0, "clip": 0.0, "beta1": 0.0}
    for name, values in (
        ("segment", (3, 9)),
        ("temperature", (0.9, 1.1, 1.3)),
        ("clip", (0.0, 0.3)),
        ("beta1", (0.0, 0.5)),
    ):
        here = min([here, *(here | {name: value} for value in values)], key=lambda settings: score(run, settings))
    assert settings_of(tuned.best).items() >= here.items()
    assert tuned.nats == pytest.approx(score(run, here), abs=1e-6)
    assert [p.name for p in paths] == ["dynamic-nadam.json", "dynamic-nadam+tempered.json"]
    # the best settings are used for reading and recorded
    result = bs.evaluate(run, split="valid", reader="dynamic:rule=nadam+tempered").figures
    named = {key: value for reader in result.readers for key, value in reader["settings"].items()}
    assert here.items() <= named.items()
    assert [r["origin"] for r in result.readers] == [
        "rule given, others tuned on the first 80 tokens of valid",
        "tuned on the first 80 tokens of valid",
    ]
    assert [g.name for g in result.gains] == ["static", "dynamic", "tempered"] and result.audit.passed


def test_what_is_typed_is_held_and_a_grid_adds_to_what_is_tried(run: Path) -> None:
    grid = ["rate=0.001,0.01", "temperature=1.1"]
    paths, _ = tune_reader(run, parse_stack([f"{STEP},segment=6,clip=0.5"]), "valid", 60, grid[:1], in_turn=True)
    assert [p.name for p in paths] == ["dynamic-nadam.json"]
    tried = json.loads(paths[0].read_text())["search"]["trials"]
    assert {(t["settings"]["segment"], t["settings"]["clip"]) for t in tried} == {(6, 0.5)}
    assert {t["settings"]["beta1"] for t in tried} == {0.0, 0.9}
    assert {t["settings"]["rate"] for t in tried} == {0.001, 0.003, 0.01}
    (only,), alone = tune_reader(run, parse_stack("tempered"), "valid", 60, grid[1:], in_turn=True)
    assert only.name == "tempered.json" and {t.settings["temperature"] for t in alone.trials} == {1.0, 1.1}


def test_a_cache_stays_as_it_is_and_a_temperature_inside_it_is_read_with(run: Path) -> None:
    stack = parse_stack("tempered+cache:window=9,weight=0.3")
    (path,), tuned = tune_reader(run, stack, "valid", 60, ["temperature=0.8,1.2"], in_turn=True)
    assert path.name == "tempered.json"
    for trial in tuned.trials:
        reader = open_reader(run, f"tempered:temperature={trial.settings['temperature']}+cache:window=9,weight=0.3")[1]
        opened = open_evaluation(run, EvalOptions(split="valid", allow_unknown=True))
        if trial.tokens == 60:
            found = read(reader, opened.split.ids[:60], opened.dataset.vocabulary.start).nats
            assert trial.nats == pytest.approx(found, rel=1e-9)
    (_, cache) = configure(stack, load_run(run))[-2:]
    assert (cache.name, cache.origin) == ("cache", "window and weight given, others default")


def test_the_temperature_alone_comes_from_one_reading(run: Path) -> None:
    (path,), tuned = tune_reader(run, parse_stack("tempered"), "valid", 80)
    assert [t.settings["temperature"] for t in tuned.trials] == [n / 50 for n in range(45, 66)]
    assert tuned.best.temperature == min(tuned.trials, key=lambda t: t.nats or 0).settings["temperature"]
    assert json.loads(path.read_text())["tuned_on"] == "the first 80 tokens of valid"
    _, held = tune_reader(run, parse_stack("tempered:temperature=1.7"), "valid", 80)
    assert [t.settings for t in held.trials] == [{"temperature": 1.7}]


@pytest.mark.parametrize(
    ("reader", "split", "grid", "told"),
    [
        ("cache", "valid", (), "the reader cache has none of segment, temperature, clip, beta1 to tune in turn"),
        ("static", "valid", (), "the reader static has none of segment"),
        (STEP, "test", (), "nothing is chosen on the test split"),
        (STEP, "valid", ("segmnt=5",), "there is no setting 'segmnt' (did you mean 'segment'?)"),
        (STEP, "valid", ("temperature=1",), "there is no setting 'temperature'"),
        ("dynamic:rule=sgd", "valid", ("beta1=0,0.5",), "does not use beta1 with this rule; leave it out of --grid"),
        (STEP, "valid", ("segment=0",), "segment must be at least 1, not 0"),
        ("tempered", "valid", ("temperature=0",), "temperature must be at least 0.01"),
        (
            f"{STEP}+mixture",
            "valid",
            ("rate=0.5,1",),
            "--grid rate: the readers dynamic and mixture share that setting",
        ),
        ("cache+ngram", "valid", ("weight=0.1",), "tune them one after the other without --in-turn, or leave it out"),
    ],
)
def test_a_mistake_is_told_before_anything_is_read(
    run: Path, reader: str, split: str, grid: tuple[str, ...], told: str
) -> None:
    with pytest.raises(UserError) as error:
        tune_reader(run, parse_stack(reader), split, 50, grid, in_turn=True)
    assert told in str(error.value) and "\n" not in str(error.value)
