"""The text view in a terminal: coloured and wrapped where it can be, plain columns everywhere else."""

import io
import re
from typing import Any

import pytest
from passages import WORDS, passage
from rich.console import Console

from backstory.reports import passage_terminal, theme
from backstory.results import Passage, Word
from backstory.results.passage import Numbers


def shown(made: Passage, width: int = 60, **settings: Any) -> str:
    options: dict[str, Any] = {"force_terminal": True, "color_system": "truecolor", "_environ": {}} | settings
    console = Console(file=io.StringIO(), width=width, **options)
    passage_terminal.show(made, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def bare(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def rgb(colour: str) -> str:
    return ";".join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))


@pytest.fixture(autouse=True)
def a_dark_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLORFGBG", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.parametrize("background, dark", [(None, True), ("15;0", True), ("0;15", False)])
def test_words_stand_on_the_steps_of_their_layer(
    background: str | None, dark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if background:
        monkeypatch.setenv("COLORFGBG", background)
    text = shown(passage())
    ramp, ink = theme.ramp("warm", dark), rgb(theme.INK[dark])
    assert f"\x1b[38;2;{ink};48;2;{rgb(ramp[7])}mKim\x1b[0m" in text  # 9 of 8 nats: the full colour
    assert f"\x1b[38;2;{ink};48;2;{rgb(ramp[1])}msaid\x1b[0m" in text  # 2.5 of 8
    assert "\x1b[0m ¶\n\nKim \x1b[" in text  # nothing for 0.1 nats, and for no number; the paragraph is kept
    assert "surprisal  0.00 nats " in bare(text) and " 8.00 nats  Of <all>." in bare(text)


def test_a_loss_is_underlined_and_warm_and_a_gain_cool() -> None:
    gain = Passage(passage().words, (passage().layers[1],), "t")
    text = shown(gain)
    warm, cool = theme.ramp("warm", True), theme.ramp("cool", True)
    assert f"\x1b[4;38;2;{rgb(theme.INK[1])};48;2;{rgb(warm[7])}mKim" in text
    assert f"\x1b[38;2;{rgb(theme.INK[1])};48;2;{rgb(cool[3])}msaid" in text


def test_weights_are_those_of_the_word_that_looks_back_most() -> None:
    text = shown(Passage(passage().words, (passage().layers[3],), "t"), width=100)
    assert "of 'said' on the words before it" in bare(text)
    assert f"48;2;{rgb(theme.ramp('cool', True)[7])}mKim" in text and "\x1b[1;4msaid\x1b[0m" in text


@pytest.mark.parametrize("width", [20, 33, 80])
def test_lines_fit_the_terminal_and_words_stay_whole(width: int) -> None:
    words = tuple(Word(f"word{i}") for i in range(60))
    made = Passage(words, (Numbers("sequential", "x", tuple(i / 60 for i in range(60))),), "t")
    lines = bare(shown(made, width)).splitlines()
    assert max(map(len, lines)) <= width
    assert [w for w in " ".join(lines).split() if re.fullmatch(r"word\d+", w)][:60] == [w.text for w in words]


@pytest.mark.parametrize(
    "settings",
    [{"force_terminal": False}, {"no_color": True}, {"color_system": None}, {"_environ": {"NO_COLOR": "1"}}],
)
def test_columns_where_there_are_no_colours(settings: dict[str, Any]) -> None:
    text = shown(passage(), width=20 if settings == {"force_terminal": False} else 200, **settings)
    assert "\x1b" not in text
    head, *lines = text.splitlines()
    assert re.split(r"\s{2,}", head.strip()) == [
        "word", "surprisal, nats", "gain over b, nats", "rank", "expected"]  # fmt: skip
    assert [line.split()[:2] for line in lines] == [[str(i), word] for i, word in enumerate(WORDS, start=1)]
    assert re.split(r"\s{2,}", lines[2].strip()) == [
        "3", "<b>", "8.00", "0.00", "1,234", "model: the 50.0% · <b> 0.0%; buffer: Kim 90.0%"]  # fmt: skip
    assert "–" in lines[4]


def test_the_words_of_the_strongest_colour_are_told_of() -> None:
    below = bare(shown(passage(), width=120)).split("A <note>.")[1]
    assert [line.split()[1] for line in below.splitlines() if re.match(r" +\d", line)] == [
        "Kim",
        "<b>",
        "left",
        "said",
        "¶",
    ]


def test_a_passage_cannot_command_the_terminal() -> None:
    made = Passage((Word("a\x1b[31m\x07"), Word("[bold]b", "\x1b]0;x\x07\n")), passage().layers[:0], "t")
    assert set(shown(made)) & {"\x1b", "\x07"} == set()
    coloured = Passage(made.words, (Numbers("sequential", "x", (1.0, 0.0)),), "t")
    text = shown(coloured)
    assert "\x07" not in text and "\x1b[31m" not in text and "\x1b]" not in text and "[bold]b" in text


@pytest.mark.parametrize("width", [60, 50])
def test_the_scale_of_colours_stays_on_one_line(width: int) -> None:
    lines = [line.rstrip() for line in bare(shown(passage(), width)).splitlines()]
    [scale] = [line for line in lines if line.startswith("surprisal  0.00 nats")]
    assert (scale.endswith("8.00 nats"), "Of <all>." in lines) == (width == 50, width == 50)
