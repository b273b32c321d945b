"""Compare audited readings with their fair controls, average over seeds, and name the best in the report's headline.

The control of an adaptive reader is the same model read without its outermost layer. The control of a model with a
memory is a run of the same seed, trained identically, whose model lacks that part.
"""

import json
import math
import re
import statistics
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from backstory.reports import document as pieces
from backstory.reports.document import Piece, Section, of_kind
from backstory.reports.phrases import audit_word, text_and_unit
from backstory.reports.tables import Table, columns, without_empty_columns
from backstory.results import EvaluationFigures, Result, RunResults
from backstory.results.published_values import Published
from backstory.results.seed_gain import SeedGain, gain_over_seeds
from backstory.utils import formats
from backstory.utils import scores as measures
from backstory.utils.formats import MISSING, count, percent, quantity

NOTE = (
    "Only readings of the run’s present weights that passed the audit are compared. A control is the same weights read without "
    "the last reader, or a run of the same seed trained in the same way without the part. A claim "
    "needs several seeds on both sides. The interval of a difference covers the chance of the seeds, for one comparison alone."
)


MOST_NAMED = 4
"""Maximum number of runs that are all named; of more, only the first two and their number."""


@dataclass(frozen=True)
class Contender:
    """An evaluation that may win: audited, and made with the present weights of its run."""

    run: RunResults
    result: Result[EvaluationFigures]

    @property
    def figures(self) -> EvaluationFigures:
        return self.result.figures

    @property
    def shown(self) -> str:
        """The formatted score. Readings with the same one tie."""
        return formats.figure(self.figures.nats_per_token, self.figures.unit)


@dataclass(frozen=True)
class Control:
    """Control that a reading has to beat: its name, its score in nats, and its only difference."""

    name: str
    nats: float
    differs: str


def headline(runs: Sequence[RunResults]) -> str:
    """Return the sentence that names the best reading and its gain over its control; empty if nothing compares."""
    groups = _groups(runs)
    if not groups:
        return ""
    group = max(groups, key=lambda group: (group[0].figures.split == "test", len(group)))
    sets = seed_sets(group)
    if len(sets) < len(group):
        return _headline_of_seeds(sets)
    names, best = _names(group), group[0]
    f = best.figures
    where = _over(best)
    score = formats.score(f.nats_per_token, f.unit)
    first = [name for name, reading in zip(names, group, strict=True) if reading.shown == best.shown]
    if len(first) > 1:
        rest = f", ahead of {names[len(first)]} ({group[len(first)].shown})" if len(first) < len(group) else ""
        return f"{', '.join(first[:-1])} and {first[-1]} tie at {score} {where}{rest}."
    control = control_of(best, group)
    if control is None:
        return (
            f"{names[0]} scores best: {score} {where}, {_apart(best, group[1].figures.nats_per_token)} {names[1]} "
            f"({group[1].shown}), the next best; none of these runs is its fair control."
        )
    shown = formats.figure(control.nats, f.unit)
    return (
        f"{names[0]} scores best: {score} {where}, {_apart(best, control.nats)} its control {control.name} ({shown})."
    )


def _apart(reading: Contender, other: float) -> str:
    """Return the distance to another score in words: `12.3% below`."""
    f = reading.figures
    if reading.shown == formats.figure(other, f.unit):
        return "a tie with"
    change = 100 * _change(f, other)
    return f"{percent(abs(change))} {'below' if change < 0 else 'above'}"


def _change(figures: EvaluationFigures, other: float) -> float:
    """Return the relative difference from another score, of bits or of perplexities."""
    if figures.unit in measures.IN_BITS:
        return figures.nats_per_token / other - 1 if other else 0.0
    return math.expm1(min(figures.nats_per_token - other, 700))


def _groups(runs: Sequence[RunResults]) -> list[list[Contender]]:
    """Return groups of two or more readings of the same tokens, the best first."""
    groups: dict[Hashable, list[Contender]] = {}
    for run in runs:
        for result in run.of(EvaluationFigures):
            f = result.figures
            # Most tokens of a synthetic task are random, and the answers are its score.
            if result.stale or audit_word(f.audit) != "audited" or f.answers or not result.corpus.fingerprint:
                continue
            key = (*text_and_unit(result), f.split, f.tokens, f.batch_size, f.after, f.lengths, f.lines, str(f.options),
                   f.addressing, result.provenance.precision)  # fmt: skip
            groups.setdefault(key, []).append(Contender(run, result))
    alike = [sorted(group, key=lambda r: r.figures.nats_per_token) for group in groups.values()]
    return [group for group in alike if len(group) > 1]


def _names(group: Sequence[Contender]) -> list[str]:
    """Name readings by run and reader, leaving out what all share."""
    one_run = len({reading.run.name for reading in group}) == 1
    return [_name(reading, one_run) for reading in group]


def _name(reading: Contender, one_run: bool) -> str:
    name, reader = reading.run.name, reading.figures.reader
    return f"{name} with {reader}" if reader != "static" else f"{name} alone" if one_run else name


def _over(reading: Contender) -> str:
    """Return the phrase after a score: `over 82,430 words of ptb (test)`."""
    f = reading.figures
    return f"over {quantity(f.tokens, f.unit)} of {reading.result.corpus.title('one text')} ({f.split})"


# --- seeds ---


def seed_sets(group: Sequence[Contender]) -> list[list[Contender]]:
    """Group readings of runs that differ only in their seed: the best mean first, each set in order of its seeds.

    A reading without siblings is a set of its own. If a seed was trained twice, each reading of its set stands alone.
    """
    sets: dict[Hashable, list[Contender]] = {}
    for number, reading in enumerate(group):
        sets.setdefault(_but_for_seed(reading) or number, []).append(reading)
    split: list[list[Contender]] = []
    for one in sets.values():
        twice = len({_seed(reading) for reading in one}) < len(one)
        split += [[reading] for reading in one] if twice else [sorted(one, key=lambda reading: str(_seed(reading)))]
    return sorted(split, key=lambda one: statistics.fmean(reading.figures.nats_per_token for reading in one))


def _seed(reading: Contender) -> Any:
    return reading.run.training.provenance.seed if reading.run.training else None


def _but_for_seed(reading: Contender) -> Hashable:
    """Return all settings of a reading and its run except the seed; None if they were not recorded."""
    trained, training = _trained(reading), reading.run.training
    if trained is None or training is None or training.provenance.seed is None:
        return None
    model, rest, tokens, *_ = trained
    settings = json.dumps([model, {k: v for k, v in rest.items() if k != "seed"}], sort_keys=True, default=str)
    return settings, str(tokens), reading.figures.reader, training.provenance.init_from is None


def seeds_table(group: Sequence[Contender]) -> Table:
    """Return mean and sample standard deviation of runs that differ only in their seed, and how far each is above the best."""
    rows = []
    sets = [one for one in seed_sets(group) if len(one) > 1]
    for one in sets:
        mean, deviation = _mean_score(one)
        above, interval = (MISSING, MISSING) if one is sets[0] else _difference(sets[0], one) or (MISSING, MISSING)
        rows.append((_set_runs(one), one[0].figures.reader, mean, deviation, count(len(one)), above, interval))
    measure = _measure(group[0].figures.unit)
    heads = columns("Runs", "Read by", f"Mean {measure}#", "Deviation#", "Seeds#", "Above the best#", "95% interval#")
    return without_empty_columns(Table(heads, tuple(rows)))


def _gain(better: Sequence[Contender], than: Sequence[Contender]) -> SeedGain | None:
    return gain_over_seeds(*({_seed(r): _score_of(r) for r in side} for side in (better, than)))


def _difference(better: Sequence[Contender], than: Sequence[Contender]) -> tuple[str, str] | None:
    """Return how much higher `than` scores, and the interval, with the decimals of its score; None without seeds enough."""
    gain = _gain(better, than)
    if gain is None:
        return None
    decimals = len(_mean_score(than)[0].partition(".")[2])
    return formats.decimal(gain.value, decimals), " to ".join(
        formats.decimal(end, decimals) for end in (gain.low, gain.high)
    )


def _score_of(reading: Contender) -> float:
    f = reading.figures
    return (measures.bits if f.unit in measures.IN_BITS else measures.perplexity)(f.nats_per_token)


def _mean_score(readings: Sequence[Contender]) -> tuple[str, str]:
    """Format the mean of the scores and, if there are several, their standard deviation with the same decimals."""
    in_bits = readings[0].figures.unit in measures.IN_BITS
    scores = [_score_of(reading) for reading in readings]
    mean = statistics.fmean(scores)
    shown = formats.decimal(mean, 3) if in_bits else formats.perplexity(mean)
    decimals = len(shown.partition(".")[2])
    return shown, formats.decimal(statistics.stdev(scores), decimals) if len(scores) > 1 else MISSING


def _set_runs(readings: Sequence[Contender]) -> str:
    """Return the names of the runs; of many, only the first."""
    names = [reading.run.name for reading in readings]
    if len(names) > MOST_NAMED:
        return f"{', '.join(names[:2])}, ... ({len(names)} runs)"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _headline_of_seeds(sets: Sequence[Sequence[Contender]]) -> str:
    """Return the sentence that names the set of seeds with the best mean, and its distance to the next."""
    best, f = sets[0], sets[0][0].figures
    shown = _with_deviation(best)
    score = f"{shown} bits per {f.unit}" if f.unit in measures.IN_BITS else f"perplexity {shown} per {f.unit}"
    where = _over(best[0])
    about = f"mean and standard deviation of {len(best)} seeds" if len(best) > 1 else "of one seed"
    if len(sets) == 1:
        return f"{_set_name(best)} differ only in their seed: {score} {where}, {about}."
    scores = "scores best" if len(best) == 1 else "score best on average"
    following = f"ahead of {_set_name(sets[1])} ({_with_deviation(sets[1])})"
    sentence = f"{_set_name(best)} {scores}: {score} {where}, {about}, {following}."
    gain, difference = _gain(best, sets[1]), _difference(best, sets[1])
    if gain is None or difference is None:
        return sentence
    undecided = "" if gain.low > 0 else ", so the seeds do not decide which is better"
    return f"{sentence} The means differ by {difference[0]} (95%: {difference[1]}){undecided}."


def _with_deviation(readings: Sequence[Contender]) -> str:
    mean, deviation = _mean_score(readings)
    return mean if deviation == MISSING else f"{mean} ± {deviation}"


def _set_name(readings: Sequence[Contender]) -> str:
    reader = readings[0].figures.reader
    return _set_runs(readings) + ("" if reader == "static" else f" with {reader}")


# --- controls ---


def control_of(reading: Contender, group: Sequence[Contender]) -> Control | None:
    """Return the fair control of a reading among readings of the same tokens; None if there is none."""
    if reading.figures.reader != "static":
        return _without_last_reader(reading, group)
    candidates = [(other, part) for other in group if (part := _lacks(other, reading))]
    if not candidates:
        return None
    other, part = min(candidates, key=lambda pair: pair[0].figures.nats_per_token)
    return Control(other.run.name, other.figures.nats_per_token, f"no {part}")


def _without_last_reader(reading: Contender, group: Sequence[Contender]) -> Control | None:
    *inner, last = re.split(r"\+(?=[a-z])", reading.figures.reader)
    inside = "+".join(inner) or "static"
    for other in group:
        if other.run is reading.run and other.figures.reader == inside:
            return Control(_name(other, one_run=True), other.figures.nats_per_token, f"no {last.partition(':')[0]}")
    return None


def _lacks(other: Contender, reading: Contender) -> str:
    """Return the part that another run lacks; empty if it lacks none, or differs in anything else."""
    mine, theirs = _trained(reading), _trained(other)
    if other.run is reading.run or other.figures.reader != "static" or mine is None or theirs is None:
        return ""
    (parts, *rest), (others, *other_rest) = mine, theirs
    if rest != other_rest:
        return ""
    different = [name for name in {**parts, **others} if parts.get(name) != others.get(name)]
    if len(different) != 1:
        return ""
    part, lacking = parts.get(different[0]), others.get(different[0])
    if not isinstance(lacking, dict) or lacking.get("kind") != "none":
        return ""
    return str(part.get("kind", different[0])) if isinstance(part, dict) else different[0]


def _trained(reading: Contender) -> tuple[dict[str, Any], Any, Any, Any, Any] | None:
    """Split a run's settings into the parts of its model and the rest; None if they were not recorded."""
    training = reading.run.training
    config = training.provenance.config if training else None
    if training is None or not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        return None
    begun = (training.provenance.init_from or {}).get("weights")
    rest = ({k: v for k, v in config.items() if k != "model"}, training.figures.tokens, training.provenance.seed, begun)
    return config["model"], *rest


# --- the section ---


def gains_table(group: Sequence[Contender]) -> Table:
    """Return the readings of the same tokens, the best first, each with its control and its gain over that."""
    unit = group[0].figures.unit
    rows = []
    for name, reading in zip(_names(group), group, strict=True):
        control = control_of(reading, group)
        cells = (MISSING, MISSING, MISSING, MISSING)
        if control is not None:
            shown = formats.figure(control.nats, unit)
            gain = (
                "tie"
                if shown == reading.shown
                else formats.signed_percent(100 * _change(reading.figures, control.nats))
            )
            cells = (control.name, control.differs, shown, gain)
        rows.append((name, reading.shown, *cells))
    measure = _measure(unit)
    heads = columns("Reading", f"{measure[:1].upper()}{measure[1:]}#", "Control", "Which has", "Its score#", "Change#")
    return Table(heads, tuple(rows))


def _measure(unit: str) -> str:
    return measures.measure_of(unit) + ("" if unit in measures.IN_BITS else f" per {unit}")


def _pieces(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    """Yield audited readings with their fair controls, the best first, and means over seeds."""
    groups = _groups(runs)
    for group in groups:
        f = group[0].figures
        about = f"{group[0].result.corpus.text(f.split)}: {quantity(f.tokens, f.unit)}"
        yield pieces.Heading(about if len(groups) > 1 else "")
        yield pieces.Tabular(seeds_table(group), f"Means over seeds with their standard deviation, {about}")
        yield pieces.Tabular(gains_table(group), f"Readings and their controls, {about}")
    yield pieces.Note(NOTE if groups else "")


SECTION = Section("Gains", of_kind(EvaluationFigures), _pieces)
