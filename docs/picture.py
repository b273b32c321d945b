"""Make docs/report.png, two stretches of the report on some runs side by side: `python docs/picture.py RUN...`.

Needs Chromium on the path, and what `pip install 'backstory[dev]'` brings. The runs should have been evaluated, examined and
explained; the second stretch is the first text view of the page, with a word chosen.
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from backstory.reports import write

OUT = Path(__file__).with_name("report.png")
WIDTH, TALL = 880, 6000
"""Pixels of the window: so tall that nothing of the page is out of it."""
WORD = 69
"""The word that is chosen."""


def picture(runs: list[Path]) -> Image.Image:
    """The report down to the learning curves, and beside it the context curves down to the first text view."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        report = Path(folder) / "report.html"
        write(runs, report)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport={"width": WIDTH, "height": TALL}, color_scheme="light")
        page.goto(report.as_uri())
        page.locator(".words").first.locator("span").nth(WORD).click()
        middle = edge(page, "h2:text-is('Context')", "top") - 30
        end = edge(page, ".panel", "bottom")
        whole = Image.open(io.BytesIO(page.screenshot()))
        browser.close()
    both = Image.new("RGB", (2 * WIDTH, max(middle, end - middle)), whole.getpixel((0, 0)))
    both.paste("#e3dfd7", (WIDTH, 0, WIDTH + 2, both.height))
    both.paste(whole.crop((0, 0, WIDTH - 2, middle)), (0, 0))
    both.paste(whole.crop((2, middle, WIDTH, end)), (WIDTH + 2, 0))
    return both


def edge(page: Page, selector: str, side: str) -> int:
    """Where an edge of the first such element is, from the top of the page."""
    return int(page.locator(selector).first.evaluate(f"e => e.getBoundingClientRect().{side}"))


if __name__ == "__main__":
    made = picture([Path(run) for run in sys.argv[1:]])
    # Few colours are used, so that a palette loses nothing one can see and halves the file.
    made.quantize(256, dither=Image.Dither.NONE).save(OUT, optimize=True)
    print(f"{OUT}, {OUT.stat().st_size / 1024:.0f} KiB")
