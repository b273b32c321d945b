"""The figures of a search: values trial by trial, the trials' learning curves, and values against a setting."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from backstory.config.scores import IN_BITS, measure_of
from backstory.reports import svg
from backstory.reports.phrases import as_told, best_trial, trial_value, valued
from backstory.reports.plots import LARGEST, Plot, whole_numbers
from backstory.reports.results import Record, Result
from backstory.reports.searches import setting
from backstory.reports.shapes import NUMBER

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAR = 2.0
"""Times the best perplexity: what is above that is drawn at the upper edge, as it would press everything else flat."""
MOST_CURVES = 300
_BEST, _OTHER = svg.COLOURS[1], svg.COLOURS[0]


def history(result: Result, prefix: str) -> Plot | None:
    """The validation perplexity of every trial in the order in which they began, and the best so far as a line."""
    f = as_told(result.figures)
    trials, best = valued(f["trials"]), best_trial(f)
    if best is None:
        return None
    complete = [t for t in trials if t["state"] == "complete"]
    title = "Trial by trial"
    caption = (
        f"{_heading(f)} of each trial: dots are complete trials, rings pruned ones at their best; the line is the best "
        f"so far, {trial_value(best)} with trial {best['trial']}.{_edge(trials, best)}"
    )
    with svg.style():
        figure, axes = svg.blank()
        _points(axes, [(t["trial"], t) for t in trials], best)
        x, y = [t["trial"] for t in complete], [t["valid_perplexity"] for t in complete]
        low = [*accumulate(y, min)]
        axes.step([*x, trials[-1]["trial"]], [*low, low[-1]], where="post", color=_BEST, linewidth=1.2)
        _value_axis(axes, trials, best, f["unit"])
        whole_numbers(axes)
        axes.set_xlabel("trial")
        return Plot(title, svg.inline(figure, prefix, title, caption), caption)


def curves(result: Result, prefix: str) -> Plot | None:
    """The validation curve of every trial, that of the best one drawn out."""
    f = as_told(result.figures)
    best = best_trial(f)
    trials = [t for t in f["trials"] if len(t["curve"]) > 1][-MOST_CURVES:]
    if best is None or len(best["curve"]) < 2:
        return None
    title = "Learning curves"
    caption = f"{_heading(f)} after each epoch; the thick line is trial {best['trial']}, and pruned trials end early."
    with svg.style():
        figure, axes = svg.blank()
        for t in trials:
            if t is not best:
                axes.plot(*zip(*t["curve"], strict=True), color=_OTHER, linewidth=0.8, alpha=0.45)
                axes.plot(*t["curve"][-1], marker="o", markersize=2.4, color=_OTHER, alpha=0.6)
        axes.plot(*zip(*best["curve"], strict=True), color=_BEST)
        ends = [{"valid_perplexity": v} for t in trials for _, v in t["curve"]]
        _value_axis(axes, ends, best, f["unit"], far=2 * FAR)
        whole_numbers(axes)
        axes.set_xlabel("epoch")
        return Plot(title, svg.inline(figure, prefix, title, caption), caption)


def against(result: Result, parameter: Record, prefix: str) -> Plot | None:
    """The validation perplexity of the trials against a setting that was drawn for them."""
    f, name = as_told(result.figures), parameter["name"]
    trials, best = [t for t in valued(f["trials"]) if t["settings"].get(name) is not None], best_trial(f)
    if best is None or not trials:
        return None
    title = name
    caption = f"{_heading(f)} against {name}.{_edge(trials, best)}"
    with svg.style():
        figure, axes = svg.blank(height=2.6)
        choices = parameter["choices"]
        drawn = [(t["settings"][name], t) for t in trials]
        places = [(choices.index(v) if choices else v, t) for v, t in drawn
                  if (v in choices if choices else NUMBER.fits(v) and abs(v) < LARGEST)]  # fmt: skip
        _points(axes, places, best)
        _value_axis(axes, trials, best, f["unit"])
        if choices:
            axes.set_xticks(range(len(choices)), [svg.label("none" if c is None else setting(c), 14) for c in choices])
            axes.set_xlim(-0.5, len(choices) - 0.5)
        elif parameter["log"]:
            axes.set_xscale("log")
            _log_ticks(axes)
        axes.set_xlabel(svg.label(name, 50))
        return Plot(title, svg.inline(figure, prefix, title, caption), caption)


def _heading(figures: Record) -> str:
    return f"Validation {measure_of(figures['unit'])}"


def _edge(trials: Sequence[Record], best: Record) -> str:
    far = sum(t["valid_perplexity"] > FAR * best["valid_perplexity"] for t in trials)
    return f" At the upper edge: {far} above {FAR:g} times the best." if far else ""


def _points(axes: "Axes", places: Sequence[tuple[float, Record]], best: Record) -> None:
    edge = FAR * best["valid_perplexity"]
    for x, t in places:
        far = t["valid_perplexity"] > edge
        colour = _BEST if t is best else _OTHER
        filled = t["state"] == "complete"
        axes.plot(x, min(t["valid_perplexity"], edge), marker="^" if far else "o", color=colour, clip_on=False,
                  markerfacecolor=colour if filled else "none", markersize=6 if t is best else 4.2,
                  zorder=5 if t is best else 3, alpha=1 if filled else 0.75)  # fmt: skip


def _value_axis(axes: "Axes", trials: Sequence[Record], best: Record, unit: str | None, far: float = FAR) -> None:
    low = best["valid_perplexity"]
    high = min(max(t["valid_perplexity"] for t in trials), far * low)
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
