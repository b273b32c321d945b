"""Pieces of HTML that the sections of a page are made of, and the page around them; every text is escaped by its template."""

from collections.abc import Iterable, Sequence

import jinja2
from markupsafe import Markup

from backstory.reports.format.tables import Table
from backstory.reports.format.theme import CSS
from backstory.reports.plots.svg import Plot, clean

GENERATOR = Markup('<meta name="generator" content="Backstory">')
"""In the head of every page; by it a page is known for one of ours, which the next may replace."""
# The browser itself refuses everything that is not in the file, whatever a run's name or settings hold.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_TEMPLATES = {
    "page": """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{{ generator }}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<title>{{ title }} – Backstory report</title>
<style>{{ css }}</style>
</head>
<body>
<header>
<p class="kicker">Backstory report</p>
<h1>{{ title }}</h1>
{% if summaries|length == 1 %}
<p class="lede">{{ summaries[0] }}</p>
{% else %}
{% if first %}<p class="lede">{{ first }}</p>{% endif %}
<ul class="lede">{% for summary in summaries %}<li>{{ summary }}</li>{% endfor %}</ul>
{% endif %}
</header>
<main>
{% for heading, parts in sections %}
<section>
<h2>{{ heading }}</h2>
{{ parts }}
</section>
{% endfor %}
</main>
<footer>{{ footer }}</footer>
{% if script %}<script>{{ script }}</script>{% endif %}
</body>
</html>
""",
    "table": """\
<table{% if look %} class="{{ look }}"{% endif %}>
<thead><tr>
{%- for c in table.columns %}<th scope="col"{% if c.numeric %} class="n"{% endif %}>{{ c.heading }}</th>{% endfor -%}
</tr></thead>
<tbody>
{% for row in table.rows %}
<tr><th scope="row"><span>{{ row[0] }}</span></th>
{%- for cell in row[1:] %}
{%- if table.columns[loop.index].numeric %}<td class="n">{% else %}<td>{% endif %}{{ cell }}</td>
{%- endfor -%}
</tr>
{% endfor %}
</tbody>
</table>""",
    "scroll": '<div class="scroll" tabindex="0" role="region" aria-label="{{ about }}">{{ inside }}</div>',
    "plot": """<figure{% if wide %} class="wide"{% endif %}>{{ picture }}<figcaption>{{ caption }}</figcaption></figure>""",
    "details": "<details><summary>{{ heading }}</summary>\n{{ inside }}\n</details>",
    "passage": """\
<figure class="passage">
{% if shades|length > 1 %}
<fieldset class="live" hidden><legend>Colour by</legend>
{%- for layer in shades -%}
<label><input type="radio" name="{{ name }}-layer"{% if loop.first %} checked{% endif %}><span>{{ layer.name }}</span></label>
{%- endfor -%}
</fieldset>
{% endif %}
{% for layer, low, high, steps in legends %}
<div class="legend"{% if not loop.first %} hidden{% endif %}><span class="ramp" role="img" \
aria-label="Scale of {{ layer.name }}: {{ low }} to {{ high }}">\
{{ low }} {% for step in steps %}<i class="{{ step }}"></i>{% endfor %} {{ high }}</span>
{%- if layer.note %}<span class="note">{{ layer.note }}</span>{% endif %}</div>
{% endfor %}
<div class="text">{# the panel stays in sight while the words are, and covers nothing else #}
<div class="words" aria-label="{{ passage.title }}">{{ words }}</div>
<div class="panel live" role="region" aria-label="The chosen word" hidden>\
<p>Point at a word or tap it; or tab to the text and move with the arrow keys.</p></div>
</div>
{% if passage.note %}<figcaption>{{ passage.note }}</figcaption>{% endif %}
<script type="application/json">{{ data }}</script>
</figure>""",
    "facts": "<dl>{% for term, text in pairs %}<dt>{{ term }}</dt><dd>{{ text }}</dd>{% endfor %}</dl>",
}
_ENVIRONMENT = jinja2.Environment(
    autoescape=True, trim_blocks=True, loader=jinja2.DictLoader(_TEMPLATES), undefined=jinja2.StrictUndefined
)


def rendered(template: str, **values: object) -> Markup:
    """Return a template with these values."""
    return Markup(_ENVIRONMENT.get_template(template).render(values))


def joined(parts: Iterable[Markup | None]) -> Markup:
    """Return pieces one below the other, without those that are empty."""
    return Markup("\n").join(part for part in parts if part)


def heading(text: str, level: int = 3) -> Markup:
    """Return a heading below those of the sections, which are of level 2."""
    return Markup(f"<h{level}>{{}}</h{level}>").format(text)


def note(text: str) -> Markup:
    """Return a small paragraph; empty for an empty text."""
    return Markup('<p class="note">{}</p>').format(text) if text else Markup()


def alarm(text: str) -> Markup:
    """Return a paragraph that nobody should overlook."""
    return Markup('<p class="alarm">{}</p>').format(text)


def paragraph(text: str) -> Markup:
    """Return a paragraph."""
    return Markup("<p>{}</p>").format(text)


def code(text: str) -> Markup:
    """Return text as it is, in a box; empty for an empty text."""
    return Markup("<pre>{}</pre>").format(text) if text else Markup()


def html_table(table: Table, about: str, look: str = "") -> Markup:
    """Return a table in a box that scrolls by itself; empty without rows. Columns of numbers have class `n`."""
    return scroll(rendered("table", table=table, look=look), about) if table.rows else Markup()


def scroll(inside: Markup, about: str) -> Markup:
    """Return a box for what may be wider than a phone; reachable by keyboard."""
    return rendered("scroll", inside=inside, about=about)


def html_plot(plot: Plot | None, wide: bool = False) -> Markup:
    """Return a figure with its caption; a wide one scrolls on a phone. Empty without a figure."""
    if plot is None:
        return Markup()
    return rendered("plot", picture=scroll(Markup(plot.svg), plot.title), caption=plot.caption, wide=wide)


def details(heading: str, inside: Markup) -> Markup:
    """Return a part that is folded up until somebody opens it; empty where it would be."""
    return rendered("details", heading=heading, inside=inside) if inside else Markup()


def facts(pairs: Sequence[tuple[str, str]]) -> Markup:
    """Return terms with their texts, as a list."""
    return rendered("facts", pairs=pairs)


def html_page(
    title: str,
    sections: Sequence[tuple[str, Markup]],
    *,
    summaries: Sequence[str],
    footer: str,
    first: str = "",
    script: str = "",
    script_hash: str = "",
) -> str:
    """Return a whole page. `summaries` stand at its top, below `first` where there are several."""
    policy = f"{_POLICY}; script-src '{script_hash}'" if script else _POLICY
    values = {"policy": Markup(policy), "css": Markup(CSS), "generator": GENERATOR, "script": Markup(script)}
    page = rendered("page", title=title, sections=sections, summaries=summaries, first=first, footer=footer, **values)
    return clean(page)
