"""Look of a report: templates, style sheet, and shades of words that are distinct with any kind of colour vision."""

import re
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from backstory.results.passage import STEPS, Numbers, Weights

TEMPLATES = Path(__file__).with_name("templates")
INK = ("#22211e", "#e4e1da")
"""Text colour at every step, on a light and on a dark page. Contrast is at least 4.5 throughout."""
PAPER = ("#fdfcfa", "#16171a")
# Warm colours mean costs (surprisal, losses), cool ones gains or attention weights. Orange and blue differ even with
# red-green colour blindness, and lightness alone distinguishes the steps of a ramp.
_PEAKS = {"warm": ("#ec7d12", "#9c4a00"), "cool": ("#4aa3e2", "#1b5f9e")}

# 256-colour terminals have few oranges and blues: nearest colours would change hue along the ramp.
XTERM = {
    ("warm", False): (230, 230, 223, 223, 222, 216, 215, 208),
    ("warm", True): (236, 238, 94, 94, 130, 130, 172, 208),
    ("cool", False): (195, 195, 153, 153, 117, 117, 75, 39),
    ("cool", True): (236, 238, 24, 24, 25, 25, 32, 39),
}
"""Steps 1 to STEPS of a ramp, light and dark, as numbers of the xterm palette."""


def ramp(hue: str, dark: bool) -> tuple[str, ...]:
    """Return the colours of steps 1 to STEPS, as #rrggbb."""
    paper, peak = PAPER[dark], _PEAKS[hue][dark]
    # The first step is already seen, and the steps are even.
    return tuple(_mix(paper, peak, (i + 0.3) / (STEPS + 0.3)) for i in range(1, STEPS + 1))


def step(layer: Numbers | Weights, value: float | None) -> int:
    """Return the step of a value on its layer's scale: 0 to STEPS, or -STEPS to STEPS for a diverging layer."""
    if value is None:
        return 0
    low = 0.0 if isinstance(layer, Weights) or layer.kind == "diverging" else layer.low
    share = (value - low) / (layer.high - low) if layer.high > low else 0.0
    least = -1.0 if layer.kind == "diverging" else 0.0
    return round(STEPS * min(1.0, max(least, share)))


def steps(layer: Numbers | Weights) -> range:
    """Return the steps of a layer's scale."""
    return range(-STEPS if layer.kind == "diverging" else 0, STEPS + 1)


def hue(layer: Numbers | Weights, step: int) -> str:
    """Return the ramp of a layer's step."""
    return "cool" if layer.kind == "weights" or (layer.kind == "diverging" and step > 0) else "warm"


def css_class(layer: Numbers | Weights, step: int) -> str:
    """Return the CSS classes of a word at a step of a layer. Losses are also underlined, for print without colour."""
    if step == 0:
        return ""
    return f"{hue(layer, step)}{abs(step)}" + (" loss" if step < 0 else "")


def variables(dark: bool) -> str:
    """Return the ramps as CSS variables."""
    return " ".join(f"--{h}{i}: {c};" for h in _PEAKS for i, c in enumerate(ramp(h, dark), start=1))


def rules() -> str:
    """Return the CSS rule of every step."""
    return "\n".join(f".{h}{i} {{ background: var(--{h}{i}); }}" for h in _PEAKS for i in range(1, STEPS + 1))


def _mix(a: str, b: str, share: float) -> str:
    parts = ((int(a[i : i + 2], 16), int(b[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(x + (y - x) * share):02x}" for x, y in parts)


CSS = f"""
:root {{ {variables(dark=False)} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {variables(dark=True)} }} }}
{rules()}

""" + TEMPLATES.joinpath("page.css").read_text(encoding="utf-8")
"""The style sheet of a page, light and dark, for wide screens, phones and paper."""


def rendered(template: str, **values: object) -> Markup:
    """Fill in a template."""
    return Markup(_ENVIRONMENT.get_template(f"{template}.html").render(values))


def breakable(text: str) -> Markup:
    """Let a name wrap after the dots, underscores and plus signs inside it."""
    return Markup(re.sub(r"(?<=\w)([._+])(?=\w)", r"\1<wbr>", str(escape(text))))


def slug(text: str) -> str:
    """Return a title as a name for files and links."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


_ENVIRONMENT = jinja2.Environment(
    autoescape=True, trim_blocks=True, loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined
)
_ENVIRONMENT.filters["breakable"], _ENVIRONMENT.filters["slug"] = breakable, slug
