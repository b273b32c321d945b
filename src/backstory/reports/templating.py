"""The templates of a page: every value is escaped where it is filled in."""

import re
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

TEMPLATES = Path(__file__).with_name("templates")


def rendered(template: str, **values: object) -> Markup:
    """Return a template with these values."""
    return Markup(_ENVIRONMENT.get_template(f"{template}.html").render(values))


def breakable(text: str) -> Markup:
    """Return a dotted name that breaks after its dots and underlines, where a line must be broken."""
    return Markup(re.sub(r"(?<=\w)([._])(?=\w)", r"\1<wbr>", str(escape(text))))


def slug(text: str) -> str:
    """Return a title as a name for files and links."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


_ENVIRONMENT = jinja2.Environment(
    autoescape=True, trim_blocks=True, loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined
)
_ENVIRONMENT.filters["breakable"], _ENVIRONMENT.filters["slug"] = breakable, slug
