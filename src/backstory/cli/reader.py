"""`backstory reader ...`: prepare adaptive readers for a run (statistics, tune, train), and audit any reader."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import tyro

from backstory.cli.command_line import CorpusArguments, JsonOutput, announce, dispatch, parse, print_json
from backstory.config.options import Precision
from backstory.config.plugin_files import plugin_flags
from backstory.config.readers import TUNED_TOKENS, GateSettings, MetaTraining
from backstory.config.strict import between
from backstory.utils.errors import UserError, pasted, plural
from backstory.utils.terminal import progress_bar

if TYPE_CHECKING:
    from pathlib import Path

    from backstory.evaluation.opening import EvalSetup
    from backstory.readers.gradient_statistics import Collected
    from backstory.tuning.reader_search import Tuned


@dataclass(frozen=True)
class AuditReaderArguments(JsonOutput, CorpusArguments):
    """Audit a reader at random places of a split: scores are causal, normalised, and taken before learning."""

    split: str = "valid"
    """train, valid or test."""
    reader: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """The reader (`backstory ls readers`; else static); may be given more than once: readers wrap each other."""
    places: int | None = between(None, 1)
    """Number of random blocks that are audited; by default 8, more for short blocks, fewer for a large batch."""
    seed: int | None = between(None, 0)
    """Seed of the audited places, to repeat an audit; by default a random one."""
    batch_size: int = between(1, 1)
    """Rows read side by side."""


@dataclass(frozen=True)
class StatisticsArguments(JsonOutput, CorpusArguments):
    """Collect the mean squares of each weight's training gradients once; adaptive readers scale their steps by them."""

    moving: str = "all"
    """The weights: all (which also serves last:N and output), or low-rank:R."""
    split: str = "train"
    """The text that is read."""
    tokens: int | None = between(None, 1)
    """Largest number of tokens read, from its beginning (else all)."""
    batch_size: int = between(100, 1)
    """Rows of a minibatch."""
    segment: int = between(5, 1)
    """Tokens of each row in it."""
    precision: Precision = "float32"
    """Precision of matrix products."""


@dataclass(frozen=True)
class TuneReaderArguments(JsonOutput, CorpusArguments):
    """Search a reader's settings on a split and save the best in the run, where later evaluations find them."""

    reader: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """The reader, with the settings that the search starts from: cache, dynamic:segment=20 (else dynamic). Of several readers
    the outermost is tuned, or all with --in-turn."""
    split: str = "valid"
    """The text to tune on; never test."""
    tokens: int | None = between(TUNED_TOKENS, 100)
    """Largest number of tokens read, from its beginning; none: all."""
    grid: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Try all of these values: rate=1e-4,3e-4; may be given more than once. By default the search steps up and down."""
    in_turn: tyro.conf.FlagCreatePairsOff[bool] = False
    """Tune one setting after the other, of all readers that are named: segment (5 to 70), temperature (0.9 to 1.3), clip
    (0 to 1), beta1. Settings given with the reader stay fixed; --grid gives other values, or further settings."""
    precision: Precision = "float32"
    """Precision of matrix products."""


@dataclass(frozen=True)
class TrainReaderArguments(JsonOutput, CorpusArguments):
    """Train the meta-learner that sets the gates of every weight while a text is read (the reader `learned`)."""

    name: str = "three-level"
    """Its name, for `--reader learned:network=NAME`."""
    reader: str = "dynamic"
    """The dynamic evaluation that it wraps, with its tuned settings: dynamic, or dynamic:segment=20,..."""
    split: str = "valid"
    """The text it learns on; never test. Choose a text that the model was not trained on."""
    skip: int | None = between(None, 0)
    """Tokens skipped at its beginning: those that dynamic evaluation was tuned on (else 20,000, or half of a shorter text)."""
    gates: GateSettings = field(default_factory=GateSettings)
    training: MetaTraining = field(default_factory=MetaTraining)
    precision: Precision = "float32"
    """Precision of matrix products."""


def main(arguments: Sequence[str]) -> int:
    return dispatch("reader", ACTIONS, arguments)


def _opened(args: StatisticsArguments | TrainReaderArguments) -> "EvalSetup":
    """Open the run with the static reader, and the split to learn on."""
    from backstory.evaluation.opening import open_evaluation

    return open_evaluation(args.run, args, reader="static", allow_unknown=True)


def statistics(arguments: Sequence[str]) -> int:
    args = parse(StatisticsArguments, arguments, "reader statistics")
    announce(f"collecting statistics of {args.run}", args.run, splits=(args.split,))
    path, how = collect(args)
    sizes = {"minibatches": how.minibatches, "batch_size": how.batch_size, "segment": how.segment}
    text = f"{path}: {how.minibatches:,} minibatches of {how.batch_size} x {how.segment} tokens of {args.split}"
    args.show({"file": str(path), "split": args.split, **sizes}, text)
    return 0


def collect(args: StatisticsArguments) -> "tuple[Path, Collected]":
    """Collect the statistics and save them in the run; return their folder, and how they were collected."""
    from backstory.tuning.preparation import collect_statistics

    opened = _opened(args)
    with progress_bar("collecting statistics", unit="minibatches") as progress:
        path, statistics = collect_statistics(opened, args.moving, args.tokens, args.batch_size, args.segment, progress)
    return path, statistics.collected


def tune(arguments: Sequence[str]) -> int:
    args = parse(TuneReaderArguments, arguments, "reader tune")

    announce(
        f"tuning {'+'.join(args.reader) or 'dynamic'} for {args.run}",
        args.run,
        readers=args.reader,
        splits=(args.split,),
    )
    from backstory.readers.registry import parse_stack, stack_name
    from backstory.tuning.preparation import progress_unit, search_record, tune_reader

    stack = parse_stack(args.reader or "dynamic")
    fields = vars(args.load_options()) | {n: getattr(args, n) for n in ("precision", "data_dir", "corpus", "field")}
    with progress_bar(f"tuning {stack_name(stack)}", unit=progress_unit(stack, args.in_turn)) as progress:
        paths, tuned = tune_reader(
            args.run, stack, args.split, args.tokens, args.grid, progress, in_turn=args.in_turn, **fields
        )
    record = {"files": list(map(str, paths)), "split": args.split, **search_record(tuned)}
    args.show(record, lambda: "\n".join([describe_tuned(tuned), *map(str, paths)]))
    return 0


def train(arguments: Sequence[str]) -> int:
    args = parse(TrainReaderArguments, arguments, "reader train")

    announce(f"training {args.name} for {args.run}", args.run, readers=(args.reader,), splits=(args.split,))
    from backstory.readers.registry import configure, parse_stack
    from backstory.tuning.preparation import train_learned
    from backstory.utils.scores import bounded, perplexity

    stack = parse_stack(args.reader)
    if [layer.name for layer in stack] != ["dynamic"]:
        raise UserError(f"the meta-learner works with the reader dynamic only, not {args.reader}")
    opened = _opened(args)
    base = configure(stack, opened.run)[0].settings
    losses: list[float] = []

    def report(tokens: int, nats: float) -> None:
        losses.append(nats)
        if len(losses) % 10 == 0:
            mean = sum(losses[-10:]) / 10
            print(
                f"{tokens:>9,} tokens  perplexity of the last ten pieces {bounded(perplexity(mean)):>8}",
                file=sys.stderr,
                flush=True,
            )

    with progress_bar(f"training {args.name}", unit="updates") as progress:
        path, trained = train_learned(
            opened, base, args.gates, args.training, args.name, skip=args.skip, progress=progress, report=report
        )
    learned = f"learned:network={args.name}"
    part = {name: trained.record[name] for name in ("split", "skip", "tokens")}
    text = (
        f"{path}: trained on {part['tokens']:,} tokens of {args.split} after the first {part['skip']:,}\n"
        f"`backstory evaluate {pasted(args.run)} --reader {learned}{plugin_flags()}` reads with it"
    )
    args.show({"file": str(path), "reader": learned, **part, "pieces": len(losses)}, text)
    return 0


def describe_tuned(tuned: "Tuned") -> str:
    """Return the best settings of a search, one per line, and those beyond which better ones may lie."""
    from backstory.utils.scores import bounded, perplexity

    whole = sorted(
        ((t.nats, t.settings) for t in tuned.trials if t.tokens == tuned.tokens and t.nats), key=lambda t: t[0]
    )
    varied = [k for k in whole[0][1] if len({repr(t.settings[k]) for t in tuned.trials}) > 1]
    lines = [f"  {bounded(perplexity(n)):>9}  " + "  ".join(f"{k} {s[k]}" for k in varied) for n, s in whole[:10]]
    ended = tuned.tried - len(tuned.trials) + len(whole)
    head = f"perplexity of {tuned.tokens:,} tokens, best of {tuned.tried} settings ({ended} read to the end)"
    beyond = [
        f"{name} {getattr(tuned.best, name):g} is the {which} that was tried; --grid {name}=VALUE,VALUE tries others"
        for name, which in tuned.at_edge.items()
    ]
    return "\n".join([head, *lines, *beyond])


def audit(arguments: Sequence[str]) -> int:
    """Audit the reader; return exit code 1 if it fails."""
    args = parse(AuditReaderArguments, arguments, "reader audit")

    announce(
        f"auditing {'+'.join(args.reader) or 'static'} of {args.run}",
        args.run,
        readers=args.reader,
        splits=(args.split,),
    )
    from backstory.evaluation.evaluation import audit_reader
    from backstory.evaluation.opening import open_evaluation
    from backstory.readers.registry import parse_stack, stack_name

    setup = open_evaluation(
        args.run, args, audit_places=args.places, audit_seed=args.seed, batch_size=args.batch_size, allow_unknown=True
    )
    with progress_bar(f"auditing on {args.split}") as progress:
        _, report = audit_reader(setup, progress)
    name = stack_name(parse_stack(args.reader))
    if args.json:
        print_json({"run": str(args.run), "reader": name, "split": args.split, **report.record().to_dict()})
        return 0 if report.passed else 1
    extent = f"{report.places} {plural('place', report.places)}, {report.cuts:,} {plural('cut', report.cuts)}"
    print(f"{args.run}, {name} reader, {args.split} split, {extent}, seed {report.seed}")
    for check, passed in report.checks.items():
        print(f"  {check.replace('_', ' '):<22} {'passed' if passed else 'FAILED'}")
    for failure in report.failures:
        print(f"  {failure}")
    return 0 if report.passed else 1


ACTIONS = {
    "statistics": ("collect the gradient statistics that readers with moving weights need", statistics),
    "tune": ("search the settings of a reader on validation text, and keep the best in the run", tune),
    "train": ("train the meta-learner of the reader `learned`", train),
    "audit": ("test that the scores of a reader are causal, normalised and taken before it learns", audit),
}
