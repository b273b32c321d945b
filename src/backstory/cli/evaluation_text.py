"""Results of `evaluate` as text: of a split as several lines, of a text as one, of several corpora as a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from backstory.config.options import options_in_words
from backstory.config.plugin_files import plugin_flags
from backstory.utils.errors import pasted
from backstory.utils.formats import MISSING, alone, quantity, signed_percent
from backstory.utils.scores import IN_BITS, bounded, format_score
from backstory.utils.terminal import make_console

if TYPE_CHECKING:
    from backstory.results import EvaluationFigures, Result


def corpora_table(results: Sequence["Result[EvaluationFigures]"]) -> str:
    """Return the results of one model on several corpora as a table with a row for each, its warnings below."""
    from backstory.reports.tables import Table, columns, to_text

    headings = columns("corpus", "tokens#", "nats#", "perplexity#", "per word#", "bits per byte#", "audit")
    rows, warnings = [], []
    for result in results:
        figures = result.figures
        passed = "passed" if figures.audit and figures.audit.passed else _audit(figures)
        per_word = MISSING if figures.perplexity_per_word is None else alone(figures.perplexity_per_word)
        per_byte = figures.bits_per_byte if figures.open_bits_per_byte is None else figures.open_bits_per_byte
        per_byte = MISSING if per_byte is None else f"{per_byte:.4f}"
        scores = f"{figures.nats_per_token:.4f}", alone(figures.perplexity), per_word, per_byte
        rows.append((result.corpus.title(), f"{figures.tokens:,}", *scores, passed))
        warnings += [f"{result.corpus.title()}: {warning.strip()}" for warning in _warnings(result)]
    first = results[0].figures
    head = f"{results[0].name}, {first.split} split, {first.reader} reader, scored per {first.unit}"
    return "\n".join([head, to_text(Table(headings, tuple(rows))), *warnings])


def summary(result: "Result[EvaluationFigures]") -> str:
    """Return the result of evaluating a text in one line, with its warnings below."""
    figures = result.figures
    per_word = "".join(f", {score}" for score in (*_per_word(figures), *_spelled(figures)))
    verdict = "audit passed" if figures.audit and figures.audit.passed else f"audit {_audit(figures)}"
    window = "" if figures.window is None else f", {slides(figures.window, figures.window_keeps)}"
    lines = _lines(figures)
    return (
        f"{result.name}, {result.corpus.title()}: "
        f"{format_score(figures.nats_per_token, figures.unit)}{per_word} over {_tokens(figures)}{lines}{window}, {verdict}"
        + "".join(f"\n{line}" for line in (*_proof(figures), *_warnings(result)))
    )


def _audit(figures: "EvaluationFigures") -> str:
    return "none" if figures.audit is None else figures.audit.in_words()


def slides(window: int, keeps: int | None) -> str:
    """Return the effect of a window on a token's context; older results do not record what it keeps when it slides."""
    later = "" if keeps is None else f", so that later tokens have {keeps:,} or more before them"
    return f"at most {window:,} tokens at once{later}"


def _per_word(figures: "EvaluationFigures") -> list[str]:
    """Return the perplexity per word if words are scored as several tokens, else nothing."""
    if figures.unit == "word" or figures.perplexity_per_word is None:
        return []
    return [f"{'perplexity ' if figures.unit in IN_BITS else ''}{alone(figures.perplexity_per_word)} per word"]


def _spelled(figures: "EvaluationFigures") -> list[str]:
    """Return the bits per byte of the whole file if the tokens do not hold it, else nothing."""
    if figures.open_bits_per_byte is None or figures.bits_per_byte is not None:
        return []
    return [f"{figures.open_bits_per_byte:.4f} bits per byte with unknown words spelled out"]


def _tokens(figures: "EvaluationFigures") -> str:
    """Return `82,430 words, 5.8% of them written as <unk>`."""
    unknown = figures.unknown_among(figures.tokens).phrase()
    return f"{quantity(figures.tokens, figures.unit)}{unknown and f', {unknown}'}"


def _lines(figures: "EvaluationFigures") -> str:
    """Return ` in 120 lines, each by itself (3 empty ones left out)`; empty where a text was read from end to end."""
    if figures.lines is None:
        return ""
    empty = figures.empty_lines or 0
    left_out = f" ({empty:,} empty {'one' if empty == 1 else 'ones'} left out)" if empty else ""
    return f" in {quantity(figures.lines, 'line')}, each by itself{left_out}"


def _proof(figures: "EvaluationFigures") -> list[str]:
    """Return a line on the code of the text, if it was written."""
    if figures.proof is None:
        return []
    from backstory.evaluation.proving import TOLERANCE, UNCOUNTED

    nats, size = figures.proof.nats_per_token, f"{figures.proof.bytes:,} bytes"
    better = nats / figures.nats_per_token - 1 if figures.nats_per_token > 0 else 0.0
    held = f", but the score claims {better:.1%} less than it takes to decode" if better > TOLERANCE else ""
    if (figures.proof.uncounted_share or 0.0) > UNCOUNTED:
        held += ", but too many rows for so short a text: `verify` will not accept it; use a smaller --batch-size"
    return [f"  proof       {figures.proof.file}, {size}: {nats:.4f} nats per token in code{held}"]


def _control(figures: "EvaluationFigures") -> list[str]:
    """Return a line on the control among the readers, if there is one."""
    from backstory.readers.registry import control_in

    name = control_in(figures.reader)
    if name is None:
        return []
    failed = figures.audit is not None and not figures.audit.passed
    why = "; it fails the audit by design" if failed else ", whether or not it passes the audit"
    return [f"  control     {name} is not a reader to compare by its score{why}"]


def _warnings(result: "Result[EvaluationFigures]") -> list[str]:
    """Return lines of warnings for a comparison of the figures."""
    from backstory.reports.phrases import overlap_warnings, unknown_warning

    warning = unknown_warning(result)
    unknown = [] if warning is None else [f"  unknown     {warning}"]
    overlaps = (f"  overlap     {overlap}" for overlap in overlap_warnings(result.figures))
    return [*_control(result.figures), *unknown, *overlaps]


def describe(result: "Result[EvaluationFigures]", corpus: str | None = None) -> str:
    """Return the result of evaluating a split as lines of text, with the corpus if one was named."""
    figures, unit = result.figures, result.figures.unit
    more = [f"{figures.bits_per_token:.4f} bits per {unit}"]
    for bits, each in ((figures.bits_per_character, "character"), (figures.bits_per_byte, "byte")):
        if bits is not None and each != unit:
            more.append(f"{bits:.4f} bits per {each}")
    more += _spelled(figures)
    perplexity = f"{bounded(figures.perplexity)} per {unit}"
    head = f"perplexity  {perplexity}"
    if unit in IN_BITS:
        head, more[0] = f"bits        {figures.bits_per_token:.4f} per {unit}", f"perplexity {perplexity}"
    more += _per_word(figures)
    after = "" if figures.after is None else f", after {figures.after}"
    of_corpus = "" if corpus is None else f" of {result.corpus.title()}"
    after += "" if figures.addressing is None else f", addressing {figures.addressing}"
    after += options_in_words(figures.options)
    return "\n".join(
        [
            f"{result.name}, {figures.split} split{of_corpus}, {figures.reader} reader{after}",
            f"  {head}  ({', '.join(more)})",
            f"  tokens      {_tokens(figures)}, all scored, batch size {figures.batch_size:,}",
            f"  audit       {_audit(figures)}",
            *_proof(figures),
            *_warnings(result),
            *([] if figures.window is None else [f"  window      {slides(figures.window, figures.window_keeps)}"]),
            *gains(figures),
            *gate_lines(figures),
            *section_lines(result),
        ]
    )


def section_lines(result: "Result[EvaluationFigures]") -> list[str]:
    """Return the sections of a report as lines of text: memory, answers and recency."""
    from backstory.reports import sections

    console = make_console()
    with console.capture() as text:
        sections.show(result, console)
    return text.get().splitlines()


def gate_lines(figures: "EvaluationFigures") -> list[str]:
    """Return lines on the gate between two predictions and on other gates; nothing for a model with one prediction."""
    gate = figures.policy
    if gate is None:
        return []
    by_temperature = ", ".join(f"{bounded(p)} at {t}" for t, p in gate.temperatures.items())
    return [
        f"  gate        lambda {gate.mean_lambda:.3f} on average, 0.5 or more at {gate.utilization:.1%} of tokens; "
        f"q is better at {gate.win_share:.1%}",
        f"  parts       p alone {alone(gate.p_perplexity)}, q alone {alone(gate.q_perplexity)}, oracle "
        f"{bounded(gate.oracle_perplexity)}, best constant lambda here {gate.best_constant_lambda:g}: "
        f"{bounded(gate.best_constant_perplexity)}",
        f"  temperature {by_temperature}",
    ]


SAME = 1.0005
"""Ratio of two perplexities up to which their difference is printed as 0.0%."""


def untuned(figures: "EvaluationFigures", run: Path, corpus: str | None = None) -> list[str]:
    """Return a line for each reader with default settings that is worse than the readers inside it: how to tune it."""
    from backstory.readers import READERS
    from backstory.readers.registry import parse_stack, stack_name

    scores = {score.name: score.perplexity for score in figures.gains or ()}
    origins = {reader["name"]: reader.get("origin") for reader in figures.readers or ()}
    stack, lines = parse_stack(figures.reader), []
    for depth, layer in enumerate(stack):
        inner = scores.get(stack[depth - 1].name if depth else "static")
        if layer.name == "static" or inner is None or scores.get(layer.name, inner) <= SAME * inner:
            continue
        if READERS[layer.name].tunable and origins.get(layer.name) == "default":
            reader = pasted(stack_name(stack[: depth + 1]))
            of = "" if corpus is None else f" --corpus {pasted(corpus)}"
            command = f"backstory reader tune {pasted(run)} --reader {reader}{of}{plugin_flags()}"
            lines.append(f"  untuned     {layer.name} makes it worse with its default settings; `{command}` tunes it")
    return lines


def gains(figures: "EvaluationFigures") -> list[str]:
    """Return a line for each reader of a stack: its gain over the inner ones, and its settings; nothing for static alone."""
    readers = {reader["name"]: reader for reader in figures.readers or ()}
    scores = figures.gains or ()
    lines, before = [], None
    for score in scores if len(scores) > 1 else ():
        change = "" if before is None else f"  {signed_percent(100 * (score.perplexity / before - 1))}"
        reader = readers.get(score.name, {"settings": {}})
        settings = ", ".join(f"{k} {v}" for k, v in reader["settings"].items() if v or k == "decay")
        moving = (
            f"; {reader['moving']:,} weights move, {reader['bytes'] / 2**20:,.0f} MiB" if "moving" in reader else ""
        )
        origin = f"  ({reader['origin']}: {settings}{moving})" if settings else ""
        lines.append(f"  {score.name:<11} {bounded(score.perplexity)}{change}{origin}")
        before = score.perplexity
    return lines
