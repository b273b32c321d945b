"""`backstory evaluate RUN [TEXT]`: read a split or a text once, audited, and score it."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import tyro

from backstory.cli.command_line import JsonOutput, ModelArguments, announce, parse, print_json, typed_text
from backstory.config import NonFiniteError, UserError, pasted, plural
from backstory.config.formats import MISSING, alone
from backstory.config.options import EvalOptions, options_in_words
from backstory.config.plugin_files import plugin_flags
from backstory.config.schema import SPLITS
from backstory.config.scores import IN_BITS, bounded, format_score
from backstory.config.small_file import is_pipe
from backstory.config.terminal import make_console, one_line, progress_bar

if TYPE_CHECKING:
    from backstory.results import EvaluationFigures, Result


@dataclass(frozen=True)
class EvaluateArguments(JsonOutput, EvalOptions, ModelArguments):
    """Score every token of a split, or of a text of your own, with a trained model in one pass.

    A folder of runs stands for all runs in it.
    """

    text: Annotated[  # type: ignore[assignment]
        tyro.conf.Positional[str | None],
        tyro.conf.arg(
            metavar="[TEXT]", help="A file or folder of texts to read instead of a split, or - for standard input."
        ),
    ] = None
    split: str | None = None  # type: ignore[assignment]
    """train, valid or test (the default)."""
    reader: tyro.conf.UseAppendAction[tuple[str, ...]] = ()  # type: ignore[assignment]
    """The reader (`backstory ls readers`; else static); may be given more than once: readers wrap each other."""
    corpus: tyro.conf.UseAppendAction[tuple[str, ...]] = ()  # type: ignore[assignment]
    """A corpus by its name or the path of a file or folder (else that of the run); given more than once: a result for each."""
    collect_statistics: tyro.conf.FlagCreatePairsOff[bool] = False
    """Collect the statistics of training gradients that the reader needs (`backstory reader statistics`) before it reads."""

    @property
    def single_corpus(self) -> str | None:
        """The corpus that is read; None for none or several."""
        return self.corpus[0] if len(self.corpus) == 1 and self.text is None else None

    def options(self) -> EvalOptions:
        """Return the options of the evaluation. Raises UserError for what is not a text."""
        args = {field.name: getattr(self, field.name) for field in fields(EvalOptions)}
        from backstory.data import CORPORA
        from backstory.runs.run import is_elsewhere

        if self.text in CORPORA and not Path(self.text).exists():
            use = (
                f"give --corpus {self.text}" if is_elsewhere(self.run) else "leave it out to read the run's own corpus"
            )
            raise UserError(f"there is no file '{self.text}', which is the name of a corpus; {use}")
        text = None if self.text is None else text_source(self.text)
        return EvalOptions.build(**args | {"split": self.split or "test", "text": text, "corpus": self.single_corpus})


def main(arguments: Sequence[str]) -> int:
    args = parse(EvaluateArguments, arguments, "evaluate")
    if args.text is not None and args.split is not None:
        raise UserError("a text has no splits; remove --split, or the text")
    if args.text is not None and args.corpus and not args.collect_statistics:  # which are those of a corpus
        raise UserError("a text and --corpus cannot be combined; remove one")

    announce(
        f"reading {_text_name(args)} with {args.run}", args.run, readers=args.reader, splits=(args.split, args.after)
    )
    from backstory.results.run_listing import runs_in

    runs = runs_in(args.run)
    if len(runs) > 1:
        return _evaluate_all(args, runs)
    if len(args.corpus) > 1:
        return _evaluate_corpora(args, runs[0])
    result = _evaluate(args, args.options(), runs[0])
    args.show(result, lambda: _described(args, result, runs[0]))
    return _exit_code([result])


def _exit_code(results: "Sequence[Result[EvaluationFigures]]") -> int:
    """Return 1 if a reader failed its audit, as its score must not be quoted; controls are built to fail and do not count."""
    failed = [one.figures for one in results if one.figures.audit is not None and not one.figures.audit.passed]
    return int(any(not _control(figures) for figures in failed))


def _described(args: EvaluateArguments, result: "Result[EvaluationFigures]", run: Path) -> str:
    """Return a result as lines of text, with the command that tunes its readers where one is worse for want of that."""
    text = describe(result, args.single_corpus) if args.text is None else summary(result)
    return "\n".join([text, *untuned(result.figures, run, args.single_corpus)])


def _evaluate(args: EvaluateArguments, options: EvalOptions, run: Path) -> "Result[EvaluationFigures]":
    from backstory.evaluation.evaluation import evaluate

    if args.collect_statistics:
        _collect_statistics(args, run)
    with progress_bar(f"reading {passes(_text_name(args), args.reader, args.after)}") as progress:
        return evaluate(run, options, progress)


def _evaluate_corpora(args: EvaluateArguments, run: Path) -> int:
    """Evaluate a model on several corpora, and print a table with a row for each."""
    from backstory.evaluation.evaluation import evaluate_corpora

    if args.collect_statistics:
        raise UserError("--collect-statistics is for one corpus; name one")
    with progress_bar(f"reading {passes(f'{len(args.corpus)} corpora', args.reader, args.after)}") as progress:
        results = evaluate_corpora(run, args.corpus, args.options(), progress)
    args.show(results, lambda: corpora_table(results))
    return _exit_code(results)


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


def passes(text: str, readers: Sequence[str], after: str | None) -> str:
    """Return what the progress bar counts the tokens of: the split read before, and a second pass where a model adapts."""
    from backstory.readers.registry import parse_stack

    before = "" if after is None else f"{after}, then "
    adapts = parse_stack(readers or "static")[0].name != "static"
    return f"{before}{text}{' twice, adaptive and static' if adapts else ''}"


def _text_name(args: EvaluateArguments) -> str:
    return "standard input" if args.text == "-" else args.text or args.split or "test"


def _evaluate_all(args: EvaluateArguments, runs: Sequence[Path]) -> int:
    """Evaluate the runs of a folder one by one; those that cannot be read are left out, and the exit code is 2 then."""
    single = {
        "standard input": args.text == "-",
        "a list of corpora": len(args.corpus) > 1,
        "--out": args.out is not None,
        "--per-token": args.per_token is not None,
        "--per-line": args.per_line is not None,
        "--proof": args.proof is not None,
    }
    if any(single.values()):
        flag = next(name for name, is_used in single.items() if is_used)
        raise UserError(f"{args.run} holds {len(runs)} runs, and {flag} serves one; name one of its runs")
    options, results, left_out = args.options(), [], 0
    for run in runs:
        try:
            result = _evaluate(args, options, run)
        except (UserError, NonFiniteError) as error:
            left_out += 1
            print(f"backstory: {one_line(str(error))}", file=sys.stderr)
            continue
        results.append(result)
        if not args.json:
            named = "" if args.text is None else f"{run}: "
            print(named + _described(args, result, run), flush=True)
    if args.json:
        print_json(results)
    if left_out:
        raise UserError(f"{left_out} of {len(runs)} runs in {args.run} could not be read; the others were")
    return _exit_code(results)


def _collect_statistics(args: EvaluateArguments, run: Path) -> None:
    """Collect the statistics of training gradients for the weights that the reader moves, as `reader statistics` does."""
    from backstory.cli.reader import StatisticsArguments, collect
    from backstory.readers.registry import parse_stack, typed_settings

    base = parse_stack(args.reader or "static")[0]  # the one that reads with the model
    if base.name == "static":
        raise UserError("--collect-statistics is for a reader that moves the weights; name it with --reader")
    moving = str(typed_settings(base).get("moving", "all"))
    moving = moving if moving.startswith("low-rank") else "all"
    corpus = args.corpus[0] if args.corpus else None
    how: Any = vars(args.load_options()) | {n: getattr(args, n) for n in ("data_dir", "field", "precision")}
    how["corpus"] = corpus
    path, _ = collect(StatisticsArguments(run=run, moving=moving, **how))
    print(f"backstory: statistics of training gradients are in {path}", file=sys.stderr)


def text_source(text: str) -> Path | BinaryIO:
    """Return the text named by TEXT: a path, or standard input. Raises UserError for the name of a split."""
    if not text:
        raise UserError("the text is empty; give a file, or - for standard input")
    if text in SPLITS and not Path(text).exists():
        raise UserError(f"there is no file '{text}'; `--split {text}` reads that split of the run's corpus")
    if text == "-":
        return typed_text()
    if not Path(text).exists() and "/" not in text and "." not in text:
        from backstory.readers import READERS

        if text.partition(":")[0] in READERS:
            raise UserError(f"there is no file '{text}'; each reader follows a flag of its own: `--reader {text}`")
    if is_pipe(Path(text)):
        print(f"backstory: {one_line(text)} is a pipe; waiting until something is written into it", file=sys.stderr)
    return Path(text)


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
    """Return the effect of a window on the context of a token; older results do not say what it keeps as it slides."""
    later = "" if keeps is None else f", so that later tokens have {keeps:,} or more before them"
    return f"at most {window:,} tokens at once{later}"


def _per_word(figures: "EvaluationFigures") -> list[str]:
    """Return the perplexity per word if words are scored as several tokens, else nothing."""
    if figures.unit == "word" or figures.perplexity_per_word is None:
        return []
    return [f"{'perplexity ' if figures.unit in IN_BITS else ''}{alone(figures.perplexity_per_word)} per word"]


def _spelled(figures: "EvaluationFigures") -> list[str]:
    """Return the bits per byte of all that is in the file, where the tokens do not hold it, else nothing."""
    if figures.open_bits_per_byte is None or figures.bits_per_byte is not None:
        return []
    return [f"{figures.open_bits_per_byte:.4f} bits per byte with spelling"]


def _tokens(figures: "EvaluationFigures") -> str:
    """Return `82,430 words, 5.8% of them written as <unk>`."""
    unknown = figures.unknown_among(figures.tokens).phrase()
    return f"{figures.tokens:,} {plural(figures.unit, figures.tokens)}{unknown and f', {unknown}'}"


def _lines(figures: "EvaluationFigures") -> str:
    """Return ` in 120 lines, each by itself (3 empty ones left out)`; empty where a text was read from end to end."""
    if figures.lines is None:
        return ""
    empty = figures.empty_lines or 0
    left_out = f" ({empty:,} empty {'one' if empty == 1 else 'ones'} left out)" if empty else ""
    return f" in {figures.lines:,} {plural('line', figures.lines)}, each by itself{left_out}"


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
    says = f"  control     {name} is no reader to compare by its score; it fails the audit by design"
    return [] if name is None else [says]


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
    """Return lines on the gate between two predictions, beside other gates; nothing for a model with one prediction."""
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
"""Ratio of two perplexities up to which their difference is printed as +0.0%."""


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
        change = "" if before is None else f"  {bounded(100 * (score.perplexity / before - 1), '+.1f')}%"
        reader = readers.get(score.name, {"settings": {}})
        settings = ", ".join(f"{k} {v}" for k, v in reader["settings"].items() if v or k == "decay")
        moving = (
            f"; {reader['moving']:,} weights move, {reader['bytes'] / 2**20:,.0f} MiB" if "moving" in reader else ""
        )
        origin = f"  ({reader['origin']}: {settings}{moving})" if settings else ""
        lines.append(f"  {score.name:<11} {bounded(score.perplexity)}{change}{origin}")
        before = score.perplexity
    return lines
