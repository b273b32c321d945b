"""Generate the pictures of the docs.

`python docs/picture.py` makes docs/reward.png (the reward of a gate), docs/memories.png (the gain of memories from a
long context) and docs/memory.png (memory of synthetic documents). `python docs/picture.py RUN...` makes docs/report.png
(two parts of the report on some runs, side by side), and `python docs/picture.py --buffer RUN` makes docs/buffer.png (a
buffer's attention and predictions at one word).

Needs Chromium on the path and `pip install -c constraints.txt -e '.[dev]'`. The runs should have been evaluated,
examined and explained. The second part of the report is the page's first text view, with a word chosen.
"""

import io
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from tables.examinations import MEMORIES, remembered_curves
from tables.sources import result

from backstory.config import RewardConfig
from backstory.config.explanation_options import ExplainOptions
from backstory.evaluation.metrics.gate_statistics import reward
from backstory.explanations import explain_passage
from backstory.reports import svg, write
from backstory.reports.page import render_passage, write_page
from backstory.reports.sections.context_plots import levels
from backstory.reports.sections.evaluation_section import memory_curves
from backstory.reports.svg import labels
from backstory.reports.theme import CSS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REPORT, REWARD, MEMORIES_PNG, MEMORY, BUFFER = (
    Path(__file__).with_name(f"{name}.png") for name in ("report", "reward", "memories", "memory", "buffer")
)
WIDTH, TALL = 880, 9000
"""Size of the window in pixels, tall enough for the whole page."""
LEFT_OUT = (
    "#figures, #learning .scroll, #gate, #recency, #sample-text, "
    "#context > details, #context figure ~ figure, #context h3, #context h3 ~ *"
)
"""Parts of a report that the picture leaves out to save space."""
WORD = 71
"""The word that is chosen."""
AT = 3012
"""The word of the test text at which a buffer is shown."""
LINES = 17
"""Number of lines of text shown above it."""
PRINTED = RewardConfig()
RATIOS = torch.linspace(0.0, 2.2, 441, dtype=torch.float64)
"""Range of q / p in the picture."""


def reward_picture() -> Image.Image:
    """Figure 3 of the paper: the intrinsic reward against the likelihood ratio, as printed and with other settings."""
    with svg.style():
        figure, axes = svg.blank(height=3.0)
        lines = (
            ("as printed", PRINTED),
            ("β 1", RewardConfig(slope=1.0)),
            ("β 1, κ 1", RewardConfig(slope=1.0, power=1.0)),
        )
        for place, (_, settings) in enumerate(lines):
            axes.plot(RATIOS, rewarded(RATIOS, settings), zorder=4 - place, **svg.series(place))
        labels(figure, [name for name, _ in lines])
        axes.set_xlim(0, float(RATIOS[-1]))
        axes.set_ylim(-3.6, 9.9)
        axes.set_xlabel("likelihood ratio q / p")
        axes.set_ylabel("reward r")
        mark(axes)
        return shot(svg.inline(figure, "reward", "Reward", ""))


def memories_picture() -> Image.Image:
    """Perplexity against the length of context, without a memory and with two kinds of memory."""
    drawn = levels([(called, result(f"examine-memory-{name}")) for name, called in MEMORIES.items()], None, "memories")
    assert drawn is not None
    return shot(drawn.svg)


def memory_picture() -> Image.Image:
    """Nats above the exact cost of a queried value, by distance to its statement."""
    drawn = memory_curves(remembered_curves(), "queried value", "memory")
    assert drawn is not None
    return shot(drawn.svg)


def shot(drawn: str) -> Image.Image:
    """A figure as displayed on a page."""
    with browser_page(device_scale_factor=1.5) as page:
        page.set_content(f"<style>{CSS}</style><figure style='width: 44rem; margin: 0'>{drawn}</figure>")
        return Image.open(io.BytesIO(page.locator("figure").screenshot()))


@contextmanager
def browser_page(**options: Any) -> Iterator[Page]:
    """Open a Chromium page in light colours for a `with` block."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"))
        yield browser.new_page(color_scheme="light", **options)
        browser.close()


def rewarded(ratios: torch.Tensor, settings: RewardConfig) -> torch.Tensor:
    """The training reward at these likelihood ratios."""
    return reward(torch.zeros_like(ratios), ratios.log(), settings)


def mark(axes: "Axes") -> None:
    """Key points of the printed reward: its floor, its zero, and the start of its ceiling."""
    turn = PRINTED.ceiling ** (1 / PRINTED.power)
    points = torch.tensor([0.0, 1.0, turn], dtype=torch.float64)
    floor, none, ceiling = rewarded(points, PRINTED).tolist()
    told = (
        (0.0, floor, f"floor −βb = −{-floor:.0f}", (6, 6), "left"),
        (1.0, none, "r = 0 at q = p", (-7, 8), "right"),
        (turn, ceiling, f"ceiling a − b = {ceiling:.0f} from {turn:.2f} on", (-6, 6), "right"),
    )
    axes.axhline(0, color=svg.INK, linewidth=0.6)
    for x, y, text, place, side in told:
        axes.plot(x, y, "o", color=svg.series(0)["color"], markeredgecolor="none", zorder=5, clip_on=False)
        axes.annotate(text, (x, y), xytext=place, textcoords="offset points", ha=side)


def picture(runs: list[Path]) -> Image.Image:
    """The top of the report and its learning curves; beside them its context curves and first text view."""
    with tempfile.TemporaryDirectory() as folder, browser_page(viewport={"width": WIDTH, "height": TALL}) as page:
        report = Path(folder) / "report.html"
        write(runs, report)
        page.goto(report.as_uri())
        page.add_style_tag(content=f"{LEFT_OUT} {{ display: none; }}")
        page.locator(".words").first.locator("span").nth(WORD).click()
        middle = edge(page, "#context", "top") - 30
        end = edge(page, ".panel", "bottom")
        whole = Image.open(io.BytesIO(page.screenshot()))
    both = Image.new("RGB", (2 * WIDTH, max(middle, end - middle)), whole.getpixel((0, 0)))
    both.paste("#e3dfd7", (WIDTH, 0, WIDTH + 2, both.height))
    both.paste(whole.crop((0, 0, WIDTH - 2, middle)), (0, 0))
    both.paste(whole.crop((2, middle, WIDTH, end)), (WIDTH + 2, 0))
    return both


def buffer_picture(run: Path) -> Image.Image:
    """Figure 5 and table 4 of the paper for one word: the attended spans, and the predictions of p, q and both."""
    with tempfile.TemporaryDirectory() as folder, browser_page(viewport={"width": WIDTH, "height": TALL}) as page:
        path = Path(folder) / "buffer.html"
        options = ExplainOptions(at=AT, words=1, out=Path(folder) / "explained")
        write_page(path, render_passage(explain_passage(run, "buffer", options)))
        page.goto(path.as_uri())
        word = page.locator(".words").first.locator("span").last
        word.click()
        line = float(page.locator(".words").first.evaluate("e => parseFloat(getComputedStyle(e).lineHeight)"))
        last = int(word.evaluate("e => e.getBoundingClientRect().bottom"))
        end = edge(page, ".panel", "bottom")
        whole = Image.open(io.BytesIO(page.screenshot()))
    return whole.crop((0, int(last - LINES * line) + 8, WIDTH - 100, end))


def edge(page: Page, selector: str, side: str) -> int:
    """Distance of an edge of the first such element from the top of the page."""
    return int(page.locator(selector).first.evaluate(f"e => e.getBoundingClientRect().{side}"))


def save(made: Image.Image, out: Path) -> None:
    """Write a picture and print its size."""
    # There are few colours, so a palette halves the file without visible loss.
    made.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(out, optimize=True)
    print(f"{out}, {out.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            save(reward_picture(), REWARD)
            save(memories_picture(), MEMORIES_PNG)
            save(memory_picture(), MEMORY)
        case ["--buffer", run]:
            save(buffer_picture(Path(run)), BUFFER)
        case runs:
            save(picture([Path(run) for run in runs]), REPORT)
