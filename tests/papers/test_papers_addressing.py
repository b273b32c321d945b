"""A row whose external memory is read in other ways than it was trained in."""

import json
from pathlib import Path
from typing import Any

import pytest
from grids import finish, grid, planned, start, write

from backstory.config import UserError
from backstory.papers.paper import published_value
from backstory.reports import result_at

MEMORY = {"kind": "mdm", "layers": [9], "rows": 9, "width": 4, "heads": 1}
WINDOW = "localized:3"


def remembering(core: dict[str, Any] | None = None, **reading: Any) -> dict[str, Any]:
    row = grid()["rows"][0] | {"name": "memory", "readings": [{"rows": 3}, {"rows": 3, "addressing": WINDOW} | reading]}
    row["small"] = {"recipe": "tiny.yaml", "seeds": [1], "minutes": 0.5}
    if core:
        row["small"]["overrides"] = {"model": {"core": core, "head": {"tied": False}}}
    return row


@pytest.mark.full
def test_a_trained_memory_is_read_with_another_addressing(desk: Path) -> None:
    row = remembering(MEMORY)
    row["readings"][1]["published"] = {"figure": "localized-ntm/ptb-lca-257-test"}
    sides = {"better": {"row": "memory", "rows": 3, "addressing": WINDOW}, "than": {"row": "memory", "rows": 3}}
    write(grid(rows=[row], claims=[{"sentence": "A window helps", **sides}], metric="bits_per_token"))
    code, out, err = finish(start("grid.yaml"))
    assert code == 0, err
    folder = desk / "runs" / "grid-small"
    result = result_at(folder / "result.json")
    dense, localized = result.figures["runs"][0]["readings"]
    assert (dense["addressing"], localized["addressing"]) == (None, WINDOW)
    for reading, name, addressed in ((dense, "", "dense"), (localized, "-localized_3", WINDOW)):
        file = folder / "runs" / "memory-seed1" / f"evaluate-test-rows3{name}" / "result.json"
        read = json.loads(file.read_text())
        assert (read["figures"]["addressing"], read["figures"]["bits_per_token"]) == (addressed, reading["value"])
        assert read["provenance"]["seconds"] == reading["seconds"]
    assert dense["value"] != localized["value"]
    first, second = result.figures["rows"]
    assert (first["published"], first["published_deviation"]) == (None, None)
    assert (second["published"], second["published_deviation"]) == (1.5648, 0.0018)
    assert result.figures["claims"][0]["gain"] == pytest.approx(dense["value"] - localized["value"])
    assert f"test, static, 3 rows, {WINDOW}" in out and "1.5648 +- 0.0018" in out


@pytest.mark.parametrize(
    ("core", "addressing", "told"),
    [
        (None, WINDOW, "small: a core of kind lstm has no setting addressing that can change after training"),
        (MEMORY, "localized:11", "small: addressing 'localized:11' selects more rows than the 9 of the memory"),
        (MEMORY, "localised:3", "small: there is no addressing 'localised'"),
        (MEMORY, "window:3", "small: addressing `window` has nothing but content say where"),
    ],
)
def test_an_addressing_that_no_run_can_have(
    desk: Path, core: dict[str, Any] | None, addressing: str, told: str
) -> None:
    with pytest.raises(UserError, match=f"row memory, {told}"):
        planned(grid(rows=[remembering(core, addressing=addressing)], claims=[]))


def test_twice_the_same_addressing(desk: Path) -> None:
    row = remembering(MEMORY)
    row["readings"].append(dict(row["readings"][1]))
    with pytest.raises(
        UserError, match=f"two readings of test with static in 3 rows, addressed {WINDOW}; leave one out"
    ):
        planned(grid(rows=[row], claims=[]))


def test_published_means_have_their_deviations() -> None:
    found, where = published_value("localized-ntm/ptb-mdm-1-1024-valid")
    assert (found.value, found.deviation, where) == (1.6330, 0.0006, "Lee et al. 2020, table 1")
    found, where = published_value("localized-ntm/enwik8-lstm-test")
    assert (found.value, found.deviation, where) == (1.4610, None, "Lee et al. 2020, table 3")
