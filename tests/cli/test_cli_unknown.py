"""Texts outside a run's vocabulary: refused where most is, with the advice that helps, and named in every figure."""

import io
import json
import os
import sys
from pathlib import Path

import pytest
from commands import Command, tree

import backstory as bs
from backstory.utils.errors import UserError

CHINESE = "我们 今天 去 北京 看 老 朋友 。\n" * 30
SOME = "ann saw the jam and ann sold more jam\n" * 9 + "zebra zebra zebra zebra zebra zebra zebra\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "run", "zh.txt"],
        ["explain", "surprisal", "run", "--text", "zh.txt"],
        ["explain", "reading", "run", "--text", "zh.txt", "--reader", "cache"],
    ],
)
def test_a_text_in_another_script_is_refused(arguments: list[str], command: Command, run_copy: Path) -> None:
    """It read as `perplexity 7.75, 31,541 of 31,542 <unk>, audit passed`, with exit code 0."""
    Path("zh.txt").write_text(CHINESE)
    before = tree(Path())
    says = command(*arguments).mistake()
    assert says == (
        "100.0% of the words of zh.txt are outside the vocabulary (read as <unk>), so the perplexity says nothing about the "
        "text; the text is in another script than the training text: train on text like it, with --text.tokenizer "
        "characters or a tokenizer.json, or read it with --allow-unknown"
    )
    assert tree(Path()) == before
    done = command(*arguments, "--allow-unknown", "--json")
    assert done.code == 0
    figures = json.loads(done.out)["figures"]
    assert figures["unknown_share"] == figures["out_of_vocabulary_share"] > 0.8
    assert figures["out_of_vocabulary_cause"] == "script"


def test_line_ends_do_not_make_a_text_known(command: Command, run_copy: Path) -> None:
    """Chinese has no blanks, so that a line is one word: half of the tokens, and more with empty lines, are line ends."""
    Path("zh.txt").write_text("我们今天去北京。\n\n" * 20)
    assert command("evaluate", "run", "zh.txt").mistake().startswith("100.0% of the words of zh.txt are outside")


def test_a_capital_text_is_told_of_its_case(command: Command, run_copy: Path) -> None:
    Path("loud.txt").write_text("ANN SAW THE JAM\n" * 20)
    assert "train with --text.lowercase" in command("evaluate", "run", "loud.txt").mistake()


def test_a_text_whose_words_are_mostly_replaced_is_refused(command: Command, run_copy: Path) -> None:
    """It read as `perplexity 4.61, 64.7% of them written as <unk>, audit passed`, with exit code 0."""
    Path("cut.txt").write_text("ann <unk> <unk> <unk>\n" * 9)
    says = command("evaluate", "run", "cut.txt").mistake()
    assert says.startswith(
        "75.0% of the words of cut.txt are <unk>, most of them written so in the text, so the perplexity"
    )
    assert says.endswith("take the text as it was before its words were replaced, or read it with --allow-unknown")
    done = command("evaluate", "run", "cut.txt", "--allow-unknown")
    assert done.code == 0 and "so the perplexity says nothing about the text" in done.out


def test_python_refuses_too(run_copy: Path) -> None:
    Path("zh.txt").write_text(CHINESE)
    with pytest.raises(UserError, match="outside the vocabulary"):
        bs.evaluate("run", text=Path("zh.txt"))
    with pytest.raises(UserError, match="outside the vocabulary"):
        bs.examine("run", "zh.txt", targets=10, maximum_context=10)
    assert bs.evaluate("run", text=Path("zh.txt"), allow_unknown=True).figures.unknown_tokens == 240
    found = bs.examine("run", "zh.txt", targets=10, maximum_context=10, allow_unknown=True)
    assert found.figures.unknown_share > 0.5 and "of the targets outside the vocabulary" in found.table()


def test_a_text_with_some_says_that_it_does_not_compare(command: Command, run_copy: Path) -> None:
    Path("some.txt").write_text(SOME)
    done = command("evaluate", "run", "some.txt")
    assert done.code == 0
    first, second = done.out.splitlines()
    assert "over 98 words, 7.1% of them outside the vocabulary, audit passed" in first
    assert second.strip().startswith("unknown     7.1% of the words are outside the vocabulary")
    assert "does not compare with models of another vocabulary; the training text does not have them" in second
    Path("own.txt").write_text("ann saw the <unk>\n" * 9)
    own = command("evaluate", "run", "own.txt")
    assert own.out.count("\n") == 1 and "20.0% of them written as <unk>, audit" in own.out


def test_what_is_read_as_it_arrives_is_warned_of_once(
    command: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(text: str, *flags: str) -> tuple[str, str]:
        into, out_of = os.pipe()
        os.write(out_of, text.encode())
        os.close(out_of)
        with os.fdopen(into, "rb") as file:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
            done = command("read", "run", *flags)
        assert done.code == 0
        return done.out, done.err

    out, err = read(CHINESE)
    assert err.count("says nothing about the text") == 1
    assert "line 1: 9 words" in out and "88.9% of them <unk>" in out.splitlines()[0]
    assert "88.9% of them outside the vocabulary, static reader" in out.splitlines()[-2]
    records = [json.loads(line) for line in read(SOME, "--json")[0].splitlines()]
    assert [r["unknown_tokens"] for r in records] == [0] * 9 + [7]
    assert records[-1]["unknown_share"] == 7 / 8 and records[-1]["all_unknown_share"] == 7 / 98
    assert "says nothing" not in read(SOME)[1]
