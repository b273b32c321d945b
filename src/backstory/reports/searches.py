"""A search for settings in words and tables: the best trials, which settings mattered, and every trial."""

from collections.abc import Sequence

from backstory.config.scores import measure_of
from backstory.reports import formats
from backstory.reports.formats import MISSING, count
from backstory.reports.phrases import as_told, trial_value
from backstory.reports.results import Record, Result
from backstory.reports.tables import Column, Table, columns

NOTE = (
    "Importance is the share of a setting in what sets the good trials apart from the others (PED-ANOVA); few trials say "
    "little about it, and nothing about settings that were hardly varied."
)


def ranked(figures: Record) -> list[Record]:
    """The complete trials, the best first."""
    complete = [t for t in figures["trials"] if t["state"] == "complete"]
    return sorted(complete, key=lambda t: (t["valid_perplexity"], t["trial"]))


def by_importance(figures: Record) -> list[Record]:
    """The parameters, those that mattered most first; in their own order where nothing is known of that."""
    return sorted(figures["parameters"], key=lambda p: -(p["importance"] or 0.0))


def best(result: Result, most: int) -> Table:
    """The settings of the best trials side by side, a row each, with where they were searched and how much they mattered."""
    f = as_told(result.figures)
    shown = ranked(f)[:most]
    measured = any(p["importance"] is not None for p in f["parameters"])
    head = (Column("Setting"), Column("Searched"), *([Column("Importance", True)] if measured else []))
    head += tuple(Column(f"Trial {t['trial']}", True) for t in shown)
    blank = (MISSING,) if measured else ()
    rows = [(f"validation {measure_of(f['unit'])}", MISSING, *blank, *(trial_value(t) for t in shown))]
    for p in by_importance(f):
        share = (importance(p),) if measured else ()
        rows.append(
            (p["name"], searched(p), *share, *(setting(t["settings"].get(p["name"])) for t in shown if not p["same"]))
        )
    return Table(head, tuple(row + (MISSING,) * (len(head) - len(row)) for row in rows))


def trials(result: Result, settings: bool = True) -> Table:
    """Every trial: how it ended and, if `settings`, what was drawn for it."""
    f = as_told(result.figures)
    drawn = [p["name"] for p in f["parameters"] if not p["same"]] if settings else []
    rows = []
    for t in f["trials"]:
        state = "tried again" if t["state"] == "again" else t["state"]
        figures = (trial_value(t), count(t["epochs"]), formats.duration(t["seconds"]))
        values = (setting(t["settings"].get(name)) for name in drawn)
        rows.append((str(t["trial"]), state, *figures, *values, t["problem"] or MISSING))
    head = columns(
        "Trial", "State", f"Validation {measure_of(f['unit'])}#", "Epochs#", "Time#", *(f"{n}#" for n in drawn), "Note"
    )
    noted = any(row[-1] != MISSING for row in rows)
    return Table(head, tuple(rows)) if noted else Table(head[:-1], tuple(row[:-1] for row in rows))


def searched(parameter: Record) -> str:
    """Where a parameter's values came from: `0.001 to 0.1, log, where model.core.layers is 2`."""
    if parameter["same"]:
        told = f"as {parameter['same']}"
    elif parameter["choices"]:
        told = ", ".join(setting(choice) if choice is not None else "none" for choice in parameter["choices"])
    else:
        told = f"{setting(parameter['low'])} to {setting(parameter['high'])}{', log' if parameter['log'] else ''}"
    where = [f"{name} is {_either(values)}" for name, values in parameter["when"].items()]
    return f"{told}, where {' and '.join(where)}" if where else told


def importance(parameter: Record) -> str:
    """How much a parameter mattered, in percent."""
    share = parameter["importance"]
    return MISSING if share is None else f"{100 * share:.0f}%"


def setting(drawn: object) -> str:
    """A drawn value with the digits that tell it from others."""
    if isinstance(drawn, float):
        return f"{drawn:.3g}"
    return formats.plain(drawn)


def _either(values: Sequence) -> str:
    return " or ".join(setting(v) if v is not None else "none" for v in values)
