"""`backstory benchmark`: a table and JSON of the same measurements, of tiny recipes."""

import json
from pathlib import Path

import pytest
import torch
from commands import Command

from backstory.models.devices import restored_threads
from backstory.training import speed

RECIPE = """
model:
  embedding: {size: 8}
  core: {kind: KIND, layers: 1, hidden: 9}
training: {batch_size: 3, segment: 5}
"""


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(speed, "READING_SECONDS", 0.02)
    for kind in ("lstm", "mogrifier"):
        (tmp_path / f"{kind}.yaml").write_text(RECIPE.replace("KIND", kind))
    return ["--recipes", *(str(tmp_path / f"{kind}.yaml") for kind in ("lstm", "mogrifier"))]


@pytest.mark.full
def test_figures_as_json(command: Command, recipes: list[str]) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    with restored_threads():
        torch.set_num_threads(2)
        measured = json.loads(command("benchmark", *recipes, "--types", "20", "--precision", "float32", "--json").out)
        assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), before)
    assert measured["precision"] == "float32" and measured["versions"]["torch"] == torch.__version__
    lstm, mogrifier = measured["recipes"]
    assert (lstm["recipe"], mogrifier["recipe"]) == ("lstm", "mogrifier")
    for figures in (lstm, mogrifier):
        assert list(figures["training"]) == ["1", "2"]
        assert min(*figures["training"].values(), figures["evaluation"], figures["peak_gib"]) > 0
        assert figures["scaling"] == figures["training"]["2"] / figures["training"]["1"]
    assert lstm["share"] > 0 and lstm["products"] > 0
    assert mogrifier["products"] is None is mogrifier["share"]
    # 20 words of 8, and one layer: 4 gates of 8 units, their inputs and states, and two biases.
    assert lstm["parameters"] == 20 * 8 + 20 + 4 * 8 * (8 + 8) + 2 * 4 * 8


def test_a_table(command: Command, recipes: list[str]) -> None:
    lines = command("benchmark", *recipes, "--types", "20").out.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert [cell.strip() for cell in table[0].split("|")] == ["", "", "lstm", "mogrifier", ""]
    assert {len(line) for line in table} == {len(table[0])}
    rows = {cells[1].strip(): [cell.strip() for cell in cells[2:4]] for cells in (line.split("|") for line in table)}
    assert rows["training, 1 thread, tokens/s"][0].replace(",", "").isdecimal()
    assert rows["training, 1 thread : its products"][1] == "-"


def test_an_unknown_recipe_is_refused(command: Command) -> None:
    assert command("benchmark", "--recipes", "ptb-smal").mistake() == (
        "there is no recipe 'ptb-smal' (did you mean 'ptb-small'?); `backstory ls recipes` lists them"
    )
