"""Short names of the commonest settings of a run, as `--lr` for `--training.learning-rate`; errors keep what was typed."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from backstory.config.errors import UserError

SHORT: Mapping[str, str] = {
    "--epochs": "--training.epochs",
    "--steps": "--training.steps",
    "--minutes": "--training.minutes",
    "--batch-size": "--training.batch-size",
    "--segment": "--training.segment",
    "--lr": "--training.learning-rate",
    "--optimizer": "--training.optimizer",
    "--clip": "--training.clip",
    "--weight-decay": "--training.weight-decay",
    "--precision": "--training.precision",
    "--device": "--training.device",
    "--tokenizer": "--text.tokenizer",
    "--core": "--model.core.kind",
    "--layers": "--model.core.layers",
    "--hidden": "--model.core.hidden",
    "--head": "--model.head.kind",
    "--dual": "--model.dual.kind",
    "--buffer": "--model.buffer.kind",
    "--embedding-size": "--model.embedding.size",
}
"""Short name -> flag of the setting's dotted name, for the commands with all settings of a run (`train`, `sweep run`)."""


ELSEWHERE: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("--text", "--data", "--dataset", "--file", "--input"), ("--corpus", "--text")),
    **dict.fromkeys(("--output", "--output-dir", "--save", "--save-dir", "-o", "--html"), ("--out",)),
    **dict.fromkeys(("--seq-len", "--seq-length", "--sequence-length", "--block-size", "--bptt"), ("--segment",)),
    **dict.fromkeys(("--learning-rate", "-lr"), ("--lr",)),
    **dict.fromkeys(("--vocab-size", "--vocabulary-size", "--max-vocab"), ("--text.maximum-size", "--maximum-size")),
    **dict.fromkeys(("--num-layers", "--n-layers", "--nlayers", "--n-layer"), ("--layers",)),
    **dict.fromkeys(("--hidden-size", "--nhid", "--hidden-dim", "--n-embd", "--d-model"), ("--hidden",)),
    **dict.fromkeys(("--emsize", "--emb-size", "--embedding-dim"), ("--embedding-size",)),
    **dict.fromkeys(("--wd", "--wdecay"), ("--weight-decay",)),
    **dict.fromkeys(("--max-steps", "--iterations", "--iters"), ("--steps",)),
    **dict.fromkeys(("--gpu", "--cuda", "--cpu"), ("--device",)),
    **dict.fromkeys(("--dtype", "--fp16", "--bf16", "--amp"), ("--precision",)),
    **dict.fromkeys(
        ("--n", "-n", "--length", "--max-new-tokens", "--max-tokens", "--num-tokens"), ("--tokens", "--trials")
    ),
    **dict.fromkeys(("--temp", "-t"), ("--temperature",)),
    **dict.fromkeys(("--checkpoint", "--load", "--pretrained", "--from"), ("--init-from",)),
    **dict.fromkeys(("--continue", "--resume-from"), ("--resume",)),
    **dict.fromkeys(("--force", "-f"), ("--overwrite",)),
    **dict.fromkeys(("--model", "--arch", "--architecture", "--rnn"), ("--core",)),
    **dict.fromkeys(("--num-trials", "--n-trials"), ("--trials",)),
    **dict.fromkeys(("--jobs", "--workers", "--num-workers", "-j"), ("--processes",)),
    **dict.fromkeys(("--experiments", "--ablation", "--perturbation"), ("--experiment",)),
    **dict.fromkeys(("--bs", "-b"), ("--batch-size",)),
}
"""Flags of other programs -> the flags here that do the same, for suggestions: the first one that a command has."""


def expanded(arguments: Sequence[str]) -> list[str]:
    """Return arguments with each short name replaced by the flag that it stands for."""
    return [long + value for argument in arguments for long, value in [_split(argument)]]


def typed_settings(arguments: Sequence[str]) -> dict[str, str]:
    """Return the dotted names of the settings that arguments give, each with its flag as it was typed."""
    flags = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    return {_split(flag)[0].removeprefix("--").replace("-", "_"): flag for flag in flags}


def typed_names(message: str, arguments: Sequence[str]) -> str:
    """Return a message with the settings that were given by their short names called so."""
    for argument in arguments:
        long, value = _split(argument)
        short = argument.removesuffix(value) if value else argument
        if long != short:
            setting = re.escape(long.removeprefix("--")).replace(r"\-", "[-_]")
            message = re.sub(rf"(?<![\w.-])(--)?{setting}(?![\w.-]|\.\w)", short.replace("_", "-"), message)
    return message


@contextmanager
def errors_as_typed(arguments: Sequence[str]) -> Iterator[None]:
    """Let errors of the block call settings by the names in the arguments."""
    try:
        yield
    except UserError as error:
        error.args = (typed_names(str(error), arguments),)
        raise


def _split(argument: str) -> tuple[str, str]:
    """Return the flag that an argument stands for, and the value that is attached to it (`=3`), if any."""
    name, equals, value = argument.partition("=")
    return SHORT.get(name.replace("_", "-"), name), equals + value
