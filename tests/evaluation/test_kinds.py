"""Readers by name: notation of stacks, origin of their settings, and combinations that do not fit."""

import json
import re
import shutil
from pathlib import Path

import pytest

import backstory as bs
from backstory.config.options import EvalOptions
from backstory.config.readers import DynamicSettings
from backstory.evaluation import read
from backstory.evaluation.opening import open_evaluation, open_reader
from backstory.readers.registry import configure, names_readers, parse_stack, stack_name
from backstory.runs.run import load_run, weights_hash
from backstory.tuning.preparation import collect_statistics, parse_grid, tune_reader
from backstory.utils.errors import UserError

STEP = "dynamic:rate=0.01,decay=0.01,epsilon=0.01"


@pytest.fixture(scope="module")
def prepared(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(tiny_run, tmp_path_factory.mktemp("prepared") / "run"))
    collect_statistics(open_evaluation(folder, EvalOptions(split="train", allow_unknown=True)), "all", None, 4, 5)
    return folder


@pytest.fixture
def run(prepared: Path, tmp_path: Path) -> Path:
    """A run of its own, with statistics."""
    return Path(shutil.copytree(prepared, tmp_path / "run"))


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("static", "static"),
        ([], "static"),
        ("dynamic", "dynamic"),
        (["static", "dynamic"], "dynamic"),
        ("dynamic:rate=1e-4,segment=20", "dynamic:rate=1e-4,segment=20"),
        ("dynamic:rate=1e+1", "dynamic:rate=1e+1"),
        ("learned:network=two-level", "learned:network=two-level"),
        ("cache: window = 5, theta=1 + ngram", "cache:window=5,theta=1+ngram"),
        (" cache ", "cache"),
    ],
)
def test_a_stack_is_called_as_it_is_written(asked: str | list[str], name: str) -> None:
    assert stack_name(parse_stack(asked)) == name == stack_name(parse_stack(name))
    assert names_readers(name)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("dynamc", "there is no reader 'dynamc' (did you mean 'dynamic'?)"),
        ("dynamic:rte=1", "reader dynamic: unknown key 'rte' (did you mean 'rate'?)"),
        ("dynamic:rate", "'rate' must be written setting=value"),
        ("dynamic:rate=1,rate=2", "rate is given twice"),
        ("dynamic:rate=fast", "rate must be a number"),
        ("dynamic:decay=1", "decay must be at least 0 and at most 0.999999, not 1"),
        ("dynamic:decay=-0.1", "decay must be at least 0"),
        ("dynamic:rule=rsm", "rule must be one of rms, sgd, nadam"),
        ("static:rate=1", "unknown key 'rate'"),
        (["dynamic", "dynamic"], "dynamic is named twice"),
        ("", "the name of the reader is empty; give one that"),
        ([""], "the name of the reader is empty; give one that"),
        ("cache++cache", "reader 'cache++cache': a name is missing beside a '+'"),
        ("cache+", "a name is missing beside a '+'; write one between two names"),
        ("+cache", "a name is missing beside a '+'"),
        (["cache", " "], "a name is missing beside a '+'"),
        (["dynamic", "learned"], "both read with the model"),
    ],
)
def test_what_is_no_stack(asked: str | list[str], told: str) -> None:
    with pytest.raises(UserError) as error:
        parse_stack(asked)
    assert told in str(error.value) and "\n" not in str(error.value)


ODD_VALUES = [
    "2001-99-99",
    "!!int x",
    "!!timestamp x",
    "[" * 1500,
    "9" * 5000,
    "*a",
    "&a [*a]",
    "!!python/name:x",
]


@pytest.mark.parametrize("value", ["0x10", "1:30"])
def test_numbers_are_decimal(value: str) -> None:
    with pytest.raises(UserError, match=f"theta must be a number, not '{value}'"):
        parse_stack(f"cache:theta={value}")


@pytest.mark.full
@pytest.mark.parametrize("value", ODD_VALUES)
def test_what_yaml_makes_nothing_of_is_refused(value: str) -> None:
    with pytest.raises(UserError, match="is not a value for theta"):
        parse_stack(f"cache:theta={value}")
    with pytest.raises(UserError, match="is not a value for theta"):
        parse_grid(parse_stack("cache"), [f"theta={value}"])


@pytest.mark.full
def test_settings_are_typed_or_tuned_or_published(run: Path) -> None:
    loaded = load_run(run)
    (published,) = configure(parse_stack("dynamic"), loaded)
    assert (published.settings, published.origin) == (DynamicSettings(), "default")
    (typed,) = configure(parse_stack("dynamic:segment=9"), loaded)
    assert (typed.settings, typed.origin) == (DynamicSettings(segment=9), "segment given, others default")
    (path,), tuned = tune_reader(
        run, parse_stack(f"{STEP},segment=7"), "valid", 150, ["rate=0.001,0.02", "decay=0,0.1"]
    )
    (found,) = configure(parse_stack("dynamic:segment=9"), loaded)
    assert found.origin == "segment given, others tuned on the first 150 tokens of valid"
    assert found.settings.segment == 9 and found.settings.rate == tuned.best.rate in (0.001, 0.02)
    assert len(tuned.trials) == 4 and tuned.best.epsilon == 0.01
    assert len(json.loads(path.read_text())["search"]["trials"]) == 4
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"weights": "0" * 64}))
    with pytest.raises(UserError, match="was tuned for other weights than"):
        configure(parse_stack("dynamic"), loaded)
    for damage in (b"{", b"[]", b'{"weights": 1}'):
        path.write_bytes(damage)
        with pytest.raises(UserError, match="is damaged"):
            configure(parse_stack("dynamic"), loaded)


@pytest.mark.full
def test_a_search_finds_what_a_grid_finds(run: Path) -> None:
    """Steps of factor two from a distant start reach the same result as a grid of the same points."""
    wide = ["rate=" + ",".join(f"{0.0005 * 2**i:.3g}" for i in range(9))]
    _, grid = tune_reader(run, parse_stack("dynamic:rate=0.0005,decay=0.01,epsilon=0.01"), "valid", 100, wide)
    _, steps = tune_reader(run, parse_stack("dynamic:rate=0.0005,decay=0.01,epsilon=0.01"), "valid", 100)
    assert steps.nats <= grid.nats + 1e-4
    assert steps.best.rate > 0.0005
    opened = open_evaluation(run, EvalOptions(split="valid", allow_unknown=True))
    for trial in (t for t in grid.trials if t.tokens < grid.tokens):  # given up on the way
        rest = ",".join(f"{k}={v}" for k, v in trial.settings.items() if k in ("rate", "decay", "epsilon"))
        reader = open_reader(run, f"dynamic:{rest}")[1]
        assert read(reader, opened.split.ids[:100], opened.dataset.vocabulary.start).nats > grid.nats


@pytest.mark.full
def test_a_tuned_reading_is_the_reading(run: Path, tmp_path: Path) -> None:
    """The search measures what `evaluate` measures with the settings it saved; each reader's gain is told."""
    before = weights_hash(load_run(run).model)
    split = len(open_evaluation(run, EvalOptions(split="valid", allow_unknown=True)).split.ids)
    _, tuned = tune_reader(run, parse_stack(STEP), "valid", None)
    result = bs.evaluate(run, split="valid", reader="dynamic").figures
    assert result.tokens == split == tuned.tokens
    assert result.nats_per_token == pytest.approx(tuned.nats, rel=1e-12)
    assert result.audit.passed and result.readers[0]["origin"] == f"tuned on the first {split:,} tokens of valid"
    static = bs.evaluate(run, split="valid").figures
    names = [g.name for g in result.gains]
    assert names == ["static", "dynamic"] and [g.name for g in static.gains] == ["static"]
    assert result.gains[0].nats_per_token == pytest.approx(static.nats_per_token, rel=1e-6)
    assert result.gains[1].nats_per_token == result.nats_per_token < static.nats_per_token
    assert weights_hash(load_run(run).model) == before


@pytest.mark.full
def test_reading_on_after_another_split(run: Path) -> None:
    plain = bs.evaluate(run, split="test", reader=STEP).figures
    after = bs.evaluate(run, split="test", reader=STEP, after="valid").figures
    assert (plain.after, after.after) == (None, "valid")
    assert after.nats_per_token != plain.nats_per_token
    assert {p.name for p in run.glob("evaluate-test-*")} == {
        "evaluate-test-dynamic_rate_0.01_decay_0.01_epsilon_0.01",
        "evaluate-test-dynamic_rate_0.01_decay_0.01_epsilon_0.01-after-valid",
    }


def test_other_rules_and_weights_are_filed_apart(run: Path) -> None:
    tune_reader(run, parse_stack("dynamic:rule=sgd,moving=last:1"), "valid", 50, ["rate=0.01"])
    tune_reader(run, parse_stack(STEP), "valid", 50, ["rate=0.01"])
    assert {p.name for p in (run / "readers").glob("*.json")} == {"dynamic.json", "dynamic-sgd-last-1.json"}
    loaded = load_run(run)
    (found,) = configure(parse_stack("dynamic:rule=sgd,moving=last:1"), loaded)
    assert found.settings.rate == 0.01 and found.settings.moving == "last:1" and "tuned" in found.origin
    (other,) = configure(parse_stack("dynamic"), loaded)
    assert other.settings.rule == "rms"


def test_either_mean_rms_is_tuned_for_itself(run: Path) -> None:
    tune_reader(run, parse_stack(STEP), "valid", 50, ["decay=0.1"])
    tune_reader(run, parse_stack(f"{STEP},normalization=tensors"), "valid", 50, ["decay=0.02"])
    assert {p.name for p in (run / "readers").glob("*.json")} == {"dynamic.json", "dynamic-tensors.json"}
    loaded = load_run(run)
    found = {
        name: configure(parse_stack(f"dynamic:normalization={name}"), loaded)[0] for name in ("weights", "tensors")
    }
    assert {name: one.settings.decay for name, one in found.items()} == {"weights": 0.1, "tensors": 0.02}
    assert all(one.settings.normalization == name for name, one in found.items())


def test_what_was_tuned_before_the_mean_rms_could_be_chosen_is_of_all_weights(run: Path) -> None:
    (path,), _ = tune_reader(run, parse_stack(STEP), "valid", 50, ["rate=0.01"])
    document = json.loads(path.read_text())
    assert document["settings"].pop("normalization") == "weights"
    path.write_text(json.dumps(document))
    (found,) = configure(parse_stack("dynamic"), load_run(run))
    assert found.settings.normalization == "weights" and found.settings.rate == 0.01


def test_what_is_typed_of_a_cache_is_held(run: Path) -> None:
    _, tuned = tune_reader(run, parse_stack("cache:window=7"), "valid", 60)
    assert {t.settings["window"] for t in tuned.trials} == {7} and len(tuned.trials) > 20


def test_nothing_is_learned_from_the_test_split(run: Path) -> None:
    with pytest.raises(UserError, match="on the test split"):
        tune_reader(run, parse_stack(STEP), "test", 50)
    with pytest.raises(UserError, match="on the test split"):
        collect_statistics(open_evaluation(run, EvalOptions(split="test", allow_unknown=True)), "all", None, 2, 5)
    with pytest.raises(UserError, match="before another is scored"):
        bs.evaluate(run, split="valid", reader=STEP, after="test")
    for split in ("valid", "test"):
        with pytest.raises(UserError, match=f"{split} would be scored with what was learned from it"):
            bs.evaluate(run, split=split, reader=STEP, after=split)


def test_what_a_reader_needs_is_said(tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(tiny_run, folder)
    shutil.rmtree(folder / "readers", ignore_errors=True)
    with pytest.raises(UserError, match="collect them once with `backstory reader statistics"):
        open_reader(folder, "dynamic")
    with pytest.raises(UserError, match="no meta-learner called 'three-level'; train it with"):
        open_reader(folder, "learned")
    open_reader(folder, "dynamic:rule=sgd")
    with pytest.raises(UserError, match="reads one row only; use batch_size=1"):
        bs.evaluate(folder, split="valid", reader="dynamic:rule=sgd", batch_size=2)
    with pytest.raises(UserError, match="the reader static has no settings to tune"):
        tune_reader(folder, parse_stack("static"), "valid", 100)
    with pytest.raises(UserError, match="diverged with all settings"):
        tune_reader(folder, parse_stack("dynamic:rule=sgd"), "valid", 100, ["rate=1e29,1e30"])


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        ("mixture:step=0.01", "reader mixture: step has no effect with domain=linear; choose domain=logistic"),
        ("mixture:context=entropy", "reader mixture: context has no effect with domain=linear"),
        ("mixture:gate_rate=0.1", "reader mixture: gate_rate has no effect with weights=bayes; choose weights=gate"),
        (
            "mixture:weights=gate,share=0.1",
            "reader mixture: share has no effect with weights=gate; choose weights=bayes",
        ),
        ("ppm:escape=c,discount=0.3", "reader ppm: discount has no effect with escape=c; choose escape=d"),
        ("dynamic:rule=sgd,beta1=0.5", "reader dynamic: beta1 has no effect with rule=sgd; choose rule=nadam"),
    ],
)
def test_a_reader_s_setting_without_effect_is_named(reader: str, message: str, tiny_run: Path) -> None:
    with pytest.warns(UserWarning, match=re.escape(message)):
        configure(parse_stack(reader), load_run(tiny_run))


@pytest.mark.parametrize(
    "reader",
    ["mixture:lengths=false,context=none", "mixture:domain=logistic,step=0.01", "ppm:discount=0.3", "ppm:escape=c"],
)
def test_a_reader_s_setting_with_an_effect_is_not(reader: str, tiny_run: Path) -> None:
    configure(parse_stack(reader), load_run(tiny_run))
