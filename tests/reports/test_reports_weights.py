"""The picture of what the heads of an external memory did: a diagonal is drawn as one, and damage is refused."""

import json
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from typing import Any

import pytest
from drawings import NAMESPACE, texts

from backstory.reports import render_passage
from backstory.reports.sections.passage_section import heads_table, memory_weights, older_words
from backstory.results import Result, result_from
from backstory.results.explanation_record import MemoryExplanation
from backstory.utils.errors import UserError


def weights(slots: int = 5, tokens: int = 8) -> dict[str, Any]:
    """Written row after row, and read half so strongly three tokens later."""
    write = [[1.0 if row == token else 0.0 for token in range(tokens)] for row in range(slots)]
    read = [[0.5 if row == token - 3 else 0.01 for token in range(tokens)] for row in range(slots)]
    names = [f"$w{i}" for i in range(tokens)]
    return {"slots": list(range(3, 3 + slots)), "of": 40, "heads": 1, "tokens": names, "write": write, "read": read}


def result(made: Any, **figures: Any) -> Result:
    return result_from(json.dumps(made.result("explanation", made.explanation(**figures))), "x")


def boxes(svg: str) -> list[tuple[float, float]]:
    """The upper left corners of all boxes of full colour."""
    paths = [p for p in ET.fromstring(svg).iter(f"{NAMESPACE}path") if "--series-blue" in p.get("style", "")]
    return [(float(x), float(y)) for p in paths for x, y in re.findall(r"M ?([\d.]+) ([\d.]+)", p.get("d", ""))]


def test_a_diagonal_is_drawn_as_one(made: Any) -> None:
    plot = memory_weights(result(made, weights=weights(), tokens=20).figures)
    assert plot is not None
    found = boxes(plot.svg)
    assert len(found) == 10  # nothing else has a colour
    for panel in (found[:5], found[5:]):
        steps = {(round(b[0] - a[0], 1), round(b[1] - a[1], 1)) for a, b in pairwise(panel)}
        assert all(x > 0 and y != 0 for x, y in steps) and max(x for x, _ in steps) - min(x for x, _ in steps) < 0.2
    assert found[5][0] > found[2][0] and found[5][0] == pytest.approx(found[3][0], abs=0.1)
    assert {"$w0", "$w7", "3", "7", "write: slot"} <= set(texts(plot.svg))
    assert "the 5 of 40 slots with the most weight" in plot.caption and "passage, the first 8 of 20." in plot.caption
    assert plot.caption.endswith("The full colour is 1 above and 0.5 below.")


def test_many_tokens_are_counted_and_nothing_is_drawn_of_nothing(made: Any) -> None:
    many = weights(64, 300)
    plot = memory_weights(result(made, weights={**many, "read": [[0.0] * 300] * 64, "heads": 4}).figures)
    assert plot is not None and "token of the passage" in texts(plot.svg) and "$w0" not in plot.svg
    assert len(boxes(plot.svg)) == 64 and "the mean of 4 heads" in plot.caption
    assert memory_weights(result(made).figures) is None


@pytest.mark.parametrize(
    "change",
    [{"slots": [1]}, {"write": [[0.1]] * 5}, {"read": [[-1.0] * 8] * 5}, {"tokens": []}, {"heads": None}, {"read": 3}],
)
def test_damaged_weights_are_refused(change: dict[str, Any], made: Any) -> None:
    with pytest.raises(UserError, match=r"^x is damaged: figures.weights"):
        result(made, weights={**weights(), **change})


def means(reading: int = 1) -> dict[str, Any]:
    """Of a memory of 64 slots, whose first reading head reads 0.1 less sharply than the one that writes, and so on."""
    of = {"entropy_bits": 3.25, "largest_percent": 40.5, "window_percent": None, "fall_back_percent": 12.345}
    found = {
        key: {"write": at, "read": [None if at is None else at + head / 10 for head in range(1, reading + 1)]}
        for key, at in of.items()
    }
    return {**found, "settings": {"slots": 64}, "window": 63, "older_percent": 7.25}


def test_the_means_of_the_heads_are_a_table(made: Any) -> None:
    table = heads_table(result(made, **means()).figures)
    assert table is not None
    assert [c.heading for c in table.columns] == [
        "Head", "Entropy, of 6 bits", "Largest weight", "In a window of 63 slots", "Fall-back"]  # fmt: skip
    assert table.rows == (("write", "3.25", "40.5%", "–", "12.3%"), ("read", "3.35", "40.6%", "–", "12.4%"))
    windows = heads_table(result(made, **means(), windows=3).figures)
    assert windows is not None and windows.columns[3].heading == "In 3 windows of 63 slots"
    several = heads_table(result(made, **means(2)).figures)
    assert several is not None and [row[:2] for row in several.rows[1:]] == [("read 1", "3.35"), ("read 2", "3.45")]
    assert older_words(result(made, **means()).figures) == "7.2% of what is read comes from older words."
    assert not isinstance(result(made).figures, MemoryExplanation)


def test_the_means_stand_on_the_page(made: Any) -> None:
    page = render_passage(result(made, **means()))
    assert "Entropy, of 6 bits" in page and ">3.35<" in page and "7.2% of what is read comes from older words." in page
    assert "of older words." not in render_passage(result(made))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"settings": {"slots": 0}}, "settings.slots"),
        ({"window": None}, "window"),
        ({"windows": "3"}, "windows"),
        ({"largest_percent": {"write": 1, "read": [1, 2]}}, "largest_percent.read"),
        ({"entropy_bits": 3}, "entropy_bits"),
    ],
)
def test_damaged_means_are_refused(change: dict[str, Any], where: str, made: Any) -> None:
    with pytest.raises(UserError, match=rf"^x is damaged: figures.{where}"):
        result(made, **{**means(), **change})
