"""The text view as HTML: shaded words that can be pointed at, tapped and reached by keyboard; without JavaScript, shaded."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from backstory.reports import shades
from backstory.reports.passage import Candidates, Numbers, Passage, Weights

SCRIPT = Path(__file__).with_name("passage.js").read_text(encoding="utf-8")
"""What makes the words answer; a page with any number of passages holds it once, after the last of them."""
SCRIPT_HASH = "sha256-" + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
"""By which the page's policy allows this script and no other."""
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*?(?=[^\S\n]*$)")
MOST_LOOKED_AT = 5
"""The most earlier words, or runs of words of one weight, that the panel names."""


def figure(passage: Passage, name: str) -> str:
    """The passage as a <figure>; `name` begins its ids and must differ between the passages of a page."""
    return "\n".join(
        [
            '<figure class="passage">',
            _switch(passage, name),
            *(_legend(layer, hidden=i > 0) for i, layer in enumerate(passage.shades)),
            '<div class="text">',  # the panel stays in sight while the words are, and covers nothing else
            f'<div class="words" aria-label="{escape(passage.title)}">{_words(passage)}</div>',
            '<div class="panel live" role="region" aria-label="The chosen word" hidden>'
            "<p>Point at a word or tap it; or tab to the text and move with the arrow keys.</p></div>",
            "</div>",
            f"<figcaption>{escape(passage.note)}</figcaption>" if passage.note else "",
            f'<script type="application/json">{_data(passage)}</script>',
            "</figure>",
        ]
    )


def _switch(passage: Passage, name: str) -> str:
    """Which layer colours the words; hidden where it could not do anything."""
    if len(passage.shades) < 2:
        return ""
    choices = "".join(
        f'<label><input type="radio" name="{name}-layer"{" checked" * (i == 0)}><span>{escape(layer.name)}</span></label>'
        for i, layer in enumerate(passage.shades)
    )
    return f'<fieldset class="live" hidden><legend>Colour by</legend>{choices}</fieldset>'


def _legend(layer: Numbers | Weights, hidden: bool) -> str:
    steps = range(-shades.STEPS if layer.kind == "diverging" else 0, shades.STEPS + 1)
    blocks = "".join(f'<i class="{shades.css_class(layer, step)}"></i>' for step in steps)
    ends = ("0", f"{layer.high:.3g}") if isinstance(layer, Weights) else scale_ends(layer)
    note = f'<span class="note">{escape(layer.note)}</span>' if layer.note else ""
    about = escape(f"Scale of {layer.name}: {ends[0]} to {ends[1]}")
    ramp = f'<span class="ramp" role="img" aria-label="{about}">{escape(ends[0])} {blocks} {escape(ends[1])}</span>'
    return f'<div class="legend"{" hidden" * hidden}>{ramp}{note}</div>'


def scale_ends(layer: Numbers) -> tuple[str, str]:
    """The ends of a layer's scale as text."""
    return layer.written(-layer.high if layer.kind == "diverging" else layer.low), layer.written(layer.high)


def _words(passage: Passage) -> str:
    """The words in one line of HTML: white space between them is the text's own."""
    first = passage.shades[0] if passage.shades else None
    values: Sequence[float | None] = [None] * len(passage.words)
    if isinstance(first, Numbers):
        values = first.values
    elif first is not None and passage.chosen is not None:
        values = first.of(passage.chosen)
    parts = []
    for place, (word, value) in enumerate(zip(passage.words, values, strict=True)):
        look = shades.css_class(first, shades.step(first, value)) if first else ""
        # A blank line becomes a gap smaller than a line; other white space is kept as it is.
        before = _BLANK_LINE.sub('<i class="gap"></i>', escape(word.before)) if place else ""
        lead = " data-lead" if place < passage.lead else ""
        parts.append(f'{before}<span class="{look}"{lead} title="{escape(passage.told(place))}">'
                     f"{escape(word.text)}</span>")  # fmt: skip
    return "".join(parts)


def _data(passage: Passage) -> str:
    """What the script shows, every number written and on its scale, as JSON that cannot end its element."""
    lists = [layer for layer in passage.layers if isinstance(layer, Candidates)]
    weights = [layer for layer in passage.layers if isinstance(layer, Weights)]
    words = [
        {
            "text": word.text,
            "numbers": [[layer.name, text] for layer in passage.numbers if (text := layer.text(place))],
            "lists": [
                [f"{layer.name} ({part})", [_candidate(token, p, word.text) for token, p in tokens]]
                for layer in lists
                for part, tokens in layer.lists[place].items()
            ]
            + [[layer.name, _looked_at(layer, place, passage)] for layer in weights if layer.links[place]],
        }
        for place, word in enumerate(passage.words)
    ]
    shown = [_shade(layer) for layer in passage.shades]
    data = {"words": words, "shades": shown, "lead": passage.lead, "first": passage.chosen}
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _shade(layer: Numbers | Weights) -> dict[str, Any]:
    if isinstance(layer, Weights):
        looks = [[[j, shades.css_class(layer, shades.step(layer, w))] for j, w in links] for links in layer.links]
        return {"links": looks}
    return {"looks": [shades.css_class(layer, shades.step(layer, value)) for value in layer.values]}


def _candidate(token: str, p: float, word: str) -> list[Any]:
    """Token, width of its bar in percent, probability as people read it, and whether it is the word that came."""
    percent = 100 * p
    return [token, round(percent, 1), f"{percent:.1f}%" if percent >= 0.1 else "<0.1%", token.strip() == word]


def _looked_at(layer: Weights, place: int, passage: Passage) -> list[list[Any]]:
    """The earlier words of most weight, as candidates are written; neighbours of the same weight (a span) are one."""
    links = sorted(layer.links[place])
    begins = [i for i, (a, b) in enumerate(pairwise(links), 1) if b[0] != a[0] + 1 or b[1] != a[1]]
    runs = [links[i:j] for i, j in pairwise([0, *begins, len(links)])]
    most = sorted(runs, key=lambda run: -abs(run[0][1]))[:MOST_LOOKED_AT]
    told = []
    for run in most:
        (first, weight), *rest = run
        text = passage.words[first].text + "".join(passage.words[j].before + passage.words[j].text for j, _ in rest)
        width = min(100.0, 100 * abs(weight) / layer.high) if layer.high > 0 else 0.0
        told.append([text, round(width, 1), f"{weight:.3g}", False])
    return told
