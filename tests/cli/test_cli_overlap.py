"""Overlapping splits are reported in training, `evaluate`, results and reports; equal ones are refused."""

import html
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import runs
from commands import SMALL, Command, tree

TRAIN = ["train", "demo", "--corpus", "corpus", "--text.minimum-count", "1", "--out", "own", *SMALL]


def figures(path: str) -> Any:
    return json.loads(Path(path, "result.json").read_text())["figures"]


@pytest.fixture
def corpus(desk: Path) -> Path:
    """A corpus whose test text has half of its lines from the training text."""
    folder = runs.tiny_corpus(desk / "corpus")
    lines = (folder / "train.txt").read_text().splitlines(keepends=True)
    (folder / "test.txt").write_text((folder / "test.txt").read_text() + "".join(lines[5:25]))
    return folder


@pytest.mark.full
def test_an_overlap_is_told_of_wherever_a_figure_stands(corpus: Path, command: Command) -> None:
    trained = command(*TRAIN)
    share = next(o["share"] for o in figures("own")["overlap"] if (o["split"], o["in"]) == ("test", "train"))
    said = f"{share:.1%} of test's passages of 50 words occur in train too"
    assert trained.code == 0 and 0.3 < share < 0.6
    assert trained.err.count(said) == 1
    done = command("evaluate", "own")
    assert f"  overlap     {said}\n" in done.out
    assert figures("own/evaluate-test")["overlap"] == [
        {"split": "test", "in": "train", "window": 50, "share": share},
        {"split": "test", "in": "valid", "window": 50, "share": 0.0},
    ]
    assert [
        o["in"] for o in json.loads(command("evaluate", "own", "--split", "valid", "--json").out)["figures"]["overlap"]
    ] == ["train"]
    assert command("report", "own", "--out", "page.html").code == 0
    assert f"own, train; own, evaluate test (static): {said}." in html.unescape(Path("page.html").read_text())


@pytest.mark.full
def test_a_text_from_the_training_text_is_known(corpus: Path, command: Command) -> None:
    assert command(*TRAIN).code == 0
    shutil.copy(corpus / "train.txt", "mine.txt")
    assert "100.0% of the text's passages of 50 words occur in train too" in command("evaluate", "own", "mine.txt").out
    Path("other.txt").write_text(runs.sentences(30, 77))
    done = command("evaluate", "own", "other.txt")
    assert done.out.count("\n") == 1
    shutil.rmtree(corpus)  # the training text is not there any more: nothing is known, and nothing said
    gone = command("evaluate", "own", "mine.txt", "--json")
    assert gone.code == 0 and json.loads(gone.out)["figures"]["overlap"] is None


@pytest.mark.full
def test_equal_splits_are_refused_without_the_flag(corpus: Path, command: Command) -> None:
    shutil.copy(corpus / "valid.txt", corpus / "test.txt")
    before = tree(Path())
    says = command(*TRAIN).mistake()
    assert says.startswith("validation and test of corpus are the same text") and "--allow-equal-splits" in says
    assert tree(Path()) == before
    assert command(*TRAIN, "--allow-equal-splits").code == 0
    assert command("evaluate", "own").mistake() == says
    done = command("evaluate", "own", "--allow-equal-splits")
    assert done.code == 0 and "100.0% of test's passages of 50 words occur in valid too" in done.out
    assert command("evaluate", "own", "--split", "valid").code == 0
