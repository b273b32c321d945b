"""What the results say, in sentences: the summary of a report and the captions of its figures."""

import math
from collections import Counter
from collections.abc import Sequence

from backstory.config import plural
from backstory.config import scores as measures
from backstory.config.scores import IN_BITS, UnknownShare
from backstory.reports import formats
from backstory.reports.examined import spread_words
from backstory.reports.formats import count, percent
from backstory.reports.published_section import Published
from backstory.reports.results import Record, Result, RunResults

TRIAL_STATES = ("complete", "pruned", "failed", "running", "waiting", "again")
"""What a trial may be, in the order in which they are counted."""
_STATE_WORDS = {"again": "killed or stopped and tried again"}

MOST_TOLD = 3
"""The most runs a caption tells of one by one."""
_SPLITS = ("test", "valid", "validation")


def audit_word(figures: Record) -> str:
    """What the audit said about these figures: `audited`, `AUDIT FAILED` or `not audited`."""
    audit = figures.get("audit")
    if audit is None:
        return "not audited"
    return "audited" if audit["passed"] else "AUDIT FAILED"


def verdict(audit: Record) -> str:
    """How an audit ended, in words: `passed at 8 places, 272 cuts`, or `FAILED` and why."""
    if audit["passed"]:
        cuts = f", {count(audit['cuts'])} {plural('cut', audit['cuts'])}" if audit.get("cuts") else ""
        return f"passed at {count(audit['places'])} {plural('place', audit['places'])}{cuts}"
    return f"FAILED: {'; '.join(audit['failures'])}"


def failures(result: Result) -> tuple[str, ...]:
    """Why an audit failed: its checks that did not hold and its own messages; empty where it passed."""
    audit = result.figures.get("audit")
    if not isinstance(audit, dict) or audit.get("passed"):
        return ()
    checks = audit.get("checks")
    names = [str(k).replace("_", " ") for k, v in checks.items() if not v] if isinstance(checks, dict) else []
    messages = audit.get("failures")
    reasons = ([f"failed: {', '.join(names)}"] if names else []) + [
        formats.plain(message) for message in (messages if isinstance(messages, list) else [])
    ]
    return tuple(reasons) or ("no reason recorded",)


def measured_in(*examinations: Record) -> str:
    """What the contexts of examinations are counted in: words where some have tokens that are pieces of words, else tokens."""
    return "word" if any(figures.get("pieces_per_word") for figures in examinations) else "token"


def effective_context(figures: Record) -> str:
    """The effective context of a truncation experiment: `150 tokens (95%: 100 to 200)`, `more than 1,000 tokens`.

    Where there is none: `more context hurts: best at 5 words (22.5% better than with 100)`.
    """
    found, longest, unit = figures["effective_context"], figures["maximum_context"], measured_in(figures)
    more = f"more than {count(longest)}"
    if context_hurts(figures):
        best, full = found["best_length"], figures.get("baseline", {}).get("context")
        better = f"{percent(-found['best_effect_percent'])} better than with {'all' if full is None else count(full)}"
        return f"more context hurts: best at {count(best)} {plural(unit, best)} ({better})"
    if found["context"] is None:
        interval = "" if found.get("low") is None else f" (95%: at least {count(found['low'])})"
        return f"{more} {unit}s{interval}"
    if "low" not in found:  # an older result, whose interval is of another definition
        return f"{count(found['context'])} {plural(unit, found['context'])}"
    low, high = (more if found[end] is None else count(found[end]) for end in ("low", "high"))
    return f"{count(found['context'])} {plural(unit, found['context'])} (95%: {low} to {high})"


def stale_results(runs: Sequence[RunResults]) -> list[str]:
    """Each result that is not of the weights its run has now, in a line that says what renews it."""
    return [
        f"{run.name}, {result.label} is {result.stale}; renew it with `{result.renew}`"
        for run in runs
        for result in run.results
        if result.stale
    ]


def context_hurts(figures: Record) -> bool:
    """Whether some shorter context is better than the full one, so that there is no effective context."""
    return bool(figures["effective_context"].get("more_context_hurts"))


def headline(run: RunResults) -> Result | None:
    """The evaluation a run is known by: audited before not, its own lengths before others, test before other splits, then the
    lowest perplexity."""

    def rank(result: Result) -> tuple[bool, bool, int, float]:
        f = result.figures
        place = _SPLITS.index(f["split"]) if f["split"] in _SPLITS else len(_SPLITS)
        return (audit_word(f) != "audited", bool(f.get("lengths")), place, f["perplexity"])

    return min(run.of_kind("evaluation"), key=rank, default=None)


def summary(run: RunResults) -> str:
    """One sentence on one run: how well it reads, over how much, audited or not, and how much context it uses."""
    if found := run.of_kind("reproduction"):
        return reproduced(found[0])
    if found := run.of_kind("search"):
        return f"{search_summary(found[0].figures)}."
    truncations = [r for r in run.of_kind("examination") if r.figures["experiment"] == "truncate"]
    context = ""
    if truncations:
        # The context that the sentence's own reader uses, where that was examined.
        told = headline(run)
        alike = [r for r in truncations if r.reader == (told.reader if told else "static")]
        f = (alike or truncations)[-1].figures
        words = effective_context(f)
        if context_hurts(f):
            main = _reads(run)
            return f"{main}; {words}." if main else f"{run.name}: {words}."
        about = "" if f["effective_context"]["context"] is None else "about "
        context = f"uses {about}{words.replace(' (95', ' of context (95')}" + ("" if "(" in words else " of context")
    main = _reads(run)
    if main and context:
        return f"{main}; it {context}."
    return f"{main}." if main else f"{run.name} {context or 'has the results below'}."


def search_summary(figures: Record) -> str:
    """What was searched, how its trials ended and which is the best, in one line."""
    states = Counter(t["state"] for t in figures["trials"])
    counted = sum(number for state, number in states.items() if state != "again")
    told = ", ".join(f"{states[s]} {_STATE_WORDS.get(s, s)}" for s in TRIAL_STATES if states[s])
    head = f"{figures['recipe']} over the space {figures['space']}: {count(counted)} {plural('trial', counted)}"
    if told:
        head += f" ({told})"
    best = best_trial(figures)
    if best is None:
        return f"{head}; none is complete yet"
    return f"{head}; the best is trial {best['trial']}, {validation(best['valid_perplexity'], figures['unit'])}"


def best_trial(figures: Record) -> Record | None:
    """The complete trial with the lowest perplexity."""
    return next((t for t in figures["trials"] if t["trial"] == figures["best"]), None)


def valued(trials: Sequence[Record]) -> list[Record]:
    """The trials that ended with a value: complete ones, and pruned ones at their best."""
    return [t for t in trials if t["valid_perplexity"] is not None and t["state"] in ("complete", "pruned")]


def validation(perplexity: float, unit: str | None) -> str:
    """`validation perplexity 98.1 per word`, or `validation 1.175 bits per character`."""
    if unit in IN_BITS:
        return f"validation {formats.score(measures.nats(perplexity), unit)}"
    return f"validation perplexity {formats.perplexity(perplexity)}" + (f" per {unit}" if unit else "")


def as_told(figures: Record) -> Record:
    """The figures of a search with the values of its trials as they are told: bits of each character or byte."""
    if figures["unit"] not in IN_BITS:
        return figures
    trials = [
        {**t, "valid_perplexity": _bits(t["valid_perplexity"]), "curve": [[e, _bits(v)] for e, v in t["curve"]]}
        for t in figures["trials"]
    ]
    return {**figures, "trials": trials}


def _bits(perplexity: float | None) -> float | None:
    return None if perplexity is None else measures.bits(measures.nats(perplexity))


def trial_value(trial: Record) -> str:
    """A trial's value, the best of its curve so far where it did not end."""
    return formats.perplexity(trial["valid_perplexity"])


def reproduced(result: Result) -> str:
    """One sentence on a reproduction: how many of its runs are finished, and how many claims hold."""
    f = result.figures
    parts = [f"{result.name}: {count(f['finished'])} of {count(f['planned'])} {plural('run', f['planned'])} finished"]
    if f["failed"]:
        parts.append(f"{count(f['failed'])} failed")
    judged = [claim for claim in f["claims"] if claim["low"] is not None]
    if judged:
        held = sum(claim["verdict"] == "yes" for claim in judged)
        holds = "holds" if held == 1 else "hold"
        parts.append(f"{held} of {len(judged)} {plural('claim', len(judged))} with several seeds {holds}")
    if findings := [one for one in f.get("findings", []) if one["verdict"] in ("yes", "no", "not decided")]:
        held = sum(finding["verdict"] == "yes" for finding in findings)
        holds = "holds" if held == 1 else "hold"
        parts.append(f"{held} of {len(findings)} {plural('finding', len(findings))} that can be judged {holds}")
    return f"{', '.join(parts)}; {f['core_hours']:.2f} core-hours."


def comparison(runs: Sequence[RunResults]) -> str:
    """One sentence that ranks audited runs of one reader over one text, split, vocabulary and unit; empty otherwise."""
    pairs = [(run, found) for run in runs if (found := headline(run)) and audit_word(found.figures) == "audited"]
    alike = {(reading(r), r.figures["split"], r.figures["reader"]) for _, r in pairs}
    if len(pairs) < 2 or len(pairs) != len(runs) or len(alike) > 1 or not pairs[0][1].corpus.get("fingerprint"):
        return ""
    if pairs[0][1].figures.get("answers"):  # of a synthetic task most tokens are random, and what is asked is its score
        return ""
    pairs.sort(key=lambda pair: pair[1].figures["perplexity"])
    (best, result), *rest = pairs
    f = result.figures
    others = ", ".join(f"{formats.figure(r.figures['nats_per_token'], f['unit'])} ({run.name})" for run, r in rest)
    return (
        f"Of {len(runs)} runs on {result.corpus.get('name', 'one text')} ({f['split']}), {best.name} reads best: "
        f"{formats.score(f['nats_per_token'], f['unit'])} over {count(f['tokens'])} "
        f"{plural(f['unit'], f['tokens'])}{_unknown(f)}, against {others}."
    )


def reading(result: Result) -> tuple[str, ...]:
    """Text, vocabulary and unit of a result: perplexities may be set side by side only where these agree."""
    corpus = result.corpus
    return (formats.plain(corpus.get("fingerprint")), formats.plain(corpus.get("types")), result.figures["unit"])


def learning_caption(runs: Sequence[RunResults]) -> str:
    """What the learning curves show: where each run (with a finite epoch) is best, and when averaging began."""
    tail = " Thin lines: training, with dropout on. Dots: best epochs."
    if len(runs) > MOST_TOLD:
        what = "bits per token" if told_in_bits(runs) else "perplexity"
        return f"Validation {what} of {len(runs)} runs, with the best of each beside its name.{tail}"
    parts = []
    for run in runs:
        finite = [e for e in run.epochs if math.isfinite(e["valid_perplexity"])]
        best = min(finite, key=lambda e: e["valid_perplexity"])
        began = next((e["epoch"] for e in run.epochs if e.get("averaging")), None)
        averaging = f" (weights averaged from epoch {count(began)} on)" if began is not None else ""
        parts.append(
            f"{run.name} is best at epoch {count(best['epoch'])} of {count(run.epochs[-1]['epoch'])}, "
            f"at validation {_at(best, run)}{_over_valid(run)}{averaging}"
        )
    return "; ".join(parts) + f".{tail}"


def context_caption(examinations: Sequence[tuple[str, Result]], published: Published | None = None) -> str:
    """What the context curves show, for truncation experiments given as (name, result), and what was published of it."""
    results = [result for _, result in examinations]
    texts = {str(result.corpus.get("name")) for result in results}
    printed = effective_context_printed(texts.pop() if len(texts) == 1 else "", published)
    bands = f" Bands: {spread_words(results)}."
    tail = f"{printed}{bands} Upright lines: effective contexts, shaded over their intervals."
    if len(examinations) > MOST_TOLD:
        found = ", ".join(f"{name} {effective_context(result.figures)}" for name, result in examinations)
        return f"More context than this gains less than the dashed line: {found}.{tail}"
    parts = []
    for name, result in examinations:
        f = result.figures
        threshold, found = f"{f['effective_context']['threshold_percent']:g}%", f["effective_context"]["context"]
        first = f["conditions"][0]
        cost = first["effect_percent"]
        side = "higher" if cost >= 0 else "lower"
        least = f"its perplexity is {percent(abs(cost))} {side} with only {count(first['context'])}"
        if context_hurts(f):
            parts.append(f"{name}: {effective_context(f)}")
            continue
        if found is None:
            use = f"still gains {threshold} or more beyond {count(f['maximum_context'])} {measured_in(f)}s"
        else:
            use = f"gains less than {threshold} from context beyond {effective_context(f)}"
        parts.append(f"{name} {use}, and {least}")
    return "; ".join(parts) + f".{tail}"


def effective_context_printed(corpus: str, published: Published | None) -> str:
    """What a paper says of the same (figure 1a), as the end of a caption; empty without one."""
    found = published.beside(corpus, "effective-context") if published else None
    if published is None or found is None:
        return ""
    return f" {published.cited}, figure 1a ({found.where}): less than 1% beyond {found.values[0]:g} tokens."


def passage_summary(result: Result) -> str:
    """One sentence on a passage that was read: how well, against what, after how much context; empty where unknown."""
    f = result.figures
    if not all(isinstance(f.get(key), int | float) for key in ("nats_per_token", "tokens", "context")):
        return ""
    unit = str(f.get("unit", "token"))
    reader = "" if f.get("reader") == "static" else f" with the {f.get('reader')} reader"
    other = f.get("against_nats_per_token")
    against = ""
    if isinstance(other, int | float):
        against = f", against {formats.figure(other, unit)} with {f.get('against')}"
    these, them = (
        (f"this {unit}", "it")
        if f["tokens"] == 1
        else (f"these {count(f['tokens'])} {plural(unit)}{_brackets(f)}", "them")
    )
    was = "was" if f["context"] == 1 else "were"
    before = (
        f"{count(f['context'])} {plural(unit, f['context'])} before {them} {was}" if f["context"] else "nothing was"
    )
    at = formats.score(f["nats_per_token"], unit)
    return f"{result.name} reads {these}{reader} at {at}{against}; {before} read first.{_case(f.get('found'))}"


def _brackets(figures: Record) -> str:
    told = UnknownShare.of(figures).phrase()
    return told and f" ({told})"


def _case(found: object) -> str:
    """What was found of a cache, where a passage leads up to a case of it."""
    known = isinstance(found, dict) and all(isinstance(found.get(key), int | float) for key in ("share", "entropy"))
    if not isinstance(found, dict) or not known:
        return ""
    share = (
        f"{percent(100 * found['share'])} of the cache’s mass lies on it"
        if found["share"]
        else "the cache does not hold it"
    )
    entropy = f"the entropy of that mass over all places is {formats.decimal(found['entropy'], 2)} nats"
    return f" The last one, ‘{found.get('word')}’, was looked for: {share}, and {entropy}."


def told_in_bits(runs: Sequence[RunResults]) -> bool:
    """Whether the scores of all these runs are of characters or bytes."""
    return all(run.training and run.training.figures["unit"] in IN_BITS for run in runs)


def _at(epoch: Record, run: RunResults) -> str:
    if run.training is None:
        return f"perplexity {formats.perplexity(epoch['valid_perplexity'])}"
    return formats.score(epoch["valid_nats"], run.training.figures["unit"])


def _over_valid(run: RunResults) -> str:
    if run.training is None:
        return ""
    f = run.training.figures
    return f" over {count(f['tokens']['valid'])} {plural(f['unit'])}"


def otherwise(figures: Record) -> str:
    """How an external memory was addressed, and the lengths of a task, where they were chosen."""
    addressing, lengths = figures.get("addressing"), figures.get("lengths")
    told = "" if addressing is None else f", addressing {addressing}"
    return told + ("" if not lengths else f", lengths {', '.join(map(count, lengths))}")


def answered(answers: Record) -> str:
    """How much of what a synthetic task asks is right, in a few words."""
    tokens, bits, documents = (percent(100 * answers[f"{w}_accuracy"]) for w in ("token", "bit", "document"))
    return f"{tokens} of the tokens asked, {bits} of the bits and {documents} of the documents are right"


def _unknown(figures: Record, tokens: int | None = None) -> str:
    """What follows a number of tokens: `, 5.8% of them written as <unk>`; empty where none is."""
    told = UnknownShare.of(figures, tokens).phrase()
    return told and f", {told}"


def _reads(run: RunResults) -> str:
    """The summary's first half: the headline evaluation, or else the best of training."""
    result = headline(run)
    if result:
        f = result.figures
        unit = f["unit"]
        reader = ("" if f["reader"] == "static" else f" with the {f['reader']} reader") + otherwise(f)
        at = formats.score(f["nats_per_token"], unit)
        audit = audit_word(f).replace("AUDIT FAILED", "but its AUDIT FAILED")
        return (
            f"{run.name} reads {result.corpus.get('name', 'its text')} ({f['split']}){reader} at {at} "
            f"over {count(f['tokens'])} {plural(unit, f['tokens'])}{_unknown(f)}, {audit}"
            + (f"; {answered(f['answers'])}" if f.get("answers") else "")
        )
    if run.training:
        f = run.training.figures
        return (
            f"{run.name} reaches validation {formats.score(f['valid_nats'], f['unit'])} on "
            f"{run.training.corpus.get('name', 'its text')} over {count(f['tokens']['valid'])} {plural(f['unit'])}"
            f"{_unknown(f.get('unknown', {}).get('valid', {}), f['tokens']['valid'])}, "
            f"at epoch {count(f['best_epoch'])} of {count(f['epochs'])} (from training, not audited)"
        )
    return ""
