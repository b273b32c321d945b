"""Reproductions as tables: published beside ours, and whether each claim and finding holds."""

import math
import statistics
from collections.abc import Iterable, Sequence
from operator import itemgetter

from backstory.config import plural
from backstory.reports import formats
from backstory.reports.formats import MISSING, count, span
from backstory.reports.phrases import effective_context
from backstory.reports.results import Record, Result
from backstory.reports.tables import Table, columns, without_empty_columns

GATES = (
    "Lambda is the mean share of the auxiliary prediction (q), PoU the share of tokens that give it half or more. p alone, q "
    "alone, the oracle (the better of the two for each token, which no gate can know), other temperatures of the gate and the "
    "best lambda for all tokens alike are perplexities from the same readings."
)
TRAINED = (
    "Verdicts speak of the systems as they were trained here, which the tables name; published figures are of full size and "
    "longer training. A claim whose sides differ in more than it says is confounded, and not judged."
)
RULE = (
    "A claim holds where the 95% t interval of the mean gain over seeds lies above 0 (lower is better): of the differences "
    "seed by seed where both sides have the same seeds, else Welch's. Where it holds 0 nothing is decided, and one seed "
    "decides nothing."
)

JUDGED = (
    "Costs are in percent of perplexity. A finding holds where the 95% interval of every number that has a bound lies on the "
    "right side of it, does not hold where one lies on the other side, and is not decided otherwise. Intervals hold the chance "
    "of the seeds and that of the targets, which are the same for all seeds; of one seed, that of its targets. A number of "
    "tokens stands with the least and the most of the seeds, or with the bootstrap interval of one."
)

Place = tuple[str, str, int, str | None, str | None]
"""Split, reader, batch size, what was read before, and addressing of a reading."""


def systems(result: Result) -> Table:
    """Every system of a reproduction and how it was read: the published figure, and ours over its seeds."""
    f = result.figures
    rows = [
        (row["system"], _read(row), _published(f, row), _figure(f, row["mean"]),
         _figure(f, row["deviation"]), _seeds(row), count(row["parameters"]), count(row["tokens"]), _unknown(row), _audit(row),
         _context(f, row["system"]), _speed(f, row), _training(row) or MISSING, row["note"] or MISSING)
        for row in f["systems"]
    ]  # fmt: skip
    name = f"bits per {f['unit'] or 'token'}" if f["metric"] == "bits_per_token" else f["metric"]
    return without_empty_columns(Table(
        columns("System", "Read", f"Published {name}", f"Ours, {f['scale']} scale#", "Deviation#", "Seeds#",
                "Parameters#", "Over#", "<unk>#", "Audit", "Effective context", "Tokens/s#", "Trained", "Note"),
        tuple(rows)))  # fmt: skip


def gates(result: Result) -> Table:
    """What the gate between two predictions made of them in every reading, and what others would have: means over seeds.

    A perplexity for each prediction by itself, for the oracle (a bound, no result), other temperatures and one lambda for all.
    """
    f = result.figures
    rows = tuple(
        (row["system"], _read(row), *_gate(found), count(len(found)))
        for row in f["systems"]
        if (found := _policies(f, row))
    )
    return Table(
        columns("System", "Read", "Lambda#", "PoU#", "p alone#", "q alone#", "Oracle#", "T 0.1#", "T 1#",
                "Best constant lambda#", "Seeds#"), rows)  # fmt: skip


def memories(result: Result) -> Table:
    """What is paid above the exact cost where something comes back, by how many tokens ago it was seen: means over seeds.

    Of texts whose exact cost is known.
    """
    f = result.figures
    found = {(row["system"], _read(row)): curves for row in f["systems"] if (curves := _curves(f, row))}
    bins = _bins(c for curves in found.values() for c in curves)
    rows = []
    for (system, read), curves in found.items():
        for kind in dict.fromkeys(c["kind"] for c in curves):
            alike = [c for c in curves if c["kind"] == kind]
            rows.append((system, read, kind, *_means(alike, bins, "excess"), formats.decimal(alike[0]["forgotten"], 2),
                         count(len(alike))))  # fmt: skip
    heads = (f"{span(first, last)} ago#" for first, last in bins)
    return Table(columns("System", "Read", "What comes back", *heads, "All forgotten#", "Seeds#"), tuple(rows))


def recencies(result: Result) -> Table:
    """What is paid for a token, in nats, by how many tokens ago the same one came last: means over seeds."""
    f = result.figures
    found = {
        (row["system"], _read(row)): told
        for row in f["systems"]
        if (told := [reading["recency"] for reading in _readings(f, row) if reading.get("recency")])
    }
    bins = _bins(recency for told in found.values() for recency in told)
    rows = [
        (*place, *_means(told, bins, "nats"), _mean(r["new"]["nats"] for r in told), count(len(told)))
        for place, told in found.items()
    ]
    heads = (f"{span(first, last)} ago#" for first, last in bins)
    return Table(columns("System", "Read", *heads, "New#", "Seeds#"), tuple(rows))


def _bins(found: Iterable[Record]) -> list[tuple[int, int | None]]:
    """The distances that any of these has, the nearest first."""
    return sorted({(b["from"], b["to"]) for one in found for b in one["bins"]}, key=itemgetter(0))


def _means(found: Sequence[Record], bins: Sequence[tuple[int, int | None]], key: str) -> list[str]:
    """The mean cost at each distance, over those that reach so far."""
    return [_mean(b[key] for one in found for b in one["bins"] if (b["from"], b["to"]) == place) for place in bins]


def _mean(values: Iterable[float | None], digits: int = 2) -> str:
    """The mean of those that are there."""
    there = [value for value in values if value is not None]
    return formats.decimal(statistics.fmean(there), digits) if there else MISSING


def _curves(figures: Record, row: Record) -> list[Record]:
    """The memory curves in a line's readings, of all seeds."""
    return [
        curve for reading in _readings(figures, row) if reading.get("memory") for curve in reading["memory"]["curves"]
    ]


def _policies(figures: Record, row: Record) -> list[Record]:
    """The figures of the gate in a line's readings; none of a cache, which leaves the gate inside it as it was."""
    if "cache" in row["reader"]:
        return []
    return [reading["policy"] for reading in _readings(figures, row) if reading.get("policy")]


def _readings(figures: Record, row: Record) -> list[Record]:
    """A line's readings, of the seeds that have them."""
    place = place_in(row)
    readings = [r for run in figures["runs"] if run["system"] == row["system"] for r in run.get("readings", [])]
    return [r for r in readings if place_in(r) == place]


def place_in(record: Record) -> Place:
    """What tells a reading from the others of its row; older results do not say all of it."""
    return record["split"], record["reader"], record.get("batch_size", 1), record.get("after"), record.get("addressing")


def _gate(found: Sequence[Record]) -> tuple[str, ...]:
    """Mean lambda, PoU and perplexities over the readings of the seeds."""
    parts = ("p_perplexity", "q_perplexity", "oracle_perplexity")
    return (
        _mean((policy["mean_lambda"] for policy in found), 3),
        formats.percent(100 * statistics.fmean(policy["utilization"] for policy in found)),
        *(formats.alone(statistics.fmean(policy[part] for policy in found)) for part in parts),
        *(_mean(policy["temperatures"][t] for policy in found) for t in ("0.1", "1")),
        _mean(policy["best_constant_perplexity"] for policy in found),
    )


def claims(result: Result) -> Table:
    """Every claim with the published gain, ours with its 95% interval over seeds, and the verdict."""
    f = result.figures
    rows = []
    for claim in f["claims"]:
        interval = MISSING if claim["low"] is None else f"{_figure(f, claim['low'])} to {_figure(f, claim['high'])}"
        sides = dict.fromkeys(claim[side]["system"] for side in ("better", "than") if side in claim)
        rows.append((claim["sentence"], _figure(f, claim["published_gain"]), _figure(f, claim["gain"]), interval,
                     " and ".join(map(str, claim["seeds"])), claim["verdict"], claim.get("confounded") or MISSING,
                     _tested(f, sides)))  # fmt: skip
    return without_empty_columns(Table(
        columns("Claim", "Published gain#", "Our gain#", "95% interval#", "Seeds#", "Does it hold here?", "Confounded by",
                "Tested on"), tuple(rows)))  # fmt: skip


def findings(result: Result) -> Table:
    """Every finding of a paper that rows are judged by: what it printed, ours, and the verdict."""
    rows = [
        (f["sentence"], f["system"] if f["baseline"] is None else f"{f['system']} beside {f['baseline']}",
         f"{f['published']} ({f['source']})", "; ".join(map(_measure, f["measures"])) or MISSING, _seeds(f), f["verdict"],
         _tested(result.figures, dict.fromkeys([f["system"]] if f["baseline"] is None else [f["system"], f["baseline"]])))
        for f in result.figures.get("findings", [])
    ]  # fmt: skip
    return without_empty_columns(
        Table(
            columns("Finding", "System", "Published", "Ours", "Seeds#", "Does it hold here?", "Tested on"), tuple(rows)
        )
    )


def _tested(figures: Record, names: Iterable[str]) -> str:
    """Size and training of the systems that a verdict is about, once where they agree; empty for older results."""
    first = {row["system"]: row for row in reversed(figures["systems"]) if "protocol" in row}
    sizes: dict[str, dict[str, None]] = {}
    for row in (first[name] for name in names if name in first):
        size = MISSING if row["parameters"] is None else f"{row['parameters'] / 1e6:.2g}"
        sizes.setdefault(_training(row), {})[size] = None
    texts = [f"{' and '.join(of)} M parameters, {training}" for training, of in sizes.items()]
    return "; against ".join(texts) or MISSING


def _training(row: Record) -> str:
    """The corpus, the epochs and the optimizer of a system; empty for older results."""
    protocol = row.get("protocol")
    if protocol is None:
        return ""
    name = {"sgd": "SGD", "adam": "Adam", "nadam": "NAdam"}.get(protocol["optimizer"], protocol["optimizer"])
    epochs = f"{protocol['epochs']} {plural('epoch', protocol['epochs'])} of {name}"
    averaged = f" + {protocol['finetune_epochs']} averaged" if protocol["finetune_epochs"] else ""
    begin = "from nothing" if protocol["init_from"] is None else f"from the trained {protocol['init_from']}"
    return f"{protocol['corpus']}, {epochs}{averaged}, {begin}"


def _measure(measure: Record) -> str:
    """A number with its name, and where it is judged with its interval and bound: `near +9.1% (+7.0% to +11.2%; above 0%)`."""
    value, low, high = (_number(measure["unit"], measure[key]) for key in ("value", "low", "high"))
    name = measure["label"] or "effective context"
    if best := measure.get("best_lengths"):
        return f"{name}: more context hurts ({len(best)} of the seeds; best at {', '.join(map(count, best))} tokens)"
    named = f"{name} {value}"
    if measure["unit"] == "tokens":
        return named if low == high else f"{named} ({low} to {high})"
    bounds = [_bound(measure["unit"], measure[side]) for side in ("above", "below") if measure[side] is not None]
    if not bounds:
        return named
    side = "above" if measure["below"] is None else "below"
    told = f"between {bounds[0]} and {bounds[1]}" if len(bounds) == 2 else f"{side} {bounds[0]}"
    return f"{named} ({low} to {high}; {told})"


def _number(unit: str, value: float | None) -> str:
    if unit == "tokens":
        return "more than was tried" if value is None else f"{count(value)} tokens"
    if value is None:
        return MISSING
    return (
        formats.percent(100 * value)
        if unit == "share"
        else f"{'+' if value > 0 else ''}{formats.percent(_raised(value))}"
    )


def _bound(unit: str, value: float) -> str:
    """A bound, which is a round number."""
    return f"{round(100 * value if unit == 'share' else _raised(value), 6):g}%"


def _raised(nats: float) -> float:
    """A cost in percent of perplexity."""
    return 100 * math.expm1(min(nats, 700))


def failed(result: Result) -> list[str]:
    """What went wrong, a line for each run that failed."""
    return [f"{run['run']} failed: {run.get('problem')}" for run in result.figures["runs"] if run["state"] == "failed"]


def _read(row: Record) -> str:
    """What was read and how: `test, static`, `test, shuffled-buffer, batch of 10`, `test, dynamic, after valid`."""
    split, reader, batch, after, addressing = place_in(row)
    several = "" if batch == 1 else f", batch of {count(batch)}"
    addressed = "" if addressing is None else f", {addressing}"
    return f"{split}, {reader}{several}{addressed}" + ("" if after is None else f", after {after}")


def _speed(figures: Record, row: Record) -> str:
    """Tokens read in a second: the median over the seeds; of older results it is not known."""
    found = [r["tokens"] / r["seconds"] for r in _readings(figures, row) if r.get("seconds") and "tokens" in r]
    return count(statistics.median(found)) if found else MISSING


def _figure(figures: Record, value: float | None) -> str:
    return formats.decimal(value, 2 if figures["metric"] == "perplexity" else 4)


def _published(figures: Record, row: Record) -> str:
    if row["published"] is None:
        return MISSING
    deviation = row.get("published_deviation")
    spread = "" if deviation is None else f" +- {_figure(figures, deviation)}"
    return f"{_figure(figures, row['published'])}{spread} ({row['source']})"


def _seeds(row: Record) -> str:
    done, planned = len(row["seeds"]), len(row["planned_seeds"])
    return str(done) if done == planned else f"{done} of {planned}"


def _audit(row: Record) -> str:
    return MISSING if row["audited"] is None else "audited" if row["audited"] else "AUDIT FAILED"


def _unknown(row: Record) -> str:
    """The share of `<unk>` among the tokens; of older results it is not known."""
    share = row.get("unknown_share")
    return MISSING if share is None else formats.percent(100 * share)


def _context(figures: Record, row: str) -> str:
    """The effective contexts that the row's runs were examined for."""
    found: Sequence[Record] = [e for run in figures["runs"] if run["system"] == row for e in run["examinations"]]
    return "; ".join(effective_context(e) for e in found if "effective_context" in e) or MISSING
