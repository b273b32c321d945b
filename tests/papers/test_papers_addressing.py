"""A system whose external memory is read in other ways than it was trained in."""

import json
from pathlib import Path
from typing import Any

import pytest
from small_suites import planned, reproduce, suite, write

from backstory.papers.paper import published_value
from backstory.results import result_at
from backstory.utils.errors import UserError

MEMORY = {"kind": "mdm", "layers": [9], "slots": 9, "width": 4, "heads": 1}
WINDOW = "localized:3"


def remembering(core: dict[str, Any] | None = None, **reading: Any) -> dict[str, Any]:
    system = suite()["systems"][0] | {
        "name": "memory",
        "readings": [{"batch_size": 3}, {"batch_size": 3, "addressing": WINDOW} | reading],
    }
    system["small"] = {"recipe": "tiny.yaml", "seeds": [1], "minutes": 0.5}
    if core:
        system["small"]["overrides"] = {"model": {"core": core, "head": {"tied": False}}}
    return system


@pytest.mark.full
def test_a_trained_memory_is_read_with_another_addressing(desk: Path) -> None:
    system = remembering(MEMORY)
    system["readings"][1]["published"] = {"figure": "localized-ntm/ptb-lca-257-test"}
    sides = {
        "better": {"system": "memory", "batch_size": 3, "addressing": WINDOW},
        "than": {"system": "memory", "batch_size": 3},
    }
    write(suite(systems=[system], claims=[{"sentence": "A window helps", **sides}], metric="bits_per_token"))
    code, out, err = reproduce("suite.yaml")
    assert code == 0, err
    folder = desk / "runs" / "suite-small"
    result = result_at(folder / "result.json")
    dense, localized = result.figures.runs[0].readings
    assert (dense.addressing, localized.addressing) == (None, WINDOW)
    for reading, name, addressed in ((dense, "", "dense"), (localized, "-localized_3", WINDOW)):
        file = folder / "runs" / "memory-seed1" / f"evaluate-test-batch3{name}" / "result.json"
        read = json.loads(file.read_text())
        assert (read["figures"]["addressing"], read["figures"]["bits_per_token"]) == (addressed, reading.value)
        assert read["provenance"]["seconds"] == reading.seconds
    assert dense.value != localized.value
    first, second = result.figures.systems
    assert (first.published, first.published_deviation) == (None, None)
    assert (second.published, second.published_deviation) == (1.5648, 0.0018)
    assert result.figures.claims[0].gain == pytest.approx(dense.value - localized.value)
    assert f"test, static, batch of 3, {WINDOW}" in out and "1.5648 +- 0.0018" in out


@pytest.mark.parametrize(
    ("core", "addressing", "told"),
    [
        (None, WINDOW, "small: a core of kind lstm has no setting addressing that can change after training"),
        (MEMORY, "localized:11", "small: addressing 'localized:11' selects more slots than the 9 of the memory"),
        (MEMORY, "localised:3", "small: there is no addressing 'localised'"),
        (MEMORY, "window:3", "small: addressing `window` uses content alone"),
    ],
)
def test_an_addressing_that_no_run_can_have(
    desk: Path, core: dict[str, Any] | None, addressing: str, told: str
) -> None:
    with pytest.raises(UserError, match=f"system memory, {told}"):
        planned(suite(systems=[remembering(core, addressing=addressing)], claims=[]))


def test_a_reading_takes_the_options_of_evaluate(desk: Path) -> None:
    system = remembering(MEMORY, overrides=["core.addressing=literal"], precision="bfloat16")
    del system["readings"][1]["addressing"]
    reading = planned(suite(systems=[system], claims=[]))["memory-seed1"].readings[1]
    flags = ("--batch-size", "3", "--set", "core.addressing=literal", "--precision", "bfloat16")
    assert reading.flags() == ("--split", "test", "--reader", "static", *flags)
    assert reading.folder_name() == "evaluate-test-bfloat16-batch3-literal"
    assert reading.described() == "test, static, batch of 3, core.addressing=literal, bfloat16"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"overrides": ["core.slots=3"]}, "a core of kind mdm has no setting slots that can change"),
        ({"overrides": ["core.addressing"]}, "--set core.addressing must be written SETTING=VALUE"),
        ({"overrides": ["core.addressing=dense"]}, "the setting core.addressing is given twice"),
        ({"lengths": [3]}, "the documents of the corpus corpus have no lengths to choose"),
        ({"lengths": [3], "after": "valid"}, "--after and --lengths cannot be combined"),
    ],
)
def test_options_that_no_reading_can_have(desk: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"system memory(, small)?: {message}"):
        planned(suite(systems=[remembering(MEMORY, **changes)], claims=[]))


def test_a_synthetic_task_is_read_at_chosen_lengths(desk: Path) -> None:
    lengths = {"readings": [{}, {"lengths": [30, 60]}]}
    small = {"recipe": "ntm-copy", "seeds": [1], "minutes": 0.5}
    system = {"name": "copy", "small": small} | lengths
    reading = planned(suite(systems=[system], claims=[]))["copy-seed1"].readings[1]
    assert reading.flags()[4:] == ("--lengths", "30", "60")
    assert reading.described() == "test, static, lengths 30, 60"
    assert reading.folder_name() == "evaluate-test-lengths-30-60"
    small["recipe"] = "ptb-small"
    with pytest.raises(UserError, match="the documents of the corpus ptb have no lengths to choose"):
        planned(suite(systems=[system], claims=[]))


def test_twice_the_same_addressing(desk: Path) -> None:
    system = remembering(MEMORY)
    system["readings"].append(dict(system["readings"][1]))
    with pytest.raises(UserError, match=f"two readings of test, static, batch of 3, {WINDOW}; leave one out"):
        planned(suite(systems=[system], claims=[]))


def test_published_means_have_their_deviations() -> None:
    found, where = published_value("localized-ntm/ptb-mdm-1-1024-valid")
    assert (found.value, found.deviation, where) == (1.6330, 0.0006, "Lee et al. 2020, table 1")
    found, where = published_value("localized-ntm/enwik8-lstm-test")
    assert (found.value, found.deviation, where) == (1.4610, None, "Lee et al. 2020, table 3")
