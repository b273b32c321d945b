"""Reproductions as tables: published beside ours, and whether each claim holds."""

from collections.abc import Sequence

from backstory.reports import formats
from backstory.reports.formats import MISSING, count
from backstory.reports.results import Record, Result
from backstory.reports.tables import Table, columns, without_empty_columns
from backstory.reports.words import effective_context

RULE = (
    "A claim holds where the 95% t interval of the mean gain over seeds lies above 0 (lower is better): of the differences "
    "seed by seed where both sides have the same seeds, else Welch's. Where it holds 0 nothing is decided, and one seed "
    "decides nothing."
)


def systems(result: Result) -> Table:
    """Every system of a reproduction and how it was read: the published figure, and ours over its seeds."""
    f = result.figures
    rows = [
        (row["row"], _read(row), _published(f, row), _figure(f, row["mean"]),
         _figure(f, row["deviation"]), _seeds(row), count(row["parameters"]), count(row["tokens"]), _audit(row),
         _context(f, row["row"]), row["note"] or MISSING)
        for row in f["rows"]
    ]  # fmt: skip
    name = f"bits per {f['unit'] or 'token'}" if f["metric"] == "bits_per_token" else f["metric"]
    return without_empty_columns(Table(
        columns("System", "Read", f"Published {name}", f"Ours, {f['scale']} scale#", "Deviation#", "Seeds#",
                "Parameters#", "Over#", "Audit", "Effective context", "Note"), tuple(rows)))  # fmt: skip


def claims(result: Result) -> Table:
    """Every claim with the published gain, ours with its 95% interval over seeds, and the verdict."""
    f = result.figures
    rows = []
    for claim in f["claims"]:
        interval = MISSING if claim["low"] is None else f"{_figure(f, claim['low'])} to {_figure(f, claim['high'])}"
        rows.append((claim["sentence"], _figure(f, claim["published_gain"]), _figure(f, claim["gain"]), interval,
                     " and ".join(map(str, claim["seeds"])), claim["verdict"]))  # fmt: skip
    return Table(
        columns("Claim", "Published gain#", "Our gain#", "95% interval#", "Seeds#", "Does it hold?"), tuple(rows)
    )


def failed(result: Result) -> list[str]:
    """What went wrong, a line for each run that failed."""
    return [f"{run['run']} failed: {run.get('problem')}" for run in result.figures["runs"] if run["state"] == "failed"]


def _read(row: Record) -> str:
    """What was read and how: `test, static`, `test, foreign, 10 rows`."""
    rows = row.get("rows", 1)  # results of versions that read in one row only do not say so
    return f"{row['split']}, {row['reader']}" + ("" if rows == 1 else f", {count(rows)} rows")


def _figure(figures: Record, value: float | None) -> str:
    return formats.decimal(value, 2 if figures["metric"] == "perplexity" else 4)


def _published(figures: Record, row: Record) -> str:
    if row["published"] is None:
        return MISSING
    return f"{_figure(figures, row['published'])} ({row['source']})"


def _seeds(row: Record) -> str:
    done, planned = len(row["seeds"]), len(row["planned_seeds"])
    return str(done) if done == planned else f"{done} of {planned}"


def _audit(row: Record) -> str:
    return MISSING if row["audited"] is None else "audited" if row["audited"] else "AUDIT FAILED"


def _context(figures: Record, row: str) -> str:
    """The effective contexts that the row's runs were examined for."""
    found: Sequence[Record] = [e for run in figures["runs"] if run["row"] == row for e in run["examinations"]]
    return "; ".join(effective_context(e) for e in found if "effective_context" in e) or MISSING
