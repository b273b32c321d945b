"""The report in a real browser: it loads nothing, fits a phone, responds to mouse, touch and keyboard, and prints."""

import dataclasses
import io
import json
import re
import shutil
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from passages import led, passage
from rich.console import Console

import backstory as bs
from backstory.config import RecallConfig, RunConfig, TextConfig
from backstory.evaluation import evaluate
from backstory.reports import render_comparison, render_passage, theme, write
from backstory.results import Numbers, Passage, Word, result_from
from backstory.training import train
from backstory.utils.formats import signed

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[dev]'")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(CHROMIUM is None, reason="needs the browser chromium on the path"),
]
SCHEMES, WIDTHS = ("light", "dark"), (375, 1280)


@pytest.fixture(scope="module")
def runs(tiny_run: Path, tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs, read, examined and explained against each other."""
    folder = tmp_path_factory.mktemp("runs")
    one, two = Path(shutil.copytree(tiny_run, folder / "one")), folder / "two"
    train(dataclasses.replace(tiny_config, seed=2), two, console=Console(file=io.StringIO()))
    for run, other in ((one, two), (two, one)):
        evaluate(run, split="test")
        bs.examine(run, None, "truncate", targets=50, maximum_context=20)
        bs.explain(run, split="train", at=200, words=150, against=str(other))
    return [one, two]


@pytest.fixture(scope="module")
def report(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("page") / "report.html"
    write(runs, page)
    return page


@pytest.fixture(scope="module")
def layered(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of a passage with every kind of layer."""
    run = tmp_path_factory.mktemp("layered") / "run"
    result = json.loads(next(runs[0].glob("explain-*/result.json")).read_text())
    result["figures"]["passage"] = passage().to_dict()
    (run / "explain").mkdir(parents=True)
    (run / "explain" / "result.json").write_text(json.dumps(result))
    write([run], run / "report.html")
    return run / "report.html"


@pytest.fixture(scope="module")
def leading(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of a passage with words before it and a chosen one."""
    result = json.loads(next(runs[0].glob("explain-*/result.json")).read_text())
    result["figures"]["passage"] = led().to_dict()
    page = tmp_path_factory.mktemp("leading") / "page.html"
    page.write_text(render_passage(result_from(json.dumps(result), "x")), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM)
        yield started
        started.close()


Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any) -> Iterator[Open]:
    """Open a page; fail at the end if it logged an error or requested anything but itself."""
    contexts, complaints, requests = [], [], []

    def open_page(path: Path, width: int = 1280, **settings: Any) -> Any:
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}, **settings))
        page = contexts[-1].new_page()
        page.set_default_timeout(5000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert requests and {url.split(":")[0] for url in requests} == {"file"} and len(requests) == len(contexts)


@pytest.fixture(scope="module")
def compared(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two runs compared along their text, with passages."""
    result = bs.explain(
        runs[0],
        "reading",
        split="train",
        tokens=400,
        block=20,
        smooth=3,
        words=40,
        against=(str(runs[1]),),
        out=tmp_path_factory.mktemp("compared") / "out",
    )
    page = tmp_path_factory.mktemp("page") / "compared.html"
    page.write_text(render_comparison(result_from(json.dumps(result.to_dict()), "x")), encoding="utf-8")
    return page


def words(page: Any) -> Any:
    return page.locator("figure.passage").first.locator(".words > span")


def panel(page: Any) -> str:
    return page.locator(".panel").first.inner_text()


def figures(run: Path) -> dict[str, Any]:
    result = json.loads(next(run.glob("explain-*/result.json")).read_text())
    layers = {layer["name"]: layer for layer in result["figures"]["passage"]["layers"]}
    return {"words": result["figures"]["passage"]["words"], **layers}


def check_panel(page: Any, run: Path, place: int) -> None:
    """The panel shows the result file's figures for the word."""
    known, said = figures(run), panel(page)
    assert said.splitlines()[0].startswith(known["words"][place]["text"]) and f"word {place + 1} of 150" in said
    told = re.sub(r"\s+", " ", said)
    assert f"surprisal {known['surprisal']['values'][place]:.2f} nats" in told
    assert f"gain over two {signed(known['gain over two']['values'][place], 2)} nats" in told
    assert f"rank {known['rank']['values'][place]:.0f} " in told
    for token, p in known["expected"]["lists"][place]["model"]:
        assert f"{token} {100 * p:.1f}%" in told


def test_words_are_in_the_file(report: Path, runs: list[Path], opened: Open) -> None:
    assert words(opened(report)).all_inner_texts() == [w["text"] for w in figures(runs[0])["words"]]


BROKEN_WORDS = """() => {
  const broken = [];
  for (const cell of document.querySelectorAll("table.plain td")) {
    const words = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let node = words.nextNode(); node; node = words.nextNode())
      for (const { 0: word, index } of node.data.matchAll(/(?<![^ -])[^ -]{2,12}(?![^ -])/g)) {
        const range = document.createRange();
        range.setStart(node, index);
        range.setEnd(node, index + word.length);
        if (new Set([...range.getClientRects()].map(r => r.top)).size > 1) broken.push(word);
      }
  }
  return broken;
}"""


def test_tables_break_no_word_on_a_phone(runs: list[Path], opened: Open, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs[0], tmp_path / "run"))
    result = next(run.glob("evaluate-*/result.json"))
    record = json.loads(result.read_text())
    record["provenance"]["commit"] = "f00d" * 10  # a result of another commit gives the table one more column
    result.write_text(json.dumps(record))
    write([run], tmp_path / "page.html")
    page = opened(tmp_path / "page.html", 375)
    page.locator("details").evaluate_all("all => all.forEach(d => { d.open = true; })")
    assert page.locator("table.plain").count() and page.evaluate(BROKEN_WORDS) == []


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_and_is_readable_in_both_schemes(
    width: int, scheme: str, report: Path, layered: Path, opened: Open
) -> None:
    for path in (report, layered):
        page = opened(path, width, color_scheme=scheme)
        words(page).nth(2).click()
        page.locator("details").evaluate_all("all => all.forEach(d => { d.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        dark = scheme == "dark"
        ink, paper = page.evaluate(
            "[getComputedStyle(document.body).color, getComputedStyle(document.documentElement).backgroundColor]"
        )
        assert (ink, paper) == (rgb(theme.INK[dark]), rgb(theme.PAPER[dark]))
        step = page.locator(".words [class^=warm]").first
        number = int(re.sub(r"\D", "", step.get_attribute("class")))
        assert step.evaluate("e => getComputedStyle(e).backgroundColor") == rgb(theme.ramp("warm", dark)[number - 1])


def test_figures_are_redrawn_for_a_phone_and_tables_use_the_page(report: Path, opened: Open) -> None:
    phone, wide = opened(report, 375), opened(report, 1280)
    assert phone.locator(".narrow").first.is_visible() and not phone.locator(".wide").first.is_visible()
    assert wide.locator(".wide").first.is_visible() and not wide.locator(".narrow").first.is_visible()
    for page, drawing in ((phone, ".narrow"), (wide, ".wide")):
        for figure in page.locator(f"{drawing} svg").all():
            # Units of a figure are points; text of 8.5 of them and more is read at this size.
            pixels = figure.evaluate("s => s.getBoundingClientRect().width / s.viewBox.baseVal.width")
            assert 8.5 * pixels > 9.5
    cut = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.getAttribute('aria-label'))"
    assert wide.locator(".scroll").evaluate_all(cut) == []
    widths = wide.locator("figure.drawn .plot").evaluate_all("all => all.map(e => e.getBoundingClientRect().width)")
    assert len(set(widths)) == 1


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


def test_pointing_and_tapping_tell_of_a_word(report: Path, runs: list[Path], opened: Open) -> None:
    page = opened(report)
    assert "Point at a word" in panel(page)
    words(page).nth(17).hover()
    check_panel(page, runs[0], 17)
    phone = opened(report, 375, has_touch=True, is_mobile=True)
    words(phone).nth(40).tap()
    check_panel(phone, runs[0], 40)
    box, screen = phone.locator(".panel").first.bounding_box(), phone.viewport_size
    assert box["y"] + 100 < screen["height"] and box["x"] + box["width"] <= 375  # in sight, beside what was tapped
    assert words(phone).nth(40).bounding_box()["y"] >= 0


def tab_to(page: Any, role: str, most: int = 60) -> None:
    """Press Tab until something of that role has the focus."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('role') || document.activeElement.type") == role:
            return
    raise AssertionError(f"Tab does not reach a {role}")


def seen(page: Any, element: str = "document.activeElement") -> bool:
    """Return True if the focus is drawn."""
    outline = page.evaluate(f"(s => [s.outlineStyle, parseFloat(s.outlineWidth)])(getComputedStyle({element}))")
    return outline[0] != "none" and outline[1] >= 2


def test_the_keyboard_is_enough(report: Path, runs: list[Path], opened: Open) -> None:
    page = opened(report)
    tab_to(page, "radio")
    assert seen(page, "document.activeElement.nextElementSibling")
    before = words(page).evaluate_all("all => all.map(w => w.className)")
    page.keyboard.press("ArrowRight")
    assert page.locator("input:checked").first.evaluate("e => e.parentElement.innerText") == "surprisal"
    after = words(page).evaluate_all("all => all.map(w => w.className)")
    assert after != before and not any("cool" in name for name in after) and any("cool" in name for name in before)
    assert page.locator(".legend").nth(1).is_visible() and not page.locator(".legend").nth(0).is_visible()

    tab_to(page, "option", most=1)
    assert seen(page)
    check_panel(page, runs[0], 0)
    for key, place in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 149), ("ArrowRight", 149)):
        page.keyboard.press(key)
        check_panel(page, runs[0], place)
        assert seen(page)
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    tops = [words(page).nth(i).bounding_box()["y"] for i in (0, focused(page))]
    assert 10 < tops[1] - tops[0] < 60  # one line further, in the same column
    page.keyboard.press("ArrowUp")
    check_panel(page, runs[0], 0)
    page.keyboard.press("Escape")
    assert "Point at a word" in panel(page)
    page.keyboard.press("Tab")  # one stop for all the words, so that nobody is caught among them
    assert page.evaluate("document.activeElement.getAttribute('role')") != "option"


def focused(page: Any) -> int:
    return words(page).evaluate_all("all => all.indexOf(document.activeElement)")


def test_screen_readers_are_told(layered: Path, opened: Open) -> None:
    page = opened(layered)
    words_of = page.get_by_role("listbox", name="A <passage>")
    assert words_of.get_by_role("option").count() == 6
    said = "<b>, surprisal 8.00 nats; gain over b 0.00 nats; rank 1,234"
    assert words_of.get_by_role("option", name=said, exact=True).count() == 1
    choices = page.get_by_role("group", name="Colour by").get_by_role("radio")
    assert choices.count() == 3 and page.get_by_role("radio", name="attention").count() == 1
    assert page.get_by_role("region", name="The chosen word").count() == 1
    assert page.get_by_role("img", name="Scale of surprisal: 0.00 nats to 8.00 nats").is_visible()


def test_weights_shade_the_words_before(layered: Path, opened: Open) -> None:
    page = opened(layered)
    page.get_by_role("radio", name="attention").check(force=True)
    assert set(words(page).evaluate_all("all => all.map(w => w.className)")) == {""}
    words(page).nth(2).hover()
    assert words(page).evaluate_all("all => all.map(w => w.className)") == ["cool2", "cool6", " on", "", "", ""]
    told = re.sub(r"\s+", " ", panel(page))
    assert "attention said 0.750 Kim 0.250" in told
    assert "expected (buffer) Kim 90.0%" in told and "<b> <0.1%" in told
    words(page).nth(5).hover()
    assert words(page).evaluate_all("all => all.map(w => w.className)") == ["", "", "", "", "cool4", " on"]


def test_a_chosen_word_is_told_of_at_once_and_words_before_the_passage_are_not_chosen(
    leading: Path, opened: Open
) -> None:
    page = opened(leading)
    looks = ["cool2", "cool2", "cool6", " on", ""]
    assert words(page).evaluate_all("all => all.map(w => w.className)") == looks
    told = re.sub(r"\s+", " ", panel(page))
    assert "word 2 of 3" in told and "expected (buffer) d 50.0%" in told and "attention c 0.750 a b 0.250" in told
    words(page).nth(0).hover()  # the heat map stays while one looks at it
    words(page).nth(0).click(force=True)
    assert words(page).evaluate_all("all => all.map(w => w.className)") == looks and "word 2 of 3" in panel(page)
    tab_to(page, "radio")
    tab_to(page, "option", most=1)
    for key, place in (("Home", 2), ("ArrowLeft", 2), ("ArrowUp", 2), ("ArrowRight", 3), ("End", 4)):
        page.keyboard.press(key)
        assert focused(page) == place and f"word {place - 1} of 3" in panel(page)
    assert page.get_by_role("option", name="a", exact=True, disabled=True).count() == 1


@pytest.mark.parametrize("width", WIDTHS)
def test_right_to_left_text_is_written_and_read_from_the_right(
    width: int, runs: list[Path], opened: Open, tmp_path: Path
) -> None:
    texts = ("42", "ספר", "عن", "(", "كت", "اب", ")", ".", "The", "end", ".")
    before = {4: "", 5: "", 6: "", 7: "", 8: "\n", 10: ""}
    made = tuple(Word(text, before.get(i, " ")) for i, text in enumerate(texts))
    surprisal = Numbers("sequential", "surprisal", tuple(map(float, range(11))), "nats", 0.0, 8.0)
    result = json.loads(next(runs[0].glob("explain-*/result.json")).read_text())
    result["figures"]["passage"] = Passage(made, (surprisal,), "ספר 1").to_dict()
    path = tmp_path / "page.html"
    path.write_text(render_passage(result_from(json.dumps(result), "x")), encoding="utf-8")
    page = opened(path, width)
    boxes = [word.bounding_box() for word in words(page).all()]
    of_text = page.locator(".words").bounding_box()
    hebrew, english = boxes[:8], boxes[8:]
    assert [box["x"] for box in hebrew] == sorted((box["x"] for box in hebrew), reverse=True)
    assert hebrew[0]["x"] + hebrew[0]["width"] == pytest.approx(of_text["x"] + of_text["width"], abs=1)
    assert hebrew[4]["x"] == pytest.approx(hebrew[5]["x"] + hebrew[5]["width"], abs=0.1)  # letters of one word join
    assert [box["x"] for box in english] == sorted(box["x"] for box in english)
    assert english[0]["x"] == pytest.approx(of_text["x"], abs=1)
    words(page).nth(1).click()
    assert panel(page).splitlines()[0].startswith("ספר") and "surprisal 1.00 nats" in panel(page).replace("\n", " ")
    for key, index in (("ArrowLeft", 2), ("ArrowLeft", 3), ("ArrowRight", 2)):
        page.keyboard.press(key)
        assert focused(page) == index


@pytest.mark.parametrize("scheme", SCHEMES)
def test_words_before_a_passage_are_quieter_and_readable(scheme: str, leading: Path, opened: Open) -> None:
    page = opened(leading, color_scheme=scheme)
    words(page).nth(2).click()  # which looks back at nothing
    lead, own = (words(page).nth(i).evaluate("e => getComputedStyle(e).color") for i in (0, 4))
    assert lead == page.locator(".panel p").first.evaluate("e => getComputedStyle(e).color") != own


def test_without_javascript_shades_and_titles_are_there(layered: Path, opened: Open) -> None:
    page = opened(layered, java_script_enabled=False)
    assert words(page).nth(0).get_attribute("class") == "warm8"
    assert words(page).nth(0).get_attribute("title") == "surprisal 9.00 nats; gain over b -1.00 nats; rank 1"
    assert not page.locator(".panel").is_visible() and not page.locator("fieldset").is_visible()
    assert page.locator(".legend").nth(0).is_visible() and not page.locator(".legend").nth(1).is_visible()


def test_it_prints(report: Path, opened: Open) -> None:
    page = opened(report, color_scheme="dark")
    words(page).nth(3).click()
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.locator(".panel").first.is_visible() and not page.locator("fieldset").first.is_visible()
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert ink == rgb(theme.INK[0])  # on paper a page is light
    assert words(page).nth(3).evaluate("e => getComputedStyle(e).printColorAdjust") == "exact"
    printed = page.pdf(format="A4", print_background=True)
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 9


def test_it_is_small_and_opens_at_once(report: Path, opened: Open) -> None:
    times = []
    for _ in range(5):
        times.append(opened(report).evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
    assert report.stat().st_size < 2_000_000
    assert statistics.median(times) < 1000


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_comparison_fits_and_its_picture_tells(compared: Path, width: int, scheme: str, opened: Open) -> None:
    page = opened(compared, width, color_scheme=scheme)
    page.locator("details").evaluate_all("all => all.forEach(d => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    picture = page.locator("figure.drawn svg:visible").first
    assert 300 <= picture.bounding_box()["width"] <= width  # drawn anew for a phone
    # Where the mouse is on a document, the browser shows the hint of what lies uppermost there.
    hint = picture.evaluate(
        """svg => {
            svg.scrollIntoView();
            const band = svg.querySelector("title").parentElement.getBoundingClientRect();
            let found = document.elementFromPoint(band.x + Math.min(40, band.width / 2), band.y + band.height / 2);
            while (found && !found.querySelector(":scope > title")) found = found.parentElement;
            return found && found.querySelector(":scope > title").textContent;
        }"""
    )
    assert re.fullmatch(r"document 1: one over two [-+]?\d\.\d{3} nats per word over 400 words", hint)
    passages = page.locator("figure.passage")
    assert passages.count() >= 2
    passages.nth(1).locator(".words > span").nth(3).click()
    assert "word 4 of 40" in passages.nth(1).locator(".panel").inner_text()
    assert passages.nth(0).locator(".panel.told").count() == 0
    passages.nth(1).get_by_role("radio", name="surprisal, two").check(force=True)
    assert passages.nth(1).locator(".words [class^=warm]").count() > 5


@pytest.fixture(scope="module")
def remembered(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A page of a run on `recall` that was read with two readers, and what they found of its memory."""
    folder = tmp_path_factory.mktemp("remembered")
    recall = RecallConfig(entities=20, cast=4, mentions=0.3, facts=0.1, words=10, length=300, documents=6, held_out=4)
    config = dataclasses.replace(tiny_config, text=TextConfig("recall", recall=recall))
    train(config, folder / "run", console=Console(file=io.StringIO()))
    found = [
        evaluate(folder / "run", split="test", reader=reader).figures.memory.to_dict() for reader in ("static", "cache")
    ]
    write([folder / "run"], folder / "report.html")
    return folder / "report.html", found


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_memory_curves_fit_and_their_tables_tell(
    remembered: tuple[Path, list[dict[str, Any]]], width: int, scheme: str, opened: Open
) -> None:
    path, found = remembered
    page = opened(path, width, color_scheme=scheme)
    page.locator("details").evaluate_all("all => all.forEach(d => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    section = page.locator("section", has=page.get_by_role("heading", name="Memory", exact=True))
    pictures = section.locator("figure svg:visible")  # each is drawn for two widths
    assert pictures.count() == 2
    ink = page.evaluate("getComputedStyle(document.body).color")
    for place, kind in enumerate(("old entity", "queried value")):
        picture = pictures.nth(place)
        assert picture.get_attribute("aria-label").startswith(f"Memory: {kind}. ")
        assert 0 < picture.bounding_box()["width"] <= width
        named = picture.locator("text", has_text=re.compile("^(static|cache|exact|forgotten)$"))
        assert sorted(named.all_text_contents()) == ["cache", "exact", "forgotten", "static"]
        assert {t.evaluate("t => getComputedStyle(t).fill") for t in named.all()} == {ink}
        # All of it stands inside the picture, nothing is cut off.
        frame = picture.bounding_box()
        for text in picture.locator("text").all():
            box = text.bounding_box()
            assert box["x"] >= frame["x"] - 1 and box["x"] + box["width"] <= frame["x"] + frame["width"] + 1
        rows = section.locator("table").nth(place).locator("tbody tr")
        bins = [memory["curves"][place]["bins"] for memory in found]
        assert rows.count() == len(bins[0])
        for row, *one in zip(rows.all(), *bins, strict=True):
            cells = row.locator("td").all_inner_texts()
            assert cells == [f"{one[0]['tokens']:,}", *(f"{b['excess']:.3f}" for b in one)]
