"""Old names are refused with the present one if a person wrote them, and translated if Backstory did."""

import json
from pathlib import Path
from typing import Any

import pytest

from backstory.cli.main import main
from backstory.config import RunConfig, from_dict, from_saved, from_yaml, to_dict
from backstory.config import renamed as names
from backstory.config.recipes import load
from backstory.papers import suite as suites
from backstory.papers.suite import Suite
from backstory.readers.registry import parse_stack
from backstory.results import result_file
from backstory.utils.errors import UserError

OLD_SETTINGS: dict[str, Any] = {
    "text": {"recall": {"fresh": True}, "algorithm": {"fresh": False}},
    "model": {"buffer": {"kind": "second-softmax"}, "core": {"kind": "ntm", "rows": 7, "begin": 1}},
    "training": {"asked_only": True, "validation_rows": 4},
}


def nested(name: str, value: Any) -> dict[str, Any]:
    for part in reversed(name.split(".")):
        value = {part: value}
    return value


def at(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


def test_present_names_are_settings() -> None:
    parts = {"slots": "ntm", "reset_token": "ntm", "chunked": "transformer", "alignment": "span-buffer"}
    for old, last in names.SETTINGS.items():
        group = old.rpartition(".")[0]
        kind = {"kind": parts[last]} if last in parts else {}
        assert hasattr(at(from_dict(RunConfig, nested(group, kind) if kind else {}, "a test"), group), last), old


@pytest.mark.parametrize("old", names.SETTINGS)
def test_a_setting_of_a_recipe_is_refused_with_its_present_name(old: str) -> None:
    with pytest.raises(UserError) as refused:
        from_dict(RunConfig, nested(old, 1), "mine.yaml")
    assert (
        str(refused.value)
        == f"mine.yaml: {old} is now called {old.rpartition('.')[0]}.{names.SETTINGS[old]}; use that name"
    )


@pytest.mark.parametrize("setting", names.SETTING_VALUES)
def test_a_value_of_a_recipe_is_refused_with_its_present_name(setting: str) -> None:
    for old, new in names.SETTING_VALUES[setting].items():
        with pytest.raises(UserError, match=f"mine.yaml: {setting}: {old} is now called {new}; use that name"):
            from_dict(RunConfig, nested(setting, old), "mine.yaml")


def test_saved_settings_are_read_under_their_present_names(tmp_path: Path) -> None:
    expected = from_dict(
        RunConfig,
        {
            "text": {"recall": {"new_each_epoch": True}, "algorithm": {"new_each_epoch": False}},
            "model": {"buffer": {"kind": "auxiliary-softmax"}, "core": {"kind": "ntm", "slots": 7, "reset_token": 1}},
            "training": {"answer_loss_only": True, "validation_batch_size": 4},
        },
        "a test",
    )
    before = json.dumps(OLD_SETTINGS)
    assert from_saved(RunConfig, OLD_SETTINGS, "a run") == expected
    assert json.dumps(OLD_SETTINGS) == before, "what is translated stays as it is"
    (tmp_path / "config.yaml").write_text(before)
    assert load(str(tmp_path)) == expected
    assert from_saved(RunConfig, to_dict(expected), "a run") == expected


@pytest.mark.parametrize("old", names.MOVED)
def test_a_setting_that_moved_to_its_part_is_refused_with_its_place(old: str) -> None:
    new, kinds = names.MOVED[old]
    with pytest.raises(UserError) as refused:
        from_dict(RunConfig, nested(old, 1), "mine.yaml")
    assert str(refused.value) == f"mine.yaml: {old} is now called {new}; use that name"
    group, _, last = new.rpartition(".")
    part = ".".join(group.split(".")[:2])
    for kind in kinds or ("",):
        config = from_dict(RunConfig, nested(part, {"kind": kind} if kind else {}), "a test")
        assert hasattr(at(config, group), last), (kind, new)


MOVED: dict[str, Any] = {
    "embedding_l2": 1e-5,
    "input_l2": None,
    "mogrifier_l2": 2e-5,
    "dual_l2": None,
    "auxiliary": 0.0,
    "reward": {"weight": 0.1},
    "adversarial": 0.2,
    "finetune_embedding_noise": 0.3,
}


def test_saved_settings_of_parts_are_read_from_where_they_were() -> None:
    parts = {
        "embedding": {},
        "core": {"kind": "mogrifier"},
        "dual": {"kind": "none"},
        "buffer": {"kind": "span-buffer"},
    }
    config = from_saved(RunConfig, {"model": parts, "training": MOVED}, "a run")
    model = config.model
    assert (model.embedding.l2, model.embedding.finetune_noise, model.head.adversarial) == (1e-5, 0.3, 0.2)
    assert (at(model, "core.round_l2"), at(model, "core.input_l2")) == (2e-5, None)
    assert at(model, "buffer.gate.reward.weight") == 0.1
    assert from_saved(RunConfig, to_dict(config), "a run") == config
    without = from_saved(RunConfig, {"model": parts | {"buffer": {"kind": "none"}}, "training": MOVED}, "a run")
    assert without.model.buffer.kind == "none"


def test_overrides_of_parts_are_translated_without_the_part_s_kind() -> None:
    overrides = {"model": {"core": {"hidden": 7}}, "training": {"dual_l2": None, "reward": {"weight": 0.1}}}
    found = names.current_settings("RunConfig", overrides)
    assert found == {"model": {"core": {"hidden": 7}, "buffer": {"gate": {"reward": {"weight": 0.1}}}}}
    assert names.first_settings(found) == {"model": {"core": {"hidden": 7}}, "training": {"reward": {"weight": 0.1}}}


def test_fingerprints_are_made_from_the_first_names() -> None:
    assert names.first_settings(names.current_settings("RunConfig", OLD_SETTINGS)) == OLD_SETTINGS


def test_a_suite_is_refused_with_the_present_name() -> None:
    with pytest.raises(UserError, match=r"mine: rows is now called systems; use that name"):
        from_yaml(Suite, "title: t\nrows: []\n", "mine")
    setup = {"recipe": "demo", "minutes": 1, "seeds": [1]}
    suite: dict[str, Any] = {"title": "t", "systems": [{"name": "a", "small": {**setup, "begin": "b"}}]}
    with pytest.raises(UserError, match=r"mine: systems\[0\].small.begin is now called systems\[0\].small.init_from;"):
        from_dict(Suite, suite, "mine")
    suite["systems"][0]["small"] = {**setup, "overrides": {"training": {"asked_only": True}}}
    with pytest.raises(UserError, match=r"mine, overrides: training.asked_only is now called training.answer_loss"):
        from_dict(Suite, suite, "mine")


def old_suite() -> dict[str, Any]:
    """A suite as it was saved under the first names."""
    side = {"row": "a", "rows": 3, "reader": "foreign+cache"}
    setup = {
        "recipe": "demo",
        "minutes": 1.0,
        "seeds": [1],
        "begin": "b",
        "overrides": {"training": {"asked_only": True}},
    }
    row = {"name": "a", "readings": [{"reader": "foreign", "rows": 3}], "small": setup}
    findings = [{"paper": "context", "row": "a", "beside": "b"}]
    return {
        "title": "t",
        "rows": [row],
        "claims": [{"sentence": "s", "better": side, "than": side}],
        "findings": findings,
    }


def test_a_saved_suite_is_read_under_its_present_names() -> None:
    suite = from_saved(Suite, old_suite(), "a folder")
    (system,), (claim,), (check,) = suite.systems, suite.claims, suite.findings
    assert (system.readings[0].reader, system.readings[0].batch_size) == ("shuffled-buffer", 3)
    assert system.small is not None and system.small.init_from == "b"
    assert system.small.overrides == {"training": {"answer_loss_only": True}}
    assert (claim.better.system, claim.than.batch_size, claim.better.reader) == ("a", 3, "shuffled-buffer+cache")
    assert (check.system, check.baseline) == ("a", "b")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("train demo --begin runs/a", "--begin is now called --init-from; use that flag"),
        ("train demo --training.asked-only", "--training.asked-only is now called --training.answer-loss-only"),
        (
            "train demo --training.no-asked-only",
            "--training.no-asked-only is now called --training.no-answer-loss-only",
        ),
        ("train demo --text.recall.fresh", "--text.recall.fresh is now called --text.recall.new-each-epoch"),
        ("train demo --model.buffer.kind second-softmax", "second-softmax is now called auxiliary-softmax"),
        ("data show recall --recall.fresh", "--recall.fresh is now called --recall.new-each-epoch; use that flag"),
        ("evaluate run --rows 3", "--rows is now called --batch-size; use that flag"),
        ("examine run --rows 3", "--rows is now called --batch-size; use that flag"),
        ("reader audit run --rows 3", "--rows is now called --batch-size; use that flag"),
        ("reader tune run --reader foreign", "the reader foreign is now called shuffled-buffer; use that name"),
        ("ls grids", "grids are now called suites: `backstory ls suites` lists them"),
    ],
)
def test_an_old_flag_is_one_line(
    command: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()  # whether it is there is looked at before the reader's name is
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and told in err


def test_an_old_reader_is_refused_with_its_present_name() -> None:
    with pytest.raises(UserError, match="the reader foreign is now called shuffled-buffer; use that name"):
        parse_stack("foreign+cache")
    assert names.current_reader("foreign+cache:window=3") == "shuffled-buffer+cache:window=3"


def test_a_result_is_read_under_its_present_names() -> None:
    lengths = [{"length": 3, "asked": 2, "nats_per_asked": 0.5}]
    figures = {"rows": 60, "reader": "foreign", "unit": "asked symbol", "answers": {"asked": 2, "lengths": lengths}}
    provenance = {"command": "backstory evaluate m --reader foreign --rows 60", "begun_with": {"run": "a"}}
    provenance |= {"config": OLD_SETTINGS, "precision_reason": "it was asked for"}
    found = names.current_result({"kind": "evaluation", "figures": figures, "provenance": provenance})
    assert found["figures"] == {
        "batch_size": 60,
        "reader": "shuffled-buffer",
        "unit": "answer symbol",
        "answers": {
            "answer_tokens": 2,
            "lengths": [{"length": 3, "answer_tokens": 2, "nats_per_answer_token": 0.5}],
        },
    }
    assert found["provenance"] == {
        "command": "backstory evaluate m --reader shuffled-buffer --batch-size 60",
        "init_from": {"run": "a"},
        "config": names.current_settings("RunConfig", OLD_SETTINGS),
        "precision_reason": "requested",
    }


def test_a_reproduction_is_read_under_its_present_names() -> None:
    line = {"row": "second-softmax", "rows": 3, "reader": "foreign", "protocol": {"begin": None, "batch_size": 20}}
    run = {"run": "second-softmax-seed1", "row": "second-softmax", "measured": {}, "readings": [{"rows": 3}]}
    finding = {"row": "a", "beside": None, "measures": [{"told": "with 75 tokens"}]}
    figures = {"grid": "recall", "rows": [line], "runs": [run], "findings": [finding]}
    found = names.current_result({"kind": "reproduction", "figures": figures, "provenance": {"config": old_suite()}})
    assert found["figures"] == {
        "suite": "recall",
        "systems": [
            {
                "system": "auxiliary-softmax",
                "batch_size": 3,
                "reader": "shuffled-buffer",
                "protocol": {"init_from": None, "batch_size": 20},
            }
        ],
        "runs": [
            {
                "run": "auxiliary-softmax-seed1",
                "system": "auxiliary-softmax",
                "effect_sizes": {},
                "readings": [{"batch_size": 3}],
            }
        ],
        "findings": [{"system": "a", "baseline": None, "measures": [{"label": "with 75 tokens"}]}],
    }
    assert found["provenance"]["config"] == names.current_settings("Suite", old_suite())


@pytest.mark.parametrize("data", [{}, [], None, {"kind": []}, {"kind": "reproduction", "figures": 3, "provenance": []}])
def test_what_is_damaged_stays_as_it_is(data: Any) -> None:
    assert names.current_result(data) == data
    assert names.current_settings("RunConfig", data) == data and names.current_provenance(data) == data


def test_lines_of_a_log_are_read_under_their_present_names() -> None:
    record = {"event": "epoch", "epoch": 1, "asked": 0.4}
    assert names.current_log_record(record) == {"event": "epoch", "epoch": 1, "answer_share": 0.4}


@pytest.mark.full
def test_results_and_suites_of_this_version_stay_as_they_are() -> None:
    for path in sorted((Path(__file__).parents[2] / "results").glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        if "figures" in data:
            assert names.current_result(data) == data, path.name
            result_file.result_at(path)
    for name in suites.names():
        suites.load(name)
