"""A search for settings as HTML: the best trials, pictures of what mattered, and every trial."""

from html import escape

from backstory.reports import html_pieces as pieces
from backstory.reports import phrases as words
from backstory.reports import search_plots, searches
from backstory.reports.results import Result

MOST_BEST = 5
"""Trials whose settings stand side by side."""
MOST_PICTURES = 4
"""Settings that have a picture, those that mattered most."""


def body(result: Result, name: str, level: str) -> str:
    """All of it, under headings of that level (`h2`); `name` begins its ids and must differ on a page."""
    f = result.figures
    best = words.best_trial(f)
    pictured = [p for p in searches.by_importance(f) if not p["same"]][:MOST_PICTURES]
    pictures = [
        pieces.plot(search_plots.against(result, p, f"{name}-parameter{i}")) for i, p in enumerate(pictured, start=1)
    ]
    measured = any(p["importance"] is not None for p in f["parameters"])
    parts = [
        _heading(level, "The best trials") if best else "",
        pieces.table(searches.best(result, MOST_BEST), "The best trials") if best else "",
        f'<p class="note">{escape(searches.NOTE)}</p>' if best and measured else "",
        pieces.plot(search_plots.history(result, f"{name}-history")),
        pieces.plot(search_plots.curves(result, f"{name}-curves")),
        _heading(level, "What mattered" if measured else "The settings") if any(pictures) else "",
        *pictures,
        _heading(level, "Every trial"),
        pieces.table(searches.trials(result, settings=False), "Every trial"),
        pieces.details("With their settings", pieces.table(searches.trials(result), "Every trial with its settings")),
    ]
    return "\n".join(part for part in parts if part)


def _heading(level: str, text: str) -> str:
    return f"<{level}>{escape(text)}</{level}>"
