"""A search for settings: its best trials, pictures of the most important settings, and every trial."""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from backstory.reports import document as pieces
from backstory.reports import svg
from backstory.reports.document import Piece, Section, of_kind, print_text
from backstory.reports.phrases import search_summary
from backstory.reports.svg import LARGEST, Plot, whole_numbers
from backstory.reports.tables import Table, columns, to_text, without_empty_columns
from backstory.results import Result, RunResults, SearchFigures
from backstory.results.published_values import Published
from backstory.results.search_record import AGAIN, COMPLETE, ParameterRecord, TrialRecord
from backstory.results.validation import is_number
from backstory.utils import formats
from backstory.utils.formats import MISSING, count, perplexity, setting
from backstory.utils.scores import IN_BITS, measure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BEST = 5
"""Number of best trials whose settings are shown side by side."""
MOST_PICTURES = 4
"""Number of settings with a picture, the most important ones."""
NOTE = (
    "Importance is a setting’s share in what distinguishes the good trials from the others (PED-ANOVA). Few trials say little "
    "about it, and nothing about settings that were hardly varied."
)
HEIGHT = 8
"""Height of the terminal's picture in lines."""
LABEL = 7
"""Width of the numbers left of it, in characters."""
FAR = 2.0
"""Upper limit of the picture, as a multiple of the best perplexity. Worse trials are drawn at the edge."""
MOST_CURVES = 300
_BEST, _OTHER = svg.COLOURS[1], svg.COLOURS[0]
BAR = 10
"""Length of the longest bar in characters."""
MOST_TROUBLED = 10
"""Maximum number of listed trials with a problem."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"
DOT, RING, STAR = "•", "∘", "★"


def _pieces(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    """Yield the best trials of a search, pictures of the most important settings, and every trial."""
    results = [(run, result) for run in runs for result in run.of(SearchFigures)]
    for number, (run, result) in enumerate(results, start=1):
        yield pieces.Heading(result.figures.title or run.name)
        yield pieces.Paragraph(search_summary(result.figures))
        yield from search_pieces(result.figures, f"search{number}", 4)


def search_pieces(figures: SearchFigures, prefix: str, level: int) -> Iterator[Piece | None]:
    """Yield the search, under headings of that level. `prefix` begins its ids and must be unique on a page."""
    f, best = figures, figures.best_trial
    pictured = [p for p in by_importance(f) if not p.same][:MOST_PICTURES]
    pictures = [against(f, p, f"{prefix}-parameter{i}") for i, p in enumerate(pictured, start=1)]
    measured = any(p.importance is not None for p in f.parameters)
    if best:
        yield pieces.Heading("The best trials", level)
        yield pieces.Tabular(best_table(f, MOST_BEST), "The best trials")
        yield pieces.Note(NOTE if measured else "")
    yield pieces.figure(history(f, f"{prefix}-history"))
    yield pieces.figure(trial_curves(f, f"{prefix}-curves"))
    if any(pictures):
        yield pieces.Heading("Importance of the settings" if measured else "The settings", level)
    yield from map(pieces.figure, pictures)
    yield pieces.Heading("Every trial", level)
    yield pieces.Tabular(trials_table(f, settings=False), "Every trial")
    yield pieces.details("With their settings", pieces.Tabular(trials_table(f), "Every trial with its settings"))


# --- tables ---


def by_importance(figures: SearchFigures) -> list[ParameterRecord]:
    """Return the parameters by importance, the largest first; in their own order if it is unknown."""
    return sorted(figures.parameters, key=lambda p: -(p.importance or 0.0))


def best_table(figures: SearchFigures, most: int) -> Table:
    """Return the settings of the best trials side by side, with their ranges and importance."""
    f = figures.scored()
    best = f.ranked[:most]
    rows = [(f"validation {measure_of(f.unit)}", MISSING, MISSING, *(perplexity(t.valid_perplexity) for t in best))]
    for p in by_importance(f):
        values = (MISSING if p.same else _value(t.settings.get(p.name)) for t in best)
        rows.append((p.name, searched(p), importance(p), *values))
    heads = columns("Setting", "Searched", "Importance#", *(f"Trial {t.trial}#" for t in best))
    return without_empty_columns(Table(heads, tuple(rows)))


def trials_table(figures: SearchFigures, settings: bool = True) -> Table:
    """Return every trial with its outcome and, with `settings`, its values."""
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
    """Return the importance of a parameter in percent."""
    return MISSING if parameter.importance is None else f"{100 * parameter.importance:.0f}%"


def searched(parameter: ParameterRecord) -> str:
    """Return the range of a parameter: `0.001 to 0.1, log, where model.core.layers is 2`."""
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
    """Print a search: a sentence, the settings of its best trials, a picture of all trials, and the problems."""
    f = result.figures
    if f.title:
        print_text(console, f.title, "bold")
    print_text(console, search_summary(f))
    if f.best_trial is None:
        print_text(console, f"\n{to_text(trials_table(f, settings=False))}")
        return
    print_text(console, "\nThe best trials", "bold")
    print_text(console, widest_best(f, console.width, most))
    print_text(console, f"\nTrial by trial ({DOT} complete, {RING} pruned, {STAR} best)", "bold")
    for line in picture(f, console.width):
        console.print(line, highlight=False, soft_wrap=True)
    troubled = [t for t in f.trials if t.problem]
    if troubled:
        print_text(console, "\nTrials with problems", "bold")
        for t in troubled[-MOST_TROUBLED:]:
            print_text(console, f"  trial {t.trial}: {t.problem}")
        if len(troubled) > MOST_TROUBLED:
            print_text(console, f"  and {len(troubled) - MOST_TROUBLED} before them")


def widest_best(figures: SearchFigures, width: int, most: int) -> str:
    """Return the settings of as many of the best trials as fit, with a bar for each importance."""
    for number in range(most, 0, -1):
        table = _with_bars(best_table(figures, number), figures)
        text = to_text(table)
        if max(map(cell_len, text.splitlines())) <= width or number == 1:
            return text
    return ""


def _with_bars(table: Table, figures: SearchFigures) -> Table:
    """Return the table with a bar before each percentage of the column of importances, if it has one."""
    importance = next((i for i, c in enumerate(table.columns) if c.heading == "Importance"), None)
    if importance is None:
        return table
    shares = {p.name: p.importance or 0.0 for p in figures.parameters}
    largest = max(shares.values()) or 1.0
    rows = []
    for row in table.rows:
        bar = _bar(shares.get(row[0], 0.0) / largest) if row[0] in shares else " " * BAR
        rows.append((*row[:importance], f"{bar} {row[importance]:>4}", *row[importance + 1 :]))
    return Table(table.columns, tuple(rows))


def _bar(share: float) -> str:
    eighths = round(share * BAR * 8)
    full, rest = divmod(eighths, 8)
    return f"{'█' * full}{_EIGHTHS[rest] if rest else ''}".ljust(BAR)


def picture(figures: SearchFigures, width: int) -> list[Text]:
    """Return trials as points, a column each (or the best of several); lower is better."""
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


# --- figures ---


def history(figures: SearchFigures, prefix: str) -> Plot | None:
    """Draw the validation perplexity of every trial in order of start, and the best so far as a line."""
    f = figures.scored()
    trials, best = f.valued, f.best_trial
    if best is None:
        return None
    caption = (
        f"{_heading(f)} of each trial: dots are complete trials, rings pruned ones at their best; the line is the best "
        f"so far, {perplexity(best.value)} with trial {best.trial}.{_edge(trials, best)}"
    )

    def draw(width: float) -> "Figure":
        figure, axes = svg.blank(width)
        _points(axes, [(t.trial, t) for t in trials], best)
        complete = [t for t in trials if t.state == COMPLETE]
        low = [*accumulate((t.value for t in complete), min)]
        x = [*(t.trial for t in complete), trials[-1].trial]
        axes.step(x, [*low, low[-1]], where="post", color=_BEST, linewidth=1.2)
        _value_axis(axes, [t.value for t in trials], best, f.unit)
        whole_numbers(axes)
        axes.set_xlabel("trial")
        return figure

    return svg.plot(draw, prefix, "Trial by trial", caption)


def trial_curves(figures: SearchFigures, prefix: str) -> Plot | None:
    """Draw the validation curve of every trial, with the best one thick."""
    f = figures.scored()
    best = f.best_trial
    trials = [t for t in f.trials if len(t.curve) > 1][-MOST_CURVES:]
    if best is None or len(best.curve) < 2:
        return None
    caption = f"{_heading(f)} after each epoch; the thick line is trial {best.trial}, and pruned trials end early."

    def draw(width: float) -> "Figure":
        figure, axes = svg.blank(width)
        for t in trials:
            if t is not best:
                axes.plot(*zip(*t.curve, strict=True), color=_OTHER, linewidth=0.8, alpha=0.45)
                axes.plot(*t.curve[-1], marker="o", markersize=2.4, color=_OTHER, alpha=0.6)
        axes.plot(*zip(*best.curve, strict=True), color=_BEST)
        _value_axis(axes, [value for t in trials for _, value in t.curve], best, f.unit, far=2 * FAR)
        whole_numbers(axes)
        axes.set_xlabel("epoch")
        return figure

    return svg.plot(draw, prefix, "Learning curves", caption)


def against(figures: SearchFigures, parameter: ParameterRecord, prefix: str) -> Plot | None:
    """Draw the validation perplexity of the trials against the value of a setting."""
    f, name, choices = figures.scored(), parameter.name, parameter.choices
    trials, best = [t for t in f.valued if t.settings.get(name) is not None], f.best_trial
    if best is None or not trials:
        return None
    values = [(t.settings[name], t) for t in trials]
    if choices:
        points: list[tuple[float, TrialRecord]] = [(choices.index(v), t) for v, t in values if v in choices]
    else:
        points = [(v, t) for v, t in values if is_number(v) and abs(v) < LARGEST]

    def draw(width: float) -> "Figure":
        figure, axes = svg.blank(width, 2.6)
        _points(axes, points, best)
        _value_axis(axes, [t.value for t in trials], best, f.unit)
        if choices:
            axes.set_xticks(range(len(choices)), [svg.label(setting(choice), 14) for choice in choices])
            axes.set_xlim(-0.5, len(choices) - 0.5)
        elif parameter.log:
            axes.set_xscale("log")
            _log_ticks(axes)
        axes.set_xlabel(svg.label(name, 50))
        return figure

    at = f" The larger mark is the best trial, at {setting(best.settings[name])}." if best in trials else ""
    return svg.plot(draw, prefix, name, f"{_heading(f)} against {name}.{at}{_edge(trials, best)}")


def _heading(figures: SearchFigures) -> str:
    return f"Validation {measure_of(figures.unit)}"


def _edge(trials: Sequence[TrialRecord], best: TrialRecord) -> str:
    far = sum(t.value > FAR * best.value for t in trials)
    return f" At the upper edge: {far} above {FAR:g} times the best." if far else ""


def _points(axes: "Axes", points: Sequence[tuple[float, TrialRecord]], best: TrialRecord) -> None:
    edge = FAR * best.value
    for x, t in points:
        far = t.value > edge
        colour = _BEST if t is best else _OTHER
        filled = t.state == COMPLETE
        axes.plot(x, min(t.value, edge), marker="^" if far else "o", color=colour, clip_on=False,
                  markerfacecolor=colour if filled else "none", markersize=6 if t is best else 4.2,
                  zorder=5 if t is best else 3, alpha=1 if filled else 0.75)  # fmt: skip


def _value_axis(axes: "Axes", values: Sequence[float], best: TrialRecord, unit: str | None, far: float = FAR) -> None:
    low = best.value
    high = min(max(values), far * low)
    margin = 0.06 * (high - low) or 0.05 * low
    axes.set_ylim(low - margin, high + margin)
    what = "bits" if unit in IN_BITS else "perplexity"
    axes.set_ylabel(f"{what} per {svg.label(unit, 20)}" if unit else what)


def _log_ticks(axes: "Axes") -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_xlim()
    subs = (1, 2, 5) if high < 300 * low else (1,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.3g}" if math.isfinite(v) else ""))


SECTION = Section("Searches", of_kind(SearchFigures), _pieces, show_search)
