"""Reproductions as tables: published beside ours, and whether each claim holds."""

import statistics
from collections.abc import Iterable, Sequence

from backstory.reports import formats
from backstory.reports.formats import MISSING, count
from backstory.reports.results import Record, Result
from backstory.reports.tables import Table, columns, without_empty_columns
from backstory.reports.words import effective_context

GATES = (
    "Lambda is the mean share of the second prediction (q), PoU the share of tokens that give it half or more. p alone, q "
    "alone, the oracle (the better of the two for each token, which no gate can know), other temperatures of the gate and the "
    "best lambda for all tokens alike are perplexities from the same readings."
)
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


def gates(result: Result) -> Table:
    """What the gate between two predictions made of them in every reading, and what others would have: means over seeds.

    A perplexity for each prediction by itself, for the oracle (a bound, no result), other temperatures and one lambda for all.
    """
    f = result.figures
    rows = tuple(
        (row["row"], _read(row), *_gate(found), count(len(found))) for row in f["rows"] if (found := _policies(f, row))
    )
    return Table(
        columns("System", "Read", "Lambda#", "PoU#", "p alone#", "q alone#", "Oracle#", "T 0.1#", "T 1#",
                "Best constant lambda#", "Seeds#"), rows)  # fmt: skip


def _policies(figures: Record, row: Record) -> list[Record]:
    """The figures of the gate in a line's readings; none of a cache, which leaves the gate inside it as it was."""
    if "cache" in row["reader"]:
        return []
    place = (row["split"], row["reader"], row.get("rows", 1))
    readings = [r for run in figures["runs"] if run["row"] == row["row"] for r in run.get("readings", [])]
    return [r["policy"] for r in readings if (r["split"], r["reader"], r.get("rows", 1)) == place and r.get("policy")]


def _gate(found: Sequence[Record]) -> tuple[str, ...]:
    """Mean lambda, PoU and perplexities over the readings of the seeds."""

    def mean(values: Iterable[float], digits: int = 2) -> str:
        return formats.decimal(statistics.fmean(values), digits)

    parts = ("p_perplexity", "q_perplexity", "oracle_perplexity")
    return (
        mean((policy["mean_lambda"] for policy in found), 3),
        formats.percent(100 * statistics.fmean(policy["utilization"] for policy in found)),
        *(mean(policy[part] for policy in found) for part in parts),
        *(mean(policy["temperatures"][t] for policy in found) for t in ("0.1", "1")),
        mean(policy["best_constant_perplexity"] for policy in found),
    )


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
