"""Models with every kind of part as Hugging Face models, and runs with every tokenizer."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from subwords import byte_level

from backstory.config import (
    AuxiliarySoftmaxConfig,
    DNCConfig,
    DualConfig,
    EmbeddingConfig,
    GateConfig,
    LSTMConfig,
    MDMConfig,
    MixtureConfig,
    ModelConfig,
    MogrifierConfig,
    NTMConfig,
    RunConfig,
    SoftmaxConfig,
    SpanBufferConfig,
    TransformerConfig,
    TrellisConfig,
    to_dict,
)
from backstory.interop.modeling import BackstoryConfig, BackstoryForCausalLM
from backstory.training import train

TYPES = 13
EMBEDDING = EmbeddingConfig(7)
LSTM = LSTMConfig(layers=2, hidden=9)
MOGRIFIER = MogrifierConfig(layers=2, hidden=9, rank=3)


def buffer(**settings: Any) -> SpanBufferConfig:
    chosen: dict[str, Any] = {"size": 6, "span": 2, "gate": GateConfig(temperature=1.0)}
    return SpanBufferConfig(**chosen | settings)


KINDS: dict[str, ModelConfig] = {
    "lstm": ModelConfig(EMBEDDING, LSTM),
    "lstm, untied": ModelConfig(EMBEDDING, LSTM, SoftmaxConfig(tied=False, bias=False)),
    "lstm, mixture": ModelConfig(EMBEDDING, LSTM, MixtureConfig(experts=3)),
    "mogrifier": ModelConfig(EMBEDDING, MOGRIFIER),
    "transformer": ModelConfig(EMBEDDING, TransformerConfig(layers=2, heads=2, hidden=8, window=6)),
    "transformer, begins anew": ModelConfig(
        EMBEDDING, TransformerConfig(layers=2, heads=2, hidden=8, window=6, chunked=True, positions="sinusoidal")
    ),
    "trellis": ModelConfig(EMBEDDING, TrellisConfig(levels=5, hidden=9)),
    "dual mogrifier": ModelConfig(EMBEDDING, MOGRIFIER, dual=DualConfig()),
    "span buffer": ModelConfig(EMBEDDING, LSTM, buffer=buffer()),
    "span buffer on a grid": ModelConfig(EMBEDDING, LSTM, buffer=buffer(alignment="fixed")),
    "pointer": ModelConfig(
        EMBEDDING,
        LSTM,
        buffer=buffer(vectors="words", values="following", prediction="pointer", attention="bilinear", sentinel=True),
    ),
    "ntm": ModelConfig(EMBEDDING, NTMConfig(layers=(9, 8), slots=6, width=4, heads=2, reset_token=1)),
    "ntm, windows": ModelConfig(EMBEDDING, NTMConfig(layers=(9,), slots=9, width=4, addressing="localized:3x2")),
    "dnc": ModelConfig(EMBEDDING, DNCConfig(layers=(9,), slots=6, width=4, heads=2)),
    "mdm": ModelConfig(EMBEDDING, MDMConfig(layers=(9,), slots=6, width=4, heads=2, sharpening="epsilon")),
    "span buffer of words": ModelConfig(
        EMBEDDING, LSTM, buffer=buffer(vectors="minus-before", values="last-words", residual=True, attention="linear")
    ),
    "trellis, levels": ModelConfig(EMBEDDING, TrellisConfig(levels=5, hidden=9, auxiliary=2, weight_norm=False)),
    "second softmax": ModelConfig(EMBEDDING, LSTM, buffer=AuxiliarySoftmaxConfig()),
}


def wrapped(kind: str) -> BackstoryForCausalLM:
    """A model of that kind, with weights as large as after training, in evaluation mode."""
    torch.manual_seed(0)
    model = BackstoryForCausalLM(BackstoryConfig(vocab_size=TYPES, parts=to_dict(KINDS[kind])))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("head.bias"):  # zeros at first; without it two types may be equally likely
                parameter.normal_(std=0.1)
            parameter.mul_(1 if "norm" in name else 5)  # the gains of a norm stay near 1
    return model.eval()


def random_ids(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(TYPES, (rows, columns), generator=torch.Generator().manual_seed(seed))


def trained(config: RunConfig, folder: Path, tokenizer: str, buffer: SpanBufferConfig | None = None) -> Path:
    """The folder of a finished run of these settings with a tokenizer, `pieces` for a small byte-level one."""
    if tokenizer == "pieces":
        path = folder / "tokenizer.json"
        byte_level((Path(config.text.corpus) / "train.txt").read_text(), 280).save(str(path))
        tokenizer = str(path)
    model = config.model if buffer is None else replace(config.model, buffer=buffer)
    config = replace(config, text=replace(config.text, tokenizer=tokenizer), model=model)
    train(config, folder / "run", console=Console(file=io.StringIO()))
    return folder / "run"
