"""Lines that a training prints before its first step: the model, the machine, and notes on the text."""

from collections.abc import Iterator

from rich.console import Console

from backstory.config import TextConfig
from backstory.data import CORPORA, Dataset, unknown_share
from backstory.data.overlap import overlaps
from backstory.models import count_parameters, device_name
from backstory.runs.run_folder import Mode
from backstory.training.loop import Trainer
from backstory.utils.errors import plural
from backstory.utils.formats import quantity
from backstory.utils.scores import advice
from backstory.utils.terminal import say

MANY_WORDS = 50_000
"""Number of word types in a user's own text from which a note says that training is slow."""
FEW_TOKENS = 100_000
"""Number of tokens in a split that suffices to score a model, whatever its share of the text."""


def announce_training(console: Console, trainer: Trainer, mode: Mode, choice: str | None) -> None:
    """Print the lines; `choice` is the one on the number of threads."""
    for line in _lines(trainer, mode, choice):
        say(console, line)


def _lines(trainer: Trainer, mode: Mode, choice: str | None) -> Iterator[str]:
    """Yield the lines: of a resumed run also where it goes on."""
    dataset, ranks = trainer.dataset, trainer.ranks
    yield (
        f"{count_parameters(trainer.model):,} parameters, {len(dataset.splits['train'].ids):,} tokens of {dataset.corpus}, "
        f"{len(dataset.vocabulary):,} types; {device_name(trainer.device)}; "
        f"{trainer.precision.name}: {trainer.precision.reason}"
    )
    yield from _text_advice(dataset, trainer.config.text)
    if choice:
        yield choice
    if ranks.world > 1:
        yield f"{ranks.world} workers share the {trainer.config.training.batch_size} rows of a batch"
    if position := _position(trainer, mode):
        yield position


def _position(trainer: Trainer, mode: Mode) -> str | None:
    """Return where a resumed or finished run continues; None for a new one."""
    progress, path = trainer.progress, trainer.folder.path
    if progress.finished:
        return f"{path} is finished already, after step {progress.step:,}; there is nothing left to train"
    if progress.step:
        return f"resuming {path} after step {progress.step:,}, in epoch {progress.epoch}, segment {progress.segment}"
    return f"resuming {path} at its beginning, as it holds no whole checkpoint" if mode == "resume" else None


def _text_advice(dataset: Dataset, text: TextConfig) -> Iterator[str]:
    """Yield notes on text that was left out, and on properties that slow down training or make its scores doubtful."""
    unit = dataset.vocabulary.tokenizer.unit
    lines = [dataset.left_out, _unknown_warning(dataset, text), _size_advice(dataset), _split_advice(dataset)]
    yield from filter(None, lines)
    yield from filter(None, (overlap.warning(unit) for overlap in overlaps(dataset) or []))


def _size_advice(dataset: Dataset) -> str | None:
    """Return advice on faster training for a user's text with many word types."""
    types = len(dataset.vocabulary)
    if dataset.corpus in CORPORA or dataset.vocabulary.tokenizer.unit != "word" or types < MANY_WORDS:
        return None
    return f"{types:,} word types make training slow; --text.maximum-size 20000, or --text.tokenizer bpe:8000, makes it faster"


def _split_advice(dataset: Dataset) -> str | None:
    """Return advice on splits if validation or test is below 1% of the tokens of a user's own text."""
    tokens = {name: len(split.ids) for name, split in dataset.splits.items()}
    small = {name: n for name, n in tokens.items() if n < min(FEW_TOKENS, 0.01 * sum(tokens.values()))}
    if dataset.corpus in CORPORA or not small:
        return None
    sizes = " and ".join(f"the {name} split has {quantity(n, 'token')}" for name, n in small.items())
    return (
        f"{sizes} of {sum(tokens.values()):,}, too few to score a model; to choose the splits yourself, give a folder with the "
        "files train.txt, valid.txt and test.txt"
    )


def _unknown_warning(dataset: Dataset, text: TextConfig) -> str | None:
    """Return the warning if too many validation tokens are outside the vocabulary."""
    vocabulary = dataset.vocabulary
    share, unit = unknown_share(vocabulary, dataset.splits["valid"]), vocabulary.tokenizer.unit
    helps = advice(share.cause, unit, text.minimum_count, text.maximum_size)
    return share.warning(f"the validation {plural(unit)}", helps)
