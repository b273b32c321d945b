"""A search for settings in words, tables, pictures, as a page and in a terminal; damaged results are told of."""

import copy
import io
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from searched import parameter, saved, search, trial

from backstory.reports import render, render_search, to_text
from backstory.reports.phrases import search_summary
from backstory.reports.sections import search_section as searches
from backstory.results import Result, SearchFigures, result_from
from backstory.results.search_record import ParameterRecord
from backstory.utils import formats
from backstory.utils.errors import UserError


def found(**changes: Any) -> Result:
    return result_from(json.dumps(saved(search(**changes))), "result.json")


def shown(read: Result, width: int = 120, most: int = 5) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    searches.show_search(read, console, most)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


NOTHING = {"best": None, "valid_perplexity": None, "unit": None, "trials": []}


def test_one_sentence_says_how_the_trials_ended() -> None:
    assert search_summary(SearchFigures.read(search(), "x")) == (
        "demo over the space demo: 12 trials (7 complete, 3 pruned, 1 failed, 1 running, 1 killed or stopped and tried again); "
        "the best is trial 7, validation perplexity 98.2 per word"
    )
    nothing = SearchFigures.read(search(**NOTHING), "x")
    assert search_summary(nothing) == "demo over the space demo: 0 trials; none is complete yet"
    assert search_summary(SearchFigures.read(search(trials=[trial(0, None, "failed")], best=None), "x")).endswith(
        "1 trial (1 failed); none is complete yet"
    )


@pytest.mark.full
def test_of_characters_bits_are_told() -> None:
    """Perplexities of 2 and 4 are 1 and 2 bits, wherever they are told."""
    trials = [trial(number, 2.0 + 2 * number) for number in range(2)]
    read = found(unit="character", trials=trials, best=0, valid_perplexity=2.0)
    assert search_summary(read.figures).endswith("; the best is trial 0, validation 1.000 bits per character")
    assert searches.best_table(read.figures, 2).rows[0][-2:] == ("1.000", "2.000")
    assert searches.best_table(read.figures, 2).rows[0][0] == "validation bits per character"
    table = searches.trials_table(read.figures, settings=False)
    assert table.columns[2].heading == "Validation bits per character" and table.rows[1][2] == "2.000"
    told = shown(read)
    assert "\n  1.000 " in told and "\n  2.000 " in told and "perplexity" not in told
    page = render_search(read)
    assert "bits per character" in page and "erplexity" not in page.replace("valid_perplexity", "")
    assert read.figures.trials[1].valid_perplexity == 4.0


def test_the_best_trials_stand_side_by_side_what_mattered_most_first() -> None:
    table = searches.best_table(found().figures, 2)
    assert [c.heading for c in table.columns] == ["Setting", "Searched", "Importance", "Trial 7", "Trial 9"]
    assert table.rows == (
        ("validation perplexity", "–", "–", "98.2", "99.5"),
        ("training.learning_rate", "0.001 to 0.02, log", "80%", "0.008", "0.01"),
        ("model.core.hidden", "100 to 120, where model.core.layers is 2", "11%", "107", "109"),
        ("model.core.layers", "1, 2", "7%", "2", "2"),
        ("training.optimizer", "sgd, adam", "2%", "adam", "adam"),
        ("model.core.output", "as model.embedding.size", "–", "–", "–"),
    )


def test_without_importances_there_is_no_column_of_them() -> None:
    parameters = [p | {"importance": None} for p in search()["parameters"]]
    table = searches.best_table(found(parameters=parameters).figures, 1)
    assert [c.heading for c in table.columns] == ["Setting", "Searched", "Trial 7"]
    assert [row[0] for row in table.rows[1:]] == [p["name"] for p in parameters]


def test_every_trial_has_a_row() -> None:
    rows = {row[0]: row for row in searches.trials_table(found().figures, settings=False).rows}
    assert rows["7"] == ("7", "complete", "98.2", "3", "1 min 1 s", "–")
    assert rows["10"] == ("10", "tried again", "–", "0", "–", "killed, and tried again as 12")
    assert rows["11"][-1] == "train ended with exit code 2: too large for memory"
    with_settings = searches.trials_table(found().figures)
    assert len(with_settings.columns) == 6 + 4 and "model.core.output" not in [c.heading for c in with_settings.columns]


def test_the_pictures_are_svg_and_say_what_they_leave_at_the_edge() -> None:
    read = found()
    history, curves = searches.history(read.figures, "h"), searches.trial_curves(read.figures, "c")
    against = [searches.against(read.figures, p, f"p{i}") for i, p in enumerate(read.figures.parameters[:4])]
    best = read.figures.best_trial.settings
    for plot, p in zip(against, read.figures.parameters, strict=False):
        said = f" against {p.name}. The larger mark is the best trial, at {formats.setting(best[p.name])}."
        assert plot is not None and said in plot.caption
    for plot in (history, curves, *against):
        assert plot is not None
        ET.fromstring(plot.svg)
    assert history is not None and "98.2 with trial 7. At the upper edge: 1 above 2 times the best." in history.caption
    assert against[3] is not None and "adam" in against[3].svg and "sgd" in against[3].svg
    other = ParameterRecord.read(parameter("training.clip", low=0.0, high=1.0), "x")
    assert searches.against(read.figures, other, "p") is None


def test_a_picture_of_nothing_is_none() -> None:
    empty = found(**NOTHING)
    assert searches.history(empty.figures, "h") is None and searches.trial_curves(empty.figures, "c") is None
    assert searches.against(empty.figures, empty.figures.parameters[0], "p") is None


@pytest.mark.full
@pytest.mark.parametrize("changes", [{}, NOTHING, {"trials": [trial(7, 98.25)]}])
def test_a_page_has_it_all_and_the_same_result_gives_the_same_page(changes: dict[str, Any]) -> None:
    page = render_search(found(**changes))
    assert page == render_search(found(**changes))
    assert "<h1>How fast &amp; how large</h1>" in page and "<script" not in page
    assert ("Importance of the settings" in page) == bool(found(**changes).figures.trials)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


@pytest.mark.full
def test_a_report_of_runs_has_a_section_of_searches(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(saved(search())))
    page = render([folder])
    assert "<h2>Searches</h2>" in page and "the best is trial 7, validation perplexity 98.2 per word." in page
    assert "Other results" not in page


def test_a_terminal_shows_the_settings_and_a_point_for_every_trial() -> None:
    told = shown(found(), most=3)
    lines = told.splitlines()
    assert lines[0] == "How fast & how large"
    rate = next(line for line in lines if line.startswith("training.learning_rate"))
    assert "██████████  80%" in rate and re.search(r"80% +0.008 +0.01 +0.007$", rate)
    start = next(i for i, line in enumerate(lines) if line.startswith("Trial by trial"))
    picture = lines[start + 1 : start + 9]
    assert sum(line.count("•") for line in picture) == 6
    assert sum(line.count("∘") for line in picture) == 3
    assert [line.count("★") for line in picture] == [0] * 7 + [1]
    assert picture[0].split()[0] == "≥196.5" and picture[-1].split()[0] == "98.2"
    assert "  trial 10: killed, and tried again as 12" in lines


def test_a_narrow_terminal_shows_fewer_trials() -> None:
    heading = [line for line in shown(found(), width=90).splitlines() if line.startswith("Setting")]
    wide = [line for line in shown(found(), width=200).splitlines() if line.startswith("Setting")]
    assert 1 <= heading[0].count("Trial ") < wide[0].count("Trial ") == 5
    points = shown(found(trials=[trial(n, 98.25 + abs(n - 7)) for n in range(200)]), width=40).splitlines()
    start = next(i for i, line in enumerate(points) if line.startswith("Trial by trial"))
    assert max(map(len, points[start + 1 : start + 9])) <= 40


def test_a_search_without_a_complete_trial_is_shown() -> None:
    told = shown(found(best=None, trials=[trial(0, None, "failed", problem="it broke")]))
    assert "none is complete yet" in told and re.search(r"0 +failed .*it broke", told)
    assert to_text(searches.best_table(found(best=None, trials=[]).figures, 3)).startswith("Setting")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("recipe"), r"figures.recipe must be text"),
        (lambda f: f.update(best=4), r"figures.best must be a trial that is complete"),
        (lambda f: f.update(best=None), r"figures.best must be a trial that is complete"),
        (lambda f: f["trials"][0].pop("settings"), r"figures.trials\[0\].settings must be an object"),
        (
            lambda f: f["trials"][0].update(valid_perplexity=None),
            r"figures.trials\[0\].valid_perplexity must be a number",
        ),
        (lambda f: f["trials"][1].update(curve=[[1]]), r"figures.trials\[1\].curve\[0\] must be a list of 2"),
        (
            lambda f: f["trials"][1].update(curve=[[1, "x"]]),
            r"figures.trials\[1\].curve\[0\]\[1\] must be a number above 0",
        ),
        (lambda f: f["parameters"][1].update(low=None), r"figures.parameters\[1\].low must be a number"),
        (lambda f: f["parameters"][2].update(when={"x": 3}), r"figures.parameters\[2\].when.x must be a list"),
        (lambda f: f.update(parameters=[]), r"figures.parameters must be a list that is not empty"),
    ],
)
def test_a_damaged_result_is_told_of(change: Any, message: str) -> None:
    figures = copy.deepcopy(search())
    change(figures)
    with pytest.raises(UserError, match=message):
        result_from(json.dumps(saved(figures)), "result.json")
