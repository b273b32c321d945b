"""A search for settings in a terminal: the best trials and their settings, every trial as a point, and how they ended."""

from itertools import pairwise

from rich.console import Console
from rich.text import Text

from backstory.config.terminal import printable
from backstory.reports import phrases as words
from backstory.reports import searches
from backstory.reports.formats import perplexity
from backstory.reports.results import Record, Result
from backstory.reports.tables import Table, to_text

HEIGHT = 8
"""Lines of the picture."""
LABEL = 7
"""Characters of the numbers left of it."""
FAR = 2.0
"""Times the best perplexity: trials above that stand in the uppermost line."""
BAR = 10
"""Characters of the longest bar."""
MOST_TROUBLED = 10
"""Trials with a problem that are told of."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"
COMPLETE, PRUNED, BEST = "•", "∘", "★"


def show(result: Result, console: Console, most: int) -> None:
    """Print a search: a sentence, the settings of its best trials, its trials as points, and what went wrong."""
    f = result.figures
    if f["title"]:
        _say(console, f["title"], "bold")
    _say(console, words.search_summary(f))
    if words.best_trial(f) is None:
        _say(console, f"\n{to_text(searches.trials(result, settings=False))}")
        return
    _say(console, "\nThe best trials", "bold")
    _say(console, best(result, console.width, most))
    _say(console, f"\nTrial by trial ({COMPLETE} complete, {PRUNED} pruned, {BEST} best)", "bold")
    for line in picture(f, console.width):
        console.print(line, highlight=False, soft_wrap=True)
    troubled = [t for t in f["trials"] if t["problem"]]
    if troubled:
        _say(console, "\nIn trouble", "bold")
        for t in troubled[-MOST_TROUBLED:]:
            _say(console, f"  trial {t['trial']}: {t['problem']}")
        if len(troubled) > MOST_TROUBLED:
            _say(console, f"  and {len(troubled) - MOST_TROUBLED} before them")


def best(result: Result, width: int, most: int) -> str:
    """The settings of the best trials, as many as the width holds, at least one, with a bar for how much each mattered."""
    for number in range(most, 0, -1):
        table = _with_bars(searches.best(result, number), result.figures)
        text = to_text(table)
        if max(map(len, text.splitlines())) <= width or number == 1:
            return text
    return ""


def _with_bars(table: Table, figures: Record) -> Table:
    """The table with a bar before each percentage of the column of importances, if it has one."""
    place = next((i for i, c in enumerate(table.columns) if c.heading == "Importance"), None)
    if place is None:
        return table
    shares = {p["name"]: p["importance"] or 0.0 for p in figures["parameters"]}
    largest = max(shares.values()) or 1.0
    rows = []
    for row in table.rows:
        bar = _bar(shares.get(row[0], 0.0) / largest) if row[0] in shares else " " * BAR
        rows.append((*row[:place], f"{bar} {row[place]:>4}", *row[place + 1 :]))
    return Table(table.columns, tuple(rows))


def _bar(share: float) -> str:
    eighths = round(share * BAR * 8)
    full, rest = divmod(eighths, 8)
    return f"{'█' * full}{_EIGHTHS[rest] if rest else ''}".ljust(BAR)


def picture(figures: Record, width: int) -> list[Text]:
    """Trials as points, a column each (or the best of several), the lower the better."""
    trials = words.valued(words.as_told(figures)["trials"])
    low = min(t["valid_perplexity"] for t in trials)
    high = min(max(t["valid_perplexity"] for t in trials), FAR * low)
    wide = max(1, min(len(trials), width - LABEL - 2))
    edges = [i * len(trials) // wide for i in range(wide + 1)]
    shown = [min(trials[a:b], key=lambda t: t["valid_perplexity"]) for a, b in pairwise(edges)]
    grid = [[" "] * wide for _ in range(HEIGHT)]
    for column, t in enumerate(shown):
        share = (min(t["valid_perplexity"], high) - low) / ((high - low) or 1.0)
        mark = BEST if t["trial"] == figures["best"] else COMPLETE if t["state"] == "complete" else PRUNED
        grid[HEIGHT - 1 - round(share * (HEIGHT - 1))][column] = mark
    above = "≥" if max(t["valid_perplexity"] for t in trials) > high else ""
    labels = {0: f"{above}{perplexity(high)}", HEIGHT - 1: perplexity(low)}
    lines = []
    for number, cells in enumerate(grid):
        line = Text(f"{labels.get(number, ''):>{LABEL}} ", style="dim")
        for cell in cells:
            style = {BEST: "bold green", PRUNED: "dim"}.get(cell, "not dim")
            line.append(cell, style=style)
        lines.append(line)
    return lines


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(printable(text), style=style or None, highlight=False, markup=False, soft_wrap=True)
