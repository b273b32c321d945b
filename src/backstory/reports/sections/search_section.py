"""A search for settings: its best trials, pictures of what mattered, and every trial."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from markupsafe import Markup
from rich.console import Console
from rich.text import Text

from backstory.config import formats
from backstory.config.formats import MISSING, count, perplexity, setting
from backstory.config.scores import measure_of
from backstory.config.terminal import printable
from backstory.reports import html_pieces as html
from backstory.reports.phrases import search_summary
from backstory.reports.sections import search_plots as plots
from backstory.reports.sections.section import Section, of_kind
from backstory.reports.tables import Column, Table, columns, to_text
from backstory.results import Result, RunResults, SearchFigures
from backstory.results.examination_record import Published
from backstory.results.search_record import AGAIN, COMPLETE, ParameterRecord

MOST_BEST = 5
"""Trials whose settings stand side by side."""
MOST_PICTURES = 4
"""Settings that have a picture, those that mattered most."""
NOTE = (
    "Importance is the share of a setting in what sets the good trials apart from the others (PED-ANOVA); few trials say "
    "little about it, and nothing about settings that were hardly varied."
)
HEIGHT = 8
"""Lines of the picture."""
LABEL = 7
"""Characters of the numbers left of it."""
FAR = 2.0
"""Times the best perplexity: trials above that stand in the uppermost line."""
BAR = 10
"""Characters of the longest bar."""
MOST_TROUBLED = 10
"""Trials with a problem that are listed."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"
DOT, RING, STAR = "•", "∘", "★"


def _html(runs: Sequence[RunResults], published: Published | None) -> Iterator[Markup]:
    results = [(run, result) for run in runs for result in run.of(SearchFigures)]
    for number, (run, result) in enumerate(results, start=1):
        yield html.heading(result.figures.title or run.name)
        yield html.paragraph(search_summary(result.figures))
        yield from search_html(result.figures, f"search{number}", 4)


def search_html(figures: SearchFigures, prefix: str, level: int) -> Iterator[Markup]:
    """Yield all of it, under headings of that level; `prefix` begins its ids and must differ on a page."""
    f, best = figures, figures.best_trial
    pictured = [p for p in by_importance(f) if not p.same][:MOST_PICTURES]
    pictures = [plots.against(f, p, f"{prefix}-parameter{i}") for i, p in enumerate(pictured, start=1)]
    measured = any(p.importance is not None for p in f.parameters)
    if best:
        yield html.heading("The best trials", level)
        yield html.html_table(best_table(f, MOST_BEST), "The best trials")
        yield html.note(NOTE if measured else "")
    yield html.html_plot(plots.history(f, f"{prefix}-history"))
    yield html.html_plot(plots.trial_curves(f, f"{prefix}-curves"))
    if any(pictures):
        yield html.heading("What mattered" if measured else "The settings", level)
    yield from map(html.html_plot, pictures)
    yield html.heading("Every trial", level)
    yield html.html_table(trials_table(f, settings=False), "Every trial")
    yield html.details("With their settings", html.html_table(trials_table(f), "Every trial with its settings"))


# --- tables ---


def by_importance(figures: SearchFigures) -> list[ParameterRecord]:
    """Return the parameters, those that mattered most first; in their own order where nothing is known of that."""
    return sorted(figures.parameters, key=lambda p: -(p.importance or 0.0))


def best_table(figures: SearchFigures, most: int) -> Table:
    """Return the settings of the best trials side by side, with where they were searched and how much they mattered."""
    f = figures.scored()
    best = f.ranked[:most]
    measured = any(p.importance is not None for p in f.parameters)
    head = (Column("Setting"), Column("Searched"), *([Column("Importance", True)] if measured else []))
    head += tuple(Column(f"Trial {t.trial}", True) for t in best)
    blank = (MISSING,) if measured else ()
    rows = [(f"validation {measure_of(f.unit)}", MISSING, *blank, *(perplexity(t.valid_perplexity) for t in best))]
    for p in by_importance(f):
        share = (importance(p),) if measured else ()
        rows.append((p.name, searched(p), *share, *(_value(t.settings.get(p.name)) for t in best if not p.same)))
    return Table(head, tuple(row + (MISSING,) * (len(head) - len(row)) for row in rows))


def trials_table(figures: SearchFigures, settings: bool = True) -> Table:
    """Return every trial: how it ended and, with `settings`, the values that it tried."""
    f = figures.scored()
    names = [p.name for p in f.parameters if not p.same] if settings else []
    rows = []
    for t in f.trials:
        state = "tried again" if t.state == AGAIN else t.state
        values = (_value(t.settings.get(name)) for name in names)
        rows.append((str(t.trial), state, perplexity(t.valid_perplexity), count(t.epochs), formats.duration(t.seconds),
                     *values, t.problem or MISSING))  # fmt: skip
    head = columns("Trial", "State", f"Validation {measure_of(f.unit)}#", "Epochs#", "Time#",
                   *(f"{name}#" for name in names), "Note")  # fmt: skip
    noted = any(row[-1] != MISSING for row in rows)
    return Table(head, tuple(rows)) if noted else Table(head[:-1], tuple(row[:-1] for row in rows))


def _value(value: object) -> str:
    return MISSING if value is None else setting(value)


def importance(parameter: ParameterRecord) -> str:
    """Return how much a parameter mattered, in percent."""
    return MISSING if parameter.importance is None else f"{100 * parameter.importance:.0f}%"


def searched(parameter: ParameterRecord) -> str:
    """Return where a parameter's values came from: `0.001 to 0.1, log, where model.core.layers is 2`."""
    if parameter.same:
        source = f"as {parameter.same}"
    elif parameter.choices:
        source = ", ".join(map(setting, parameter.choices))
    else:
        log = ", log" if parameter.log else ""
        source = f"{setting(parameter.low)} to {setting(parameter.high)}{log}"
    where = [f"{name} is {' or '.join(map(setting, values))}" for name, values in parameter.when.items()]
    return f"{source}, where {' and '.join(where)}" if where else source


# --- terminal ---


def show_search(result: Result[SearchFigures], console: Console, most: int = MOST_BEST) -> None:
    """Print a search: a sentence, the settings of its best trials, its trials as points, and what went wrong."""
    f = result.figures
    if f.title:
        _say(console, f.title, "bold")
    _say(console, search_summary(f))
    if f.best_trial is None:
        _say(console, f"\n{to_text(trials_table(f, settings=False))}")
        return
    _say(console, "\nThe best trials", "bold")
    _say(console, widest_best(f, console.width, most))
    _say(console, f"\nTrial by trial ({DOT} complete, {RING} pruned, {STAR} best)", "bold")
    for line in picture(f, console.width):
        console.print(line, highlight=False, soft_wrap=True)
    troubled = [t for t in f.trials if t.problem]
    if troubled:
        _say(console, "\nIn trouble", "bold")
        for t in troubled[-MOST_TROUBLED:]:
            _say(console, f"  trial {t.trial}: {t.problem}")
        if len(troubled) > MOST_TROUBLED:
            _say(console, f"  and {len(troubled) - MOST_TROUBLED} before them")


def widest_best(figures: SearchFigures, width: int, most: int) -> str:
    """Return the settings of as many of the best trials as the width holds, with a bar for how much each mattered."""
    for number in range(most, 0, -1):
        table = _with_bars(best_table(figures, number), figures)
        text = to_text(table)
        if max(map(len, text.splitlines())) <= width or number == 1:
            return text
    return ""


def _with_bars(table: Table, figures: SearchFigures) -> Table:
    """Return the table with a bar before each percentage of the column of importances, if it has one."""
    place = next((i for i, c in enumerate(table.columns) if c.heading == "Importance"), None)
    if place is None:
        return table
    shares = {p.name: p.importance or 0.0 for p in figures.parameters}
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


def picture(figures: SearchFigures, width: int) -> list[Text]:
    """Return trials as points, a column each (or the best of several), the lower the better."""
    trials = figures.scored().valued
    low = min(t.value for t in trials)
    high = min(max(t.value for t in trials), FAR * low)
    wide = max(1, min(len(trials), width - LABEL - 2))
    edges = [i * len(trials) // wide for i in range(wide + 1)]
    shown = [min(trials[a:b], key=lambda t: t.value) for a, b in pairwise(edges)]
    grid = [[" "] * wide for _ in range(HEIGHT)]
    for column, t in enumerate(shown):
        share = (min(t.value, high) - low) / ((high - low) or 1.0)
        mark = STAR if t.trial == figures.best else DOT if t.state == COMPLETE else RING
        grid[HEIGHT - 1 - round(share * (HEIGHT - 1))][column] = mark
    above = "≥" if max(t.value for t in trials) > high else ""
    labels = {0: f"{above}{perplexity(high)}", HEIGHT - 1: perplexity(low)}
    lines = []
    for number, cells in enumerate(grid):
        line = Text(f"{labels.get(number, ''):>{LABEL}} ", style="dim")
        for cell in cells:
            style = {STAR: "bold green", RING: "dim"}.get(cell, "not dim")
            line.append(cell, style=style)
        lines.append(line)
    return lines


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(printable(text), style=style or None, highlight=False, markup=False, soft_wrap=True)


SECTION = Section("Searches", of_kind(SearchFigures), _html, show_search)
