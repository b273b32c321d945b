"""A space is checked to its last value before anything is trained, and a draw of it is a recipe with its values put in."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
import yaml

from backstory.config import RunConfig, from_dict, from_yaml, recipes, to_dict
from backstory.models import Activations, Softmax
from backstory.training import Likelihood
from backstory.tuning import space as spaces
from backstory.tuning.space import Parameter, Space, draw, lookup, parameters, warn_ignored
from backstory.utils.errors import UserError

RECIPE = RunConfig()


def checked(settings: dict[str, Any], recipe: RunConfig = RECIPE) -> tuple[Parameter, ...]:
    return parameters(from_yaml(Space, yaml.safe_dump({"settings": settings}, sort_keys=False), "mine"), recipe, "mine")


LAYERS = {"model.core.layers": {"choice": [1, 2]}}
KIND = {"model.head.kind": {"choice": ["softmax", "mixture"]}}

# A space, and what the line must say.
MISTAKES: list[tuple[Any, str]] = [
    ({}, r"mine: settings is empty"),
    (
        {"training.learning_rat": {"range": [1, 2]}},
        r"unknown key 'training.learning_rat' \(did you mean 'training.learning_rate'\?\)",
    ),
    ({"trainin.epochs": {"range": [1, 2]}}, r"unknown key 'trainin' \(did you mean 'training'\?\)"),
    ({"training": {"choice": [1]}}, r"mine: training must be a mapping"),
    ({"training.epochs.more": {"range": [1, 2]}}, r"training.epochs must be a whole number, not"),
    ({3: {"range": [1, 2]}}, r"3 is not the name of a setting"),
    ({"training.epochs": {}}, r"mine: training.epochs needs one of `range`, `choice` and `same`"),
    ({"training.epochs": {"range": [1, 2], "choice": [1]}}, r"needs one of `range`, `choice` and `same`"),
    ({"training.epochs": {"low": 1, "high": 2}}, r"training.epochs: write the ends of a range as `range: \[LOWEST, HIGHEST"),
    ({"training.epochs": {"rang": [1, 2]}}, r"unknown key 'rang' \(did you mean 'range'\?\)"),
    ({"training.epochs": {"range": [1, 2, 3]}}, r"a range is two numbers"),
    ({"training.epochs": None}, r"mine: training.epochs needs a `range` or a `choice`, not None"),
    ({"training.epochs": 5}, r"mine: training.epochs needs a `range` or a `choice`, not 5"),
    ({"training.epochs": {"range": [3, 1]}}, r"a range goes up, and 3 to 1 does not"),
    ({"training.epochs": {"range": [2, 2]}}, r"a range goes up"),
    ({"training.epochs": {"range": [0, 5]}}, r"mine: training.epochs must be at least 1, not 0"),
    ({"training.epochs": {"range": [1.5, 5]}}, r"mine: training.epochs must be a whole number, not 1.5"),
    ({"training.epochs": {"range": ["few", 5]}}, r"range\[0\] must be a number, not 'few'"),
    ({"model.core.weight_drop": {"range": [0, 1.5]}}, r"mine: model.core.weight_drop must be .* not 1.5"),
    ({"training.clip": {"range": [0, float("nan")]}}, r"training.clip must be at least 0, not nan"),
    ({"training.clip": {"range": [0, float("inf")]}}, r"training.clip must be .*finite.* not inf"),
    ({"training.clip": {"range": [0, 1], "log": True}}, r"a `log` range begins above 0, not at 0"),
    ({"training.clip": {"choice": [0, 1], "log": True}}, r"`log` is for a `range`"),
    ({"training.optimizer": {"range": [1, 2]}}, r"training.optimizer must be one of sgd, adam, adamw, nadam, not 1"),
    ({"training.optimizer": {"choice": ["adm"]}}, r"must be one of sgd, adam, nadam \(did you mean 'adam'\?\), not|not 'adm'"),
    ({"training.optimizer": {"choice": []}}, r"choice is empty"),
    ({"training.optimizer": {"choice": ["sgd", "sgd"]}}, r"a choice appears twice"),
    ({"training.decay_epochs": {"choice": [[1], [2]]}}, r"a choice is between numbers, words, true, false and null"),
    ({"model.core": {"choice": [3]}}, r"mine: model.core must be a mapping"),
    # What all trials share.
    ({"seed": {"range": [1, 9]}}, r"mine: seed must be the same for all trials"),
    ({"text.minimum_count": {"range": [1, 9]}}, r"mine: text.minimum_count must be the same for all trials"),
    ({"training.validation_batch_size": {"range": [1, 9]}}, r"training.validation_batch_size must be the same for all trials"),
    # Conditions and references.
    ({"model.core.hidden": {"range": [5, 9], "when": {"model.core.layer": 2}}}, r"unknown key 'model.core.layer'"),
    ({"model.core.hidden": {"range": [5, 9], "when": {3: 2}}}, r"when: 3 is not the name of a setting"),
    ({"model.core.hidden": {"range": [5, 9], "when": {"model.core.layers": []}}}, r"needs a value, or a list of values"),
    ({"model.core.hidden": {"range": [5, 9], "when": {"model.core.layers": "two"}}}, r"layers must be a whole number"),
    (LAYERS | {"model.core.hidden": {"range": [5, 9], "when": {"model.core.layers": 3}}}, r"layers is never 3 in this space"),
    (
        {"model.core.hidden": {"range": [5, 9], "when": {"model.core.layers": 2}}} | LAYERS,
        r"model.core.hidden refers to model.core.layers; list model.core.layers first",
    ),
    ({"model.core.output": {"same": "model.embedding.siz"}}, r"there is no setting 'model.embedding.siz' \(did you mean"),
    ({"model.core.output": {"same": "training.optimizer"}}, r"model.core.output must be a whole number, not 'sgd'"),
    ({"model.core.output": {"same": "model.embedding.size"}}, r"nothing is searched; give a setting a `range`"),
    (
        {"model.core.output": {"same": "model.embedding.size"}, "model.embedding.size": {"choice": [6, 8]}},
        r"model.core.output refers to model.embedding.size; list model.embedding.size first",
    ),
    # Parts of several kinds.
    ({"model.head.experts": {"range": [2, 3]}}, r"unknown key 'model.head.experts'"),
    (
        KIND | {"model.head.experts": {"range": [2, 3]}},
        r"'model.head.experts'.*this setting does not exist in every draw; add a `when` that says in which",
    ),
    ({"model.head.bias": {"choice": [True, False]}} | KIND, r"model.head.kind decides whether .*give .* before it"),
    # Draws that no training takes.
    (
        {"training.averaging": {"choice": ["none", "always"]}, "training.optimizer": {"choice": ["sgd", "adam"]}},
        r"some of its draws cannot be trained: training.averaging always",
    ),
    (
        {"model.embedding.size": {"choice": [6, 8]}, "model.core.output": {"choice": [6, 8]}},
        r"some of its draws cannot be trained: the softmax is tied to the embedding, of size \d, so model.core.output must be",
    ),
    (
        {"model.embedding.size": {"range": [8, 1 << 53]}},
        r"some of its draws cannot be trained: it needs more memory than can be counted",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "message"), MISTAKES)
def test_what_is_wrong_with_a_space_is_told_in_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as told:
        checked(settings)
    assert "\n" not in str(told.value)


@pytest.mark.full
def test_a_draw_must_be_an_addressing_that_the_memory_can_have() -> None:
    memory = from_dict(RunConfig, {"model": {"core": {"kind": "ntm", "slots": 16}}}, "a test")
    for choice, problem in (("localized:4", "give an odd number of slots"), ("localized:17", "give at most 16")):
        with pytest.raises(UserError, match=rf"draws cannot be trained: addressing '{choice}'.*; {problem}$"):
            checked({"model.core.addressing": {"choice": [choice, "dense"]}}, memory)
    assert len(checked({"model.core.addressing": {"choice": ["localized:5", "dense"]}}, memory)) == 1


@pytest.mark.parametrize("entry", [{"range": [2, 8]}, {"range": [2, 8], "log": True}])
def test_values_inside_a_range_must_be_trainable_too(entry: dict[str, Any]) -> None:
    recipe = from_dict(RunConfig, {"model": {"core": {"kind": "transformer", "hidden": 64}}}, "a test")
    with pytest.raises(UserError, match=r"some of its draws cannot be trained: .*heads"):
        checked({"model.core.heads": entry}, recipe)


def test_values_inside_a_range_are_drawn_uniformly_or_in_the_logarithm() -> None:
    rng = random.Random(1)
    by_parameter = {
        parameter: [spaces._any_value(parameter, rng) for _ in range(200)]
        for parameter in (
            Parameter("training.epochs", 2, 5, whole=True),
            Parameter("training.epochs", 1, 1000, whole=True, log=True),
            Parameter("training.clip", 0.0, 5.0),
            Parameter("training.learning_rate", 0.001, 1.0, log=True),
        )
    }
    for parameter, values in by_parameter.items():
        assert all(parameter.takes(value) and isinstance(value, int) == parameter.whole for value in values)
    whole, log_whole, _, log = by_parameter.values()
    assert set(whole) == {2, 3, 4, 5}
    # Half of a range in the logarithm is below its geometric mean.
    for values, mean in ((log_whole, 1000**0.5), (log, 0.001**0.5)):
        assert 60 < sum(float(value or 0) < mean for value in values) < 140


def test_no_draw_is_tried_of_a_space_that_was_taken_before() -> None:
    space = Space({"model.core.output": {"choice": [6, 8]}})
    with pytest.raises(UserError, match=r"cannot be trained"):
        parameters(space, RECIPE, "mine")
    assert len(parameters(space, RECIPE, "mine", draws=0)) == 1


@pytest.mark.full
def test_values_have_the_type_of_the_setting() -> None:
    found = checked(
        {
            "training.epochs": {"range": [1, 5]},
            "training.clip": {"range": [0, 5]},
            "training.learning_rate": {"range": ["1e-3", 1], "log": True},
            "training.temporal_l2": {"choice": [0, "1e-5"]},
            "model.core.output": {"choice": [None, 8]},
        },
        from_dict(RunConfig, {"model": {"embedding": {"size": 8}}}, "a test"),
    )
    assert found == (
        Parameter("training.epochs", 1, 5, whole=True),
        Parameter("training.clip", 0.0, 5.0),
        Parameter("training.learning_rate", 0.001, 1.0, log=True),
        Parameter("training.temporal_l2", choices=(0.0, 1e-5)),
        Parameter("model.core.output", choices=(None, 8)),
    )
    assert [type(p.low) for p in found[:2]] == [int, float]


NESTED = LAYERS | KIND | {
    "model.core.hidden": {"range": [5, 9], "when": {"model.core.layers": 2}},
    "model.head.experts": {"choice": [2, 3], "when": {"model.head.kind": "mixture", "model.core.layers": [1, 2]}},
    "model.head.latent_dropout": {"range": [0.1, 0.2], "when": {"model.head.experts": 3}},
    "model.embedding.size": {"choice": [6, 8]},
    "model.core.output": {"same": "model.embedding.size", "when": {"model.core.layers": 2}},
}  # fmt: skip


@pytest.mark.full
def test_a_draw_has_what_its_conditions_allow_and_the_rest_as_the_recipe_has_it() -> None:
    space, chosen, seen = checked(NESTED), random.Random(1), set()
    for _ in range(300):
        drawn: dict[str, Any] = {}

        def suggest(parameter: Parameter, drawn: dict[str, Any] = drawn) -> Any:
            drawn[parameter.name] = chosen.choice(parameter.samples)
            return drawn[parameter.name]

        config = draw(space, RECIPE, suggest)
        found = to_dict(config)
        assert all(lookup(found, name) == value for name, value in drawn.items())
        two, mixture = config.model.core.layers == 2, config.model.head.kind == "mixture"
        assert ("model.core.hidden" in drawn) == two
        assert ("model.head.experts" in drawn) == mixture
        assert ("model.head.latent_dropout" in drawn) == (mixture and drawn["model.head.experts"] == 3)
        assert config.model.core.output == (drawn["model.embedding.size"] if two else None)
        assert config.model.core.hidden == drawn.get("model.core.hidden", RECIPE.model.core.hidden)
        assert (config.training, config.text, config.seed) == (RECIPE.training, RECIPE.text, RECIPE.seed)
        seen.add(tuple(sorted(drawn)))
    assert len(seen) == 6


@pytest.mark.full
def test_a_condition_on_what_the_recipe_fixes_holds_or_does_not() -> None:
    dropout = {"model.core.weight_drop": {"range": [0, 0.5]}}
    entry = {"model.head.experts": {"range": [2, 9], "when": {"model.head.kind": "mixture"}}}
    mixture = from_dict(RunConfig, {"model": {"head": {"kind": "mixture"}}}, "a test")

    def lowest(parameter: Parameter) -> Any:
        return parameter.low

    assert draw(checked(dropout | entry), RECIPE, lowest).model.head == RECIPE.model.head
    head = draw(checked(dropout | entry, mixture), mixture, lowest).model.head
    assert to_dict(head)["experts"] == 2


@pytest.mark.full
@pytest.mark.parametrize(
    ("space", "recipe"),
    [
        ("demo", "demo"),
        ("awd-lstm", "ptb-small"),
        ("awd-lstm", "ptb-awd-lstm"),
        ("dual", "ptb-small"),
        ("dual", "ptb-dual-mogrifier"),
    ],
)
def test_packaged_spaces_fit_the_recipes_they_name(space: str, recipe: str) -> None:
    found = parameters(spaces.load(space), recipes.load(recipe), f"space {space}")
    assert len(found) >= 6 and all(spaces.load(name).title for name in spaces.names())


def test_the_activation_l2_of_table_1_is_the_sum_of_keras() -> None:
    """Keras adds lambda times the sum over steps and units, divided by the batch size; activation_l2 weighs their mean."""
    torch.manual_seed(0)
    h, targets = torch.randn(3, 25, 850), torch.zeros(3, 25, dtype=torch.long)
    prediction = Softmax(Activations(h, (h,), h, h, h), h, torch.zeros(2, 850), None)
    printed = (0.0, 1e-6, 1e-5)
    for strength, weight in zip(printed, spaces.load("dual").settings["training.activation_l2"]["choice"], strict=True):
        added = Likelihood(weight)(prediction, targets)[0] - Likelihood()(prediction, targets)[0]
        torch.testing.assert_close(added, strength * h.square().sum() / len(h), rtol=1e-4, atol=0)


def test_a_setting_is_given_or_searched() -> None:
    space = checked(
        {"training.clip": {"range": [0, 5]}}
        | {"model.core.hidden": {"range": [5, 9], "when": {"model.core.layers": 2}}}
    )
    given = from_dict(RunConfig, {"training": {"clip": 1.0}}, "a test")
    with pytest.raises(UserError, match=r"training.clip is set by a flag and searched by the space; remove one"):
        spaces.check_not_searched(space, RECIPE, given)
    spaces.check_not_searched(space, RECIPE, from_dict(RunConfig, {"model": {"core": {"hidden": 7}}}, "a test"))


@pytest.mark.full
def test_a_searched_setting_that_never_has_an_effect_is_named() -> None:
    schedule = {"training.schedule": {"choice": ["constant", "cosine", "plateau"]}}
    patience = {"training.decay_patience": {"choice": [0, 2], "when": {"training.schedule": ["constant", "cosine"]}}}
    factor = {"training.decay_factor": {"range": [0.1, 0.5]}}
    space = checked(schedule | patience | factor)
    with pytest.warns(
        UserWarning, match=r"the space searches training\.decay_patience, which has no effect with"
    ) as caught:
        warn_ignored(space, RECIPE, {"training.decay_epochs": "--x", "training.trigger": "--y"})
    assert len(caught) == 1  # decay_epochs is off, and the trigger has an effect
    with pytest.warns(UserWarning, match="--z has no effect without fine-tuning; set training.finetune_epochs"):
        warn_ignored(
            checked(schedule),
            replace(RECIPE, training=replace(RECIPE.training, finetune_learning_rate=1.0)),
            {"training.finetune_learning_rate": "--z"},
        )
