"""The text view as HTML: shaded words that show their figures on hover, tap or focus (with JavaScript)."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from markupsafe import Markup, escape

from backstory.reports import theme
from backstory.reports.theme import TEMPLATES, rendered
from backstory.results.passage import Candidates, Numbers, Passage, Weights

SCRIPT = TEMPLATES.joinpath("passage.js").read_text(encoding="utf-8")
"""The script that shows the figures of a word. A page holds it once, after its last passage."""
SCRIPT_HASH = "sha256-" + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
"""The hash of the script in the page's content security policy, which allows no other."""
_WORD = Markup('{}<span class="{}"{} title="{}">{}</span>')
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*?(?=[^\S\n]*$)")
MOST_LOOKED_AT = 5
"""Maximum number of earlier words, or spans of one weight, that the panel names."""


def figure(passage: Passage, name: str) -> Markup:
    """Return the passage as a <figure>. `name` prefixes its ids and must be unique on the page."""
    legends = [
        (layer, *ends_of(layer), [theme.css_class(layer, step) for step in theme.steps(layer)])
        for layer in passage.shades
    ]
    return rendered(
        "passage", passage=passage, name=name, shades=passage.shades, legends=legends, words=_words(passage),
        data=Markup(_data(passage)),
    )  # fmt: skip


def ends_of(layer: Numbers | Weights) -> tuple[str, str]:
    """Return the ends of a layer's scale as text."""
    if isinstance(layer, Weights):
        return "0", f"{layer.high:.3g}"
    return layer.written(-layer.high if layer.kind == "diverging" else layer.low), layer.written(layer.high)


def _words(passage: Passage) -> Markup:
    """Return the words as one line of HTML, with the text's own white space between them."""
    first = passage.shades[0] if passage.shades else None
    values: Sequence[float | None] = [None] * len(passage.words)
    if isinstance(first, Numbers):
        values = first.values
    elif first is not None and passage.chosen is not None:
        values = first.of(passage.chosen)
    parts = []
    for index, (word, value) in enumerate(zip(passage.words, values, strict=True)):
        look = theme.css_class(first, theme.step(first, value)) if first else ""
        # A blank line becomes a gap smaller than a line; other white space is kept as it is.
        before = Markup(_BLANK_LINE.sub('<i class="gap"></i>', escape(word.before))) if index else Markup()
        lead = Markup(" data-lead" if index < passage.lead else "")
        parts.append(_WORD.format(before, look, lead, passage.described(index), word.text))
    return Markup().join(parts)


def _data(passage: Passage) -> str:
    """Return the script's data: each number as text and on its scale, as JSON that cannot close its element."""
    lists = [layer for layer in passage.layers if isinstance(layer, Candidates)]
    weights = [layer for layer in passage.layers if isinstance(layer, Weights)]
    words = [
        {
            "text": word.text,
            "numbers": [[layer.name, text] for layer in passage.numbers if (text := layer.text(index))],
            "lists": [
                [f"{layer.name} ({part})", [_candidate(token, p, word.text) for token, p in tokens]]
                for layer in lists
                for part, tokens in layer.lists[index].items()
            ]
            + [[layer.name, _looked_at(layer, index, passage)] for layer in weights if layer.links[index]],
        }
        for index, word in enumerate(passage.words)
    ]
    shown = [_shade(layer) for layer in passage.shades]
    data = {"words": words, "shades": shown, "lead": passage.lead, "first": passage.chosen}
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _shade(layer: Numbers | Weights) -> dict[str, Any]:
    if isinstance(layer, Weights):
        looks = [[[j, theme.css_class(layer, theme.step(layer, w))] for j, w in links] for links in layer.links]
        return {"links": looks}
    return {"looks": [theme.css_class(layer, theme.step(layer, value)) for value in layer.values]}


def _candidate(token: str, p: float, word: str) -> list[Any]:
    """Return the token, its bar's width in percent, its formatted probability, and whether it is the actual word."""
    percent = 100 * p
    return [token, round(percent, 1), f"{percent:.1f}%" if percent >= 0.1 else "<0.1%", token.strip() == word]


def _looked_at(layer: Weights, index: int, passage: Passage) -> list[list[Any]]:
    """Return the earlier words with the largest weights, formatted as candidates; a span of one weight counts once.

    The largest has the longest bar.
    """
    links = sorted(layer.links[index])
    begins = [i for i, (a, b) in enumerate(pairwise(links), 1) if b[0] != a[0] + 1 or b[1] != a[1]]
    runs = [links[i:j] for i, j in pairwise([0, *begins, len(links)])]
    most = sorted(runs, key=lambda run: -abs(run[0][1]))[:MOST_LOOKED_AT]
    parts, longest = [], abs(most[0][0][1])
    for run in most:
        (first, weight), *rest = run
        text = passage.words[first].text + "".join(passage.words[j].before + passage.words[j].text for j, _ in rest)
        width = 100 * abs(weight) / longest if longest else 0.0
        parts.append([text, round(width, 1), f"{weight:#.3g}", False])
    return parts
