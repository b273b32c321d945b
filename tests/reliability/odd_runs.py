"""Small trained runs of every kind of model and text, for cases with two equivalent or odd uses."""

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from runs import tiny_config, tiny_corpus, with_model, with_training

from backstory.config import (
    AlgorithmConfig,
    AuxiliarySoftmaxConfig,
    DNCConfig,
    DualConfig,
    GateConfig,
    LSTMConfig,
    MDMConfig,
    MixtureConfig,
    MogrifierConfig,
    NTMConfig,
    RecallConfig,
    RunConfig,
    SpanBufferConfig,
    TextConfig,
    TransformerConfig,
    TrellisConfig,
)
from backstory.training import train

Change = Callable[[RunConfig], RunConfig]


def plain(corpus: Path) -> RunConfig:
    """Settings of a run of a second whose predictions are sharp enough to distinguish models."""
    return with_training(
        tiny_config(corpus), epochs=3, optimizer="adam", learning_rate=0.02, averaging="none", batch_size=6
    )


def _core(kind: type, **settings: Any) -> Change:
    return lambda config: with_model(config, core=kind(**settings))


def _text(**settings: Any) -> Change:
    def changed(config: RunConfig) -> RunConfig:
        chosen: dict[str, Any] = {"corpus": config.text.corpus} | settings
        return dataclasses.replace(config, text=TextConfig(**chosen))

    return changed


def _buffer(buffer: SpanBufferConfig | AuxiliarySoftmaxConfig) -> Change:
    return lambda config: with_model(config, core=LSTMConfig(layers=1, hidden=8), buffer=buffer)


MEMORY: dict[str, Any] = {"layers": (8,), "slots": 7, "width": 4, "heads": 1}
ALGORITHM = AlgorithmConfig(bits=2, longest=3, documents=20, held_out=8)
RECALL = RecallConfig(documents=4, held_out=2, length=60, words=10, entities=5, cast=2)
KINDS: dict[str, Change] = {
    "words": lambda config: config,
    "other": lambda config: dataclasses.replace(config, seed=2),
    "regex": _text(tokenizer="regex", lowercase=True),
    "characters": _text(tokenizer="characters"),
    "bytes": _text(tokenizer="bytes"),
    "cut": _text(maximum_size=12),
    "mixture": lambda config: with_model(config, head=MixtureConfig(experts=2)),
    "dual": lambda config: with_model(config, dual=DualConfig()),
    "mogrifier": _core(MogrifierConfig, layers=1, hidden=8, rank=3),
    "ntm": _core(NTMConfig, **MEMORY),
    "dnc": _core(DNCConfig, **MEMORY),
    "mdm": _core(MDMConfig, **MEMORY),
    "transformer": _core(TransformerConfig, layers=1, heads=2, hidden=8, window=5),
    "trellis": _core(TrellisConfig, levels=4, hidden=8),
    "pointer": _buffer(SpanBufferConfig(size=20, span=1, vectors="words", values="following", prediction="pointer")),
    "spans": _buffer(SpanBufferConfig(size=6, span=2, gate=GateConfig())),
    "second": _buffer(AuxiliarySoftmaxConfig()),
    "copy": _text(corpus="copy", algorithm=ALGORITHM),
    "recall": _text(corpus="recall", recall=RECALL),
}
"""Settings of a run by its name, made of the plain ones."""


def made(folder: Path, names: list[str]) -> dict[str, Path]:
    """Train those runs that are not there yet."""
    settings, found = plain(tiny_corpus(folder / "corpus")), {}
    for name in names:
        found[name] = folder / name
        if not found[name].exists():
            train(KINDS[name](settings), found[name], console=Console(file=io.StringIO()))
    return found
