"""A passage fits its layers, survives its JSON, and is shown in colours that everybody can read."""

import io
import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from passages import WORDS, led, passage
from rich.color import Color
from rich.console import Console

from backstory.reports import passage_html, passage_terminal, theme
from backstory.results import Candidates, Numbers, Passage, Weights, Word
from backstory.results.passage import MOST_SHOWN
from backstory.utils.errors import UserError

finite = st.floats(-1e9, 1e9)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@st.composite
def passages(draw: Any) -> Passage:
    n = draw(st.integers(1, 6))

    def each(of: Any) -> Any:
        return st.lists(of, min_size=n, max_size=n).map(tuple)

    kinds = st.sampled_from(["sequential", "diverging", "plain"])
    numbers = st.builds(Numbers, kinds, text, each(st.none() | finite), text, finite, finite, st.integers(0, 5), text)
    links = st.tuples(
        *(
            st.lists(st.tuples(st.integers(0, i - 1), finite), max_size=3).map(tuple) if i else st.just(())
            for i in range(n)
        )
    )
    lists = each(st.dictionaries(text, st.lists(st.tuples(text, finite), max_size=2).map(tuple), max_size=2))
    layer = numbers | st.builds(Weights, text, links, finite, text) | st.builds(Candidates, text, lists, text)
    words = each(st.builds(Word, text, text))
    chosen = draw(st.none() | st.integers(0, n - 1))
    return Passage(draw(words), tuple(draw(st.lists(layer, max_size=4))), draw(text), draw(text), chosen)


@given(passages())
def test_json_brings_the_same_passage_back(made: Passage) -> None:
    assert Passage.read(json.loads(json.dumps(made.to_dict(), allow_nan=False)), "x") == made


@given(passages())
def test_every_passage_is_shown(made: Passage) -> None:
    seen = Seen(passage_html.figure(made, "p"))
    assert seen.texts == [word.text for word in made.words]
    assert json.loads(seen.data)["words"][0]["text"] == made.words[0].text
    assert len(list(passage_terminal.columns(made))) == 1 + len(made.words)


def wrong(**changes: Any) -> dict[str, Any]:
    layer = {"kind": "sequential", "name": "s", "values": [1.0, 2.0], "low": 0, "high": 2} | changes.pop("layer", {})
    return {"title": "t", "words": [{"text": "a"}, {"text": "b"}], "layers": [layer]} | changes


def test_what_may_be_left_out() -> None:
    made = Passage.read(wrong(), "x")
    assert made.words == (Word("a", " "), Word("b", " ")) and made.note == "" and made.numbers[0].unit == ""
    assert made.chosen is None


def test_the_words_before_the_first_of_which_anything_is_known() -> None:
    made = led()
    assert made.lead == 2 and passage().lead == 0
    assert [Passage(made.words, (layer,), "t").lead for layer in made.layers] == [3, 2, 3]
    assert Passage(made.words, (), "t").lead == 0


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (wrong(words=[]), "not 0"),
        (wrong(words=[{"text": "a"}] * (MOST_SHOWN + 1)), "not 5,001"),
        (wrong(words=[{"text": 1}, {"text": "b"}]), "words[0].text must be text"),
        (wrong(words="ab"), ""),
        (wrong(title=None), "title must be text"),
        (wrong(chosen=2), "chosen must be the number of one of 2 words"),
        (wrong(chosen=-1), "chosen must be a number"),
        (wrong(chosen="a"), "chosen must be a number that is whole"),
        (wrong(layers=None), ""),
        (wrong(layer={"kind": "rainbow"}), "layers[0].kind must be sequential or"),
        (wrong(layer={"kind": []}), "layers[0].kind must be"),
        (wrong(layer={"values": [1.0]}), "layers[0] must be a layer with an entry for each word, not 1"),
        (wrong(layer={"values": [1.0, "2"]}), "layers[0].values[1] must be a number or null"),
        (wrong(layer={"values": [1.0, True]}), "layers[0].values[1] must be a number"),
        (wrong(layer={"values": [1.0, math.inf]}), "layers[0].values[1] must be a number or null"),
        (wrong(layer={"high": math.nan}), "layers[0].high must be a number"),
        (wrong(layer={"digits": -1}), "layers[0].digits must be a number that is whole"),
        (wrong(layer={"kind": "weights"}), "layers[0].links must be a list"),
        (
            wrong(layer={"kind": "weights", "links": [[], [[1, 0.5]]]}),
            "links must be weights on words that come before",
        ),
        (wrong(layer={"kind": "weights", "links": [[], [[-1, 0.5]]]}), "links[1][0][0] must be a number that is whole"),
        (wrong(layer={"kind": "weights", "links": [[], [[0]]]}), ""),
        (wrong(layer={"kind": "candidates", "lists": [{}, {"model": [["a", None]]}]}), "must be a number"),
        (wrong(layer={"kind": "candidates", "lists": [{}, []]}), ""),
        ([], ""),
    ],
)
def test_a_damaged_passage_is_one_line(data: Any, reason: str) -> None:
    with pytest.raises(UserError, match=r"^r.json is damaged: .*must be ") as error:
        Passage.read(data, "r.json")
    assert reason in str(error.value) and "\n" not in str(error.value)


# --- colours ---


def luminance(colour: tuple[int, int, int]) -> float:
    """Relative luminance, by the definition of WCAG 2."""
    parts = (c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


def contrast(a: Color, b: Color) -> float:
    low, high = sorted(luminance(tuple(c.get_truecolor())) for c in (a, b))
    return (high + 0.05) / (low + 0.05)


# How red-green blind eyes (deuteranopia, protanopia) see a colour: Vienot, Brettel and Mollon 1999, on linear RGB.
BLIND = {
    "deutan": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
    "protan": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
}


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("hue", ["warm", "cool"])
def test_text_is_readable_on_every_step_and_lightness_tells_the_steps_apart(hue: str, dark: bool) -> None:
    colours = [Color.parse(c) for c in theme.ramp(hue, dark)]
    assert len(colours) == theme.STEPS
    assert min(contrast(Color.parse(theme.INK[dark]), c) for c in colours) >= 4.5
    apart = [luminance(tuple(c.get_truecolor())) for c in (Color.parse(theme.PAPER[dark]), *colours)]
    assert apart == sorted(apart, reverse=not dark) and len(set(apart)) == len(apart)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("eyes", BLIND)
def test_a_gain_and_a_loss_differ_to_colour_blind_eyes(eyes: str, dark: bool) -> None:
    def blueness(colour: str) -> float:
        linear = [(c / 255) ** 2.2 for c in Color.parse(colour).get_truecolor()]
        red, _, blue = (sum(w * c for w, c in zip(row, linear, strict=True)) for row in BLIND[eyes])
        return blue - red

    for step in range(2, theme.STEPS):
        assert blueness(theme.ramp("cool", dark)[step]) - blueness(theme.ramp("warm", dark)[step]) > 0.05


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("kind", ["sequential", "diverging"])
def test_text_is_readable_in_terminals_of_256_colours(kind: Any, dark: bool) -> None:
    layer = Numbers(kind, "x", ())
    for step in range(-theme.STEPS if kind == "diverging" else 1, theme.STEPS + 1):
        style = passage_terminal._style(layer, step, passage_terminal.Look(dark, many=False))
        if step:
            assert style.color and style.bgcolor and contrast(style.color, style.bgcolor) >= 4.5


@given(finite, finite, finite)
def test_steps_stay_on_the_scale_and_rise(low: float, high: float, value: float) -> None:
    sequential, diverging = (Numbers(kind, "x", (), low=low, high=high) for kind in ("sequential", "diverging"))
    assert 0 <= theme.step(sequential, value) <= theme.STEPS
    assert -theme.STEPS <= theme.step(diverging, value) <= theme.STEPS
    assert theme.step(sequential, value) <= theme.step(sequential, value + abs(value))
    assert theme.step(diverging, -value) == -theme.step(diverging, value)


def test_the_ends_and_the_middle_of_scales() -> None:
    sequential = Numbers("sequential", "x", (), low=2.0, high=4.0)
    assert [theme.step(sequential, v) for v in (None, 2.0, 3.0, 4.0, 9.0, -9.0)] == [0, 0, 4, 8, 8, 0]
    diverging = Numbers("diverging", "x", (), low=-2.0, high=2.0)
    assert [theme.step(diverging, v) for v in (None, -9.0, -1.0, 0.0, 2.0)] == [0, -8, -4, 0, 8]
    assert theme.css_class(diverging, -4) == "warm4 loss" and theme.css_class(diverging, 4) == "cool4"
    assert theme.css_class(sequential, 4) == "warm4" and theme.css_class(Weights("a", ()), 4) == "cool4"


# --- HTML ---


class Seen(HTMLParser):
    """The words of a figure, their attributes, and its data."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.data, self.inside, self.open = "", "", 0
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if dict(attrs).get("class") == "words":
            self.inside = "words"
        elif tag == "script":
            self.inside = "script"
        elif tag == "span" and self.inside == "words":
            self.texts.append("")
            self.attributes.append(dict(attrs))
            self.open = 1

    def handle_endtag(self, tag: str) -> None:
        self.open = 0
        if tag in ("div", "script"):
            self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.data += data
        elif self.open:
            self.texts[-1] += data


def test_without_javascript_the_first_layer_is_seen_and_titles_tell_the_rest() -> None:
    seen = Seen(passage_html.figure(passage(), "p"))
    assert seen.texts == list(WORDS)
    assert [a["class"] for a in seen.attributes] == ["warm8", "warm2", "warm8", "", "", "warm4"]
    assert seen.attributes[0]["title"] == "surprisal 9.00 nats; gain over b -1.00 nats; rank 1"
    assert seen.attributes[2]["title"] == "surprisal 8.00 nats; gain over b 0.00 nats; rank 1,234"
    assert seen.attributes[4]["title"] == "gain over b -0.02 nats; rank 5"


def test_what_the_script_is_given() -> None:
    data = json.loads(Seen(passage_html.figure(passage(), "p")).data)
    assert data["words"][2]["numbers"] == [["surprisal", "8.00 nats"], ["gain over b", "0.00 nats"], ["rank", "1,234"]]
    assert data["words"][2]["lists"] == [
        ["expected (model)", [["the", 50.0, "50.0%", False], ["<b>", 0.0, "<0.1%", True]]],
        ["expected (buffer)", [["Kim", 90.0, "90.0%", False]]],
        ["attention", [["said", 100.0, "0.750", False], ["Kim", 33.3, "0.250", False]]],
    ]
    assert data["shades"][1] == {"looks": ["warm8 loss", "cool4", "", "cool8", "", ""]}
    assert data["shades"][2]["links"][2] == [[0, "cool2"], [1, "cool6"]]
    assert (data["lead"], data["first"]) == (0, None)


def test_columns_are_aligned_by_the_width_of_the_words() -> None:
    words = (Word("日本語"), Word("e\u0301", " "), Word("👩\u200d💻", " "))
    figures = Numbers("plain", "surprisal", (1.0, 2.0, 3.0), digits=1)
    back = Weights("looks at", ((), ((0, 1.0),), ()), 1.0)
    columns = list(passage_terminal.columns(Passage(words, (back, figures), "a text", chosen=1)))
    assert columns == [
        "      word    looks at of 'e\u0301'  surprisal",
        "   1  日本語" + 11 * " " + "1.0000        1.0",
        "   2  e\u0301     " + 16 * " " + "–        2.0",
        "   3  👩\u200d💻    " + 16 * " " + "–        3.0",
    ]
    expected = ({"model": (("日本語", 0.5), ("日本", 0.25), ("語", 0.125))},) * 3
    listed = Passage(words, (figures, Candidates("expected", expected)), "a text")
    assert list(passage_terminal.columns(listed, width=36))[2] == "      expected  日本語 50.0%"


def test_a_word_of_thousands_of_letters_takes_no_more_than_a_column() -> None:
    words = (Word("jam"), Word("x" * 5000, " "))
    layers = (Numbers("plain", "rank", (1.0, 2.0)), Candidates("expected", ({"model": (("y" * 5000, 0.5),)},) * 2))
    lines = list(passage_terminal.columns(Passage(words, layers, "a text")))
    assert lines[1].startswith("   1  jam" + 37 * " ") and lines[2].startswith("   2  " + "x" * 39 + "…  ")
    assert all(line.endswith("y" * 39 + "… 50.0%") for line in lines[1:])


def test_long_lines_are_broken_to_fit() -> None:
    tokens = tuple((f"token{i}", 0.1) for i in range(9))
    lists = ({"cache": (("a", 0.5),), "model": tokens}, {"cache": tokens, "model": ()})
    layers = (
        Numbers("plain", "probability of the mixture", (1.0, 2.0), "%", digits=3),
        Numbers("plain", "gain over static", (0.5, None), "nats", digits=2),
        Candidates("expected", lists),
    )
    passage = Passage((Word("ann"), Word("jam", " ")), layers, "a text")
    whole = list(passage_terminal.columns(passage, width=300))
    assert whole == list(passage_terminal.columns(passage)) and len(whole) == 3
    assert list(passage_terminal.columns(passage, width=50)) == [
        "                            gain",
        "            probability     over",
        "                 of the  static,",
        "      word   mixture, %     nats",
        "   1  ann         1.000     0.50",
        "      cache  a 50.0%",
        "      model  token0 10.0% · token1 10.0%",
        "   2  jam         2.000        –",
        "      cache  token0 10.0% · token1 10.0%",
    ]
    alone = Passage(passage.words, (Candidates("expected", lists),), "a text")  # without a number
    assert list(passage_terminal.columns(alone, width=30))[1:3] == ["   1  ann", "      cache  a 50.0%"]


def test_what_a_chosen_word_looks_back_at_is_seen_without_javascript_and_in_columns() -> None:
    """Neighbours of one weight are told as one."""
    seen = Seen(passage_html.figure(led(), "p"))
    assert [a["class"] for a in seen.attributes] == ["cool2", "cool2", "cool6", "", ""]
    assert ["data-lead" in a for a in seen.attributes] == [True, True, False, False, False]
    data = json.loads(seen.data)
    assert (data["lead"], data["first"]) == (2, 3)
    assert data["words"][3]["lists"][2] == ["attention", [["c", 100.0, "0.750", False], ["a\nb", 33.3, "0.250", False]]]
    assert data["words"][4]["lists"] == [["attention", [["b c", 100.0, "0.500", False]]]]
    head, *lines = (line.split() for line in passage_terminal.columns(led()))
    assert head[:4] == ["word", "attention", "of", "'d'"]
    assert [line[:2] for line in lines] == [["a", "0.2500"], ["b", "0.2500"], ["1", "c"], ["2", "d"], ["3", "e"]]
    assert lines[2][2] == "0.7500"


def test_a_chosen_word_is_told_of_below_the_text_in_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=200)
    passage_terminal.show(led(), console)
    printed = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())  # type: ignore[attr-defined]
    assert "of 'd' on the words before it" in printed and "'d': gate 50.0%" in printed
    assert "expected  buffer  d 50.0%\nexpected  model   e 25.0% · d 10.0%\n" in printed


def test_white_space_of_the_text_is_kept() -> None:
    words = tuple(Word(str(i), before) for i, before in enumerate((" ", " ", "", "\n", "\n\n", "\n \n    ")))
    html = passage_html.figure(Passage(words, (), "t"), "p")
    inside = re.sub(r"</?span[^>]*>", "", html.split('aria-label="t">')[1].split("</div>")[0])
    assert inside == '0 12\n3<i class="gap"></i>4<i class="gap"></i>    5'


def test_the_script_ends_no_element_and_asks_the_network_for_nothing() -> None:
    assert "</" not in passage_html.SCRIPT
    for word in ("fetch", "XMLHttpRequest", "import", "innerHTML", "eval", "http", "insertAdjacentHTML"):
        assert word not in passage_html.SCRIPT


def test_bars_of_weights_are_as_long_as_the_weights() -> None:
    """Also of weights above the end of the scale, which all have the full colour."""
    words = tuple(Word(name, " ") for name in "abc")
    layer = Weights("mass", ((), (), ((0, 0.8), (1, 0.02))), high=0.016)
    data = json.loads(Seen(passage_html.figure(Passage(words, (layer,), "t"), "p")).data)
    assert data["words"][2]["lists"] == [["mass", [["a", 100.0, "0.800", False], ["b", 2.5, "0.0200", False]]]]
