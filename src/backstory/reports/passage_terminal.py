"""The text view in a terminal: shaded words wrapped to its width, or plain columns without colours."""

import os
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from backstory.reports import theme
from backstory.reports.passage_html import ends_of
from backstory.results.passage import Candidates, Numbers, Passage, Weights
from backstory.utils.formats import MISSING
from backstory.utils.terminal import cell, padded, shortened

MOST_LISTED = 5
"""Number of words listed below the text, the most strongly coloured first."""
BETWEEN = " · "
"""Separator of candidates; not a comma, which is a candidate in most texts."""
LONGEST_WORD = 40
"""Width of a word above which its end is left out of a column; an address or a code may have thousands of letters."""
PALE = 300
"""Sum of red, green and blue above which text on a colour is black."""


@dataclass(frozen=True)
class Look:
    """Colours of a terminal."""

    dark: bool
    many: bool
    """True for 24-bit colour, False for 256 colours."""


def show(passage: Passage, console: Console) -> None:
    """Print the passage, its words coloured by the first layer that can colour them.

    Without colours (no terminal, NO_COLOR, TERM=dumb): a line per word with all its figures.
    """
    if console.is_terminal and console.color_system and not console.no_color and passage.shades:
        _coloured(passage, console, passage.shades[0])
        return
    for line in columns(passage, width=console.width if console.is_terminal else None):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def columns(passage: Passage, of: Sequence[Numbers] | None = None, width: int | None = None) -> Iterator[str]:
    """Yield the passage in plain columns, a line per word: number, word, figures (all, or only some), candidates.

    The weights of a chosen word appear as figures of the others. If lines exceed `width`, headings are broken into
    several lines, and candidates move below their word, a line per part with the likeliest that fit.
    """
    numbers = _figures(passage) if of is None else of
    candidates = [layer for layer in passage.layers if isinstance(layer, Candidates)]
    heads = [cell(f"{n.name}, {n.unit}" if n.unit else n.name) for n in numbers]
    words = [shortened(word.text, LONGEST_WORD) for word in passage.words]
    widest = max(4, *map(cell_len, words))
    starts = [f"{'':>4}  {'word':<{widest}}"]
    figures: list[list[str]] = []
    for i, word in enumerate(words):
        number = "" if i < passage.lead else i + 1 - passage.lead
        starts.append(f"{number:>4}  {padded(word, widest)}")
        figures.append(
            [MISSING if (v := n.values[i]) is None else n.written(v).removesuffix(n.unit).strip() for n in numbers]
        )
    lasts = [[c.name for c in candidates], *([_candidates(c, i) for c in candidates] for i in range(len(figures)))]
    lines = list(_aligned(starts, [heads, *figures], [cell_len(head) for head in heads], lasts))
    if width is None or max(map(cell_len, lines)) <= width:
        yield from lines
        return
    sizes = [max(map(len, column)) for column in zip(*figures, strict=True)]
    broken = [textwrap.wrap(head, max(size, *map(len, head.split()))) for head, size in zip(heads, sizes, strict=True)]
    sizes = [max(size, *map(cell_len, parts)) for size, parts in zip(sizes, broken, strict=True)]
    deepest = max(map(len, broken), default=1)
    columns = ([""] * (deepest - len(parts)) + parts for parts in broken)
    *above, last = zip(*columns, strict=True) if broken else [()]
    yield from _aligned([" " * len(starts[0])] * len(above), above, sizes)
    head, *lines = _aligned(starts, [last, *figures], sizes)
    yield head
    for i, line in enumerate(lines):
        yield line
        for layer in candidates:
            yield from _fitted(layer, i, width)


def _aligned(
    starts: Sequence[str],
    rows: Sequence[Sequence[str]],
    sizes: Sequence[int],
    lasts: Sequence[Sequence[str]] | None = None,
) -> Iterator[str]:
    """Yield a line for each row: its start, its right-aligned cells in columns of these sizes, and its end."""
    for i, (start, row) in enumerate(zip(starts, rows, strict=True)):
        cells = [padded(value, size, right=True) for value, size in zip(row, sizes, strict=True)]
        yield "  ".join([start, *cells, *(lasts[i] if lasts else ())]).rstrip()


def _fitted(layer: Candidates, index: int, width: int) -> Iterator[str]:
    """Yield a line for each part with candidates at a word, with as many tokens as fit."""
    expected = layer.lists[index]
    longest = max(map(len, expected), default=0)
    for part, tokens in expected.items():
        line = f"{'':>6}{cell(part if len(expected) > 1 else layer.name):<{longest if len(expected) > 1 else 0}} "
        for number, (token, p) in enumerate(tokens):
            more = f"{BETWEEN if number else ' '}{_probable(token, p)}"
            if cell_len(line) + cell_len(more) > width:
                break
            line += more
        if tokens:
            yield line


def _figures(passage: Passage) -> list[Numbers]:
    """Return the layers with a number per word, after the weights of the chosen word on the others."""
    index = passage.chosen
    if index is None:
        return list(passage.numbers)
    weights = [layer for layer in passage.layers if isinstance(layer, Weights)]
    named = f"of '{shortened(passage.words[index].text, LONGEST_WORD)}'"
    return [*(Numbers("plain", f"{w.name} {named}", w.of(index), digits=4) for w in weights), *passage.numbers]


def _expected(layer: Candidates, index: int) -> dict[str, str]:
    """Return the tokens that each part expected at a word."""
    parts = layer.lists[index].items()
    return {part: BETWEEN.join(_probable(token, p) for token, p in tokens) for part, tokens in parts}


def _probable(token: str, p: float) -> str:
    return f"{shortened(token, LONGEST_WORD)} {100 * p:.1f}%"


def _candidates(layer: Candidates, index: int) -> str:
    expected = _expected(layer, index)
    return "; ".join(tokens if len(expected) == 1 else f"{part}: {tokens}" for part, tokens in expected.items())


def _coloured(passage: Passage, console: Console, layer: Numbers | Weights) -> None:
    light = os.environ.get("COLORFGBG", "").endswith((";7", ";15"))  # some terminals say so; most are dark
    look = Look(not light, console.color_system == "truecolor")
    index, values = _values(layer, passage.chosen)
    text = Text()
    for i, (word, value) in enumerate(zip(passage.words, values, strict=True)):
        style = _style(layer, theme.step(layer, value), look)
        if i < passage.lead and not style:
            style = Style(dim=True)
        text.append("".join(c for c in word.before if c in " \n") if i else "")
        text.append(cell(word.text), style + Style(bold=True, underline=True) if i == index else style)
    console.print(Text(cell(passage.title), "bold"))
    console.print()
    console.print(text)
    console.print()
    scale, note = _legend(layer, look, passage, index)
    if len(scale) + 2 + len(note) <= console.width:
        console.print(scale.append("  ").append_text(note))
    else:  # no terminal breaks the scale
        console.print(scale)
        console.print(note)
    if passage.note:
        console.print(Text(passage.note, "dim"))
    if isinstance(layer, Numbers):
        strongest = sorted(range(len(passage.words)), key=lambda i: -abs(values[i] or 0.0))[:MOST_LISTED]
        console.print()
        lines = list(columns(passage, [layer]))
        for line in [lines[0], *(lines[1 + i] for i in strongest)]:
            console.print(Text(line, "dim" if line is lines[0] else ""), no_wrap=True, overflow="ellipsis")
    elif index is not None:
        for line in _described(passage, index):
            console.print(Text(line))


def _described(passage: Passage, index: int) -> Iterator[str]:
    """Yield all that is known about a word: its figures, and a line for each part with candidates."""
    yield ""
    yield f"'{cell(passage.words[index].text)}': {passage.described(index)}"
    for layer in passage.layers:
        if isinstance(layer, Candidates) and (expected := _expected(layer, index)):
            width = max(map(len, expected))
            yield ""
            yield from (f"{layer.name}  {part:<{width}}  {tokens}" for part, tokens in expected.items())


def _values(layer: Numbers | Weights, index: int | None) -> tuple[int | None, tuple[float | None, ...]]:
    """Return the chosen word (default: the one with the largest weight) and the value of each word."""
    if isinstance(layer, Numbers):
        return None, layer.values
    if index is None:
        index = max(range(len(layer.links)), key=lambda i: max((abs(w) for _, w in layer.links[i]), default=0.0))
    return index, layer.of(index)


def _legend(layer: Numbers | Weights, look: Look, passage: Passage, index: int | None) -> tuple[Text, Text]:
    """Return the scale of colours, and what it is of."""
    low, high = ends_of(layer)
    legend = Text(f"{layer.name}  {low} ")
    for step in theme.steps(layer):
        legend.append("  ", _style(layer, step, look))
    legend.append(f" {high}")
    about = f"of '{cell(passage.words[index].text)}' on the words before it. " if index is not None else ""
    return legend, Text(f"{about}{layer.note}", "dim")


def _style(layer: Numbers | Weights, step: int, look: Look) -> Style:
    if step == 0:
        return Style()
    hue, loss = theme.hue(layer, step), step < 0
    if look.many:
        ink, colour = theme.INK[look.dark], theme.ramp(hue, look.dark)[abs(step) - 1]
        return Style(color=ink, bgcolor=colour, underline=loss)
    number = theme.XTERM[hue, look.dark][abs(step) - 1]
    pale = sum(Color.from_ansi(number).get_truecolor()) > PALE
    return Style(color=Color.from_ansi(16 if pale else 231), bgcolor=Color.from_ansi(number), underline=loss)
