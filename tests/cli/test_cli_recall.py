"""The corpus `recall` from the command line: generated, trained on, read with its memory measured, and reported."""

import json
import re
from pathlib import Path

import pytest
from commands import SMALL, Command

RECALL = {"facts": 0.1, "entities": 20, "cast": 4, "words": 10, "names": 3, "values": 4, "length": 200, "documents": 8}
FLAGS = [f"--{{}}recall.{name}={value}" for name, value in {**RECALL, "held-out": 4}.items()]


@pytest.mark.full
def test_from_drawing_to_a_report(command: Command) -> None:
    shown = command("data", "show", "recall", *(flag.format("") for flag in FLAGS))
    assert shown.code == 0
    assert re.search(r"train +1,600 +8 .*\n +valid +800 +4", shown.out)
    told = re.search(
        r"test   exact perplexity ([\d.]+); old entity [\d.]+%, last seen \d+ \(90%: \d+\) tokens ago; queried",
        shown.out,
    )
    assert told
    flags = [flag.format("text.") for flag in FLAGS]
    done = command(
        "train",
        "demo",
        *SMALL,
        "--corpus",
        "recall",
        "--text.minimum-count=1",
        "--text.recall.new-each-epoch",
        *flags,
        "--out",
        "new",
    )
    assert done.code == 0, done.err
    read = command("evaluate", "new")
    result = json.loads(Path("new/evaluate-test/result.json").read_text())
    memory = result["figures"]["memory"]
    # A fresh run is evaluated on the same documents as one that is not.
    assert f"{memory['exact_perplexity']:.3f}" == told[1]
    assert "is the perplexity with perfect memory" in read.out
    for b, other in zip(*(curve["bins"][:2] for curve in memory["curves"]), strict=True):
        ends = f"{b['from']}–{b['to']}"
        assert re.search(rf"{ends} +{b['excess']:.2f} +{other['excess']:.2f}\n", read.out)
    assert command("report", "new", "--out", "page.html").code == 0
    assert "<h2>Memory</h2>" in Path("page.html").read_text()
    assert json.loads(command("evaluate", "new", "--json").out)["figures"]["memory"] == memory


def test_a_run_says_what_it_was_drawn_with(command: Command) -> None:
    flags = [flag.format("text.") for flag in FLAGS]
    given = ("train", "demo", *SMALL, "--corpus", "recall", "--text.minimum-count=1", *flags)
    assert command(*given, "--out", "new").code == 0
    assert "  recall:\n    entities: 20\n    cast: 4\n" in Path("new/config.yaml").read_text()
    other = command(*given, "--out", "new", "--resume", "--text.recall.seed=1").mistake()
    assert "text.recall.seed: 0 there, 1 here" in other
