"""Results in sentences: the summaries at the top of a report, and the captions of its first figures."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from backstory.config.options import options_in_words
from backstory.results import (
    AuditRecord,
    EvaluationFigures,
    ExaminationFigures,
    ExplanationFigures,
    RefereeFigures,
    ReproductionFigures,
    Result,
    RunResults,
    SearchFigures,
    TrainingFigures,
    TruncationFigures,
)
from backstory.results.published_values import Published
from backstory.results.training_record import EpochRecord
from backstory.utils import formats
from backstory.utils.errors import plural
from backstory.utils.formats import count, percent, quantity
from backstory.utils.scores import IN_BITS, advice

TRIAL_STATES = ("complete", "pruned", "failed", "running", "waiting", "again")
"""States of a trial, in the order of the summary."""
_STATE_WORDS = {"again": "killed or stopped and tried again"}
MOST_SHADED = 2
"""Maximum number of curves whose effective contexts have shaded intervals; more shades would blur."""
MOST_DESCRIBED = 3
"""Maximum number of runs that a caption describes one by one."""
_SPLITS = ("test", "valid", "validation")
Examined = tuple[str, Result[TruncationFigures]]
"""A name and its truncation experiment."""


def audit_word(audit: AuditRecord | None) -> str:
    """Return an audit's verdict: `audited`, `AUDIT FAILED` or `not audited`."""
    if audit is None:
        return "not audited"
    return "audited" if audit.passed else "AUDIT FAILED"


def audit_failures(figures: EvaluationFigures) -> tuple[str, ...]:
    """Return why an audit failed: its failed checks and messages. Empty if it passed."""
    audit = figures.audit
    if audit is None or audit.passed:
        return ()
    names = [str(name).replace("_", " ") for name, held in (audit.checks or {}).items() if not held]
    reasons = [f"failed: {', '.join(names)}"] if names else []
    reasons += map(formats.plain, audit.failures or ())
    return tuple(reasons) or ("no reason recorded",)


def unknown_warning(result: Result[Any]) -> str | None:
    """Return a warning of too many `<unk>` in an evaluation, or in the validation of a training run; None if there are few."""
    f, read = result.figures, ""
    if isinstance(f, TrainingFigures):
        share, read = f.unknown_in("valid").unknown_among(f.tokens.valid), "validation "
    else:
        share = f.unknown_among(f.tokens)
    text = result.provenance.settings.text
    known = {} if text is None else {"minimum_count": text.minimum_count, "maximum_size": text.maximum_size}
    return share.warning(f"the {read}{plural(f.unit)}", advice(share.cause, f.unit, **known))


def overlap_warnings(figures: TrainingFigures | EvaluationFigures) -> list[str]:
    """Return the sentences on overlaps of splits that matter."""
    unit = figures.unit.removeprefix("answer ")
    return [warning for one in figures.overlap or () if (warning := one.warning(unit))]


def counted_in(examinations: Sequence[ExaminationFigures]) -> str:
    """Return the unit of the examinations' contexts: words if the tokens of some are pieces of words."""
    return "word" if any(figures.pieces_per_word for figures in examinations) else "token"


def stale_results(runs: Sequence[RunResults]) -> list[str]:
    """Return a line for each stale result, with the command that renews it."""
    return [
        f"{run.name}, {result.figures.label} is {result.stale}; renew it with `{result.renew}`"
        for run in runs
        for result in run.results
        if result.stale
    ]


def best_evaluation(run: RunResults) -> Result[EvaluationFigures] | None:
    """Return the headline evaluation of a run: audited first, then with default lengths and options, then by split with
    test first, then the lowest perplexity."""

    def rank(result: Result[EvaluationFigures]) -> tuple[bool, bool, int, float]:
        f = result.figures
        order = _SPLITS.index(f.split) if f.split in _SPLITS else len(_SPLITS)
        return (audit_word(f.audit) != "audited", bool(f.lengths or f.options), order, f.perplexity)

    return min(run.of(EvaluationFigures), key=rank, default=None)


def summary(run: RunResults) -> str:
    """Return one sentence about a run: score, number of tokens, audit, and effective context."""
    if reproductions := run.of(ReproductionFigures):
        return reproduced(reproductions[0])
    if searches := run.of(SearchFigures):
        return f"{search_summary(searches[0].figures)}."
    main, truncations = _reads(run), run.of(TruncationFigures)
    if not truncations:
        return f"{main}." if main else _refereed(run) or f"{run.name} has the results below."
    # Prefer the context measured with the reader of the sentence.
    best = best_evaluation(run)
    alike = [r for r in truncations if r.figures.read_by == (best.figures.reader if best else "static")]
    f = (alike or list(truncations))[-1].figures
    words = f.context_in_words()
    if f.effective_context.best is not None or f.undecided():
        return f"{main}; {words}." if main else f"{run.name}: {words}."
    if not f.is_lower_bound():
        about = "" if f.effective_context.context is None else "about "
        words = about + (words.replace(" (95", " of context (95") if "(" in words else f"{words} of context")
    return f"{main}; it uses {words}." if main else f"{run.name} uses {words}."


def _reads(run: RunResults) -> str:
    """Return the summary's first half: the headline evaluation, else the best validation of training."""
    if result := best_evaluation(run):
        f = result.figures
        reader = ("" if f.reader == "static" else f" with the {f.reader} reader") + special_settings(f)
        audit = audit_word(f.audit).replace("AUDIT FAILED", "but its AUDIT FAILED")
        return (
            f"{run.name} reads {result.corpus.title('its text')} ({f.split}){reader} at "
            f"{formats.score(f.nats_per_token, f.unit)} over {quantity(f.tokens, f.unit)}"
            f"{_unknown(f, f.tokens)}, {audit}" + (f"; {f.answers.in_words()}" if f.answers else "")
        )
    if run.training:
        f = run.training.figures
        return (
            f"{run.name} reaches validation {formats.score(f.valid_nats, f.unit)} on "
            f"{run.training.corpus.title('its text')} over {count(f.tokens.valid)} {plural(f.unit)}"
            f"{_unknown(f.unknown_in('valid'), f.tokens.valid)}, "
            f"at epoch {count(f.best_epoch)} of {count(f.epochs)} (from training, not audited)"
        )
    return ""


def _refereed(run: RunResults) -> str:
    """Return the number of refereed predictors, and how many passed; empty if there are none."""
    passed = [result.figures.audit.passed for result in run.of(RefereeFigures)]
    refereed = f"{count(len(passed))} refereed {plural('predictor', len(passed))}"
    return f"{count(sum(passed))} of {refereed} passed." if passed else ""


def _unknown(unknown: Any, tokens: int) -> str:
    """Return the clause after a token count: `, 5.8% of them written as <unk>`. Empty if there are none."""
    phrase = unknown.unknown_among(tokens).phrase()
    return phrase and f", {phrase}"


def special_settings(figures: EvaluationFigures) -> str:
    """Return the options that are not the default: addressing of an external memory, scoring line by line, lengths of a
    task, and others."""
    words = "" if figures.addressing is None else f", addressing {figures.addressing}"
    words += ", line by line" if figures.lines else ""
    words += f", lengths {', '.join(map(count, figures.lengths))}" if figures.lengths else ""
    return words + options_in_words(figures.options)


def search_summary(figures: SearchFigures) -> str:
    """Return one line about a search: the recipe, how the trials ended, and the best one."""
    states = Counter(trial.state for trial in figures.trials)
    total = sum(number for state, number in states.items() if state != "again")
    ended = ", ".join(f"{states[s]} {_STATE_WORDS.get(s, s)}" for s in TRIAL_STATES if states[s])
    head = f"{figures.recipe} over the space {figures.space}: {quantity(total, 'trial')}"
    head += f" ({ended})" if ended else ""
    best = figures.best_trial
    if best is None or best.valid_perplexity is None:
        return f"{head}; none is complete yet"
    return f"{head}; the best is trial {best.trial}, {formats.validation(best.valid_perplexity, figures.unit)}"


def reproduced(result: Result[ReproductionFigures]) -> str:
    """Return one sentence on a reproduction: how many of its runs are finished, and how many claims hold."""
    f = result.figures
    parts = [f"{result.name}: {count(f.finished)} of {quantity(f.planned, 'run')} finished"]
    if f.failed:
        parts.append(f"{count(f.failed)} failed")
    # A confounded claim has an interval, but no verdict.
    claims = [claim.verdict for claim in f.claims if claim.low is not None and not claim.confounded]
    findings = [finding.verdict for finding in f.findings if finding.verdict in ("yes", "no", "not decided")]
    for verdicts, noun, more in (
        (claims, "claim", "with several seeds"),
        (findings, "finding", "that can be judged"),
    ):
        if verdicts:
            held = verdicts.count("yes")
            holds = "holds" if held == 1 else "hold"
            parts.append(f"{held} of {len(verdicts)} {plural(noun, len(verdicts))} {more} {holds}")
    return f"{', '.join(parts)}; {f.core_hours:.2f} core-hours."


def text_and_unit(result: Result[Any]) -> tuple[str, ...]:
    """Return text, vocabulary and unit of a result. Perplexities compare only if these agree."""
    corpus = result.corpus
    return (formats.plain(corpus.fingerprint), formats.plain(corpus.types), result.figures.unit)


def learning_caption(runs: Sequence[RunResults]) -> str:
    """Return the caption of learning curves: where each run is best, what it began with, and when averaging began."""
    tail = " Thin lines: training, with dropout on. Dots: best epochs."
    if len(runs) > MOST_DESCRIBED:
        measure = "bits per token" if scored_in_bits(runs) else "perplexity"
        return f"Validation {measure} of {len(runs)} runs, with the best of each beside its name.{tail}"
    parts = []
    for run in runs:
        finite = [e for e in run.epochs if math.isfinite(e.valid_perplexity)]
        best = min(finite, key=lambda e: e.valid_perplexity)
        began = next((e.epoch for e in run.epochs if e.averaging), None)
        averaging = f" (weights averaged from epoch {count(began)} on)" if began is not None else ""
        parts.append(
            f"{run.name}{_start(run)} is best at epoch {count(best.epoch)} of {count(run.epochs[-1].epoch)}, "
            f"at validation {_at(best, run)}{averaging}"
        )
    return "\n".join(f"{part}." for part in (*parts, tail.strip(" .")))


def _start(run: RunResults) -> str:
    """Return the trained run whose weights a run began with, as part of a sentence; empty if it began from scratch."""
    init_from = run.training.provenance.init_from if run.training else None
    return f", which began with the weights of {formats.plain(init_from.get('run'))}," if init_from else ""


def _at(epoch: EpochRecord, run: RunResults) -> str:
    if run.training is None:
        return f"perplexity {formats.perplexity(epoch.valid_perplexity)}"
    f = run.training.figures
    return f"{formats.score(epoch.valid_nats, f.unit)} over {count(f.tokens.valid)} {plural(f.unit)}"


def scored_in_bits(runs: Sequence[RunResults]) -> bool:
    """Return True if the tokens of all these runs are characters or bytes."""
    return all(run.training and run.training.figures.unit in IN_BITS for run in runs)


def spread_words(results: Sequence[Result[Any]]) -> str:
    """Return a sentence on the meaning of the bands and bars."""
    several = {len(r.figures.models) for r in results if len(r.figures.models) > 1}
    interval = any(len(r.figures.models) < 2 for r in results)
    parts = [f"a standard deviation either way over {n} models" for n in sorted(several)]
    return " or ".join([*parts, *(["95% intervals (paired bootstrap)"] if interval else [])])


def context_caption(examinations: Sequence[Examined], published: Published | None = None) -> str:
    """Return the caption of context curves, with published values of the same."""
    results = [result for _, result in examinations]
    texts = {str(result.corpus.name) for result in results}
    printed = published_context(texts.pop() if len(texts) == 1 else "", published)
    shaded = ", shaded over their intervals" if len(examinations) <= MOST_SHADED else ""
    tail = f"{printed} Bands: {spread_words(results)}. Vertical lines: effective contexts{shaded}."
    if len(examinations) > MOST_DESCRIBED:
        contexts = "\n".join(f"{name}: {result.figures.context_in_words()}." for name, result in examinations)
        return f"More context than this gains less than the dashed line:\n{contexts}\n{tail.strip()}"
    parts = []
    for name, result in examinations:
        f, context = result.figures, result.figures.effective_context
        if context.best is not None or f.undecided():
            parts.append(f"{name}: {f.context_in_words()}")
            continue
        threshold, first = f"{context.threshold_percent:g}%", f.conditions[0]
        side = "higher" if first.effect_percent >= 0 else "lower"
        least = f"its perplexity is {percent(abs(first.effect_percent))} {side} with only {count(first.context)}"
        if context.context is None:
            use = f"still gains {threshold} or more beyond {count(f.maximum_context)} {f.counted_in}s"
        elif f.is_lower_bound():
            use = f"uses {f.context_in_words()}"
        else:
            use = f"gains less than {threshold} from context beyond {f.context_in_words()}"
        parts.append(f"{name} {use}, and {least}")
    return "\n".join(f"{part}." for part in (*parts, tail.strip(" .")))


def published_context(corpus: str, published: Published | None) -> str:
    """Return a paper's effective context (figure 1a), as the end of a caption; empty without one."""
    printed = published.beside(corpus, "effective-context") if published else None
    if published is None or printed is None:
        return ""
    return f" {published.cited}, figure 1a ({printed.where}): less than 1% beyond {printed.values[0]:g} tokens."


def passage_summary(result: Result[ExplanationFigures]) -> str:
    """Return one sentence on an explained passage: its score, the comparison and the context. Empty if unknown."""
    f = result.figures
    if f.nats_per_token is None or f.tokens is None or f.context is None:
        return ""
    reader = "" if f.read_by == "static" else f" with the {f.reader} reader"
    against = ""
    if f.against_nats_per_token is not None:
        against = f", against {formats.figure(f.against_nats_per_token, f.unit)} with {f.against}"
    these, them = f"this {f.unit}", "it"
    if f.tokens != 1:
        phrase = f.unknown_among(f.tokens).phrase()
        these, them = f"these {count(f.tokens)} {plural(f.unit)}" + (phrase and f" ({phrase})"), "them"
    before = "nothing was"
    if f.context:
        was = "was" if f.context == 1 else "were"
        before = f"{quantity(f.context, f.unit)} before {them} {was}"
    at = formats.score(f.nats_per_token, f.unit)
    return f"{result.name} reads {these}{reader} at {at}{against}; {before} read first.{_case(f)}"


def _case(figures: ExplanationFigures) -> str:
    """Return a sentence on the cache's content at the case that was searched for; empty without one."""
    case = figures.found
    if case is None:
        return ""
    share = (
        f"{percent(100 * case.share)} of the cache’s mass lies on it" if case.share else "the cache does not hold it"
    )
    entropy = f"the entropy of that mass over all places is {formats.decimal(case.entropy, 2)} nats"
    return f" The last word, ‘{case.word}’, is the case that was searched for: {share}, and {entropy}."
