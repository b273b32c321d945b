"""Reproductions: published and our scores of each system, and the verdict on each claim and finding."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

from backstory.reports import document as pieces
from backstory.reports import svg
from backstory.reports.document import Piece, Section, of_kind
from backstory.reports.svg import LARGEST, Plot, labels, perplexity_axis, whole_numbers
from backstory.reports.tables import Table, columns, without_empty_columns
from backstory.results import Record, ReproductionFigures, RunResults
from backstory.results.evaluation_record import DistanceRange, PolicyRecord
from backstory.results.published_values import Published
from backstory.results.reproduction_record import FindingRecord, MeasureRecord, SystemRecord
from backstory.results.suite_run_record import ReadingRecord, RunRecord
from backstory.utils import formats
from backstory.utils.errors import plural
from backstory.utils.formats import MISSING, count, span

if TYPE_CHECKING:
    from matplotlib.figure import Figure

R = TypeVar("R", bound=Record)

GATES = (
    "Lambda is the mean weight of the auxiliary prediction (q), and PoU the share of tokens at which it has half the weight or "
    "more. p alone, q alone, the oracle (the better of the two for each token, which no gate can know), other temperatures of "
    "the gate and the best constant lambda are perplexities from the same readings."
)
TRAINED = (
    "Verdicts apply to the systems as they were trained here, which the tables describe; published figures are of full-size "
    "models and longer training. A claim whose sides differ in more than it names is confounded, and not judged."
)
RULE = (
    "A claim holds if the 95% t interval of the mean gain over seeds lies above 0 (lower scores are better). The interval is "
    "of the differences seed by seed if both sides have the same seeds, else Welch's. If it contains 0, nothing is decided, "
    "nor is it with one seed. The interval is of one claim; p (Holm) is corrected for the number of claims in the table."
)

JUDGED = (
    "Costs are in percent of perplexity. A finding holds if the 95% interval of every number with a bound lies on the right "
    "side of it, does not hold if one lies on the wrong side, and is not decided otherwise. Intervals cover the variation over "
    "seeds and over targets, which are the same for all seeds; with one seed, over its targets. A number of tokens is given "
    "with the smallest and the largest over the seeds, or with the bootstrap interval of one seed."
)
HOW = ("Parameters", "Trained", "Note")
"""Columns on a system's training, which are constant over its readings."""
EPOCHS = (
    "Validation perplexity after every epoch: the mean over seeds, shaded from the lowest to the highest seed. A gain that is "
    "there from the first epoch and lost again towards the last is a faster start; a gain that remains is a better model."
)


def _pieces(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    """Yield published and our scores of each system, and the verdict on each claim and finding."""
    results = [(run, result) for run in runs for result in run.of(ReproductionFigures)]
    for number, (run, result) in enumerate(results, start=1):
        f = result.figures
        yield pieces.Heading(f"{f.title}, {f.scale} scale")
        for failed in (r for r in f.runs if r.state == "failed"):
            yield pieces.Alarm(f"{failed.run} failed: {failed.problem}")
        gates, findings, systems = gates_table(f), findings_table(f), systems_table(f)
        about = f"Systems of {run.name}: means over seeds, with their standard deviation"
        yield from pieces.compact(systems.without(HOW), about)
        how = Table(systems.columns, tuple({row[0]: row for row in systems.rows}.values())).only(("System", *HOW))
        yield pieces.collapsed(f"How each system was trained: {run.name}", how)
        if gates.rows:
            heading = f"Gates: each prediction by itself, {run.name}"
            yield pieces.details(heading, pieces.Note(GATES), pieces.Tabular(gates, f"Gates of {run.name}"))
        yield pieces.Tabular(memory_table(f), f"Nats above the exact cost, {run.name}")
        yield from pieces.compact(claims_table(f), f"Claims of {run.name}")
        yield pieces.Tabular(findings, f"Findings, tested on {run.name}")
        if plot := epoch_curves(f, f"epochs{number}-"):
            yield pieces.figure(plot, [result])
            yield pieces.collapsed(f"Validation by epoch: {run.name}", epochs_table(f))
        yield pieces.collapsed(f"Nats by distance to the last occurrence: {run.name}", recency_table(f))
        yield pieces.Note(f.note or "")
        yield pieces.Note(TRAINED if f.claims or findings.rows else "")
        yield pieces.Note(RULE if f.claims else "")
        yield pieces.Note(JUDGED if findings.rows else "")
        yield from map(pieces.Note, f.papers)


SECTION = Section("Published and ours", of_kind(ReproductionFigures), _pieces)


# --- systems ---


def systems_table(figures: ReproductionFigures) -> Table:
    """Return each reading of each system: the published figure, and ours over its seeds."""
    f = figures
    rows = [
        (s.system, s.place.described(), _published(f, s), _figure(f, s.mean), _figure(f, s.deviation), _seeds(s),
         count(s.parameters), count(s.tokens),
         MISSING if s.unknown_share is None else formats.percent(100 * s.unknown_share), _audit(s),
         _context(f, s.system), _speed(f, s), _training(s) or MISSING, s.note or MISSING)
        for s in f.systems
    ]  # fmt: skip
    metric = f"bits per {f.unit or 'token'}" if f.metric == "bits_per_token" else f.metric
    published = any(s.published is not None for s in f.systems)
    ours = f"Ours, {f.scale} scale#" if published else f"{metric[:1].upper()}{metric[1:]}#"
    heads = columns("System", "Read", f"Published {metric}", ours, "Deviation#", "Seeds#",
                    "Parameters#", "Over#", "<unk>#", "Audit", "Effective context", "Tokens/s#", "Trained", "Note")  # fmt: skip
    return without_empty_columns(Table(heads, tuple(rows)))


def _figure(figures: ReproductionFigures, value: float | None) -> str:
    return formats.decimal(value, 2 if figures.metric == "perplexity" else 4)


def _published(figures: ReproductionFigures, system: SystemRecord) -> str:
    if system.published is None:
        return MISSING
    deviation = system.published_deviation
    spread = "" if deviation is None else f" +- {_figure(figures, deviation)}"
    return f"{_figure(figures, system.published)}{spread} ({system.source})"


def _seeds(of: SystemRecord | FindingRecord) -> str:
    done, planned = len(of.seeds), len(of.planned_seeds)
    return str(done) if done == planned else f"{done} of {planned}"


def _audit(system: SystemRecord) -> str:
    return MISSING if system.audited is None else "audited" if system.audited else "AUDIT FAILED"


def _context(figures: ReproductionFigures, system: str) -> str:
    """Return the effective contexts of a system's runs."""
    contexts = (e.context_in_words for run in figures.runs if run.system == system for e in run.examinations)
    return "; ".join(filter(None, contexts)) or MISSING


def _speed(figures: ReproductionFigures, system: SystemRecord) -> str:
    """Return the tokens read per second, the median over the seeds; unknown for older results."""
    readings = figures.readings_of(system)
    speeds = [r.tokens / r.seconds for r in readings if r.seconds and r.tokens is not None]
    return count(statistics.median(speeds)) if speeds else MISSING


def _training(system: SystemRecord) -> str:
    """Return the corpus, the epochs and the optimizer of a system; empty for older results."""
    protocol = system.protocol
    if protocol is None:
        return ""
    optimizer = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "nadam": "NAdam"}.get(
        protocol.optimizer, protocol.optimizer
    )
    epochs = f"{protocol.epochs} {plural('epoch', protocol.epochs)} of {optimizer}"
    averaged = f" + {protocol.finetune_epochs} averaged" if protocol.finetune_epochs else ""
    begin = "from scratch" if protocol.init_from is None else f"from the trained {protocol.init_from}"
    scaled = f" scaled to {protocol.minutes:g} min" if protocol.minutes is not None else ""
    return f"{protocol.corpus}, {epochs}{averaged}{scaled}, {begin}"


# --- readings: gates, memory and recency, as means over seeds ---


def gates_table(figures: ReproductionFigures) -> Table:
    """Return, for every reading, the score of the gate and of other ways to combine its two predictions.

    Perplexities are of each prediction alone, the oracle (a bound, no result), other temperatures and constant lambda.
    """
    rows = []
    for system in figures.systems:
        # A cache does not change the gate inside it.
        readings = [] if "cache" in system.reader else figures.readings_of(system)
        if policies := [reading.policy for reading in readings if reading.policy]:
            rows.append((system.system, system.place.described(), *_gate(policies), count(len(policies))))
    heads = columns("System", "Read", "Lambda#", "PoU#", "p alone#", "q alone#", "Oracle#", "T 0.1#", "T 1#",
                    "Best constant lambda#", "Seeds#")  # fmt: skip
    return Table(heads, tuple(rows))


def _gate(policies: Sequence[PolicyRecord]) -> tuple[str, ...]:
    """Return lambda, PoU and perplexities, averaged over seeds."""
    return (
        _mean((p.mean_lambda for p in policies), 3),
        formats.percent(100 * statistics.fmean(p.utilization for p in policies)),
        formats.alone(statistics.fmean(p.p_perplexity for p in policies)),
        formats.alone(statistics.fmean(p.q_perplexity for p in policies)),
        formats.alone(statistics.fmean(p.oracle_perplexity for p in policies)),
        *(_mean(p.temperatures[t] for p in policies) for t in ("0.1", "1")),
        _mean(p.best_constant_perplexity for p in policies),
    )


def memory_table(figures: ReproductionFigures) -> Table:
    """Return the cost of recurring tokens above the exact cost, by distance to their last occurrence."""
    by_place = _by_place(figures, lambda reading: reading.memory.curves if reading.memory else ())
    bins, rows = _all_ends(c.bins for curves in by_place.values() for c in curves), []
    for key, curves in by_place.items():
        for kind in dict.fromkeys(c.kind for c in curves):
            alike = [c for c in curves if c.kind == kind]
            means = [_mean(b.excess for c in alike for b in c.bins if b.ends == ends) for ends in bins]
            rows.append((*key, kind, *means, formats.decimal(alike[0].forgotten, 2), count(len(alike))))
    heads = (f"{span(*ends)} ago#" for ends in bins)
    return Table(columns("System", "Read", "What recurs", *heads, "All forgotten#", "Seeds#"), tuple(rows))


def recency_table(figures: ReproductionFigures) -> Table:
    """Return the cost of a token in nats, by distance to its last occurrence."""
    by_place = _by_place(figures, lambda reading: [reading.recency] if reading.recency else [])
    bins = _all_ends(r.bins for records in by_place.values() for r in records)
    rows = []
    for key, records in by_place.items():
        means = [_mean(b.nats for r in records for b in r.bins if b.ends == ends) for ends in bins]
        rows.append((*key, *means, _mean(r.new.nats for r in records), count(len(records))))
    heads = (f"{span(*ends)} ago#" for ends in bins)
    return Table(columns("System", "Read", *heads, "New#", "Seeds#"), tuple(rows))


def _by_place(
    figures: ReproductionFigures, parts: Callable[[ReadingRecord], Iterable[R]]
) -> dict[tuple[str, str], list[R]]:
    """Group a part of the readings of all seeds by system and reading."""
    by_place: dict[tuple[str, str], list[R]] = {}
    for system in figures.systems:
        if of_system := [part for reading in figures.readings_of(system) for part in parts(reading)]:
            by_place.setdefault((system.system, system.place.described()), []).extend(of_system)
    return by_place


def _all_ends(ranges: Iterable[Sequence[DistanceRange]]) -> list[tuple[int, int | None]]:
    """Return all distances that occur, the nearest first."""
    return sorted({one.ends for bins in ranges for one in bins}, key=itemgetter(0))


def _mean(values: Iterable[float | None], digits: int = 2) -> str:
    """Return the mean of the values that are not None."""
    known = [value for value in values if value is not None]
    return formats.decimal(statistics.fmean(known), digits) if known else MISSING


# --- claims and findings ---


def claims_table(figures: ReproductionFigures) -> Table:
    """Return every claim with the published gain, ours with its 95% interval over seeds, and the verdict."""
    f, rows = figures, []
    for claim in f.claims:
        interval = MISSING if claim.low is None else f"{_figure(f, claim.low)} to {_figure(f, claim.high)}"
        sides = dict.fromkeys(side.system for side in (claim.better, claim.than) if side)
        rows.append((claim.sentence, _figure(f, claim.published_gain), _figure(f, claim.gain), interval,
                     _p_value(claim.p_value), _p_value(claim.holm_p_value), " and ".join(map(str, claim.seeds)),
                     claim.verdict, claim.confounded or MISSING, _tested(f, sides)))  # fmt: skip
    heads = columns("Claim", "Published gain#", "Our gain#", "95% interval#", "p#", "p (Holm)#", "Seeds#",
                    "Does it hold here?", "Confounded by", "Tested on")  # fmt: skip
    return without_empty_columns(Table(heads, tuple(rows)))


def _p_value(p: float | None) -> str:
    return MISSING if p is None else "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def findings_table(figures: ReproductionFigures) -> Table:
    """Return each finding of a paper that was tested: the printed value, ours, and the verdict."""
    rows = []
    for f in figures.findings:
        systems = [f.system] if f.baseline is None else [f.system, f.baseline]
        measured = "; ".join(map(_measure, f.measures)) or MISSING
        verdict = f.verdict if f.protocol is None else f"{f.verdict} ({f.protocol})"
        rows.append((f.sentence, " beside ".join(systems), f"{f.published} ({f.source})", measured, _seeds(f),
                     verdict, _tested(figures, dict.fromkeys(systems))))  # fmt: skip
    heads = columns("Finding", "System", "Published", "Ours", "Seeds#", "Does it hold here?", "Tested on")
    return without_empty_columns(Table(heads, tuple(rows)))


def _tested(figures: ReproductionFigures, names: Iterable[str]) -> str:
    """Return size and training of the systems behind a verdict, once if they agree; empty for older results."""
    first = {system.system: system for system in reversed(figures.systems) if system.protocol}
    sizes: dict[str, dict[str, None]] = {}
    for system in (first[name] for name in names if name in first):
        size = MISSING if system.parameters is None else formats.model_size(system.parameters)
        sizes.setdefault(_training(system), {})[size] = None
    texts = [f"{_together(list(of))} parameters, {training}" for training, of in sizes.items()]
    return "; against ".join(texts) or MISSING


def _together(sizes: Sequence[str]) -> str:
    """Join sizes, with a unit that all share once: `2.4 and 2.7 M`, `62,000 and 30,000`, `890,000 and 1.2 M`."""
    shared = all(size.endswith(" M") for size in sizes)
    return " and ".join([*(size.removesuffix(" M") if shared else size for size in sizes[:-1]), sizes[-1]])


def _measure(measure: MeasureRecord) -> str:
    """Return a number with its name, its interval and its bound: `near +9.1% (+7.0% to +11.2%; above 0%)`."""
    value, low, high = (_number(measure.unit, one) for one in (measure.value, measure.low, measure.high))
    name = measure.label or "effective context"
    if best := measure.best_lengths:
        return f"{name}: more context hurts ({len(best)} of the seeds; best at {', '.join(map(count, best))} tokens)"
    if measure.unit == "tokens":
        return f"{name} {value}" if low == high else f"{name} {value} ({low} to {high})"
    bounds = [_bound(measure.unit, bound) for bound in (measure.above, measure.below) if bound is not None]
    if not bounds:
        return f"{name} {value}"
    side = "above" if measure.below is None else "below"
    bound = f"between {bounds[0]} and {bounds[1]}" if len(bounds) == 2 else f"{side} {bounds[0]}"
    return f"{name} {value} ({low} to {high}; {bound})"


def _number(unit: str, value: float | None) -> str:
    if unit == "tokens":
        return "more than was tried" if value is None else f"{count(value)} tokens"
    if value is None:
        return MISSING
    if unit == "share":
        return formats.percent(100 * value)
    return formats.signed_percent(_raised(value))


def _bound(unit: str, value: float) -> str:
    """Return a bound, which is a round number."""
    return f"{round(100 * value if unit == 'share' else _raised(value), 6):g}%"


def _raised(nats: float) -> float:
    """Return a cost in percent of perplexity."""
    return 100 * math.expm1(min(nats, 700))


# --- learning curves ---


def epochs_table(figures: ReproductionFigures) -> Table:
    """Return each system's mean validation perplexity after the first epochs, each doubling, and the last epoch."""
    curves = _curves(figures)
    last = max((len(curve) for of_system in curves.values() for curve in of_system), default=0)
    shown = [epoch for epoch in (2**power for power in range(20)) if epoch < last] + ([last] if last else [])
    rows = [
        (name, *(_mean(c[epoch - 1] for c in of_system if len(c) >= epoch) for epoch in shown), count(len(of_system)))
        for name, of_system in curves.items()
    ]
    return Table(columns("System", *(f"Epoch {count(epoch)}#" for epoch in shown), "Seeds#"), tuple(rows))


def epoch_curves(figures: ReproductionFigures, prefix: str) -> Plot | None:
    """Draw a learning curve per system; None if no run has more than one epoch."""
    curves = _curves(figures)
    if not curves:
        return None

    def draw(width: float) -> "Figure":
        figure, axes = svg.blank(width)
        ends = []
        for index, of_system in enumerate(curves.values()):
            look, epochs = svg.series(index), range(1, 1 + min(map(len, of_system)))
            seeds = [[curve[epoch - 1] for curve in of_system] for epoch in epochs]
            means = [statistics.fmean(values) for values in seeds]
            lowest, highest = [min(values) for values in seeds], [max(values) for values in seeds]
            axes.fill_between(epochs, lowest, highest, color=look["color"], alpha=0.2, linewidth=0)
            axes.plot(epochs, means, **look)
            ends += [means[0], means[-1], min(means)]
        perplexity_axis(axes, min(ends), max(ends))
        whole_numbers(axes)
        axes.set_xlabel("epoch")
        axes.set_ylabel(f"perplexity per {figures.unit or 'token'}")
        labels(figure, list(curves))
        return figure

    return svg.plot(draw, prefix, "Validation by epoch", EPOCHS)


def _curves(figures: ReproductionFigures) -> dict[str, list[list[float]]]:
    """Return the validation perplexities of runs of several epochs, by system; older results have none."""
    curves: dict[str, list[list[float]]] = {}
    for run in figures.runs:
        if len(curve := _curve(run)) > 1:
            curves.setdefault(run.system, []).append(curve)
    return curves


def _curve(run: RunRecord) -> list[float]:
    """Cut the perplexities off where the training diverged."""
    return list(itertools.takewhile(lambda value: value < LARGEST, (value for _, value in run.curve)))
