"""`backstory evaluate RUN [TEXT]`: read a split or a text once, audited, and score it."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from backstory.cli.command_line import JsonOutput, ModelArguments, announce, parse, print_json, text_source
from backstory.cli.evaluation_text import corpora_table, describe, summary, untuned
from backstory.config.options import EvalOptions
from backstory.storage.run_files import A_RUN, kind_of_runs
from backstory.utils.errors import NonFiniteError, UserError
from backstory.utils.terminal import fitted, one_line, progress_bar

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
        from backstory.data import CORPORA
        from backstory.runs.run import is_elsewhere

        if self.text in CORPORA and not Path(self.text).exists():
            use = (
                f"give --corpus {self.text}" if is_elsewhere(self.run) else "leave it out to read the run's own corpus"
            )
            raise UserError(f"there is no file '{self.text}', which is the name of a corpus; {use}")
        if self.text is not None and kind_of_runs(Path(self.text)) == A_RUN:
            raise UserError(
                f"{self.text} is a run, not a corpus; give a text, or the corpus that the run was trained on; several runs are "
                "evaluated one by one, or by the folder that holds them: `backstory evaluate FOLDER`"
            )
        text = None if self.text is None else text_source(self.text)
        return EvalOptions.build(self, split=self.split or "test", text=text, corpus=self.single_corpus)


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
    """Return 1 if a reader failed its audit, so that its score must not be quoted. Controls fail by design and do not count."""
    from backstory.readers.registry import control_in

    failed = [one.figures for one in results if one.figures.audit is not None and not one.figures.audit.passed]
    return int(any(control_in(figures.reader) is None for figures in failed))


def _described(args: EvaluateArguments, result: "Result[EvaluationFigures]", run: Path) -> str:
    """Return a result as lines of text, with the command that tunes a reader which is worse because it is untuned."""
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


def passes(text: str, readers: Sequence[str], after: str | None) -> str:
    """Return the subject of the progress bar: the split read before, or a second pass if a model adapts."""
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
    if flag := next((name for name, is_used in single.items() if is_used), None):
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
            print(fitted(named + _described(args, result, run)), flush=True)
    if args.json:
        print_json(results)
    if left_out:
        others = "; the others were" if results else ""
        raise UserError(f"{left_out} of {len(runs)} runs in {args.run} could not be read{others}")
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
