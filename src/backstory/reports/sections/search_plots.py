"""The figures of a search: values trial by trial, the trials' learning curves, and values against a setting."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from backstory.config.formats import perplexity, setting
from backstory.config.scores import IN_BITS, measure_of
from backstory.reports import svg
from backstory.reports.axes import LARGEST, whole_numbers
from backstory.reports.svg import Plot
from backstory.results import SearchFigures
from backstory.results.search_record import COMPLETE, ParameterRecord, TrialRecord
from backstory.results.validation import is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAR = 2.0
"""Times the best perplexity: what is above that is drawn at the upper edge, as it would press everything else flat."""
MOST_CURVES = 300
_BEST, _OTHER = svg.COLOURS[1], svg.COLOURS[0]


def history(figures: SearchFigures, prefix: str) -> Plot | None:
    """Draw the validation perplexity of every trial in the order in which they began, and the best so far as a line."""
    f = figures.scored()
    trials, best = f.valued, f.best_trial
    if best is None:
        return None
    caption = (
        f"{_heading(f)} of each trial: dots are complete trials, rings pruned ones at their best; the line is the best "
        f"so far, {perplexity(best.value)} with trial {best.trial}.{_edge(trials, best)}"
    )
    with svg.style():
        figure, axes = svg.blank()
        _points(axes, [(t.trial, t) for t in trials], best)
        complete = [t for t in trials if t.state == COMPLETE]
        low = [*accumulate((t.value for t in complete), min)]
        x = [*(t.trial for t in complete), trials[-1].trial]
        axes.step(x, [*low, low[-1]], where="post", color=_BEST, linewidth=1.2)
        _value_axis(axes, [t.value for t in trials], best, f.unit)
        whole_numbers(axes)
        axes.set_xlabel("trial")
        return svg.plot(figure, prefix, "Trial by trial", caption)


def trial_curves(figures: SearchFigures, prefix: str) -> Plot | None:
    """Draw the validation curve of every trial, that of the best one as a thick line."""
    f = figures.scored()
    best = f.best_trial
    trials = [t for t in f.trials if len(t.curve) > 1][-MOST_CURVES:]
    if best is None or len(best.curve) < 2:
        return None
    caption = f"{_heading(f)} after each epoch; the thick line is trial {best.trial}, and pruned trials end early."
    with svg.style():
        figure, axes = svg.blank()
        for t in trials:
            if t is not best:
                axes.plot(*zip(*t.curve, strict=True), color=_OTHER, linewidth=0.8, alpha=0.45)
                axes.plot(*t.curve[-1], marker="o", markersize=2.4, color=_OTHER, alpha=0.6)
        axes.plot(*zip(*best.curve, strict=True), color=_BEST)
        _value_axis(axes, [value for t in trials for _, value in t.curve], best, f.unit, far=2 * FAR)
        whole_numbers(axes)
        axes.set_xlabel("epoch")
        return svg.plot(figure, prefix, "Learning curves", caption)


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
    with svg.style():
        figure, axes = svg.blank(height=2.6)
        _points(axes, points, best)
        _value_axis(axes, [t.value for t in trials], best, f.unit)
        if choices:
            axes.set_xticks(range(len(choices)), [svg.label(setting(choice), 14) for choice in choices])
            axes.set_xlim(-0.5, len(choices) - 0.5)
        elif parameter.log:
            axes.set_xscale("log")
            _log_ticks(axes)
        axes.set_xlabel(svg.label(name, 50))
        return svg.plot(figure, prefix, name, f"{_heading(f)} against {name}.{_edge(trials, best)}")


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
