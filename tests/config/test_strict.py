"""Strict YAML: mistakes are one line that names the setting, and valid settings round-trip."""

import dataclasses
import math
import types
import typing
import warnings
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstory.config import (
    LSTMConfig,
    MixtureConfig,
    RunConfig,
    SoftmaxConfig,
    changes,
    from_dict,
    from_yaml,
    recipes,
    to_dict,
    to_yaml,
    validate,
)
from backstory.config.cores import CoreConfig
from backstory.config.strict import between, from_file
from backstory.papers.plan import runs_of
from backstory.papers.suite import Suite
from backstory.utils.errors import UserError, nearest


def read(text: str) -> RunConfig:
    return from_yaml(RunConfig, text, "recipe.yaml")


def refusal(text: str) -> str:
    """Return the one-line error of a YAML text."""
    with pytest.raises(UserError) as caught:
        read(text)
    message = str(caught.value)
    assert message.startswith("recipe.yaml") and "\n" not in message
    return message


# --- what is wrong ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trainig: {}", "unknown key 'trainig' (did you mean 'training'?)"),
        ("training: {epoch: 3}", "unknown key 'training.epoch' (did you mean 'training.epochs'?)"),
        ("model: {core: {hiden: 3}}", "unknown key 'model.core.hiden' (did you mean 'model.core.hidden'?)"),
        (
            "model: {head: {kind: softmax, experts: 3}}",
            "unknown key 'model.head.experts'; there are kind, tied, bias, adversarial, finetune_adversarial, "
            "sampled, frequent",
        ),
        ("1: 2", "unknown key '1'; there are text, model, training, seed"),
        ("null: 2", "unknown key 'None'; there are text, model, training, seed"),
        ("zzzzzz: 1", "unknown key 'zzzzzz'; there are text, model, training, seed"),
    ],
)
def test_unknown_keys_are_refused_with_a_hint(text: str, message: str) -> None:
    assert refusal(text) == f"recipe.yaml: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".nan", "the file must be a mapping of settings, not nan"),
        ("training: {epochs: true}", "training.epochs must be a whole number, not True"),
        ("training: {epochs: 3.0}", "training.epochs must be a whole number, not 3.0"),
        ("training: {epochs: '3'}", "training.epochs must be a whole number, not '3'"),
        ("training: {epochs: 010}", "training.epochs must be a whole number, not '010'"),
        ("training: {epochs: 1:30}", "training.epochs must be a whole number, not '1:30'"),
        ("training: {epochs: 0x1f}", "training.epochs must be a whole number, not '0x1f'"),
        ("training: {epochs: null}", "training.epochs must be a whole number, not None"),
        ("training: {epochs: [3]}", "training.epochs must be a whole number, not [3]"),
        ("training: {epochs: 2024-01-01}", "training.epochs must be a whole number, not datetime.date(2024, 1, 1)"),
        ("training: {learning_rate: fast}", "training.learning_rate must be a number, not 'fast'"),
        ("training: {learning_rate: 10%}", "training.learning_rate must be a number, not '10%'; write 0.1"),
        ("training: {learning_rate: true}", "training.learning_rate must be a number, not True"),
        ("training: {partial_shuffle: 1}", "training.partial_shuffle must be true or false, not 1"),
        ("training: {partial_shuffle: 'yes'}", "training.partial_shuffle must be true or false, not 'yes'"),
        ("text: {corpus: 3}", "text.corpus must be text, not 3"),
        ("text: {maximum_size: many}", "text.maximum_size must be a whole number, not 'many'"),
        ("training: {decay_epochs: 3}", "training.decay_epochs must be a list, not 3"),
        ("training: {decay_epochs: [1, two]}", "training.decay_epochs[1] must be a whole number, not 'two'"),
        (
            "training: {optimizer: sdg}",
            "training.optimizer must be one of sgd, adam, adamw, nadam (did you mean 'sgd'?), not 'sdg'",
        ),
        ("training: {optimizer: [sgd]}", "training.optimizer must be one of sgd, adam, adamw, nadam, not ['sgd']"),
        ("model: {core: {biases: x}}", "model.core.biases must be one of 2, 1, not 'x'"),
        ("model: {core: {biases: 2.0}}", "model.core.biases must be one of 2, 1, not 2.0"),
        ("training: [1]", "training must be a mapping of settings, not [1]"),
        ("training: null", "training must be a mapping of settings, not None"),
        ("[1, 2]", "the file must be a mapping of settings, not [1, 2]"),
        ("stdlib", "the file must be a mapping of settings, not 'stdlib'"),
        ("model: {head: softmax}", "model.head must be a mapping of settings, not 'softmax'"),
        (
            "model: {head: {kind: mixure}}",
            "model.head.kind must be one of softmax, mixture, not 'mixure' (did you mean 'mixture'?)",
        ),
        ("model: {head: {kind: [1]}}", "model.head.kind must be one of softmax, mixture, not [1]"),
        (
            "model: {core: {kind: abacus}}",
            f"model.core.kind must be one of {', '.join(kind.kind for kind in typing.get_args(CoreConfig))}, not 'abacus'; "
            "a kind of a plugin needs --plugin FILE, or its import in Python",
        ),
    ],
)
def test_wrong_types_are_refused(text: str, message: str) -> None:
    assert refusal(text) == f"recipe.yaml: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {epochs: 0}", "training.epochs must be at least 1, not 0"),
        ("training: {learning_rate: 0}", "training.learning_rate must be above 0, not 0.0"),
        ("training: {learning_rate: -1.5}", "training.learning_rate must be above 0, not -1.5"),
        ("training: {short_probability: 1.1}", "training.short_probability must be at least 0 and at most 1, not 1.1"),
        ("training: {learning_rate: .nan}", "training.learning_rate must be above 0, not nan"),
        ("training: {learning_rate: nan}", "training.learning_rate must be above 0, not nan"),
        ("training: {weight_decay: .inf}", "training.weight_decay must be at least 0 and finite, not inf"),
        ("training: {weight_decay: -.inf}", "training.weight_decay must be at least 0 and finite, not -inf"),
        ("training: {clip: 1e999}", "training.clip must be at least 0 and finite, not inf"),
        ("model: {core: {weight_drop: 1.0}}", "model.core.weight_drop must be at least 0 and at most 0.999, not 1.0"),
        ("model: {head: {kind: mixture, experts: 0}}", "model.head.experts must be at least 1, not 0"),
        (
            "model: {core: {kind: trellis, levels: 1001}}",
            "model.core.levels must be at least 1 and at most 1000, not 1001",
        ),
        ("text: {maximum_size: 1}", "text.maximum_size must be at least 2, not 1"),
        ("seed: -1", "seed must be at least 0 and at most 2147483647, not -1"),
    ],
)
def test_values_out_of_range_are_refused(text: str, message: str) -> None:
    assert refusal(text) == f"recipe.yaml: {message}"


@pytest.mark.full
@pytest.mark.parametrize(
    "text",
    [
        "training: {epochs: 3",
        "a: b: c",
        "\t- x",
        "training: !!python/object/apply:os.system ['true']",
        "a: *unknown",
        "---\na: 1\n---\nb: 2",
        "text: \x00",
        "seed: 2024-13-45",
        "seed: " + "9" * 5000,
        "[" * 5000,
        "seed: !!timestamp x",
        "seed: !!int ''",
        "text: {a: &a 1, b: *a}",
        "a: &a {x: 1}\ntext: {<<: *a}",
    ],
    ids=[
        "open",
        "colons",
        "tab",
        "object",
        "alias",
        "documents",
        "nul",
        "date",
        "digits",
        "depth",
        "stamp",
        "no digits",
        "reference",
        "merge",
    ],
)
def test_text_that_is_no_yaml_is_refused(text: str) -> None:
    assert "is not valid YAML" in refusal(text)


def test_the_line_of_a_mistake_is_told() -> None:
    assert (
        refusal("seed: 1\ntext: {\nmodel: }}\n") == "recipe.yaml is not valid YAML at line 3; correct it and run again"
    )


def test_tabs_for_indentation_are_told() -> None:
    assert refusal("text:\n\tcorpus: x\n").endswith("at line 2; indent with spaces, not tabs")


def test_numbers_too_large_for_a_float_are_refused() -> None:
    huge = "1" + "0" * 400
    assert refusal(f"training: {{clip: {huge}}}").startswith("recipe.yaml: training.clip must be")
    assert refusal(f"seed: {huge}").startswith("recipe.yaml: seed must be at least 0 and at most")
    with pytest.raises(UserError, match="not a number of thousands of digits"):
        from_dict(RunConfig, {"seed": 16**5000}, "settings")


def test_long_values_are_cut_short_in_a_message() -> None:
    assert len(refusal(f"seed: {'x' * 100_000}")) < 300
    assert len(refusal(f"seed: [{'1, ' * 10_000}]")) < 300


def test_references_do_not_unfold() -> None:
    lines = ["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)), "seed: *a29"]
    assert refusal("\n".join(lines)).endswith("at line 2 (*a0 is a reference); correct it and run again")


@given(st.text(max_size=40) | st.binary(max_size=40).map(lambda b: b.decode("latin-1")))
def test_any_text_is_settings_or_one_line(text: str) -> None:
    try:
        assert isinstance(read(text), RunConfig)
    except UserError as error:
        assert "\n" not in str(error)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=2),
    max_leaves=4,
)
PATHS = [
    *(f"training.{f.name}" for f in dataclasses.fields(RunConfig().training)),
    *(f"model.core.{f.name}" for f in dataclasses.fields(LSTMConfig)),
    *(f"model.head.{f.name}" for f in dataclasses.fields(SoftmaxConfig)),
    *("text", "model", "model.head", "seed"),
]


@given(st.sampled_from(PATHS), PLAIN)
def test_any_value_is_taken_or_refused_by_the_name_of_its_setting(path: str, value: Any) -> None:
    data: Any = value
    for key in reversed(path.split(".")):
        data = {key: data}
    try:
        config = from_dict(RunConfig, data, "here")
    except UserError as error:
        assert path in str(error) and str(error).startswith("here: ")
    else:
        assert from_dict(RunConfig, to_dict(config), "again") == config


# --- what is right ---


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 1e-3), ("1.0e-3", 1e-3), ("'0.5'", 0.5), ("2", 2.0), ("1E5", 1e5), (".5", 0.5), ("1e+2", 100.0)],
)
def test_numbers_are_read_as_they_are_meant(text: str, value: float) -> None:
    found = read(f"training: {{learning_rate: {text}}}").training.learning_rate
    assert found == value and type(found) is float


def test_no_settings_are_the_defaults() -> None:
    for text in ("", "# nothing\n", "{}", "null", "\ufeff"):
        assert read(text) == RunConfig()


def test_a_union_is_told_apart_by_its_kind() -> None:
    assert read("model: {head: {kind: mixture, experts: 3}}").model.head == MixtureConfig(experts=3)
    assert read("model: {head: {bias: false}}").model.head == SoftmaxConfig(bias=False)
    assert read("text: {maximum_size: null}").text.maximum_size is None
    assert read("text: {maximum_size: 50}").text.maximum_size == 50


def test_lists_become_tuples() -> None:
    assert read("training: {decay_epochs: [3, 5]}").training.decay_epochs == (3, 5)


def values(kind: Any, bounds: tuple[float, float, bool] = (-math.inf, math.inf, False)) -> st.SearchStrategy:
    """Values of a field's type, within its range."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    low, high, above = bounds
    if dataclasses.is_dataclass(kind):
        return settings(typing.cast(type, kind))
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(k, bounds) for k in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if kind is int:
        return st.integers(int(low) if low > -math.inf else None, int(min(high, 2**53)))
    if kind is float:
        finite = {"min_value": low, "allow_nan": False, "allow_infinity": False, "exclude_min": above}
        return st.floats(**finite, max_value=high if high < math.inf else None)
    return {bool: st.booleans(), str: st.text(), type(None): st.none()}[kind]


def settings(kind: type) -> st.SearchStrategy:
    """Configs of a kind."""
    hints, fields = typing.get_type_hints(kind), dataclasses.fields(kind)
    ranges = {f.name: f.metadata.get("range", (-math.inf, math.inf, False)) for f in fields}
    return st.builds(kind, **{name: values(hints[name], bounds) for name, bounds in ranges.items()})


@given(settings(RunConfig))
def test_any_config_comes_back_from_its_yaml(config: RunConfig) -> None:
    assert from_yaml(RunConfig, to_yaml(config), "here") == config


def test_yaml_lists_the_settings_in_their_order() -> None:
    keys = [line.split(":")[0] for line in to_yaml(RunConfig()).splitlines() if not line.startswith(" ")]
    assert keys == [f.name for f in dataclasses.fields(RunConfig)]


def test_validation_is_for_configs_made_in_python_too() -> None:
    broken = dataclasses.replace(RunConfig(), training=dataclasses.replace(RunConfig().training, clip=math.nan))
    with pytest.raises(UserError, match=r"settings: training\.clip must be at least 0, not nan"):
        validate(broken, "settings")
    validate(RunConfig(), "settings")


# --- recipes and files ---


@pytest.mark.parametrize("name", recipes.names())
def test_packaged_recipes_are_good_and_come_back_from_their_yaml(name: str) -> None:
    config = recipes.load(name)
    assert from_yaml(RunConfig, to_yaml(config), name) == config
    assert recipes.summary(name) and not recipes.summary(name).startswith("#")
    header = [line for line in recipes.text(name).splitlines() if line.startswith("#")]
    assert any("command:" in line and f"backstory train {name}" in line for line in header)


def test_an_unknown_recipe_is_refused_with_a_hint() -> None:
    with pytest.raises(UserError, match=r"no recipe 'ptb-smal' \(did you mean 'ptb-small'\?\)"):
        recipes.load("ptb-smal")


def test_a_run_that_is_called_like_a_recipe_is_told_and_never_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipes.load("demo")
    monkeypatch.chdir(tmp_path)
    Path("demo").mkdir()
    for seed in (recipe.seed, 5):
        Path("demo", "config.yaml").write_text(to_yaml(dataclasses.replace(recipe, seed=seed)))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert recipes.load("demo").seed == recipes.load("./demo").seed == seed
        assert len(told) == (seed != recipe.seed)
        assert recipes.load_recipe("demo") == recipe
    assert "demo is both a run in this folder and a recipe, and the run's settings are used" in str(told[0].message)
    Path("demo", "config.yaml").write_text("{}")
    (run,) = runs_of(from_yaml(Suite, SUITE, "suite"), "small", "suite")
    assert run.config.model == recipe.model != RunConfig().model


SUITE = "{title: t, systems: [{name: a, small: {recipe: demo, seeds: [1], minutes: 1}}]}"


def test_a_recipe_of_ones_own_is_read_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("seed: 5\n")
    assert recipes.load(str(tmp_path / "mine.yaml")).seed == 5


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*absent\.yaml: No such file"):
        from_file(RunConfig, tmp_path / "absent.yaml")
    with pytest.raises(UserError, match="Is a directory"):
        from_file(RunConfig, tmp_path)
    with pytest.raises(UserError, match="not a regular file"):
        from_file(RunConfig, Path("/dev/zero"))
    (tmp_path / "large.yaml").write_bytes(b"#" * 2_000_000)
    with pytest.raises(UserError, match=r"large\.yaml: it is larger than 1,048,576 bytes"):
        from_file(RunConfig, tmp_path / "large.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"binary\.yaml: it is not UTF-8 text"):
        from_file(RunConfig, tmp_path / "binary.yaml")


def test_hints_name_what_is_near_and_nothing_else() -> None:
    assert nearest("epoch", ["epochs", "seed"]) == " (did you mean 'epochs'?)"
    assert nearest("zzz", ["epochs", "seed"]) == ""


def test_a_key_that_stands_twice_is_refused() -> None:
    with pytest.raises(UserError, match=r"is not valid YAML at line 2 \(key seed appears twice\)"):
        from_yaml(RunConfig, "seed: 1\nseed: 2\n", "mine.yaml")


def test_an_unknown_tag_is_refused() -> None:
    assert refusal("seed: !mine 5").endswith("at line 1 (!mine is a tag); correct it and run again")
    assert "python/object:os.system is a tag" in refusal("seed: !!python/object:os.system 5")


# --- lists of dataclasses, and keys without a default, which suites have ---


@dataclasses.dataclass(frozen=True)
class Stop:
    place: str
    minutes: float = between(1.0, 0.0)


@dataclasses.dataclass(frozen=True)
class Journey:
    stops: tuple[Stop, ...]
    luggage: dict = dataclasses.field(default_factory=dict)


def test_lists_of_dataclasses_come_back_as_they_were() -> None:
    journey = Journey((Stop("Ely"), Stop("York", 3.0)), {"bags": [1, 2]})
    assert to_dict(journey)["stops"][1] == {"place": "York", "minutes": 3.0}
    assert from_yaml(Journey, to_yaml(journey), "a test") == journey


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "stops is missing; add it"),
        ("stops: [{minutes: 2}]", r"stops\[0\].place is missing; add it"),
        ("stops: [{place: Ely}, {place: York, minutes: -1}]", r"stops\[1\].minutes must be at least 0, not -1"),
        (
            "stops: [{place: Ely, minute: 1}]",
            r"unknown key 'stops\[0\].minute' \(did you mean 'stops\[0\].minutes'\?\)",
        ),
        ("stops: []\nluggage: 3", "luggage must be a mapping, not 3"),
    ],
)
def test_what_is_wrong_in_a_list_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(UserError, match=f"a test: {message}"):
        from_yaml(Journey, text, "a test")


def test_changes_are_what_is_not_the_default() -> None:
    assert changes(RunConfig()) == {}
    config = from_dict(RunConfig, {"model": {"head": {"kind": "mixture", "experts": 3}}, "seed": 5}, "x")
    assert changes(config) == {"model": {"head": {"kind": "mixture", "experts": 3}}, "seed": 5}
    assert from_dict(RunConfig, changes(config), "x") == config


@pytest.mark.parametrize("name", recipes.names())
def test_changes_of_a_recipe_make_it_again(name: str) -> None:
    assert from_dict(RunConfig, changes(recipes.load(name)), name) == recipes.load(name)
