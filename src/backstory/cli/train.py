"""`backstory train RECIPE [...]`: train a model; a flag with the dotted name of a setting overrides the recipe."""

import dataclasses
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from os.path import expanduser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import tyro

from backstory.cli import help_page
from backstory.cli.command_line import JsonOutput, announce, parse, print_json
from backstory.cli.flags import errors_as_typed, expanded, typed_settings
from backstory.config import RunConfig, from_dict, recipes, to_dict
from backstory.config.ignored_settings import warn_ignored
from backstory.config.plugin_files import plugin_flags
from backstory.config.strict import between
from backstory.storage.run_files import check_run_exists
from backstory.utils.errors import UserError, check_utf8, pasted, plural
from backstory.utils.process import Interrupted, Stopped, first_here
from backstory.utils.scores import format_score
from backstory.utils.terminal import fitted, shown_progress

if TYPE_CHECKING:
    from backstory.results import TrainingFigures
    from backstory.runs.run_folder import Mode

T = TypeVar("T")
SEEDS_RECIPE = "recipe.yaml"
"""The settings of the runs of several seeds, in the folder of all of them."""


@dataclass(frozen=True)
class TrainArguments(JsonOutput):
    """Train a model from a recipe, by name (`backstory ls recipes`) or from a YAML file; flags change its settings.

    `backstory train RUN --resume` resumes a run with the settings in its folder.

    `--model.head.kind mixture` chooses another kind of part (`backstory ls models`), with flags of its own: add --help to
    see them.
    """

    corpus: str | None = None
    """Short for --text.corpus: a corpus by name, or a file or folder of texts."""
    data_dir: Path | None = None
    """Folder that holds the corpora (else BACKSTORY_DATA)."""
    out: Path | None = None
    """The run's folder (else runs/RECIPE, or the resumed one)."""
    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """Resume the run in that folder."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace the run in that folder."""
    accept: tuple[str, ...] = ()
    """Allowed differences from the resumed run: config, corpus, metrics (its log was lost)."""
    init_from: Path | None = None
    """A run whose best weights initialise this one; parts that it lacks, such as a buffer, are initialised as usual."""
    allow_equal_splits: tyro.conf.FlagCreatePairsOff[bool] = False
    """Allow a corpus whose validation and test are the same text."""
    threads: int | None = between(None, 1, 1024)
    """Threads on a CPU (else OMP_NUM_THREADS, or the fastest number, which is timed first)."""
    seeds: tuple[int, ...] = ()
    """Train a run for each of these seeds, in OUT/seed1 and so on, as many side by side as the cores allow."""
    workers: int | None = between(None, 1, 1024)
    """Processes that share the rows of a batch, each with one thread or --threads (else one; a resumed run keeps its own)."""
    track: tuple[str, ...] = ()
    """Log the curves to tensorboard, trackio or wandb (if missing: `pip install -e '.[track]'` in the clone of backstory)."""
    config: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=RunConfig)


def main(arguments: Sequence[str]) -> int:
    """Train, and print the commands that come next."""
    if "--resume" in arguments:
        arguments = run_first(arguments)
        check_resumable(arguments[0])
    recipe, args = parse_with_recipe(TrainArguments, arguments, "train")
    from backstory.runs.run_folder import check_folder

    mode = run_mode(args.resume, args.overwrite)
    if args.init_from is not None:
        check_run_exists(args.init_from, trained_here=True)
    if unknown := set(args.accept) - {"config", "corpus", "metrics"}:
        raise UserError(f"--accept takes config, corpus or metrics, not {', '.join(sorted(unknown))}")
    args.config.training.check()
    typed = typed_settings(arguments)
    warn_ignored(args.config, typed)
    out = args.out or recipes.default_folder(Path(recipe))
    if args.seeds or "--seeds" in arguments:
        from backstory.cli.train_seeds import train_seeds

        return train_seeds(recipe, args, out, mode, list(typed))
    if first_here():  # which makes the folder, while others may still be starting
        check_utf8(out)
        check_folder(out, args.config, mode, frozenset(args.accept))
    with _early_interruption(out):
        is_typed = not typed.keys().isdisjoint(("corpus", "text.corpus"))
        if is_typed:  # for the corpus of a recipe, the first line does not wait for numpy
            _check_corpus(args, mode)
        announce(f"training {recipe} in {out}")
        if not is_typed:
            _check_corpus(args, mode)
        run_training(
            args.config,
            out,
            mode,
            data_dir=args.data_dir,
            accept=frozenset(args.accept),
            track=args.track,
            init_from=args.init_from,
            allow_equal_splits=args.allow_equal_splits,
            threads=args.threads,
            workers=args.workers,
            as_json=args.json,
        )
    if first_here() and not args.json:
        run, report = pasted(out), f"backstory report {pasted(out)}"
        print(fitted(f"`backstory evaluate {run}{plugin_flags()}` reads the test split, `{report}` makes a page of it"))
    return 0


def _check_corpus(args: TrainArguments, mode: "Mode") -> None:
    """Raise UserError for a corpus that is not there, and for a text of the user's own that no new run can be trained on.

    The text is prepared, which takes no torch, and is in the cache when the training begins.
    """
    from backstory.data import prepare
    from backstory.data.corpora.catalogue import CORPORA, check_is_there
    from backstory.data.overlap import check_splits_differ

    text = args.config.text
    check_is_there(text.corpus)
    if text.corpus not in CORPORA and mode != "resume" and first_here():
        with shown_progress():
            check_splits_differ(prepare(text, args.data_dir), args.allow_equal_splits)


@contextmanager
def _early_interruption(out: Path) -> Iterator[None]:
    """Make the message of a signal say so if the training in the block had saved nothing. Raises Stopped."""
    try:
        yield
    except KeyboardInterrupt as stop:
        from backstory.runs.run_folder import RunFolder

        folder = RunFolder(out)
        if folder.checkpoints.exists():
            raise
        number = stop.signal if isinstance(stop, Interrupted) else signal.SIGINT
        raise Stopped(f"interrupted before anything was saved; {folder.remedy}", number) from None


def run_first(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a resumed training with its run in place of a missing recipe.

    The run is the folder after `--resume`, else that of `--out`: its settings are those of the recipe that it was trained with.
    """
    words = list(arguments)
    if not words[0].startswith("-"):
        return words
    after = words.index("--resume") + 1
    if words[after:] and not words[after].startswith("-"):
        run = words.pop(after)
        is_path = "/" in run or Path(run, recipes.CONFIG).exists()
        return [_as_folder(run), *words] if is_path else list(arguments)  # the name of a recipe comes first
    outs = [value for flag, value in pairwise(words) if flag == "--out"]
    outs += [word.removeprefix("--out=") for word in words if word.startswith("--out=")]
    return [_as_folder(outs[-1]), *words] if outs and not outs[-1].startswith("-") else words


def _as_folder(run: str) -> str:
    """Return the path of a run in a form that cannot be mistaken for the name of a recipe."""
    return run if "/" in run else f"./{run}"


def check_resumable(run: str) -> None:
    """Raise UserError for the path of a run to resume that is not a run folder; names and files of recipes pass."""
    run = expanduser(run)
    if "/" not in run or run.startswith("-") or run.endswith((".yaml", ".yml")) or Path(run, recipes.CONFIG).exists():
        return
    if (recipe := Path(run, SEEDS_RECIPE)).is_file():
        raise UserError(
            f"{run} holds a run for each of several seeds; name them: "
            f"`backstory train {pasted(recipe)} --seeds 1 2 --out {pasted(run)} --resume`"
        )
    if not Path(run).is_file():
        check_run_exists(Path(run), trained_here=True)
    raise UserError(f"{run} is not a run folder; train one with `backstory train RECIPE --out FOLDER`")


def run_mode(resume: bool, overwrite: bool) -> "Mode":
    """Return how the folder of a run is used. Raises UserError for both flags."""
    if resume and overwrite:
        raise UserError("--resume and --overwrite cannot be combined; remove one")
    return "resume" if resume else "overwrite" if overwrite else "new"


def parse_with_recipe(kind: type[T], arguments: Sequence[str], verb: str, more: str = "") -> tuple[str, T]:
    """Read a recipe and flags that change its settings into a verb's dataclass with `config` and `corpus`.

    `more` are further flags that the verb needs, for the message of a missing recipe. Raises UserError.
    """
    recipe, rest = split_recipe(arguments, verb)
    with errors_as_typed(rest):
        config = with_kinds(recipes.load(recipe), expanded(rest)) if recipe else RunConfig()
        try:
            args: Any = parse(kind, rest, f"{verb} RECIPE", cast(Any, kind)(config=config))
        except help_page.HelpShown:
            if not recipe:
                note = f"Each recipe sets its own values: `backstory {verb} demo --help` shows those of demo."
                print("", *help_page.paragraphs(note), sep="\n")
            raise
    if not recipe:
        raise UserError(f"name a recipe: `backstory {verb} RECIPE{more}`; `backstory ls recipes` lists them")
    original = recipes.load(recipe)
    if args.corpus or args.config.text.corpus != original.text.corpus:
        from backstory.data.encoding import with_corpus

        args = dataclasses.replace(args, config=with_corpus(args.config, args.corpus, original))
    return recipe, args


def run_training(config: RunConfig, out: Path, mode: "Mode", as_json: bool = False, **options: Any) -> None:
    """Train and print the result; `options` are those of `backstory.training.train`. Raises Stopped after a signal."""
    from backstory.training import train

    result = train(config, out, mode=mode, **options)
    if result is None:  # the first rank prints it
        return
    if as_json:
        print_json(result)
        return
    print(fitted(trained_line(out, result.figures)))


def trained_line(out: Path, figures: "TrainingFigures") -> str:
    """Return the score of a finished training in one line."""
    score = format_score(figures.valid_nats, figures.unit)
    share = figures.unknown_in("valid").unknown_among(figures.tokens.valid)
    unknown = share.phrase(f"the {plural(figures.unit)}")
    score = f"{score} ({unknown})" if unknown else score
    return f"{out}: validation {score} after epoch {figures.best_epoch} of {figures.epochs}"


def split_recipe(arguments: Sequence[str], verb: str) -> tuple[str | None, list[str]]:
    """Return the recipe, which comes first, and the arguments after it."""
    if not arguments or help_page.wanted(arguments[:1]) is not None:
        return None, list(arguments)
    if arguments[0].startswith("-"):
        raise UserError(f"the recipe comes first: `backstory {verb} RECIPE {arguments[0]} ...`")
    recipe = expanduser(arguments[0])
    check_utf8(recipe)
    check_is_recipe(recipe, verb)
    return recipe, list(arguments[1:])


def check_is_recipe(recipe: str, verb: str) -> None:
    """Raise UserError if a text or corpus takes the place of the recipe, or a packaged recipe is named as a file."""
    path = Path(recipe)
    if recipe in recipes.names():
        return
    if path.stem in recipes.names() and path.suffix in (".yaml", ".yml") and not path.exists():
        raise UserError(f"there is no file {recipe}; the packaged recipe is called {path.stem}")
    if not path.exists() and "/" not in recipe:
        from backstory.data import CORPORA

        if recipe in CORPORA:
            raise UserError(f"{recipe} is a corpus, not a recipe: `backstory {verb} demo --corpus {recipe}`")
    if path.suffix in (".yaml", ".yml") or not path.exists():
        return
    if path.is_file() or (not (path / recipes.CONFIG).exists() and any(path.glob("*.txt"))):
        raise UserError(
            f"{recipe} is a text, and the recipe comes first: `backstory {verb} own-text --corpus {pasted(recipe)}`"
        )


def with_kinds(config: RunConfig, arguments: Sequence[str]) -> RunConfig:
    """Return the settings with each `--model.PART.kind K` applied, since it changes the other flags."""
    settings: dict[str, Any] = to_dict(config)
    words = [part for a in arguments for part in (a.split("=", 1) if a.startswith("--") else [a])]
    for flag, value in pairwise(words):
        path = flag.removeprefix("--").split(".")
        if flag.startswith("--model.") and len(path) == 3 and path[2] == "kind":
            part = settings["model"].get(path[1])
            if isinstance(part, dict) and part.get("kind") != value:
                settings["model"][path[1]] = {"kind": value}
    return from_dict(RunConfig, settings, "command line")
