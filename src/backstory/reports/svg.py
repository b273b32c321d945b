"""Plot style shared by all figures, and conversion of matplotlib figures to SVG for light and dark pages."""

import io
import os
import re
import threading
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from backstory.results.examination_record import EffectRecord
from backstory.utils.errors import UserError, first_line
from backstory.utils.formats import count

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Okabe and Ito's colours, distinct for people with any kind of colour vision. The first four have a contrast of at
# least 3 against white and against near-black, so they serve both themes; yellow and black do not and are left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", "--", ":", "-.")
DARK = {"#0072B2": "--series-blue", "#D55E00": "--series-red"}
"""Colours that a dark page may lighten, with their CSS variables."""
INK = "#010203"
"""Placeholder for the page's text colour while matplotlib draws; it becomes `currentColor` in the SVG."""

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
LONGEST = 120
"""Maximum length of text in a figure, in characters; longer text would leave no space for the axes."""
_STYLE: Any = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # TrueType, as venues ask for
    "text.parse_math": False,  # untrusted words: dollar signs are no mathematics
    "svg.hashsalt": "backstory",
    "font.size": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "axes.unicode_minus": False,  # as in the tables beside it
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.13,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
}


WIDE, NARROW, PAPER = 7.2, 3.9, 5.5
"""Widths of a figure in inches of 72 dots: next to its caption, on a phone, and in the column of a paper."""
HEIGHT = 2.9
"""Height of a figure below its legend, in inches."""
FILES = ("pdf", "svg", "png")
"""Endings of the files to which a figure is saved."""
_UNDATED = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
"""File metadata without the date, so that equal figures give equal files."""
Draw = Callable[[float], "Figure"]
"""Draw a figure of a width in inches."""


@dataclass(frozen=True)
class Plot:
    """A figure as an inline SVG element (its text is escaped) and its caption as raw text."""

    title: str
    svg: str
    caption: str
    name: str
    """Base of its file names."""
    draw: Draw = field(compare=False, repr=False)
    hints: Mapping[str, str] | None = field(default=None, compare=False, repr=False)

    def narrow(self) -> str:
        """Redraw it for the width of a phone."""
        with style():
            return inline(self.draw(NARROW), f"{self.name}-narrow", self.title, self.caption, self.hints)

    def drawn(self, ending: str) -> bytes:
        """Redraw it for a paper, as a file with this ending (`FILES`)."""
        buffer = io.BytesIO()
        with style():
            self.draw(PAPER).savefig(buffer, format=ending, dpi=300, metadata=_UNDATED.get(ending))
        return buffer.getvalue()


def plot(draw: Draw, prefix: str, title: str, caption: str, hints: Mapping[str, str] | None = None) -> Plot:
    """Return a figure for page, phone and paper. See `inline` for `prefix` and `hints`."""
    with style():
        return Plot(title, inline(draw(WIDE), prefix, title, caption, hints), caption, prefix, draw, hints)


DATE = "SOURCE_DATE_EPOCH"
_STYLED = threading.RLock()
"""Held while matplotlib has the project's style."""


class NoPlots(UserError):
    """Nothing can be drawn."""


@contextmanager
def style() -> Iterator[None]:
    """Apply the plot style within a `with` block, which must both build a figure and call `inline`.

    Raises NoPlots where matplotlib cannot be loaded.
    """
    try:
        import matplotlib
    except Exception as error:  # a backend that is not there, no folder for its files, a broken installation
        reason = first_line(error).partition(";")[0]
        raise NoPlots(
            f"matplotlib does not load ({reason}); correct that, or unset MPLBACKEND, and try again"
        ) from None
    # One thread at a time: matplotlib's settings belong to the process, and another would restore those of this block.
    with _STYLED, matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # ignore the user's matplotlibrc
        matplotlib.rcParams.update(_STYLE)
        # matplotlib guesses the widths of letters that its font lacks; the browser has them
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # matplotlib would date our pictures by it, and fail where it is no number
        date = os.environ.pop(DATE, None)
        try:
            yield
        finally:
            if date is not None:
                os.environ[DATE] = date


def blank(width: float = WIDE, height: float = HEIGHT) -> "tuple[Figure, Axes]":
    """Return an empty figure and its axes; the size is in inches of 72 dots."""
    figure, axes = panels(width, 1, height)
    return figure, axes[0]


def panels(width: float, number: int, height: float, least: float = 2.3) -> "tuple[Figure, list[Axes]]":
    """Return an empty figure of panels with shared axes, each of this height and at least `least` inches wide."""
    from matplotlib.figure import Figure

    down = -(-number // max(1, int(width / least)))
    across = -(-number // down)  # rows of equal length, as far as possible
    figure = Figure((width, height * down), layout="constrained")
    figure.subplots(down, across, sharex=True, sharey=True)
    for empty in figure.axes[number:]:
        empty.remove()
    for index, axes in enumerate(figure.axes):
        axes.tick_params(labelleft=index % across == 0, labelbottom=index + across >= number)
    return figure, figure.axes


def legend(figure: "Figure", handles: "Sequence[Artist]") -> None:
    """Put a legend above a figure, in as many columns as fit. The figure grows by the legend's height."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width, height = figure.get_size_inches()
    font = FontProperties(size=_STYLE["legend.fontsize"])
    names = (str(handle.get_label()) for handle in handles)
    longest = max(text_to_path.get_text_width_height_descent(name, font, ismath=False)[0] for name in names)
    column = longest / 72 + 0.62  # inches: a name, its line, and the gap between columns
    columns = max(1, min(len(handles), int((width - 0.1) / column)))
    figure.set_size_inches(width, height + 0.1 + 0.19 * -(-len(handles) // columns))
    figure.legend(handles=list(handles), loc="outside upper left", ncols=columns)


def series(index: int) -> dict[str, Any]:
    """Return colour and dash of the line at this index; the first 24 are distinct."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index // len(COLOURS) % len(DASHES)]}


def clean(text: str) -> str:
    """Replace characters that HTML or XML forbids by the replacement character."""
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def label(text: str, longest: int = 22) -> str:
    """Return untrusted text as a label: one line without control characters, with an ellipsis in the middle if long.

    The middle goes because names of runs and readers differ at their ends.
    """
    clean = " ".join(_CONTROL.sub(" ", text).split())
    if len(clean) <= longest:
        return clean
    tail = (longest - 1) // 2
    return f"{clean[: longest - 1 - tail].rstrip()}…{clean[-tail:].lstrip()}"


def inline(figure: "Figure", prefix: str, title: str, description: str, hints: Mapping[str, str] | None = None) -> str:
    """Return the figure as an SVG element for an HTML page; the same figure gives the same text.

    Text stays text in the page's font and colour, and the background is transparent. Ids begin with `prefix`, so that
    several figures can share a page. Screen readers read `title` and `description`. `hints` maps gids of artists to
    texts that a browser shows on hover.
    """
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if len(text.get_text()) > LONGEST:  # type: ignore[attr-defined]
            text.set_text(label(text.get_text(), LONGEST))  # type: ignore[attr-defined]
    _lay_out(figure)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ET.fromstring(clean(buffer.getvalue()))
    for parent in list(root.iter()):
        for child in list(parent):
            # Its <style> would apply to the whole page, and its metadata contains addresses.
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
                parent.remove(child)
    for element in list(root.iter()):
        if (hint := (hints or {}).get(element.get("id", ""))) is not None:
            ET.SubElement(element, f"{_SVG}title").text = _CONTROL.sub(" ", hint)
            element.set("pointer-events", "all")  # also where nothing is painted
    _own_ids(root, prefix)
    _follow_page(root)
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    spoken = _CONTROL.sub(" ", f"{title}. {description}")
    root.attrib.update({"role": "img", "aria-label": spoken, "font-family": "system-ui, sans-serif",
                        "stroke-linejoin": "round"})  # fmt: skip
    ET.register_namespace("", _SVG[1:-1])
    ET.register_namespace("xlink", _XLINK[1:-1])
    return ET.tostring(root, encoding="unicode")


def _lay_out(figure: "Figure") -> None:
    """Lay out a figure as `savefig` would, without the extra drawing that `savefig` needs for it."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    if (layout := figure.get_layout_engine()) is None:
        return
    figure.set_dpi(72)  # as `savefig` does for an SVG, whose unit is the point
    FigureCanvasSVG(figure)  # its text metrics, in place of those for pixels
    layout.execute(figure)
    figure.set_layout_engine(None)  # the style has none that would take its place


def _own_ids(root: ET.Element, prefix: str) -> None:
    """Prefix the ids that are referred to, and drop the others."""
    text = [value for element in root.iter() for value in element.attrib.values()]
    used = {match for value in text for match in re.findall(r"(?:^|url\()#([\w.-]+)", value)}
    for element in root.iter():
        for key, value in element.attrib.items():
            element.set(key, re.sub(r"(^|url\()#([\w.-]+)", rf"\g<1>#{prefix}-\g<2>", value))
        name = element.attrib.pop("id", None)
        if name in used:
            element.set("id", f"{prefix}-{name}")


def _follow_page(root: ET.Element) -> None:
    """Replace the ink by the page's text colour, and drop matplotlib's fonts."""
    for element in root.iter():
        if "style" in element.attrib:
            css = element.attrib["style"].replace(INK, "currentColor")
            for colour, variable in DARK.items():
                css = css.replace(colour.lower(), f"var({variable}, {colour})")
            element.set("style", re.sub(r"\s*font-family:[^;]*;?", "", css))
        if element.tag == f"{_SVG}path" and "d" in element.attrib:
            element.set("d", _shorter(element.attrib["d"]))
        element.tail = None  # only matplotlib's indentation
        if element.tag not in (f"{_SVG}text", f"{_SVG}title"):
            element.text = None


def _shorter(path: str) -> str:
    """Return a path on one line, with coordinates rounded to 0.01 points."""
    return re.sub(r"-?\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}", " ".join(path.split()))


LARGEST = 1e12
"""The largest number that is drawn. Larger ones come from diverged runs, and axes cannot hold them."""


def bounded(value: float) -> float:
    """Clip a number to what axes can hold."""
    return max(-LARGEST, min(LARGEST, value))


def whole_numbers(axes: "Axes", bins: int = 8) -> None:
    """Put horizontal ticks at whole numbers only, with at most this many steps."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=bins, integer=True, min_n_ticks=1))


def perplexity_axis(axes: "Axes", low: float, high: float) -> None:
    """Set the vertical axis to perplexities from `low` to `high`, logarithmic if the range is wide."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if high > 3 * low > 0:
        axes.set_yscale("log")
        subs = (1, 2, 5) if high > 30 * low else (1, 1.5, 2, 3, 5, 7)
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}" if value < 1e4 else count(value)))
        axes.set_ylim(low / 1.1, high * 1.1)
    else:
        margin = 0.06 * (high - low) or 0.05 * high
        axes.set_ylim(low - margin, high + margin)


def labels(figure: "Figure", texts: Sequence[str]) -> None:
    """Label the lines of a figure, in order."""
    from matplotlib.lines import Line2D

    legend(figure, [Line2D([], [], label=label(text, 44), **series(i)) for i, text in enumerate(texts)])


def curve(
    axes: "Axes", conditions: Sequence[EffectRecord], parameter: str, index: int, alpha: float = 0.2, name: str = ""
) -> None:
    """Draw the effects of conditions against one of their parameters, as a line with its band."""
    look = series(index)
    # A logarithmic axis has no zero; the table shows it.
    points = [(getattr(c, parameter) or 0, c) for c in conditions if abs(c.effect) < LARGEST]
    points = sorted(((x, c) for x, c in points if x > 0), key=lambda pair: pair[0])
    x, bands = [x for x, _ in points], [[*map(bounded, c.spread or (c.effect, c.effect))] for _, c in points]
    axes.fill_between(x, [b[0] for b in bands], [b[1] for b in bands], color=look["color"], alpha=alpha, linewidth=0)
    axes.plot(x, [c.effect for _, c in points], marker="o", markersize=3.2, label=name, **look)


def added_loss(unit: str) -> str:
    """Return the label of an axis of effects, by the unit of their contexts."""
    return f"added loss (nats per {unit})"


def level(axes: "Axes", height: float, text: str, dash: object = (0, (4, 3))) -> None:
    """Draw a thin line across the axes, dashed by default, at the level of comparison."""
    axes.axhline(height, color=INK, linewidth=0.8, linestyle=dash, alpha=0.7)
    axes.annotate(text, (0, height), xytext=(3, 2), xycoords=axes.get_yaxis_transform(),
                  textcoords="offset points", va="bottom", fontsize=7.5)  # fmt: skip


def log_axis(axes: "Axes", across: str, up: str, steps: Sequence[int] = (1, 3)) -> None:
    """Label both axes, and put whole numbers of tokens on a logarithmic one, at these multiples of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set_xscale("log")
    least, most = axes.get_xlim()
    # Beyond two and a half decades, the labels of three ticks per decade would overlap.
    axes.xaxis.set_major_locator(LogLocator(subs=steps if most < 400 * least else (1, 3)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    axes.set_xlabel(across)
    axes.set_ylabel(up)
